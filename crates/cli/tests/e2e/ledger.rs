//! The launch ledger: what every start and stop leaves behind, and who reads it.

use serde_json::{Value, json};

use crate::prompts;
use crate::server::{Server, native, output, outrider, run};

/// The lines of a ledger.
fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_start_and_a_stop_are_recorded_without_the_key_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outrider/launches.jsonl");
    let mut server = Server::start(&[
        "--launch-ledger",
        path.to_str().unwrap(),
        "--api-key",
        "open-sesame",
        "--speculative-num-steps",
        "2",
        "--max-running-requests",
        "3",
        "--memory-bandwidth",
        "31.5",
    ]);
    let client = server.client().clone().with_header("Authorization", "Bearer open-sesame");
    let body = native(prompts::EASY, json!({"max_new_tokens": 40, "ignore_eos": true}));
    let n_generated = output(&client.post("/generate", &body).json()).len();
    assert_eq!(n_generated, 40);

    let start = &lines(&path)[0];
    assert_eq!((&start["event"], &start["schema"]), (&json!("start"), &json!("launch/1")));
    assert_eq!(start["listen"], server.url());
    assert_eq!(start["effective"]["max_running_requests"], 3);
    assert_eq!(start["limited_by"]["max_running_requests"], "--max-running-requests");
    assert_eq!(start["effective"]["speculative_num_steps"], 2);
    assert!(start["plan"]["kv_bytes"].as_u64() > Some(0), "{start}");
    assert_eq!(start["weights"]["fingerprint"].as_str().unwrap().len(), 16);
    assert!(!start["hardware"]["cpu"].as_str().unwrap().is_empty());
    assert_eq!(start["hardware"]["read_gb_per_s"], 31.5);
    assert_eq!(start["hardware"]["read_gb_per_s_from"], "stated");

    server.terminate();
    server.wait();
    let all = lines(&path);
    assert_eq!(all.len(), 2);
    let (stop, measured) = (&all[1], &all[1]["measured"]);
    assert_eq!((&stop["event"], &stop["id"]), (&json!("stop"), &start["id"]));
    assert_eq!(stop["reason"], "SIGTERM");
    assert_eq!((&measured["n_requests"], &measured["n_generated_tokens"]), (&json!(1), &json!(40)));
    assert!(measured["decode_tok_s"].as_f64() > Some(0.0), "{measured}");
    let accept_len = measured["accept_len"].as_f64().unwrap();
    assert!((1.0..=3.0).contains(&accept_len), "{measured}");
    assert_eq!(measured["drafted_at"].as_array().unwrap().len(), 2);
    assert!(!std::fs::read_to_string(&path).unwrap().contains("open-sesame"));

    let configs =
        outrider(&["configs", "--json"]).env("XDG_STATE_HOME", folder.path()).output().unwrap();
    let found = String::from_utf8(configs.stdout).unwrap();
    assert!(found.contains("launches.jsonl"), "{found}");
    assert!(!found.contains("open-sesame"));
}

/// Servers that share a ledger never mix their lines.
#[test]
fn servers_share_a_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launches.jsonl");
    let flags = ["--launch-ledger", path.to_str().unwrap()];
    let mut servers: Vec<Server> = (0..3).map(|_| Server::start(&flags)).collect();
    servers.iter().for_each(Server::terminate);
    servers.iter_mut().for_each(|server| {
        server.wait();
    });
    let all = lines(&path);
    let ids = |event: &str| {
        let mut ids: Vec<&str> = all
            .iter()
            .filter(|line| line["event"] == event)
            .map(|line| line["id"].as_str().unwrap())
            .collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!((ids("start").len(), ids("start")), (3, ids("stop")));
}

/// A ledger that cannot be written is a warning and no reason not to serve.
#[test]
fn a_ledger_that_cannot_be_written_is_a_warning() {
    let server = Server::start(&["--launch-ledger", "/dev/null/launches.jsonl"]);
    assert!(server.log().contains("WARN: launch ledger /dev/null/launches.jsonl: "));
    assert_eq!(server.client().get("/health").status, 200);
    let log = Server::start(&["--launch-ledger", "none"]).log();
    assert!(!log.contains("ledger"), "{log}");
    let output = run(&["serve", "--memory-bandwidth=-3"], "");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("measure"), "{message}");
}
