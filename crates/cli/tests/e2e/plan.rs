//! `outrider plan`: other engines' pools by their own arithmetic, from the command line.

use serde_json::Value;

use crate::server::{failure_of, run, stdout_of};

/// What an old unit file had, without the running limit.
const FLAGS: &[&str] = &[
    "--tp",
    "2",
    "--mem-fraction-static",
    "0.88",
    "--context-length",
    "131072",
    "--mamba-full-memory-ratio",
    "0.5",
    "--mamba-scheduler-strategy",
    "extra_buffer",
    "--speculative-algorithm",
    "NEXTN",
    "--speculative-num-steps",
    "3",
    "--speculative-eagle-topk",
    "1",
    "--speculative-num-draft-tokens",
    "4",
];

fn words<'a>(own: &[&'a str], flags: &[&'a str]) -> Vec<&'a str> {
    let head = ["plan", "Qwen3.6-27B", "--engine", "sglang@0.5.10", "--device", "2x48GiB@768GB/s"];
    [&head[..], own, flags].concat()
}

fn json(flags: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(&words(&["--json"], flags), "")).unwrap()
}

#[test]
fn the_pools_of_an_old_unit_file() {
    let asked = json(&[FLAGS, &["--max-running-requests", "16"]].concat());
    let tokens = asked["kv_tokens"].as_f64().unwrap();
    assert!((tokens / 242_000.0 - 1.0).abs() < 0.01, "{tokens}");
    assert_eq!((&asked["max_running"], &asked["max_running_asked"]), (&10.into(), &16.into()));
    assert!(asked["running_limited_by"].as_str().unwrap().contains("51 slots, 5 per request"));

    let unset = json(FLAGS);
    let tokens = unset["kv_tokens"].as_f64().unwrap();
    assert!((tokens / 42_000.0 - 1.0).abs() < 0.02, "{tokens}");
    assert_eq!(unset["max_running"], 1);

    let depth_3 = asked["speed"].as_array().unwrap().iter();
    let mut depth_3 = depth_3.filter(|row| row["depth"] == 3 && row["batch"] == 1);
    let speed = &depth_3.next().unwrap()["stream_tok_s"];
    assert!(speed["lo"].as_f64() < Some(47.0) && speed["hi"].as_f64() > Some(57.0), "{speed}");
}

#[test]
fn the_text_says_what_limits_what_and_fits_a_screen() {
    // The engine's flags may also stand behind `--`.
    let flags = [&["--"], FLAGS, &["--max-running-requests", "16", "--log-level", "info"]].concat();
    let text = stdout_of(&words(&[], &flags), "");
    assert!(text.contains("running requests         10 of 16 asked"), "{text}");
    assert!(text.contains("limited by state slots: 51 slots, 5 per request"), "{text}");
    assert!(text.contains("not part of this arithmetic: --log-level"), "{text}");
    assert!(text.lines().count() < 40 && text.lines().all(|line| line.chars().count() <= 120));
}

#[test]
fn a_configuration_file_and_the_other_engines() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":1024,
        "num_hidden_layers":28,"intermediate_size":3072,"vocab_size":151936,"num_attention_heads":16,
        "num_key_value_heads":8,"head_dim":128,"max_position_embeddings":40960,"tie_word_embeddings":true}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let model = folder.path().to_str().unwrap();
    let plan = |engine: &str, device: &str, flags: &[&str]| {
        let head = ["plan", model, "--engine", engine, "--device", device, "--json"];
        let plan = stdout_of(&[&head[..], flags].concat(), "");
        serde_json::from_str::<Value>(&plan).unwrap()
    };
    let vllm =
        plan("vllm@0.33.0", "24GiB@900GB/s", &["--max-num-seqs", "4", "--max-model-len", "8192"]);
    assert_eq!(vllm["max_running"], 4);
    let llama = plan("llama.cpp", "24GiB@900GB/s", &["-c", "32768", "-np", "2"]);
    assert_eq!((&llama["kv_tokens"], &llama["max_request_tokens"]), (&32768.into(), &16384.into()));
    let ours = plan("outrider", "16GiB@31GB/s", &["--max-running-requests", "3"]);
    assert_eq!((&ours["engine"], &ours["max_running"]), (&"outrider".into(), &3.into()));
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    let message = |words: &[&str]| {
        assert_eq!(run(words, "").status.code(), Some(2), "{words:?}");
        failure_of(words)
    };
    let head = ["plan", "Qwen3.6-27B", "--engine"];
    let engine =
        |name: &str, device: &str| message(&[&head[..], &[name, "--device", device]].concat());
    assert!(engine("tgi", "2x48GiB@768GB/s").contains("sglang@0.5.10"));
    assert!(engine("sglang@new", "2x48GiB@768GB/s").contains("such as 0.5.10"));
    assert!(engine("sglang", "2x48").contains("2x48GiB@768GB/s"));
    let flag = message(&words(&[], &["--max-runing-requests", "3"]));
    assert!(flag.contains("did you mean --max-running-requests?"), "{flag}");
    let renamed = message(&words(&[], &["--mamba-radix-cache-strategy", "extra_buffer"]));
    assert!(renamed.contains("--mamba-scheduler-strategy"), "{renamed}");
    let model = message(&["plan", "no/such", "--engine", "vllm", "--device", "48GiB@768GB/s"]);
    assert!(model.contains("no/such") && model.contains("Qwen3.6-27B"), "{model}");
}
