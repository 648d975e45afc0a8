//! Clients that leave, signals, and what a server has written when it is over: case C23.

use std::net::TcpStream;

use serde_json::{Value, json};
use testkit::client::{Open, close};
use testkit::openai::{chat, put_together, with};

use crate::prompts;
use crate::server::{Server, eventually, native, output};

const CHAT: &str = "/v1/chat/completions";

/// A request that runs until the context is full.
fn story() -> Value {
    with(&chat("Write a very long story."), json!({"ignore_eos": true, "temperature": 1}))
}

/// Case C23: three times as many clients leave as there are places, in every state of a request.
#[test]
fn a_client_that_goes_away_frees_its_place() {
    let server = Server::start(&["--max-running-requests", "4"]);
    let send =
        || -> TcpStream { server.client().send("POST", CHAT, story().to_string().as_bytes()) };
    let stream =
        || -> Open { server.client().stream(CHAT, &with(&story(), json!({"stream": true}))) };
    for round in 1..=3 {
        // Four run and eight wait; the eight leave first, and are never started.
        let running: Vec<Open> = (0..4)
            .map(|_| {
                let mut stream = stream();
                assert!(stream.next_event().is_some());
                stream
            })
            .collect();
        let waiting: Vec<TcpStream> = (0..8).map(|_| send()).collect();
        eventually("eight in the queue", || server.state("gauges", "n_waiting") == 8);
        assert_eq!(server.client().get("/health").status, 200);
        waiting.iter().for_each(close);
        eventually("an empty queue", || server.state("gauges", "n_waiting") == 0);
        running.into_iter().for_each(Open::close);
        server.wait_until_idle();
        assert_eq!(server.total("n_queue_waits"), 8 * round - 4, "only what ran was started");

        let plain: Vec<TcpStream> = (0..4).map(|_| send()).collect();
        eventually("four that run", || server.state("gauges", "n_running") == 4);
        plain.iter().for_each(close);
        server.wait_until_idle();
    }
    assert_eq!(server.total("n_cancelled"), 3 * 16);
    let generated = server.total("n_generated");
    let probe = server.ok(CHAT, &with(&chat("Hi"), json!({"max_tokens": 4})));
    assert_eq!(probe["usage"]["completion_tokens"], 4);
    assert!(server.is_idle());
    assert_eq!(server.total("n_generated"), generated + 4, "nobody listens, nothing is generated");
}

/// SIGTERM lets running answers finish, each whole, and then the process ends well.
#[test]
fn sigterm_while_streaming_drains() {
    let mut server = Server::start(&[]);
    let mut body = native(
        prompts::KINDS[0],
        json!({"temperature": 0, "max_new_tokens": 500, "ignore_eos": true}),
    );
    let whole = output(&server.ok("/generate", &body));
    body["stream"] = true.into();
    let mut streams: Vec<Open> =
        (0..3).map(|_| server.client().stream("/generate", &body)).collect();
    assert!(streams.iter_mut().all(|stream| stream.next_event().is_some()));
    server.terminate();
    for stream in streams {
        let events = stream.events();
        assert_eq!(output(&events[events.len() - 1]), whole);
    }
    let log = server.wait();
    assert!(log.contains("SIGTERM: no new requests"), "{log}");
}

/// What does not end within the drain time is ended, and its client is told.
#[test]
fn a_drain_has_an_end() {
    let mut server = Server::start(&["--drain-timeout", "0"]);
    let mut stream = server.client().stream(CHAT, &with(&story(), json!({"stream": true})));
    let mut events = vec![stream.next_event().unwrap()];
    server.terminate();
    events.extend(stream.events());
    let streamed = put_together(&events, 0);
    assert_eq!(streamed.finish_reason.as_deref(), Some("abort"));
    server.wait();
}

/// The trace has every step, and its sums are those that the server shows.
#[test]
fn the_trace_adds_up_to_the_totals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.jsonl");
    let mut server =
        Server::start(&["--speculative-num-steps", "3", "--trace", path.to_str().unwrap()]);
    for prompt in prompts::KINDS {
        server.ok("/generate", &native(prompt, json!({"max_new_tokens": 30})));
    }
    assert!(server.is_idle());
    let names = ["n_prefill_rows", "n_drafted", "n_accepted", "n_generated", "n_decode_rows"];
    let totals = names.map(|name| server.total(name));
    let n_steps = server.total("n_steps");
    let metrics = String::from_utf8(server.client().get("/metrics").body).unwrap();
    for (name, total) in [("spec_drafted_tokens_total", totals[1]), ("steps_total", n_steps)] {
        let line = metrics.lines().find(|line| line.starts_with(&format!("outrider:{name}")));
        let value = line.and_then(|line| line.rsplit(' ').next()).unwrap();
        assert_eq!(value.parse::<f64>().unwrap(), total as f64, "{name}");
    }
    server.terminate();
    server.wait();
    let trace = std::fs::read_to_string(&path).unwrap();
    let steps: Vec<Value> = trace
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|record: &Value| record.get("step").is_some())
        .collect();
    assert_eq!(steps.len() as u64, n_steps);
    let sums = names.map(|name| steps.iter().map(|s| s[name].as_u64().unwrap()).sum::<u64>());
    assert_eq!(sums, totals);
    assert!(totals.iter().all(|total| *total > 0));
}
