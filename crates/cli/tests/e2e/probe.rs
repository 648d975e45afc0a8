//! `outrider probe` against our own server and against stand-ins for the others.

use std::fs::File;
use std::process::Child;

use serde_json::Value;

use crate::server::{Server, eventually, failure_of, outrider, run, stdout_of};
use crate::stand_in::{Pieces, StandIn, delta, event};

const QUICK: &[&str] = &["--precision", "0", "--no-cache-pass"];

fn probe(url: &str, flags: &[&str]) -> Value {
    let output = run(&[&["probe", url, "--json"], QUICK, flags].concat(), "");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text:?} {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// A server whose log is a file, as under a service manager.
pub(crate) struct Logged {
    child: Child,
    pub(crate) url: String,
}

impl Logged {
    pub(crate) fn start(log: &std::path::Path, flags: &[&str]) -> Logged {
        let mut command = outrider(&["serve", "--port", "0", "--launch-ledger", "none"]);
        let child = command.args(flags).stderr(File::create(log).unwrap()).spawn().unwrap();
        let address = || {
            let text = std::fs::read_to_string(log).unwrap();
            Some(text.split_once("listening on ")?.1.split_once('\n')?.0.to_owned())
        };
        eventually("an address", || address().is_some());
        Logged { child, url: address().unwrap() }
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // It may have ended by itself, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Client and server are seen in the same seconds, and agree: tok/s = accept length × steps/s.
#[test]
fn client_and_server_agree_about_our_own() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("server.log");
    let flags = ["--speculative-num-steps", "3", "--decode-log-interval", "5"];
    let server = Logged::start(&log, &flags);
    let report = probe(
        &server.url,
        &[
            "--runs",
            "6",
            "--set",
            "code,chat",
            "--max-tokens",
            "96",
            "--log",
            log.to_str().unwrap(),
        ],
    );
    assert_eq!(report["schema"], "probe/1");
    assert_eq!(report["requests"].as_array().unwrap().len(), 12);
    let classes = report["summary"]["classes"].as_array().unwrap();
    assert_eq!(classes.len(), 2);
    let side = &report["server"];
    let number =
        |name: &str| side[name]["value"].as_f64().unwrap_or_else(|| panic!("{name}: {side}"));
    assert_eq!(side["accept_len"]["source"], "metrics");
    assert!((1.0..=4.0).contains(&number("accept_len")), "{side}");
    assert_eq!(side["accept_rate_formula"], "accepted drafts / drafts");
    assert_eq!(side["steps_per_s"]["source"], "log", "{side}");
    assert!((0.9..=1.1).contains(&number("running")), "{side}");
    // Every number of the identity is of the same seconds; the machine of a test is busy.
    let tok_s: Vec<f64> =
        classes.iter().map(|c| c["decode_tok_s"]["value"].as_f64().unwrap()).collect();
    let product = number("accept_len") * number("steps_per_s");
    let (least, most) = (tok_s[0].min(tok_s[1]), tok_s[0].max(tok_s[1]));
    assert!((0.5 * least..2.0 * most).contains(&product), "{product} beside {tok_s:?}: {side}");
    assert!(
        report["observed"]["log"]["n_decode"].as_u64() > Some(3),
        "{}",
        report["observed"]["log"]
    );
    assert_eq!(report["configuration"]["spec.num_steps"], 3);

    let words = ["probe", &server.url, "--runs", "6", "--max-tokens", "48", "--concurrency", "1,2"];
    let output = run(&words, "");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "tok/s per stream",
        "first token ms",
        "server: accept length",
        "2 at a time",
        "prefix cache",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(text.lines().count() < 45, "{text}");
    assert!(matches!(output.status.code(), Some(0 | 12)), "{text}");
}

/// Speculation in SGLang's stream: a role, reasoning, then several tokens in each event.
fn sglang_chat(_: usize) -> Pieces {
    let mut pieces = vec![(5, delta("role", "assistant")), (10, delta("reasoning_content", "hm "))];
    pieces.extend((0..10).map(|_| (4, delta("content", "three tokens here "))));
    let usage =
        r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":31,"reasoning_tokens":1}}"#;
    pieces.push((1, event(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#)));
    pieces.push((0, event(usage) + "data: [DONE]\n\n"));
    pieces
}

fn sglang_page(path: &str, n: usize) -> Option<String> {
    // 31 tokens an answer: one from the prefill, 30 from ten verify steps.
    (path == "/metrics").then(|| {
        format!(
            "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n\
             sglang:generation_tokens_total {}\nsglang:spec_verify_calls_total {}\n",
            31 * n,
            10 * n
        )
    })
}

#[test]
fn sglang_with_several_tokens_in_an_event() {
    let server = StandIn::start(sglang_chat, sglang_page);
    let report = probe(&server.url(), &["--runs", "6"]);
    let class = &report["summary"]["classes"][0];
    assert_eq!(report["requests"][0]["out"], 31);
    assert!((class["tokens_per_chunk"].as_f64().unwrap() - 31.0 / 11.0).abs() < 1e-9);
    assert!(class["token_gap_ms"].is_null() && class["chunk_gap_ms"][0].as_f64() > Some(3.0));
    assert!(class["ttfo_s"]["value"].as_f64() > class["ttft_s"]["value"].as_f64(), "{class}");
    assert_eq!(report["server"]["accept_len"]["value"], 3.0, "{}", report["server"]);
    assert_eq!(report["workload"]["thinking"], true);
}

/// vLLM: its own name for reasoning, drafts by counters; every third answer breaks off.
fn vllm_chat(n: usize) -> Pieces {
    let mut pieces: Pieces = vec![(8, delta("reasoning", "so "))];
    pieces.extend((0..8).map(|_| (3, delta("content", "word "))));
    match n % 6 {
        4 => pieces.push((0, event(r#"{"error":{"message":"engine died","code":500}}"#))),
        5 => {}
        _ => pieces.push((
            0,
            event(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#) + "data: [DONE]\n\n",
        )),
    }
    pieces
}

fn vllm_page(path: &str, n: usize) -> Option<String> {
    (path == "/metrics").then(|| {
        format!(
            "vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:spec_decode_num_drafts_total {}\n\
             vllm:spec_decode_num_draft_tokens_total {}\nvllm:spec_decode_num_accepted_tokens_total {}\n",
            4 * n,
            12 * n,
            7 * n
        )
    })
}

#[test]
fn vllm_without_usage_and_with_answers_that_break_off() {
    let server = StandIn::start(vllm_chat, vllm_page);
    let report = probe(&server.url(), &[]);
    let failures: Vec<&str> = report["failures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failure| failure["error"].as_str().unwrap())
        .collect();
    assert!(failures.iter().any(|error| error.contains("engine died")), "{failures:?}");
    assert!(failures.iter().any(|error| error.contains("ended before the answer")), "{failures:?}");
    assert!(report["requests"].as_array().unwrap().iter().all(|r| r["estimated"] == true));
    assert!(report["notices"].to_string().contains("no usage"), "{}", report["notices"]);
    assert!(report["summary"]["goodput"]["share"].as_f64() < Some(1.0), "failed ones are not good");
    assert_eq!(report["server"]["accept_len"]["value"], 2.75);
    assert_eq!(report["server"]["accept_rate"]["value"].as_f64(), Some(7.0 / 12.0));
}

/// llama.cpp: no usage, but timings in the last event.
fn llamacpp_chat(_: usize) -> Pieces {
    let mut pieces: Pieces =
        (0..6).map(|i| (if i == 0 { 12 } else { 3 }, delta("content", "w "))).collect();
    let timings = r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"timings":{"prompt_n":20,"predicted_n":12,"draft_n":9,"draft_n_accepted":6}}"#;
    pieces.push((0, event(timings) + "data: [DONE]\n\n"));
    pieces
}

fn llamacpp_page(path: &str, _: usize) -> Option<String> {
    (path == "/slots").then(|| r#"[{"id":0,"is_processing":false}]"#.to_owned())
}

#[test]
fn llamacpp_counts_in_its_timings() {
    let server = StandIn::start(llamacpp_chat, llamacpp_page);
    let report = probe(&server.url(), &[]);
    assert_eq!(
        (&report["requests"][0]["out"], &report["requests"][0]["estimated"]),
        (&12.into(), &false.into())
    );
    let rate = report["summary"]["classes"][0]["draft_acceptance"].as_f64().unwrap();
    assert!((rate - 6.0 / 9.0).abs() < 1e-9);
    assert_eq!(report["activity"]["source"], "/slots");
    let gaps = report["observed"]["gaps"].to_string();
    assert!(gaps.contains("/metrics"), "what was not seen is said: {gaps}");
}

fn busy_page(path: &str, _: usize) -> Option<String> {
    let text = "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n";
    (path == "/metrics").then(|| text.to_owned())
}

/// A busy server is left alone unless told; an address without a server is an error.
#[test]
fn exit_codes_and_what_is_wrong() {
    let server = StandIn::start(sglang_chat, busy_page);
    let output = run(&["probe", &server.url()], "");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(12), "{message}");
    assert!(message.contains("3 running, 2 waiting") && message.contains("--force"), "{message}");
    assert_eq!(server.n_chats(), 0, "not one request");
    let forced = probe(&server.url(), &["--force"]);
    assert!(forced["probe_notices"].to_string().contains("others used the server"));

    let code = |words: &[&str]| run(words, "").status.code();
    assert_eq!(code(&["probe", "http://127.0.0.1:9"]), Some(2));
    assert_eq!(code(&["probe", "not a url"]), Some(2));
    for (flag, value, right) in [
        ("--set", "poems", "chat"),
        ("--concurrency", "0", "whole number from 1"),
        ("--rate", "-1", "requests per second"),
        ("--log", "journal:--vacuum", "is not a name"),
        ("--temperature", "9", "from 0 to 2"),
        ("--runs", "0", "above 0"),
    ] {
        let message = failure_of(&["probe", &server.url(), &format!("{flag}={value}")]);
        assert!(message.contains(right), "{flag} {value}: {message}");
    }
    let missing = probe(&server.url(), &["--force", "--log", "/no/such/server.log"]);
    assert!(missing["observed"]["gaps"].to_string().contains("/no/such/server.log"));
}

/// A probe asks with a key where one is needed, and says so where it has none.
#[test]
fn a_key_is_sent_and_never_printed() {
    let server = Server::start(&["--api-key", "open-sesame"]);
    let words = ["probe", server.url(), "--runs", "2", "--max-tokens", "8", "--no-cache-pass"];
    assert!(failure_of(&words).contains("401"));
    let with_key = [&words[..], &["--api-key", "open-sesame", "--json"]].concat();
    let output = run(&with_key, "");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"probe/1\"") && !text.contains("open-sesame"), "{text}");
    assert!(stdout_of(&["probe", "--help"], "").contains("--concurrency"));
}
