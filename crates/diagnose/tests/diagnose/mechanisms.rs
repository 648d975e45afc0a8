//! One scenario per mechanism that the shipped cases do not have, and the shipped mechanisms on other engines.

use crate::scenario::{Folder, Probe, Sglang, Vllm, blames, blames_nothing, now};

#[test]
fn a_lower_static_fraction_shrinks_both_pools() {
    let folder = Folder::new();
    let before = Sglang { running: 12, steps_per_s: 32.0, ..Sglang::new(19) };
    let after = Sglang {
        args: vec![("mem_fraction_static", "0.55"), ("context_length", "65536")],
        slots: 22,
        kv_tokens: 106_000,
        limit: 4,
        capped: true,
        running: 4,
        queue: 8,
        steps_per_s: 37.0,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "mem.static_fraction");
    assert_eq!((now(&report, "effective_max_running"), now(&report, "queue_observed")), (4.0, 8.0));
    assert_eq!(report["fix"]["set"]["--mem-fraction-static"], "0.88");
}

#[test]
fn steps_without_graphs() {
    let folder = Folder::new();
    folder.write("before/server.log", &Sglang::new(19).log());
    let eager = Sglang {
        args: vec![("disable_cuda_graph", "True"), ("mem_fraction_static", "0.9")],
        graph: false,
        steps_per_s: 21.0,
        ..Sglang::new(26)
    };
    folder.write("now/server.log", &eager.log());
    let report = folder.diagnose();
    blames(&report, "regression", "exec.cuda_graph");
    assert_eq!(report["primary"]["now"], "off");
    assert!(
        report["fix"]["unset"].as_array().unwrap().iter().any(|f| f == "--disable-cuda-graph"),
        "{:#}",
        report["fix"]
    );

    let folder = Folder::new();
    let eager = Vllm {
        args: vec![("enforce_eager", "True")],
        resolved: vec![("enforce_eager", "True")],
        warnings: vec![
            "Enforce eager set, overriding optimization level to -O0",
            "Cudagraph is disabled under eager mode",
        ],
        steps_per_s: 18.0,
        ..Vllm::new(26)
    };
    folder.write("before/vllm.log", &Vllm::new(19).log()).write("now/vllm.log", &eager.log());
    folder
        .write("before/probe.json", &Probe::new(19, 108.0).json())
        .write("now/probe.json", &Probe::new(26, 48.6).json());
    blames(&folder.diagnose(), "regression", "exec.cuda_graph");
}

#[test]
fn a_batch_beyond_the_largest_graph() {
    let folder = Folder::new();
    let before = Sglang { running: 12, steps_per_s: 32.0, ..Sglang::new(19) };
    let after = Sglang {
        args: vec![("cuda_graph_max_bs_decode", "4")],
        running: 12,
        steps_per_s: 17.0,
        graph: false,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    blames(&folder.diagnose(), "regression", "exec.graph_max_bs");
}

#[test]
fn a_large_prefill_chunk_stops_the_streams() {
    let folder = Folder::new();
    let before = Sglang {
        running: 4,
        steps_per_s: 35.0,
        prompt: (30_000, 0),
        args: vec![("chunked_prefill_size", "2048")],
        ..Sglang::new(19)
    };
    let after = Sglang {
        args: vec![("chunked_prefill_size", "32768")],
        ..Sglang { day: 26, ..before.clone() }
    };
    let probe = |day, gap| Probe { concurrency: 4, max_gap_s: gap, ..Probe::new(day, 70.0) };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    folder
        .write("before/probe.json", &probe(19, 0.45).json())
        .write("now/probe.json", &probe(26, 6.3).json());
    let report = folder.diagnose();
    blames(&report, "regression", "sched.prefill_chunk");
    assert_eq!(report["symptom_metric"], "longest_pause_s_p90");
    assert_eq!(
        (&report["primary"]["before"], &report["primary"]["now"]),
        (&2048.into(), &32_768.into())
    );
}

#[test]
fn a_heavier_checkpoint() {
    let folder = Folder::new();
    let heavy = Sglang {
        args: vec![("model_path", "'/models/Qwen3.6-27B'"), ("quantization", "None")],
        weights_gib: 51.71,
        steps_per_s: 24.1,
        kv_tokens: 230_000,
        slots: 65,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &Sglang::new(19).log()).write("now/server.log", &heavy.log());
    let report = folder.diagnose();
    blames(&report, "regression", "model.weights_quant");
    assert!((now(&report, "weights_gib") - 51.71).abs() < 1e-6);
}

#[test]
fn a_lost_device() {
    let folder = Folder::new();
    let two = Sglang {
        args: vec![
            ("tp_size", "2"),
            ("quantization", "None"),
            ("model_path", "'/models/Qwen3.6-27B'"),
        ],
        weights_gib: 25.9,
        ..Sglang::new(19)
    };
    let one = Sglang {
        args: vec![
            ("tp_size", "1"),
            ("quantization", "None"),
            ("model_path", "'/models/Qwen3.6-27B'"),
        ],
        weights_gib: 51.7,
        steps_per_s: 24.3,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &two.log()).write("now/server.log", &one.log());
    folder.write("now/nvidia-smi.csv", "index, name, memory.total [MiB], memory.used [MiB], utilization.gpu [%], clocks.sm [MHz]\n0, NVIDIA X, 98304 MiB, 91000 MiB, 98 %, 2400 MHz\n1, NVIDIA X, 98304 MiB, 4 MiB, 0 %, 210 MHz\n");
    let report = folder.diagnose();
    blames(&report, "regression", "par.tp");
    assert_eq!((&report["primary"]["before"], &report["primary"]["now"]), (&2.into(), &1.into()));
}

#[test]
fn warmer_requests_accept_fewer_drafts() {
    let folder = Folder::new();
    let line = |t: f64| {
        format!(
            "Receive: obj=GenerateReqInput(rid='a', text='temperature: 9', sampling_params={{'temperature': {t}, 'max_new_tokens': 700}}, stream=True)"
        )
    };
    let cold =
        Sglang { noise: vec![line(0.0)], args: vec![("log_requests", "True")], ..Sglang::new(19) };
    let warm = Sglang {
        noise: vec![line(1.0)],
        args: vec![("log_requests", "True")],
        accept_len: 1.95,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &cold.log()).write("now/server.log", &warm.log());
    let report = folder.diagnose();
    blames(&report, "workload_change", "workload.temperature");
    assert_eq!(now(&report, "temperature"), 1.0);
}

#[test]
fn logging_at_every_step() {
    let folder = Folder::new();
    let quiet = Sglang { steps_per_s: 130.0, ..Sglang::new(19) };
    let loud = Sglang {
        args: vec![
            ("log_level", "'debug'"),
            ("decode_log_interval", "1"),
            ("context_length", "262144"),
        ],
        steps_per_s: 92.0,
        windows: 400,
        noise: vec!["DEBUG scheduler: step".to_owned(); 3],
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &quiet.log()).write("now/server.log", &loud.log());
    let report = folder.diagnose();
    blames(&report, "regression", "obs.logging");
}

#[test]
fn a_prefix_cache_that_no_longer_hits() {
    let folder = Folder::new();
    let before = Vllm { running: 6, hit_rate: 0.86, steps_per_s: 30.0, ..Vllm::new(19) };
    let after = Vllm {
        running: 7,
        waiting: 2,
        hit_rate: 0.11,
        steps_per_s: 28.0,
        kv_usage: 0.6,
        ..Vllm::new(26)
    };
    folder.write("before/vllm.log", &before.log()).write("now/vllm.log", &after.log());
    folder.write(
        "before/probe.json",
        &Probe { concurrency: 6, ttft_s: 0.3, ..Probe::new(19, 80.0) }.json(),
    );
    folder.write(
        "now/probe.json",
        &Probe { concurrency: 6, ttft_s: 4.1, ..Probe::new(26, 62.0) }.json(),
    );
    let report = folder.diagnose();
    blames(&report, "workload_change", "workload.prefix_reuse");

    // The same with a pool that was made smaller: then the setting is to blame.
    let smaller =
        Vllm { args: vec![("kv_cache_memory_bytes", "8000000000")], kv_tokens: "120,000", ..after };
    folder.write("now/vllm.log", &smaller.log());
    blames(&folder.diagnose(), "regression", "mem.kv_tokens");
}

#[test]
fn somebody_else_on_the_device() {
    let folder = Folder::new();
    let shared = Sglang { slow_mode: Some(17.0), ..Sglang::new(26) };
    folder
        .write("before/server.log", &Sglang::new(19).log())
        .write("now/server.log", &shared.log());
    folder.write("now/nvidia-smi.csv", "pid, process_name, used_gpu_memory [MiB]\n4121, /srv/sglang/bin/python sglang::scheduler, 84000 MiB\n31337, python train_lora.py, 11000 MiB\n");
    let report = folder.diagnose();
    blames(&report, "regression", "gpu.other_process");
    assert!(report["primary"]["now"].as_str().unwrap().contains("train_lora"));
    assert!((now(&report, "step_ms_slow_mode") - 1000.0 / 17.0).abs() < 0.5);
}

#[test]
fn all_streams_are_not_one_stream() {
    let folder = Folder::new();
    let many = Sglang { running: 12, steps_per_s: 30.0, ..Sglang::new(19) };
    folder.write("before/server.log", &many.log()).write("now/server.log", &Sglang::new(26).log());
    folder.write("complaint.txt", "The dashboard said 970 tok/s, now I measure 104.");
    let report = folder.diagnose();
    blames_nothing(&report);
    assert_eq!(report["mechanism"], "aggregate_is_not_a_stream");
}

#[test]
fn shallower_drafts_on_vllm() {
    let folder = Folder::new();
    let shallow = Vllm { depth: 1, accept_len: 1.78, steps_per_s: 43.0, ..Vllm::new(26) };
    folder.write("before/vllm.log", &Vllm::new(19).log()).write("now/vllm.log", &shallow.log());
    let report = folder.diagnose();
    blames(&report, "regression", "spec.num_steps");
    assert_eq!((&report["primary"]["before"], &report["primary"]["now"]), (&3.into(), &1.into()));
}

#[test]
fn speculation_switched_off() {
    let folder = Folder::new();
    let plain = Sglang {
        args: vec![
            ("speculative_algorithm", "None"),
            ("speculative_num_steps", "None"),
            ("speculative_eagle_topk", "None"),
            ("speculative_num_draft_tokens", "None"),
        ],
        draft_tokens: 1,
        steps_per_s: 45.0,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &Sglang::new(19).log()).write("now/server.log", &plain.log());
    let report = folder.diagnose();
    blames(&report, "regression", "spec.method");
}

#[test]
fn one_request_at_a_time_on_vllm() {
    let folder = Folder::new();
    let before = Vllm { running: 6, steps_per_s: 33.0, ..Vllm::new(19) };
    let after = Vllm {
        args: vec![("max_num_seqs", "1")],
        running: 1,
        waiting: 5,
        steps_per_s: 39.0,
        ..Vllm::new(26)
    };
    folder.write("before/vllm.log", &before.log()).write("now/vllm.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "sched.max_running");
    assert_eq!(report["fix"]["set"]["--max-num-seqs"], "32");
}

#[test]
fn a_prefix_cache_switched_off_on_vllm() {
    let folder = Folder::new();
    let before = Vllm { running: 4, hit_rate: 0.9, ..Vllm::new(19) };
    let after = Vllm {
        running: 4,
        hit_rate: 0.0,
        args: vec![("enable_prefix_caching", "False")],
        resolved: vec![("enable_prefix_caching", "False")],
        ..Vllm::new(26)
    };
    folder.write("before/vllm.log", &before.log()).write("now/vllm.log", &after.log());
    folder.write("before/probe.json", &Probe { concurrency: 4, ..Probe::new(19, 100.0) }.json());
    folder.write(
        "now/probe.json",
        &Probe { concurrency: 4, ttft_s: 5.0, ..Probe::new(26, 60.0) }.json(),
    );
    blames(&folder.diagnose(), "regression", "cache.prefix");
}

#[test]
fn a_slot_count_that_is_too_small() {
    let folder = Folder::new();
    let before = Sglang { running: 12, steps_per_s: 32.0, ..Sglang::new(19) };
    let after = Sglang {
        args: vec![("max_mamba_cache_size", "20")],
        slots: 20,
        kv_tokens: 730_000,
        limit: 4,
        capped: true,
        running: 4,
        queue: 8,
        steps_per_s: 37.0,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    blames(&folder.diagnose(), "regression", "mem.state_slots");
}

#[test]
fn another_version_is_blamed_only_when_nothing_else_is() {
    let folder = Folder::new();
    folder.write("before/vllm.log", &Vllm::new(19).log());
    let newer = Vllm { steps_per_s: 31.0, ..Vllm::new(26) }.log().replace("0.33.0", "0.34.0");
    folder.write("now/vllm.log", &newer);
    blames(&folder.diagnose(), "regression", "engine.version");
    let shallow = Vllm { depth: 1, accept_len: 1.78, steps_per_s: 43.0, ..Vllm::new(26) }
        .log()
        .replace("0.33.0", "0.34.0");
    folder.write("now/vllm.log", &shallow);
    blames(&folder.diagnose(), "regression", "spec.num_steps");
}

#[test]
fn a_loss_that_nothing_explains_is_called_that() {
    let folder = Folder::new();
    folder
        .write("before/server.log", &Sglang::new(19).log())
        .write("now/server.log", &Sglang { steps_per_s: 28.0, ..Sglang::new(26) }.log());
    let report = folder.diagnose();
    assert_eq!(
        (report["verdict"].as_str(), report["exit_code"].as_u64()),
        (Some("regression"), Some(11))
    );
    assert!(report["primary"].is_null() && report["next_step"].is_string());
}

#[test]
fn the_same_numbers_are_no_regression() {
    let folder = Folder::new();
    let other = Sglang {
        args: vec![("context_length", "65536"), ("mem_fraction_static", "0.85")],
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &Sglang::new(19).log()).write("now/server.log", &other.log());
    blames_nothing(&folder.diagnose());
}

#[test]
fn no_evidence_is_inconclusive() {
    let folder = Folder::new();
    folder.write("complaint.txt", "We were at 70, now it is 40");
    let report = folder.diagnose();
    assert_eq!(
        (report["verdict"].as_str(), report["exit_code"].as_u64()),
        (Some("inconclusive"), Some(12))
    );
    folder.write("now/server.log", &Sglang::new(26).log());
    assert_eq!(folder.diagnose()["verdict"], "inconclusive");
}

#[test]
fn logging_by_a_variable_of_the_unit() {
    let folder = Folder::new();
    let unit = |environment: &str| {
        format!(
            "[Service]\n{environment}ExecStart=/usr/bin/vllm serve /models/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 32 --gpu-memory-utilization 0.9 --speculative-config '{{\"method\":\"mtp\",\"num_speculative_tokens\":3}}'\n"
        )
    };
    folder
        .write("etc/systemd/system/vllm.service", &unit("Environment=VLLM_LOGGING_LEVEL=DEBUG\n"))
        .write("etc/systemd/system/vllm.service.bak", &unit(""))
        .write("before/vllm.log", &Vllm::new(19).log())
        .write("now/vllm.log", &Vllm { steps_per_s: 30.0, ..Vllm::new(26) }.log());
    let report = folder.diagnose();
    blames(&report, "regression", "obs.logging");
    assert_eq!(report["primary"]["now"], "obs.log_level debug");
}

#[test]
fn the_depth_from_probes_alone() {
    let folder = Folder::new();
    let unit = |steps: u32| {
        format!(
            "[Service]\nExecStart=/usr/bin/python -m sglang.launch_server --model-path m --speculative-algorithm NEXTN --speculative-num-steps {steps} --speculative-eagle-topk 1\n"
        )
    };
    folder
        .write("etc/systemd/system/sglang.service", &unit(1))
        .write("etc/systemd/system/sglang.service.orig", &unit(3))
        .write("baseline/probe.json", &Probe::new(19, 105.0).json())
        .write("now/probe.json", &Probe { tokens_per_chunk: 1.75, ..Probe::new(26, 72.0) }.json());
    let report = folder.diagnose();
    blames(&report, "regression", "spec.num_steps");
    assert!((now(&report, "accept_len") - 1.75).abs() < 0.03);
}
