//! Requests that run together do not touch each other: cases C03 and C08, and many clients.

use std::thread;

use serde_json::{Value, json};
use testkit::client::{Open, close, read_head};

use crate::prompts;
use crate::server::{Server, at_once, native, output};

const TAGS: [&str; 6] = ["MARLIN-11", "OSPREY-22", "TAPIR-33", "LEMUR-44", "GECKO-55", "BISON-66"];

/// The token ids of a streamed answer of `/generate`, whose events repeat what came before.
fn streamed(stream: Open) -> Vec<u32> {
    let events = stream.events();
    let last = events.last().unwrap();
    assert_eq!(events.iter().filter(|e| !e["meta_info"]["finish_reason"].is_null()).count(), 1);
    assert!(!last["meta_info"]["finish_reason"].is_null(), "{last}");
    output(last)
}

/// Case C03: bursts that arrive together, and ones where each comes while the others run.
#[test]
fn bursts_get_the_tokens_of_solo_runs() {
    let plain = Server::start(&["--speculative-algorithm", "none"]);
    let bodies: Vec<Value> = TAGS
        .iter()
        .zip([96, 64, 80, 16, 48, 32])
        .map(|(tag, max_tokens)| {
            let message =
                format!("Your tag is {tag}. Write the tag once, then count to thirty in words.");
            let sampling =
                json!({"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": true});
            let mut body = native(plain.chat_ids(&message), sampling);
            body["stream"] = true.into();
            body
        })
        .collect();
    let ask = |server: &Server, body: &Value| server.client().stream("/generate", body);
    let solo: Vec<_> = bodies.iter().map(|body| streamed(ask(&plain, body))).collect();
    for steps in ["0", "1", "3", "auto"] {
        let server = Server::start(&["--speculative-num-steps", steps]);
        for n in [2, 3, 4, 6] {
            let together = at_once(&bodies[..n], |body| streamed(ask(&server, body)));
            assert_eq!(together, solo[..n], "{n} together, steps {steps}");
            let staggered: Vec<_> = thread::scope(|scope| {
                let readers: Vec<_> = bodies[..n]
                    .iter()
                    .map(|body| {
                        let mut stream = ask(&server, body);
                        assert!(stream.next_event().is_some());
                        scope.spawn(move || streamed(stream))
                    })
                    .collect();
                readers.into_iter().map(|reader| reader.join().unwrap()).collect()
            });
            assert_eq!(staggered, solo[..n], "{n} staggered, steps {steps}");
        }
        let (rounds, n_steps) = (server.total("n_decode_rounds"), server.total("n_steps"));
        assert!(rounds > n_steps, "{rounds} decodes in {n_steps} steps: none ran together");
        assert!(steps == "0" || steps == "auto" || server.total("n_drafted") > 0);
    }
}

/// Case C08: seeds belong to the request, whatever runs beside it.
#[test]
fn seeds_belong_to_the_request() {
    for steps in ["0", "3"] {
        let server = Server::start(&["--speculative-num-steps", steps]);
        let ask = |prompt: &str, seed: Option<u64>, n: u64| {
            json!({"prompt": prompt, "seed": seed, "temperature": 1.0, "n": n, "max_tokens": 28,
                "ignore_eos": true})
        };
        let texts = |answer: &Value| -> Vec<String> {
            let choices = answer["choices"].as_array().unwrap();
            choices.iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect()
        };
        let complete = |body: &Value| server.ok("/v1/completions", body);
        let alone = texts(&complete(&ask("Once there was", Some(1234), 1)));
        for mate in [None, Some(99)] {
            let pair = [ask("Once there was", Some(1234), 1), ask("In a far town", mate, 1)];
            for _ in 0..2 {
                assert_eq!(texts(&at_once(&pair, complete)[0]), alone);
            }
        }
        let three = complete(&ask("Once there was", Some(1234), 3));
        assert_eq!(texts(&three).len(), 3);
        assert_eq!(texts(&three)[0], alone[0]);
        assert_ne!(texts(&three)[1], alone[0]);
        assert_eq!(three["usage"]["completion_tokens"], 3 * 28);
        assert_eq!(texts(&complete(&ask("Once there was", Some(1234), 3))), texts(&three));
        let unseeded = [ask("Once there was", None, 1), ask("Once there was", None, 1)];
        let unseeded = at_once(&unseeded, complete);
        assert_ne!(texts(&unseeded[0]), texts(&unseeded[1]));
    }
}

/// Twice as many clients as run at once; half of them sample.
#[test]
fn thirty_two_streaming_clients_each_get_what_they_get_alone() {
    let server = Server::start(&[]);
    let bodies: Vec<Value> = (0..32)
        .map(|i| {
            let text = format!("{} {i}", prompts::KINDS[i % prompts::KINDS.len()]);
            let temperature = if i % 2 == 0 { 0.0 } else { 0.9 };
            let sampling = json!({"temperature": temperature, "sampling_seed": i,
                "max_new_tokens": 24 + i, "ignore_eos": i % 3 == 0});
            let mut body = native(text, sampling);
            body["stream"] = true.into();
            body
        })
        .collect();
    let ask = |body: &Value| streamed(server.client().stream("/generate", body));
    let alone: Vec<_> = bodies.iter().map(ask).collect();
    let together = at_once(&bodies, ask);
    for (i, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(together, alone, "client {i}");
    }
    assert!(server.is_idle());
}

/// Two hundred connections, a third of which go away; the others are answered as ever.
#[test]
fn two_hundred_connections_at_once_are_answered() {
    let server = Server::start(&[]);
    let body = native("Hello", json!({"temperature": 0, "max_new_tokens": 4, "ignore_eos": true}));
    let alone = output(&server.ok("/generate", &body));
    let bytes = body.to_string();
    let sent: Vec<_> =
        (0..200).map(|_| server.client().send("POST", "/generate", bytes.as_bytes())).collect();
    for (i, stream) in sent.into_iter().enumerate() {
        if i % 3 == 0 {
            close(&stream);
            continue;
        }
        let reply = read_head(stream).finish();
        assert_eq!(reply.status, 200, "connection {i}: {}", reply.json());
        assert_eq!(output(&reply.json()), alone, "connection {i}");
    }
    server.wait_until_idle();
    assert_eq!(output(&server.ok("/generate", &body)), alone);
}
