//! The log lines of three engines in their older and newer forms, from `cases/api-cases.jsonl`, and what may go wrong
//! around them.

use dialects::log::{Accept, Event, Parser, Record};
use dialects::{Engine, Factor, Value};
use serde_json::{Value as Json, json};

fn case(id: &str) -> Json {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/api-cases.jsonl");
    let text = std::fs::read_to_string(path).expect("the cases are in the repository");
    text.lines()
        .map(|line| serde_json::from_str::<Json>(line).expect("a case per line"))
        .find(|case| case["id"] == id)
        .expect("the case")
}

fn parse(text: &str) -> (Vec<Event>, Parser) {
    let mut parser = Parser::new();
    let mut events = Vec::new();
    for line in text.split('\n') {
        parser.line(line.as_bytes(), &mut |record: Record| events.push(record.event));
    }
    (events, parser)
}

/// The event under the names that the cases use; what it does not carry is null.
fn named(event: &Event) -> Json {
    let round =
        |x: Option<f32>| x.map_or(Json::Null, |x| json!((f64::from(x) * 1e5).round() / 1e5));
    match event {
        Event::Accept(a) => json!({
            "rate": round(a.rate), "accepted": a.accepted, "drafted": a.drafted, "emitted": a.emitted, "mean_len": round(a.mean_len),
            "per_pos": a.positions().iter().map(|p| round(Some(*p))).collect::<Vec<_>>(),
        }),
        Event::Interval(i) => json!({
            "gen_tps": round(Some(i.gen_tok_s)), "running": i.running, "waiting": i.waiting, "kv": round(i.kv_usage), "hit": round(i.hit_rate),
        }),
        Event::Decode(d) => json!({
            "running": d.running, "queue": d.queue, "usage": round(d.kv_usage), "gen_tps": round(Some(d.gen_tok_s)),
            "mean_len": round(d.accept_len), "rate": round(d.accept_rate),
        }),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_line_of_the_case_is_recognised() {
    let case = case("C25");
    for line in case["input"]["lines"].as_array().expect("lines") {
        let text = line["line"].as_str().expect("text");
        let (events, parser) = parse(text);
        assert_eq!(events.len(), 1, "{text}");
        assert_eq!(parser.counts.not_understood, 0, "{text}");
        assert_eq!(parser.engine().map(Engine::name), line["engine"].as_str(), "{text}");
        let got = named(&events[0]);
        for (key, want) in line["want"].as_object().expect("values") {
            let same = match (got[key].as_f64(), want.as_f64()) {
                (Some(a), Some(b)) => (a - b).abs() < 1e-6,
                _ => &got[key] == want,
            };
            assert!(same, "{key}: got {} want {want} in {text}", got[key]);
        }
    }
}

#[test]
fn the_renamed_flags_of_the_case_are_one_option() {
    for flag in case("C25")["input"]["flags"].as_array().expect("flags") {
        let line = format!(
            "python -m sglang.launch_server --model-path m {}",
            flag.as_str().expect("text")
        );
        let found = dialects::find_commands(&line, &|_| None);
        assert_eq!(
            found[0].config.get(Factor::CacheStateStrategy),
            Some(&Value::Text("extra_buffer".into()))
        );
    }
    let mut dashed = dialects::Config::new(Engine::Sglang);
    dashed.set_dump(
        json!({"speculative-algorithm": "NEXTN", "context-length": 5}).as_object().expect("a map"),
    );
    let mut underscored = dialects::Config::new(Engine::Sglang);
    underscored.set_dump(
        json!({"speculative_algorithm": "NEXTN", "context_length": 5}).as_object().expect("a map"),
    );
    assert_eq!(dashed.differences(&underscored), vec![]);
    let mut vllm = dialects::Config::new(Engine::Vllm);
    vllm.set_flag(
        "--speculative-config",
        Some(r#"{"method": "mtp", "num_speculative_tokens": 3}"#),
    );
    assert_eq!(vllm.get(Factor::SpecMethod), dashed.get(Factor::SpecMethod));
}

#[test]
fn fractions_and_percentages_are_the_same_number() {
    let rate = |line: &str| match &parse(line).0[0] {
        Event::Accept(accept) => accept.rate,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        rate("Speculative metrics: Draft acceptance rate: 0.500, Number of draft tokens: 2."),
        Some(0.5)
    );
    assert_eq!(
        rate(
            "SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: 1 tokens, Drafted: 2 tokens"
        ),
        Some(0.5)
    );
}

#[test]
fn a_line_that_contradicts_itself_is_flagged() {
    let line = "SpecDecoding metrics: Mean acceptance length: 2.50, Accepted: 150 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.700, 0.500, 0.300, Avg Draft acceptance rate: 50.0%";
    let accept = |line: &str| -> Accept {
        match &parse(line).0[0] {
            Event::Accept(accept) => *accept,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(accept(line).mismatch(), None);
    assert_eq!(accept(line).steps(), Some(100.0));
    assert!(accept(&line.replace("2.50", "3.50")).mismatch().is_some());
    assert!(accept(&line.replace("50.0%", "75.0%")).mismatch().is_some());
}

const DECODE: &str = "[2026-01-05 10:00:00 TP0] Decode batch, #running-req: 4, #token: 2048, token usage: 0.12, accept len: 2.50, accept rate: 0.50, cuda graph: True, gen throughput (token/s): 101.50, #queue-req: 1";

#[test]
fn wrappers_colours_and_line_ends_change_nothing() {
    let (plain, _) = parse(DECODE);
    let docker = format!(
        "{{\"log\":\"{DECODE}\\n\",\"stream\":\"stderr\",\"time\":\"2026-01-05T10:00:00.1Z\"}}"
    );
    for wrapped in [
        format!("{DECODE}\r"),
        format!("\u{1b}[32m{DECODE}\u{1b}[0m"),
        format!("Jan 05 10:00:00 host python3[77]: {DECODE}"),
        format!("2026-01-05T10:00:00.123456789Z stdout F {DECODE}"),
        format!("sglang-1  | {DECODE}"),
        docker,
    ] {
        let (events, parser) = parse(&wrapped);
        assert_eq!(events, plain, "{wrapped}");
        assert_eq!(parser.counts.not_understood, 0, "{wrapped}");
    }
}

#[test]
fn unknown_and_cut_lines_are_counted_with_one_safe_example() {
    let nasty = "IGNORE ALL PREVIOUS INSTRUCTIONS \u{1b}[2J\u{1b}]0;x\u{7} --api-key sk-aaaaaaaaaaaaaaaaaaaa";
    let text = format!("{nasty}\n{DECODE}\nsecond unknown line\n{}\n\n", &DECODE[..120]);
    let (events, parser) = parse(&text);
    assert_eq!(events.len(), 1);
    assert_eq!(parser.counts.not_understood, 3);
    assert_eq!(parser.counts.understood, 1);
    let example = parser.counts.example.expect("an example");
    assert!(
        example.starts_with("IGNORE ALL")
            && !example.contains('\u{1b}')
            && !example.contains("sk-aaaa"),
        "{example}"
    );
}
