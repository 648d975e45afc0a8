//! Nothing in this crate panics, hangs or grows without bound, whatever bytes it reads.

use dialects::log::{Lines, Parser, rate};
use dialects::{
    Engine, benchmark, compose, find_commands, history, info, metrics, pyrepr, redact, unit, yaml,
};
use proptest::prelude::*;

/// Pieces of real lines, so that random text reaches the inside of the grammars.
const PIECES: &[&str] = &[
    "[2026-01-05 10:00:00 TP0] ",
    "Decode batch, ",
    "Prefill batch. ",
    "#running-req: ",
    "#new-seq: 1, ",
    "accept len: ",
    "gen throughput (token/s): ",
    "(EngineCore pid=7) INFO 04-05 06:07:08 [metrics.py:101] ",
    "Engine 000: ",
    "SpecDecoding metrics: ",
    "Per-position acceptance rate: 0.7, ",
    "server_args={'a': ",
    "ServerArgs(x=",
    "0.07.123.456 I slot print_timing: id  0 | task 9 | ",
    "eval time = ",
    " ms / ",
    "draft acceptance = ",
    "llama_kv_cache: size = ",
    "MiB (",
    "offloaded ",
    "/",
    "\u{1b}[",
    "\r",
    ", ",
    ": ",
    "True",
    "-",
    "1e999",
    "99999999999999999999",
    "%",
    "'",
    "\"",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "\\",
    "- ",
    "key: ",
    "|",
    ">",
    "#",
    "$X",
    "${",
    "--speculative-config",
    "--api-key=",
    "vllm serve ",
    "sglang.launch_server ",
    "\n",
    "  ",
    "é",
    "\u{202e}",
    "KV cache pool is full. Retract requests. #retracted_reqs: ",
    "max_total_num_tokens=",
    "Receive: obj=G(sampling_params={'temperature': ",
    "non-default args: {",
];

fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => proptest::sample::select(PIECES).prop_map(str::to_owned),
        1 => "[ -~]{0,12}",
        1 => "[0-9.,]{0,8}",
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn texts(text in soup()) {
        let mut parser = Parser::new();
        for line in text.split('\n') {
            parser.line(line.as_bytes(), &mut |_| {});
        }
        prop_assert_eq!(parser.counts.lines, parser.counts.understood + parser.counts.harmless + parser.counts.not_understood);
        find_commands(&text, &|name| (name == "X").then(|| "$X $X".to_owned()));
        compose::from_yaml(&text);
        compose::from_inspect(&text);
        yaml::parse(&text);
        history::parse(&text);
        metrics::parse(&text);
        benchmark::parse(&text);
        info::parse(&text);
        pyrepr::parse(&text);
        unit::environment_file(&text);
        let mut unit = unit::Unit::default();
        unit.apply(&text);
        unit.commands(&[], "x");
        for engine in Engine::ALL {
            let mut config = dialects::Config::new(engine);
            config.set_flag(&text, Some(&text));
            config.set_flag("--speculative-config", Some(&text));
            config.differences(&dialects::Config::new(Engine::Sglang));
        }
    }

    #[test]
    fn bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400), size in 1usize..64) {
        let mut parser = Parser::new();
        let mut lines = Lines::default();
        for chunk in bytes.chunks(size) {
            lines.feed(chunk, &mut |line| parser.line(line, &mut |_| {}));
        }
        lines.finish(&mut |line| parser.line(line, &mut |_| {}));
    }

    #[test]
    fn what_is_shown_is_one_visible_line(text in soup()) {
        let shown = redact::line(&text, 80);
        prop_assert!(shown.chars().count() <= 80);
        prop_assert!(!shown.chars().any(char::is_control));
    }

    #[test]
    fn rates(pairs in proptest::collection::vec((0.0f32..20.0, 0.0f32..1.5), 0..12), known in proptest::option::of(0u32..20)) {
        if let Some(found) = rate::infer(&pairs, known) {
            prop_assert!(found.draft_tokens >= 2);
        }
    }
}
