//! The commands beside `serve`, and what a command line may get wrong.

use std::net::TcpListener;

use serde_json::{Value, json};
use testkit::openai::{chat, with};

use crate::prompts;
use crate::server::{Server, failure_of, ids, native, output, run, stdout_of};

/// `generate` gives what the server gives, and its JSON says how it came about.
#[test]
fn generate_answers_like_the_server() {
    let server = Server::start(&[]);
    for (temperature, seed) in [("0", "0"), ("0.8", "7")] {
        let prompt = prompts::KINDS[1];
        let arguments = [
            "generate",
            "--prompt",
            prompt,
            "--max-tokens",
            "40",
            "--json",
            "--temperature",
            temperature,
            "--seed",
            seed,
        ];
        let whole: Value = serde_json::from_str(&stdout_of(&arguments, "")).unwrap();
        let sampling = json!({"temperature": temperature.parse::<f64>().unwrap(),
            "sampling_seed": seed.parse::<u64>().unwrap(), "max_new_tokens": 40});
        let served = server.ok("/generate", &native(prompt, sampling));
        assert_eq!(ids(&whole["token_ids"]), output(&served));
        assert_eq!(whole["text"], served["text"]);
        assert_eq!(whole["finish_reason"], served["meta_info"]["finish_reason"]["type"]);
        let usage = &whole["usage"];
        let n = |name: &str| usage[name].as_u64().unwrap();
        assert_eq!(usage["prompt_tokens"], served["meta_info"]["prompt_tokens"]);
        assert_eq!(usage["completion_tokens"], served["meta_info"]["completion_tokens"]);
        assert_eq!(n("total_tokens"), n("prompt_tokens") + n("completion_tokens"));
        for name in ["prefill_s", "decode_s", "decode_tok_s"] {
            assert!(whole["timings"][name].as_f64() > Some(0.0), "{name}: {whole}");
        }
        let speculation = &whole["speculation"];
        assert!(speculation["accept_len"].as_f64() >= Some(1.0), "{whole}");
        assert!(speculation["accept_rate"].as_f64() <= Some(1.0), "{whole}");
        assert!(speculation["per_position"].is_array(), "{whole}");
        let plain =
            stdout_of(&arguments.map(|a| if a == "--json" { "--threads=1" } else { a }), "");
        assert_eq!(plain, whole["text"].as_str().unwrap().to_owned() + "\n");
    }
}

#[test]
fn generate_refuses_what_cannot_be() {
    let arguments = ["generate", "--prompt", "x", "--max-tokens", "9000"];
    assert!(failure_of(&arguments).contains("exceed the context length of 8192"));
    let arguments = ["generate", "--prompt", "x", "--speculative-num-steps", "99"];
    assert!(failure_of(&arguments).contains("--speculative-num-steps 15"));
}

/// The lines of an answer, without the notes about it.
fn said(stdout: &str) -> Vec<&str> {
    stdout.lines().filter(|line| !line.contains(" tok/s)")).collect()
}

/// A chat through a pipe says the same whether it asks a running server or serves the model itself.
#[test]
fn chat_talks_to_a_server_and_to_a_model() {
    let server = Server::start(&[]);
    let lines =
        "Which month comes after May?\n/no-such-command\n/reset\nSay hi.\n/exit\nnever read\n";
    let options = ["--temperature", "0", "--max-tokens", "40"];
    let with_server = stdout_of(&[&["chat", server.url()], &options[..]].concat(), lines);
    let itself = stdout_of(&[&["chat", "outrider-tiny"], &options[..]].concat(), lines);
    for question in ["Which month comes after May?", "Say hi."] {
        let body = with(&chat(question), json!({"temperature": 0, "max_tokens": 40}));
        let answer = server.ok("/v1/chat/completions", &body);
        let message = &answer["choices"][0]["message"];
        for part in ["reasoning_content", "content"] {
            let text = message[part].as_str().unwrap_or_default();
            assert!(with_server.contains(text.trim()), "{with_server:?} has no {text:?}");
        }
    }
    assert!(with_server.contains("no command /no-such-command"), "{with_server}");
    assert!(!with_server.contains("never read"));
    assert_eq!(said(&with_server)[1..], said(&itself)[1..]);
    assert!(itself.starts_with("outrider-tiny at http://127.0.0.1:"), "{itself}");
}

#[test]
fn chat_says_why_a_server_does_not_answer() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let message = failure_of(&["chat", &format!("http://{free}")]);
    assert!(message.contains("no server answers"), "{message}");
    let server = Server::start(&["--api-key", "open-sesame"]);
    let message = failure_of(&["chat", server.url()]);
    assert!(message.contains("401"), "{message}");
    let answer =
        stdout_of(&["chat", server.url(), "--api-key", "open-sesame", "--max-tokens", "4"], "Hi\n");
    assert!(answer.contains("4 tokens"), "{answer}");
    let reply = server.client().get("/server_info");
    assert_eq!(reply.status, 401);
    let told = server.client().clone().with_header("Authorization", "Bearer open-sesame");
    assert_eq!(told.get("/v1/models").status, 200);
    let info = told.get("/server_info").json().to_string();
    assert!(!info.contains("open-sesame") && !server.log().contains("open-sesame"));
}

#[test]
fn bench_leaves_out_rows_that_are_not_wanted() {
    let few = ["bench", "--prefill=none", "--batch=1", "--verify=none", "--decode=2", "--repeat=1"];
    let report = stdout_of(&[&few[..], &["--json"]].concat(), "");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "{report}");
    let message = failure_of(&["bench", "--batch", "1,0"]);
    assert!(message.contains("`0` is not a number of at least 1"), "{message}");
}

#[test]
fn bench_measures_every_row_that_was_asked_for() {
    let sizes = [
        "bench",
        "--prefill",
        "16",
        "--decode",
        "4",
        "--batch",
        "1,2",
        "--verify",
        "2",
        "--depth",
        "0,64",
        "--repeat",
        "1",
        "--threads",
        "1",
    ];
    let report = stdout_of(&[&sizes[..], &["--json"]].concat(), "");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["threads"], 1);
    let rows = report["rows"].as_array().unwrap();
    let what: Vec<_> = rows
        .iter()
        .map(|row| (row["what"].as_str().unwrap(), row["depth"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("prefill", 0),
        ("decode", 0),
        ("decode", 0),
        ("verify", 0),
        ("decode", 64),
        ("decode", 64),
        ("verify", 64),
    ];
    assert_eq!(what, expected);
    for row in rows {
        for name in ["tokens_per_s", "pass_ms", "gb_per_s", "bandwidth_gb_per_s"] {
            assert!(row[name].as_f64() > Some(0.0), "{name}: {row}");
        }
    }
    let message = failure_of(&["bench", "--repeat", "0"]);
    assert!(message.contains("--repeat"), "{message}");
}

/// What a command line gets wrong is told with what was meant.
#[test]
fn a_wrong_flag_is_told_with_the_nearest_one() {
    let message = failure_of(&["serve", "--speculative-num-step", "3"]);
    assert!(message.contains("'--speculative-num-steps'"), "{message}");
    let message = failure_of(&["serve", "--max-runing-requests", "3"]);
    assert!(message.contains("'--max-running-requests'"), "{message}");
    let message = failure_of(&["genrate"]);
    assert!(message.contains("'generate'"), "{message}");
    let message = failure_of(&["serve", "--page-size", "1"]);
    assert!(message.contains("--page-size") && message.contains("64"), "{message}");
    let message = failure_of(&["serve", "--mamba-track-interval", "100"]);
    assert!(message.contains("multiple of 64"), "{message}");
    let contradiction =
        ["serve", "--speculative-algorithm", "none", "--speculative-num-steps", "3"];
    assert!(failure_of(&contradiction).contains("contradicts"));
    let message = failure_of(&["serve", "--host", "127.0.0.1", "--port", "0", "no/such/folder"]);
    assert!(message.contains("no/such/folder"), "{message}");
}

#[test]
fn a_port_in_use_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let message = failure_of(&["serve", "--port", &port]);
    assert!(message.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{message}");
}

/// A command line written for SGLang works, and says which of its flags change nothing here.
#[test]
fn flags_that_change_nothing_are_listed() {
    let server = Server::start(&[
        "--tp",
        "2",
        "--attention-backend",
        "triton",
        "--trust-remote-code",
        "--mamba-scheduler-strategy",
        "extra_buffer",
        "--speculative-algorithm",
        "EAGLE",
        "--speculative-num-steps",
        "3",
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        "9",
    ]);
    let log = server.log();
    for flag in [
        "tensor-parallel-size",
        "attention-backend",
        "trust-remote-code",
        "mamba-radix-cache-strategy",
    ] {
        assert!(log.contains(&format!("WARN: --{flag} changes nothing here: ")), "{log}");
    }
    assert!(log.contains("(asked 9, is 4)"), "{log}");
    assert_eq!(log.matches("changes nothing").count(), 4, "{log}");
    let answer = server.ok("/generate", &native(prompts::EASY, json!({"max_new_tokens": 20})));
    assert!(answer["meta_info"]["spec_num_proposed_drafts"].as_u64() > Some(0));
}

/// Help names every command; no command at all is an error.
#[test]
fn help_names_the_commands() {
    let help = stdout_of(&["--help"], "");
    for command in ["serve", "generate", "chat", "bench", "logs", "configs", "diff", "diagnose"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(!run(&[], "").status.success());
    assert!(stdout_of(&["serve", "--help"], "").contains("--speculative-num-steps"));
}

/// The verdict of a case from the repository, and an error, as scripts see them: by exit code.
#[test]
fn diagnose_explains_a_host_and_exits_with_its_verdict() {
    let case = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/diagnose/01-few-mtp-steps");
    let output = run(&["diagnose", "--from-dir", case, "--no-probe", "--json"], "");
    assert_eq!(output.status.code(), Some(10), "explained");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["verdict"], "regression");
    assert_eq!(report["primary"]["factor"], "spec.num_steps");
    let output = run(&["logs", &format!("{case}/now/server.log")], "");
    assert!(output.status.success() && !output.stdout.is_empty());
    let output = run(&["configs", "--from-dir", case], "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("spec.num_steps 3"));
    assert_eq!(run(&["diff", "#1", "#99", "--from-dir", case], "").status.code(), Some(2));
}
