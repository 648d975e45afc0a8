//! Hosts as strangers describe them: upgrades that change a default, flags that got lost, more than one cause.

use std::fmt::Write as _;

use serde_json::Value as Json;

use crate::scenario::{Folder, Probe, Sglang, Vllm, blames, blames_nothing, brief};

/// Where a suspect stands in the ranking, and the share of the loss that it explains.
#[track_caller]
fn suspect(report: &Json, factor: &str) -> (usize, f64) {
    let suspects = report["suspects"].as_array().unwrap();
    let at = suspects.iter().position(|suspect| suspect["factor"] == factor);
    let at = at.unwrap_or_else(|| panic!("no {factor}: {:#}", brief(report)));
    (at, suspects[at]["explained"].as_f64().unwrap_or(0.0))
}

/// A new release decides against the prefix cache; nobody changed a flag.
#[test]
fn an_upgrade_switches_the_prefix_cache_off() {
    let folder = Folder::new();
    let before = Vllm { running: 4, hit_rate: 0.81, steps_per_s: 33.0, ..Vllm::new(12) };
    let after = Vllm {
        day: 25,
        resolved: vec![("enable_prefix_caching", "False")],
        warnings: vec![
            "Hybrid attention model: prefix caching is experimental here and disabled by default.",
        ],
        hit_rate: 0.0,
        kv_usage: 0.2,
        steps_per_s: 32.4,
        ..before.clone()
    };
    let probe = |day, ttft_s| Probe { concurrency: 4, ttft_s, ..Probe::new(day, 88.0) };
    folder
        .write("before/vllm.log", &before.log())
        .write("now/vllm.log", &after.log().replace("0.33.0", "0.34.1"))
        .write("before/probe.json", &probe(12, 0.25).json())
        .write("now/probe.json", &probe(25, 3.4).json())
        .write(
            "complaint.txt",
            "we only upgraded vllm, since then each turn takes seconds to start",
        );
    let report = folder.diagnose();
    blames(&report, "regression", "cache.prefix");
    assert_eq!(report["symptom_metric"], "ttft_s_p50");
    assert!(report["fix"].to_string().contains("--enable-prefix-caching"), "{}", report["fix"]);
    assert!(suspect(&report, "engine.version").0 > 0);
}

/// Somebody allowed longer contexts, and clients use them: fewer requests fit, and no flag holds them down.
#[test]
fn longer_prompts_fill_the_pool() {
    let folder = Folder::new();
    let before = Sglang {
        running: 12,
        prompt: (1_500, 0),
        steps_per_s: 31.0,
        kv_usage: 0.2,
        ..Sglang::new(12)
    };
    let after = Sglang {
        day: 25,
        args: vec![("context_length", "262144"), ("log_level", "'warning'")],
        prompt: (72_000, 0),
        running: 5,
        queue: 7,
        steps_per_s: 29.0,
        kv_usage: 0.98,
        ..before.clone()
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "workload_change", "workload.prompt_mix");
    let restored = report["fix"].to_string();
    assert!(!restored.contains("--log-level"), "a log level frees no pool: {restored}");
}

fn smi_query(sm: u32, reasons: &str, others: &str) -> String {
    let active = |name: &str| if reasons == name { "Active" } else { "Not Active" };
    format!(
        "==============NVSMI LOG==============\n\nTimestamp : Wed Nov 25 10:05:00 2026\nDriver Version : 590.48.01\nAttached GPUs : 1\n\
         GPU 00000000:41:00.0\n    Product Name : NVIDIA X\n    Clocks Event Reasons\n        Idle : Not Active\n\
         \x20       Applications Clocks Setting : {}\n        SW Power Cap : Not Active\n        HW Slowdown : {}\n\
         \x20           HW Thermal Slowdown : {}\n            HW Power Brake Slowdown : {}\n        SW Thermal Slowdown : Not Active\n\
         \x20   Utilization\n        GPU : 97 %\n        Memory : 88 %\n    Temperature\n        GPU Current Temp : 66 C\n\
         \x20   Clocks\n        Graphics : {sm} MHz\n        SM : {sm} MHz\n        Memory : 10251 MHz\n    Max Clocks\n        Graphics : 2640 MHz\n        SM : 2640 MHz\n        Memory : 10251 MHz\n\
         \x20   Processes\n{others}",
        active("clocks"),
        active("brake"),
        active("thermal"),
        active("brake"),
    )
}

fn smi_process(pid: u32, name: &str, mib: u32) -> String {
    format!(
        "        GPU instance ID : N/A\n        Process ID : {pid}\n            Type : C\n            Name : {name}\n            Used GPU Memory : {mib} MiB\n"
    )
}

/// A power supply pulls the brake; the flags that were changed on the same day have nothing to do with it.
#[test]
fn a_power_brake_among_new_flags() {
    let folder = Folder::new();
    let own = smi_process(812, "VLLM::EngineCore", 88_000);
    let after = Vllm {
        args: vec![("uvicorn_log_level", "'warning'"), ("port", "8001")],
        steps_per_s: 23.0,
        ..Vllm::new(25)
    };
    folder
        .write("before/vllm.log", &Vllm::new(12).log())
        .write("now/vllm.log", &after.log())
        .write("before/nvidia-smi.txt", &smi_query(2610, "", &own))
        .write("now/nvidia-smi.txt", &smi_query(1245, "brake", &own));
    let report = folder.diagnose();
    blames(&report, "regression", "gpu.throttle");
    assert!(report["fix"]["set"].as_object().is_none_or(|set| set.is_empty()), "{}", report["fix"]);
}

/// The clocks are as they were, and a training job shares the device.
#[test]
fn a_training_job_next_to_vllm() {
    let folder = Folder::new();
    let own = smi_process(812, "VLLM::EngineCore", 70_000);
    let shared = own.clone() + &smi_process(4711, "python finetune.py --lr 1e-4", 21_000);
    let after = Vllm { steps_per_s: 21.5, ..Vllm::new(25) };
    folder
        .write("before/vllm.log", &Vllm::new(12).log())
        .write("now/vllm.log", &after.log())
        .write("before/nvidia-smi.txt", &smi_query(2610, "", &own))
        .write("now/nvidia-smi.txt", &smi_query(2600, "", &shared));
    let report = folder.diagnose();
    blames(&report, "regression", "gpu.other_process");
    let now = report["primary"]["now"].as_str().unwrap();
    assert!(now.contains("finetune"), "{now}");
}

/// llama.cpp: `layers` of 65 on the device.
fn llama_log(layers: u32, tok_s: f64) -> String {
    let mut out = format!(
        "build: 7312 (0a1b2c3) with cc for x86_64-linux-gnu\n\
         llama_model_loader: loaded meta data with 43 key-value pairs\n\
         load_tensors: offloading {layers} repeating layers to GPU\n\
         load_tensors: offloaded {layers}/65 layers to GPU\n\
         load_tensors:   CPU_Mapped model buffer size = {:8.2} MiB\n\
         load_tensors:        CUDA0 model buffer size = {:8.2} MiB\n\
         llama_context: n_ctx         = 32768\n\
         main: server is listening on http://127.0.0.1:8080 - starting the main loop\n",
        682.0 + 240.0 * f64::from(65 - layers),
        240.0 * f64::from(layers),
    );
    for i in 0..9 {
        let (tokens, prompt) = (260 + 30 * i, 610);
        let ms = f64::from(tokens) * 1000.0 / (tok_s * (1.0 + 0.01 * f64::from(i % 3)));
        let _ = write!(
            out,
            "slot print_timing: id  0 | task {} | \n\
             prompt eval time =     350.00 ms /   {prompt} tokens (    0.57 ms per token,  1742.86 tokens per second)\n\
             \x20      eval time = {ms:10.2} ms /   {tokens} tokens ({:8.2} ms per token, {:8.2} tokens per second)\n\
             \x20     total time = {:10.2} ms /   {} tokens\n\
             slot      release: id  0 | task {} | stop processing: n_tokens = {}, truncated = 0\n",
            i * 40,
            ms / f64::from(tokens),
            f64::from(tokens) * 1000.0 / ms,
            ms + 350.0,
            prompt + tokens,
            i * 40,
            prompt + tokens
        );
    }
    out
}

/// The layers were asked for by a variable in a file that the new unit no longer names.
#[test]
fn layers_that_a_lost_variable_put_on_the_device() {
    let folder = Folder::new();
    let unit = |more: &str| {
        format!(
            "[Service]\n{more}Environment=LLAMA_ARG_PORT=8081\nExecStart=/opt/llama/llama-server -m /srv/gguf/q27-Q5_K_M.gguf -c 32768 --api-key plain-word-31\n"
        )
    };
    folder
        .write("before/llama-server.log", &llama_log(65, 41.0))
        .write("now/llama-server.log", &llama_log(0, 3.6))
        .write("etc/default/llama", "LLAMA_ARG_N_GPU_LAYERS=99\nHF_TOKEN=plain-word-32\n")
        .write("etc/systemd/system/llama.service", &unit(""))
        .write(
            "etc/systemd/system/llama.service.orig",
            &unit("EnvironmentFile=/etc/default/llama\n"),
        );
    let report = folder.diagnose();
    blames(&report, "regression", "exec.offload_layers");
    assert!(report["fix"]["set"].to_string().contains("99"), "{}", report["fix"]);
    let text = report.to_string();
    assert!(
        !text.contains("plain-word-31") && !text.contains("plain-word-32"),
        "a secret is shown"
    );
}

/// The KV cache was kept in 8 bits; without that half as many requests run.
#[test]
fn a_wider_kv_cache_on_sglang() {
    let folder = Folder::new();
    let before = Sglang {
        args: vec![("kv_cache_dtype", "'fp8_e5m2'"), ("max_running_requests", "48")],
        kv_tokens: 920_000,
        limit: 48,
        slots: 240,
        running: 40,
        kv_usage: 0.93,
        steps_per_s: 19.0,
        ..Sglang::new(12)
    };
    let after = Sglang {
        day: 25,
        args: vec![
            ("kv_cache_dtype", "'auto'"),
            ("max_running_requests", "48"),
            ("api_key", "'other-key-1'"),
        ],
        kv_tokens: 460_000,
        running: 20,
        queue: 21,
        kv_usage: 0.99,
        steps_per_s: 24.0,
        ..before.clone()
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "mem.kv_dtype");
    assert_eq!(report["fix"]["set"]["--kv-cache-dtype"], "fp8_e5m2");
}

/// An override file replaces the command of the compose file, and with it the drafts.
#[test]
fn a_compose_override_without_drafts() {
    let folder = Folder::new();
    let compose = "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    environment:\n      - HF_TOKEN=plain-word-41\n    ports: [\"8000:8000\"]\n    command: >\n      --model /models/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 32\n      --speculative-config '{\"method\": \"mtp\", \"num_speculative_tokens\": 3}'\n";
    let over = "# debugging, remove me\nservices:\n  llm:\n    command: [\"--model\", \"/models/Qwen3.6-27B-FP8\", \"--max-model-len\", \"65536\", \"--max-num-seqs\", \"32\", \"--uvicorn-log-level\", \"debug\"]\n";
    let after = Vllm {
        depth: 0,
        steps_per_s: 52.0,
        args: vec![("uvicorn_log_level", "'debug'")],
        ..Vllm::new(25)
    };
    folder
        .write("before/vllm.log", &Vllm::new(12).log())
        .write("now/vllm.log", &after.log())
        .write("srv/llm/docker-compose.yml", compose)
        .write("srv/llm/docker-compose.override.yml", over);
    let report = folder.diagnose();
    blames(&report, "regression", "spec.method");
    assert!(report["fix"]["set"].to_string().contains("mtp"), "{}", report["fix"]);
    assert!(!report.to_string().contains("plain-word-41"), "a secret is shown");
}

/// The same without any log of before: the compose file under the override is what ran.
#[test]
fn a_compose_override_and_a_complaint() {
    let folder = Folder::new();
    let compose = "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    command: --model /models/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 32 --speculative-config '{\"method\": \"mtp\", \"num_speculative_tokens\": 3}'\n";
    let over = "services:\n  llm:\n    command: --model /models/Qwen3.6-27B-FP8 --max-model-len 65536 --max-num-seqs 32\n";
    let after = Vllm { depth: 0, steps_per_s: 40.0, ..Vllm::new(25) };
    folder
        .write("now/vllm.log", &after.log())
        .write("srv/llm/docker-compose.yml", compose)
        .write("srv/llm/docker-compose.override.yml", over)
        .write("complaint.txt", "Answers used to come at about 100 tok/s, since Monday at 40.");
    blames(&folder.diagnose(), "regression", "spec.method");
}

/// Two engines call two quantities an acceptance rate; the speeds are the same.
#[test]
fn another_engine_with_another_acceptance_rate() {
    let folder = Folder::new();
    let before = Sglang { bonus_in_rate: true, ..Sglang::new(12) };
    let after = Vllm { accept_len: 2.7, steps_per_s: 38.6, ..Vllm::new(25) };
    folder.write("before/server.log", &before.log()).write("now/vllm.log", &after.log()).write(
        "complaint.txt",
        "we moved from sglang to vllm and the acceptance rate fell from 68 % to 57 %",
    );
    let report = folder.diagnose();
    blames_nothing(&report);
    assert!(report["notices"].to_string().contains("not comparable"), "{}", report["notices"]);
}

/// Short answers with pauses between them: almost every line of the log speaks of a window that was half idle.
#[test]
fn windows_that_lie() {
    let folder = Folder::new();
    let log = |day: u32, pause: f64, answers: usize| {
        let whole = Sglang { windows: 0, ..Sglang::new(day) }.log();
        let mut out = whole;
        let mut t = 36_300.0;
        let stamp = |t: f64| {
            let s = t as u64;
            format!("2026-11-{day:02} {:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
        };
        for i in 0..answers {
            t += pause;
            let _ = writeln!(
                out,
                "[{}] Prefill batch, #new-seq: 1, #new-token: 900, #cached-token: 0, full token usage: 0.02, mamba usage: 0.10, #running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 40.10",
                stamp(t)
            );
            for k in 0..4 {
                t += 40.0 / 38.7;
                let len = 2.7 + 0.05 * f64::from(i as i32 % 3 - 1);
                let speed = len * 38.7 * if k == 0 { 1.0 / (1.0 + pause) } else { 1.0 };
                let _ = writeln!(
                    out,
                    "[{}] Decode batch, #running-req: 1, #full token: 1100, full token usage: 0.02, mamba num: 8, mamba usage: 0.04, accept len: {len:.2}, accept rate: {:.2}, cuda graph: True, gen throughput (token/s): {speed:.2}, #queue-req: 0",
                    stamp(t),
                    (len - 1.0) / 3.0
                );
            }
        }
        out
    };
    folder
        .write("before/server.log", &log(12, 0.2, 14))
        .write("now/server.log", &log(25, 20.0, 14))
        .write(
            "complaint.txt",
            "the gen throughput in the log is often 5 now, it never was before",
        );
    blames_nothing(&folder.diagnose());
}

/// Half of the loss are shallower drafts, the other half are weights of twice the bytes.
#[test]
fn two_causes_at_once() {
    let folder = Folder::new();
    let after = Sglang {
        args: vec![
            ("model_path", "'/models/Qwen3.6-27B'"),
            ("quantization", "None"),
            ("speculative_num_steps", "1"),
            ("speculative_num_draft_tokens", "2"),
        ],
        weights_gib: 51.71,
        draft_tokens: 2,
        accept_len: 1.72,
        steps_per_s: 24.5,
        slots: 65,
        kv_tokens: 230_000,
        ..Sglang::new(25)
    };
    folder.write("before/server.log", &Sglang::new(12).log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    assert_eq!(
        (&report["verdict"], report["exit_code"].as_u64()),
        (&"regression".into(), Some(10))
    );
    for factor in ["spec.num_steps", "model.weights_quant"] {
        let (rank, share) = suspect(&report, factor);
        assert!(rank < 2 && (0.3..0.75).contains(&share), "{factor}: {:#}", brief(&report));
    }
}

/// A release with other kernels for attention; the log says which.
#[test]
fn an_upgrade_with_other_attention_kernels() {
    let folder = Folder::new();
    let before = Sglang { args: vec![("attention_backend", "'fa3'")], ..Sglang::new(12) };
    let after = Sglang {
        args: vec![("attention_backend", "'torch_native'"), ("port", "30001")],
        steps_per_s: 22.0,
        ..Sglang::new(25)
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "exec.attention");
    assert_eq!(report["fix"]["set"]["--attention-backend"], "fa3");
}
