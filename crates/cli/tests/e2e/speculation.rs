//! Drafts change the speed and nothing else: cases C04, C05, C06 and C12.

use serde_json::{Value, json};
use testkit::openai::{chat, put_together, with};

use crate::prompts;
use crate::server::{Server, at_once, ids, native, output};

const OFF: &[&str] = &["--speculative-algorithm", "none"];

/// A server that drafts to this depth, or `auto`.
fn at_depth(depth: &str) -> Server {
    Server::start(&["--speculative-algorithm", "NEXTN", "--speculative-num-steps", depth])
}

fn count(answer: &Value, name: &str) -> u64 {
    answer["meta_info"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}"))
}

fn accept_rate(answer: &Value) -> f64 {
    let (correct, proposed) =
        (count(answer, "spec_num_correct_drafts"), count(answer, "spec_num_proposed_drafts"));
    assert!(proposed > 0 && correct <= proposed, "{answer}");
    correct as f64 / proposed as f64
}

/// Case C04, and the same above temperature 0.
#[test]
fn tokens_do_not_depend_on_the_draft_depth() {
    let long = format!("{}Then", prompts::long(4, 1400));
    let texts = prompts::KINDS.iter().copied().chain([&*long]);
    let bodies: Vec<Value> = texts
        .flat_map(|text| {
            [(0.0, 0), (0.7, 11), (1.5, 12)].map(|(temperature, seed)| {
                let sampling = json!({"temperature": temperature, "sampling_seed": seed,
                    "max_new_tokens": 120, "ignore_eos": true});
                native(text, sampling)
            })
        })
        .collect();
    let plain = Server::start(OFF);
    let alone: Vec<Value> = bodies.iter().map(|body| plain.ok("/generate", body)).collect();
    let n_prompt = count(&alone[alone.len() - 1], "prompt_tokens");
    assert!(n_prompt > 2000, "the long prompt has only {n_prompt} tokens");
    for depth in ["0", "1", "2", "3", "5", "8", "auto"] {
        let server = at_depth(depth);
        let answers = at_once(&bodies, |body| server.ok("/generate", body));
        for ((answer, alone), body) in answers.iter().zip(&alone).zip(&bodies) {
            let (got, want) = (output(answer), output(alone));
            let differ = got.iter().zip(&want).position(|(got, want)| got != want);
            assert_eq!(got, want, "depth {depth} differs from {differ:?} on: {body}");
            assert_eq!(got.len(), 120);
        }
        let (drafted, accepted) = (server.total("n_drafted"), server.total("n_accepted"));
        match depth {
            "0" => assert_eq!(drafted, 0),
            "auto" => assert!(accepted <= drafted),
            _ => assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted}"),
        }
        if let Ok(n) = depth.parse::<usize>() {
            let greedy = answers.iter().step_by(3).filter(|_| n > 0);
            for answer in greedy {
                let rejected = count(answer, "spec_num_proposed_drafts")
                    - count(answer, "spec_num_correct_drafts");
                assert!(rejected > 0, "depth {depth}: no draft was rejected: {answer}");
            }
        }
    }
}

/// The same with weights in 8 and 4 bits, and the server says which.
#[test]
fn tokens_of_quantised_weights_do_not_depend_on_the_draft_depth() {
    let bodies: Vec<Value> = prompts::KINDS
        .iter()
        .flat_map(|text| {
            [(0.0, 0), (0.9, 21)].map(|(temperature, seed)| {
                let sampling = json!({"temperature": temperature, "sampling_seed": seed,
                    "max_new_tokens": 60, "ignore_eos": true});
                native(*text, sampling)
            })
        })
        .collect();
    let answers = |flags: &[&str]| -> Vec<Vec<u32>> {
        let server = Server::start(flags);
        let answers = at_once(&bodies, |body| output(&server.ok("/generate", body)));
        let info = server.client().get("/server_info").json();
        assert_eq!(info["quantization"], json!(flags.get(1)), "{info}");
        answers
    };
    let as_stored = answers(&[]);
    for format in ["int8", "int4"] {
        let plain = answers(&["--quantization", format, "--speculative-algorithm", "none"]);
        assert_ne!(plain, as_stored, "{format} changes nothing");
        for depth in ["3", "8"] {
            let flags = ["--quantization", format, "--speculative-num-steps", depth];
            assert_eq!(answers(&flags), plain, "{format}, depth {depth}");
        }
    }
}

/// Case C05: sampling costs some acceptance and not all of it, and so does a long life.
#[test]
fn acceptance_survives_sampling_and_a_long_conversation() {
    let server = at_depth("3");
    let ask = |temperature: f64| {
        let sampling = json!({"temperature": temperature, "sampling_seed": 5,
            "max_new_tokens": 200, "ignore_eos": true});
        let before = (server.total("n_drafted"), server.total("n_accepted"));
        let answer = server.ok("/generate", &native(prompts::EASY, sampling));
        let drafted = server.total("n_drafted") - before.0;
        let accepted = server.total("n_accepted") - before.1;
        assert_eq!(drafted, count(&answer, "spec_num_proposed_drafts"));
        assert_eq!(accepted, count(&answer, "spec_num_correct_drafts"));
        accept_rate(&answer)
    };
    let greedy = ask(0.0);
    assert!(greedy >= 0.5, "the easy prompt is not easy: {greedy}");
    for temperature in [0.7, 1.0] {
        let sampled = ask(temperature);
        assert!(sampled >= greedy / 5.0, "{sampled} at {temperature}, {greedy} at 0");
    }
    let long = native(prompts::long(5, 4800), json!({"temperature": 0, "max_new_tokens": 200}));
    let answer = server.ok("/generate", &long);
    let n_prompt = count(&answer, "prompt_tokens");
    assert!(n_prompt > 7500, "the long prompt has only {n_prompt} tokens");
    let fresh = ask(0.0);
    assert!((fresh - greedy).abs() <= 0.2, "{greedy} at the start, {fresh} later");
}

/// Case C06: penalties, biases and lower limits see every accepted token.
#[test]
fn penalties_and_limits_count_every_accepted_token() {
    let (on, off) = (at_depth("3"), Server::start(OFF));
    let loopy = "again ".repeat(40);
    let base = json!({"temperature": 0, "max_new_tokens": 120, "ignore_eos": true});
    let plain = output(&off.ok("/generate", &native(&*loopy, base.clone())));
    let penalties = [
        json!({"frequency_penalty": 1.0}),
        json!({"presence_penalty": 1.5}),
        json!({"repetition_penalty": 1.2}),
        json!({"logit_bias": { plain[1].to_string(): -100 }}),
        json!({"min_p": 0.2, "top_k": 4, "top_p": 0.8, "temperature": 1.2, "sampling_seed": 6}),
    ];
    for penalty in penalties {
        let body = native(&*loopy, with(&base, penalty.clone()));
        let (on, off) = (on.ok("/generate", &body), off.ok("/generate", &body));
        assert_eq!(output(&on), output(&off), "{penalty}");
        assert_ne!(output(&off), plain, "{penalty} changes nothing, so that it proves nothing");
        assert!(count(&on, "spec_num_proposed_drafts") > 0);
    }
    let end = json!({"temperature": 0, "max_tokens": 60,
        "chat_template_kwargs": {"enable_thinking": false}});
    let short = with(&chat("Reply with one short word."), end);
    let n = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    for body in [with(&short, json!({"min_tokens": 24})), short] {
        let (on, off) =
            (on.ok("/v1/chat/completions", &body), off.ok("/v1/chat/completions", &body));
        assert_eq!(on["choices"], off["choices"]);
        assert_eq!(n(&on), n(&off));
        assert!(body.get("min_tokens").is_none() || n(&on) >= 24);
    }
}

/// Case C12: log-probabilities are the target's, the same with drafts and without.
#[test]
fn logprobs_are_numbers_of_the_target() {
    let (on, off) = (at_depth("3"), Server::start(OFF));
    let more = json!({"temperature": 0, "max_tokens": 48, "logprobs": true, "top_logprobs": 5,
        "separate_reasoning": false});
    let body = with(&chat("Name four rivers."), more);
    let path = "/v1/chat/completions";
    let answer = on.ok(path, &body);
    let choice = &answer["choices"][0];
    assert_eq!(choice, &off.ok(path, &body)["choices"][0]);
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(json!(entries.len()), answer["usage"]["completion_tokens"]);
    assert!(on.total("n_accepted") > 0);
    let mut bytes = Vec::new();
    for entry in entries {
        let top: Vec<f64> = entry["top_logprobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|top| top["logprob"].as_f64().unwrap())
            .collect();
        assert_eq!(top.len(), 5);
        assert!(top.is_sorted_by(|a, b| a >= b), "{top:?}");
        assert_eq!(entry["logprob"].as_f64(), Some(top[0]), "greedy takes the most probable");
        assert!(top[0] <= 0.0 && top.iter().map(|p| p.exp()).sum::<f64>() <= 1.0001, "{top:?}");
        bytes.extend(ids(&entry["bytes"]).into_iter().map(|byte| byte as u8));
    }
    assert!(entries.iter().any(|entry| entry["logprob"].as_f64() < Some(0.0)));
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);

    let streamed = with(&body, json!({"stream": true}));
    let streamed = put_together(&on.client().stream(path, &streamed).events(), 0);
    assert_eq!(&streamed.logprobs, entries);

    let middle: String = text.chars().skip(text.chars().count() / 2).take(6).collect();
    let stopped = on.ok(path, &with(&body, json!({"stop": [middle]})));
    let stopped = &stopped["choices"][0];
    assert_eq!(stopped["finish_reason"], "stop");
    let kept = stopped["logprobs"]["content"].as_array().unwrap();
    assert_eq!(kept[..], entries[..kept.len()]);
    let shown = stopped["message"]["content"].as_str().unwrap();
    let before: usize =
        kept[..kept.len() - 1].iter().map(|entry| entry["bytes"].as_array().unwrap().len()).sum();
    assert!(before <= shown.len(), "an entry belongs to text after the stop");
}
