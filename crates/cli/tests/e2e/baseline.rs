//! `outrider baseline` against a real server: kept, found the same, and found worse when it is slower.

use std::path::Path;

use serde_json::Value;

use crate::server::{Server, failure_of, run, stdout_of};
use crate::stand_in::{Pieces, StandIn, delta, event};

/// A quick measurement; the machine of a test is busy, so it may drift.
const EFFORT: &[&str] = &["--runs", "12", "--seconds", "30", "--no-cache-pass", "--precision", "0"];

fn words<'a>(folder: &'a Path, step: &[&'a str]) -> Vec<&'a str> {
    [&["baseline"], step, &["--folder", folder.to_str().unwrap()]].concat()
}

/// Answers of eleven tokens; from the fifth on a minute passes before the first of them.
fn ever_slower_chat(n: usize) -> Pieces {
    // A warm-up of unequal answers has all its four.
    let pause_ms = if n.is_multiple_of(2) { 2 } else { 10 };
    // The embedded model reasons, and other work would not compare.
    let mut pieces: Pieces =
        (0..11).map(|_| (pause_ms, delta("reasoning_content", "word "))).collect();
    pieces[0].0 = if n < 4 { 2 } else { 60_000 };
    let end = r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":11}}"#;
    pieces.push((0, event(end) + "data: [DONE]\n\n"));
    pieces
}

#[test]
fn a_slower_server_is_found_worse() {
    let folder = tempfile::tempdir().unwrap();
    // A pass as long as on a machine with slower memory: other work on this one hardly shows.
    let start = |pass_ms: &str| {
        Server::start(&["--least-pass-ms", pass_ms, "--speculative-num-steps", "1"])
    };
    let server = start("5");
    let work = ["--set", "code", "--max-tokens", "32"];
    let save = [&["save", "main", server.url()], &work[..], EFFORT].concat();
    let saved = stdout_of(&words(folder.path(), &save), "");
    assert!(saved.contains("saved 12 requests as main, which now has 1 runs"), "{saved}");

    // Every request is there, with its times.
    let file = std::fs::read_to_string(folder.path().join("main.jsonl")).unwrap();
    let entry: Value = serde_json::from_str(file.trim()).unwrap();
    assert_eq!(
        (&entry["schema"], entry["run"]["requests"].as_array().unwrap().len()),
        (&"baseline/1".into(), 12)
    );
    assert_eq!(entry["configuration"]["engine.name"], "outrider");

    let against = |url: &str, runs: &str| {
        let check = ["check", "main", url, "--json", "--runs", runs, "--no-cache-pass"];
        let output = run(&words(folder.path(), &check), "");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    // Other work on the machine can slow one measurement down; what is true shows in one of three.
    let mut codes = (0..3).map(|_| against(server.url(), "12").0);
    assert!(codes.any(|code| matches!(code, Some(0 | 12))), "the same server is not worse");
    drop(server);

    let slow = start("25");
    let (code, report) = against(slow.url(), "6");
    assert_eq!(code, Some(10), "{report}");
    let rows: Value = serde_json::from_str(report.lines().next().unwrap()).unwrap();
    let row = &rows[0]["rows"][0];
    assert_eq!((&row["class"], &row["metric"]), (&"code".into(), &"decode_tok_s".into()));
    assert_eq!(row["verdict"], "worse", "{report}");
    assert!(row["p"].as_f64() < Some(0.05) && row["change"]["hi"].as_f64() < Some(0.0), "{row}");

    let listed = stdout_of(&words(folder.path(), &["list"]), "");
    assert!(listed.contains("main") && listed.contains("1 runs"), "{listed}");
    let history = stdout_of(&words(folder.path(), &["history", "main"]), "");
    assert!(history.contains("code tok/s per stream: 1 runs"), "{history}");
}

#[test]
fn a_server_without_an_answer_in_time_is_undecided_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&[]);
    let save = [&["save", "main", server.url(), "--set", "code", "--max-tokens", "32"], EFFORT];
    stdout_of(&words(folder.path(), &save.concat()), "");
    let slow = StandIn::start(ever_slower_chat, |_, _| None);
    let url = slow.url();
    let check = ["check", "main", &url, "--seconds", "1", "--no-cache-pass"];
    let output = run(&words(folder.path(), &check), "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(12), "{errors}");
    let why = "no request of code-v1 was answered: 1 requests had no whole answer within 1 s and 20 s more";
    assert!(errors.contains(why), "{errors}");
}

#[test]
fn what_cannot_be_compared_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = |step: &[&str]| {
        let words = words(folder.path(), step);
        assert_eq!(run(&words, "").status.code(), Some(2), "{step:?}");
        failure_of(&words)
    };
    assert!(error(&["check", "none", "http://127.0.0.1:9"]).contains("no baseline \"none\""));
    assert!(error(&["history", "../x"]).contains("is not a baseline name"));
    let file = folder.path().join("x.json");
    std::fs::write(&file, "{}").unwrap();
    let file = file.to_str().unwrap();
    assert!(error(&["save", "main", "--probe", file]).contains("not the JSON of `outrider probe`"));
    assert!(error(&["save", "main"]).contains("URL"));
    assert_eq!(stdout_of(&words(folder.path(), &["list"]), ""), "no baselines\n");
}
