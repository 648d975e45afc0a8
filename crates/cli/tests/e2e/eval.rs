//! `outrider eval` beside figures of an independent implementation (`tools/make_eval.py`).

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::server::{failure_of, stdout_of};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/eval").join(name)
}

fn evaluated(more: &[&str]) -> Value {
    let text = data("text.txt");
    let mut arguments = vec!["eval", "--text", text.to_str().unwrap(), "--window", "256", "--json"];
    arguments.extend(more);
    serde_json::from_str(&stdout_of(&arguments, "")).unwrap()
}

#[test]
fn perplexity_is_that_of_the_independent_implementation() {
    let expected = std::fs::read(data("outrider-tiny.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let report = evaluated(&["--kv-cache-dtype", "f32"]);
    assert_eq!(report["n_tokens"], expected["n_tokens"]);
    let nats = |report: &Value| report["nats_per_token"].as_f64().unwrap();
    assert!((nats(&report) - nats(&expected)).abs() < 1e-5, "{report}");
    assert!((nats(&report).exp() / report["perplexity"].as_f64().unwrap() - 1.0).abs() < 1e-9);
}

/// KV of 16 bits is near KV of 32 bits, but is not the same.
#[test]
fn a_reference_shows_how_far_a_format_is() {
    let more = ["--reference", "outrider-tiny", "--max-windows", "4"];
    let same = evaluated(&more)["comparison"].clone();
    assert_eq!((&same["kl_max"], &same["top_1_agreement"]), (&0.0.into(), &1.0.into()));
    let f32_kv = evaluated(&[&more[..], &["--kv-cache-dtype", "f32"]].concat());
    let (near, c) = (f32_kv["comparison"]["kl_mean"].as_f64().unwrap(), &f32_kv["comparison"]);
    assert!(near > 0.0 && near < 1e-3, "{f32_kv}");
    assert!(c["top_1_agreement"].as_f64() > Some(0.98), "{f32_kv}");
}

#[test]
fn what_cannot_be_scored_is_said() {
    let short = std::env::temp_dir().join(format!("outrider-eval-{}.txt", std::process::id()));
    std::fs::write(&short, "too short").unwrap();
    let path = short.to_str().unwrap();
    assert!(failure_of(&["eval", "--text", path]).contains("less than one window of 512"));
    std::fs::write(&short, [0xff, 0xfe]).unwrap();
    assert!(failure_of(&["eval", "--text", path]).contains("is not UTF-8"));
    std::fs::remove_file(&short).unwrap();
    assert!(failure_of(&["eval", "--text", path]).contains("cannot read --text"));
    assert!(failure_of(&["eval", "--text", path, "--window", "7"]).contains("an even number"));
}
