//! One true cause among changes that look as if they mattered: a port, a log level, a key, a context length.

use serde_json::Value as Json;

use crate::scenario::{Folder, Sglang, Vllm, blames, blames_nothing};

/// Settings that differ on every host and slow nothing.
const SGLANG_DECOYS: [(&str, &str); 4] = [
    ("port", "30001"),
    ("log_level", "'warning'"),
    ("api_key", "'other-key-1'"),
    ("context_length", "65536"),
];

fn sglang_with(args: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [args, &SGLANG_DECOYS].concat()
}

/// The one suspect that acts is the first.
#[track_caller]
fn alone(report: &Json, factor: &str) {
    for decoy in ["net.port", "obs.logging", "obs.log_level", "model.max_context"] {
        let named = |json: &Json| json["factor"] == decoy && json["score"].as_f64() > Some(0.25);
        let suspects = report["suspects"].as_array().unwrap();
        assert!(factor == decoy || !suspects.iter().any(named), "{decoy}: {suspects:#?}");
    }
    assert!(!report.to_string().contains("other-key"), "a key is shown");
}

#[test]
fn fewer_drafts_on_vllm_among_decoys() {
    let folder = Folder::new();
    let after = Vllm {
        depth: 2,
        accept_len: 2.2,
        steps_per_s: 41.5,
        args: vec![
            ("port", "8001"),
            ("uvicorn_log_level", "'warning'"),
            ("api_key", "['other-key-1']"),
        ],
        ..Vllm::new(26)
    };
    let before = Vllm { depth: 5, accept_len: 3.4, ..Vllm::new(19) };
    folder.write("before/vllm.log", &before.log()).write("now/vllm.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "spec.num_steps");
    let primary = &report["primary"];
    assert_eq!((&primary["before"], &primary["now"]), (&5.into(), &2.into()));
    // A key of a JSON flag has underscores, whatever the flag itself has.
    let set = &report["fix"]["set"];
    assert_eq!(set["--speculative-config.num_speculative_tokens"], "5", "{set}");
    alone(&report, "spec.num_steps");
}

/// A llama.cpp server: what it prints of eight requests.
fn llama_log(draft: u64, mean_len: f64, tok_s: f64) -> String {
    let mut out = String::from(
        "0.02.924.779 I load_tensors: offloaded 66/66 layers to GPU\n\
         0.03.724.788 I llama_context: n_ctx         = 32768\n\
         0.04.881.972 I srv  llama_server: model loaded\n",
    );
    for i in 0..8u64 {
        let (tokens, at) = (300 + 20 * i, 10 + 20 * i);
        let stamp = |ms: u64| format!("{}.{:02}.{ms:03}.100 I", at / 60, at % 60);
        let ms = tokens as f64 * 1000.0 / tok_s;
        let steps = (tokens as f64 / mean_len).round();
        let (made, accepted) = (steps * draft as f64, tokens as f64 - steps);
        out += &format!(
            "{} slot print_timing: id  0 | task {i} | prompt eval time =     400.00 ms /   720 tokens (    0.55 ms per token,  1800.00 tokens per second)\n\
             {} slot print_timing: id  0 | task {i} |        eval time = {ms:.2} ms / {tokens} tokens ({:.2} ms per token, {tok_s:.2} tokens per second)\n",
            stamp(1),
            stamp(2),
            1000.0 / tok_s
        );
        if draft > 0 {
            out += &format!(
                "{} slot print_timing: id  0 | task {i} | draft acceptance = {:.5} ({accepted:.0} accepted / {made:.0} generated), mean len = {mean_len:.2}\n",
                stamp(3),
                accepted / made
            );
        }
        out += &format!(
            "{} slot      release: id  0 | task {i} | stop processing: n_tokens = {}, truncated = 0\n",
            stamp(4),
            720 + tokens
        );
    }
    out
}

fn llama_unit(flags: &str) -> String {
    format!("[Service]\nExecStart=/usr/bin/llama-server -m /srv/gguf/q.gguf -c 32768 {flags}\n")
}

#[test]
fn shorter_drafts_on_llama_cpp() {
    let folder = Folder::new();
    folder
        .write("before/llama-server.log", &llama_log(6, 3.9, 58.0))
        .write("now/llama-server.log", &llama_log(2, 2.3, 38.0))
        .write(
            "etc/systemd/system/llama.service",
            &llama_unit(
                "-ngl 99 --spec-type draft-mtp --draft-max 2 --port 8081 --api-key other-key-1",
            ),
        )
        .write(
            "etc/systemd/system/llama.service.bak",
            &llama_unit("-ngl 99 --spec-type draft-mtp --draft-max 6 --port 8080"),
        );
    let report = folder.diagnose();
    blames(&report, "regression", "spec.num_steps");
    assert_eq!((&report["primary"]["before"], &report["primary"]["now"]), (&6.into(), &2.into()));
    alone(&report, "spec.num_steps");
}

#[test]
fn shorter_drafts_where_only_the_log_tells_that_it_drafts() {
    let folder = Folder::new();
    folder
        .write("before/llama-server.log", &llama_log(6, 3.9, 58.0))
        .write("now/llama-server.log", &llama_log(2, 2.3, 38.0))
        .write("etc/systemd/system/llama.service", &llama_unit("-ngl 99 --draft-max 2"))
        .write("etc/systemd/system/llama.service.bak", &llama_unit("-ngl 99 --draft-max 6"));
    let report = folder.diagnose();
    blames(&report, "regression", "spec.num_steps");
    assert_eq!((&report["primary"]["before"], &report["primary"]["now"]), (&6.into(), &2.into()));
    let fix = report["fix"].to_string();
    assert!(!fix.contains("drafting"), "a method that is not known is no flag: {fix}");
}

#[test]
fn fewer_threads_on_llama_cpp() {
    let folder = Folder::new();
    folder
        .write("before/llama-server.log", &llama_log(0, 1.0, 14.0))
        .write("now/llama-server.log", &llama_log(0, 1.0, 5.1))
        .write(
            "etc/systemd/system/llama.service",
            &llama_unit("--threads 4 --port 8081 --log-verbosity 1"),
        )
        .write("etc/systemd/system/llama.service.bak", &llama_unit("--threads 16 --port 8080"));
    let report = folder.diagnose();
    blames(&report, "regression", "exec.threads");
    assert_eq!(report["fix"]["set"].to_string().matches("16").count(), 1, "{}", report["fix"]);
    alone(&report, "exec.threads");
}

#[test]
fn no_graphs_among_decoys() {
    let folder = Folder::new();
    let eager = Sglang {
        args: sglang_with(&[("disable_cuda_graph", "True")]),
        graph: false,
        steps_per_s: 24.0,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &Sglang::new(19).log()).write("now/server.log", &eager.log());
    let report = folder.diagnose();
    blames(&report, "regression", "exec.cuda_graph");
    alone(&report, "exec.cuda_graph");
}

#[test]
fn sixteen_clients_and_less_memory() {
    let folder = Folder::new();
    let before = Sglang { running: 16, steps_per_s: 28.0, kv_usage: 0.2, ..Sglang::new(19) };
    let after = Sglang {
        args: sglang_with(&[("mem_fraction_static", "0.62")]),
        slots: 27,
        kv_tokens: 131_000,
        limit: 5,
        capped: true,
        running: 5,
        queue: 11,
        steps_per_s: 36.0,
        ..Sglang::new(26)
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "mem.static_fraction");
    assert_eq!(report["fix"]["set"]["--mem-fraction-static"], "0.88");
    alone(&report, "mem.static_fraction");
}

#[test]
fn a_kv_cache_of_twice_the_bytes() {
    let folder = Folder::new();
    let before = Vllm {
        args: vec![("kv_cache_dtype", "'fp8'")],
        kv_tokens: "403,200",
        running: 16,
        steps_per_s: 26.0,
        kv_usage: 0.55,
        ..Vllm::new(19)
    };
    let after = Vllm {
        args: vec![("port", "8001"), ("api_key", "['other-key-1']")],
        kv_tokens: "201,600",
        running: 9,
        waiting: 7,
        steps_per_s: 29.0,
        kv_usage: 0.98,
        ..before.clone()
    };
    let after = Vllm { day: 26, ..after };
    folder.write("before/vllm.log", &before.log()).write("now/vllm.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "regression", "mem.kv_dtype");
    // vLLM takes `fp8` and this name of it for the same.
    assert_eq!(report["fix"]["set"]["--kv-cache-dtype"], "fp8_e4m3");
    alone(&report, "mem.kv_dtype");
}

#[test]
fn longer_prompts_on_an_unchanged_server() {
    let folder = Folder::new();
    let before = Sglang { running: 2, ..Sglang::new(19) };
    let after = Sglang {
        prompt: (28_000, 0),
        accept_len: 2.2,
        steps_per_s: 33.0,
        kv_usage: 0.2,
        day: 26,
        ..before.clone()
    };
    folder.write("before/server.log", &before.log()).write("now/server.log", &after.log());
    let report = folder.diagnose();
    blames(&report, "workload_change", "workload.prompt_mix");

    // The same with settings that differ and cannot slow a stream.
    let restarted = Sglang { args: SGLANG_DECOYS.to_vec(), ..after };
    folder.write("now/server.log", &restarted.log());
    let report = folder.diagnose();
    blames(&report, "workload_change", "workload.prompt_mix");
    alone(&report, "workload.prompt_mix");
}

#[test]
fn an_accept_rate_with_another_meaning_is_no_loss() {
    let folder = Folder::new();
    let before = Sglang { bonus_in_rate: true, ..Sglang::new(19) };
    let after = Sglang { args: SGLANG_DECOYS.to_vec(), ..Sglang::new(26) };
    folder
        .write("before/server.log", &before.log())
        .write("now/server.log", &after.log())
        .write("complaint.txt", "accept rate fell from 0.68 to 0.57 after the upgrade");
    let report = folder.diagnose();
    blames_nothing(&report);
    assert!(
        report["notices"].to_string().contains("accept rates of the two logs are not comparable"),
        "{}",
        report["notices"]
    );
    alone(&report, "");
}
