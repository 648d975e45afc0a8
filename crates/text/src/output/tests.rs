//! The whole way of an answer: stop strings, counts, reasoning and calls by token.

use super::*;
use crate::testing::{FOLDERS, tokenizer};
use crate::tokenizer::Markers;
use proptest::prelude::*;
use serde_json::json;
use std::sync::LazyLock;

/// `<think>` is a control token in the first and an ordinary added token in the second.
static TOKENIZERS: LazyLock<[Arc<Tokenizer>; 2]> = LazyLock::new(|| FOLDERS.map(tokenizer));

fn tiny() -> Arc<Tokenizer> {
    TOKENIZERS[0].clone()
}

#[derive(Debug, Default, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    counts: Counts,
    matched: Option<MatchedStop>,
    n_pushed: usize,
}

fn read(tokenizer: &Arc<Tokenizer>, tokens: &[u32], options: OutputOptions) -> Answer {
    let mut parser = OutputParser::new(tokenizer.clone(), options).unwrap();
    let mut deltas = Vec::new();
    let mut answer = Answer::default();
    for &token in tokens {
        answer.n_pushed += 1;
        let before = parser.counts();
        let flow = parser.push(token, &mut deltas);
        let counts = parser.counts();
        assert!(counts.reasoning <= counts.completion && counts.shown <= counts.completion);
        assert!(before.shown <= counts.shown);
        if flow == Flow::Stop {
            break;
        }
    }
    parser.finish(&mut deltas);
    let n_deltas = deltas.len();
    parser.finish(&mut deltas);
    assert_eq!(parser.push(1, &mut deltas), Flow::Stop);
    assert_eq!(deltas.len(), n_deltas, "nothing comes after the end");
    for delta in deltas {
        match delta {
            Delta::Content(text) => answer.content.push_str(&text),
            Delta::Reasoning(text) => answer.reasoning.push_str(&text),
            Delta::ToolCallStart { name, .. } => answer.calls.push((name, String::new())),
            Delta::ToolCallArguments { index, fragment } => {
                answer.calls[index].1.push_str(&fragment)
            }
        }
    }
    answer.counts = parser.counts();
    answer.matched = parser.matched_stop().cloned();
    assert_eq!(parser.n_tool_calls(), answer.calls.len());
    answer
}

fn options() -> OutputOptions {
    OutputOptions { skip_special_tokens: true, end_tokens: vec![4086], ..OutputOptions::default() }
}

fn stop(stop: &str) -> OutputOptions {
    OutputOptions { stop: vec![stop.into()], ..options() }
}

#[test]
fn thinking_and_answer_are_split_whatever_kind_of_token_the_markers_are() {
    for tokenizer in TOKENIZERS.iter() {
        let text = "Hm, 221.\n</think>\n\nNo.";
        let tokens = tokenizer.encode(text, Markers::Parse).unwrap();
        let spelt = tokenizer.encode(text, Markers::Plain).unwrap();
        let close = tokens.iter().position(|&t| tokenizer.bytes(t) == b"</think>").unwrap();
        for (tokens, n_reasoning) in [(&tokens, Some(close + 1)), (&spelt, None)] {
            let options = OutputOptions { reasoning: Some(ReasoningStart::Open), ..options() };
            let answer = read(tokenizer, tokens, options);
            assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm, 221.", "No."));
            assert_eq!(answer.counts.completion, tokens.len());
            assert_eq!(answer.counts.shown, tokens.len());
            if let Some(n) = n_reasoning {
                assert_eq!(answer.counts.reasoning, n);
            }
        }
    }
}

/// Case C11: whatever the limit, reasoning never exceeds completion, and equals it while the
/// thinking part is open.
#[test]
fn reasoning_tokens_never_exceed_completion_tokens() {
    let tokenizer = tiny();
    let tokens = tokenizer
        .encode("221 is 13 * 17.\n\n</think>\n\nNot a prime.<|im_end|>", Markers::Parse)
        .unwrap();
    let close = tokens.iter().position(|&t| Some(t) == tokenizer.token_id("</think>")).unwrap();
    for limit in 0..=tokens.len() {
        let options = OutputOptions { reasoning: Some(ReasoningStart::Open), ..options() };
        let answer = read(&tokenizer, &tokens[..limit], options);
        assert_eq!(answer.counts.completion, limit);
        assert_eq!(answer.counts.reasoning, limit.min(close + 1));
        if limit <= close {
            assert_eq!(answer.content, "");
        }
    }
}

/// Case C11, unit form: an end token inside an accepted block.
#[test]
fn tokens_after_the_end_token_are_in_no_count() {
    let tokenizer = tiny();
    let id = |text: &str| tokenizer.encode(text, Markers::Plain).unwrap()[0];
    let tokens = [id("a"), id("b"), id("c"), id("d"), 4086, id("x"), id("x")];
    let answer = read(
        &tokenizer,
        &tokens,
        OutputOptions { reasoning: Some(ReasoningStart::Open), ..options() },
    );
    assert_eq!(answer.counts, Counts { completion: 5, reasoning: 4, shown: 5 });
    assert_eq!(answer.matched, Some(MatchedStop::Token(4086)));
    assert_eq!(answer.reasoning, "abcd");
}

#[test]
fn an_end_token_has_text_only_on_request() {
    let tokenizer = tiny();
    let tokens = tokenizer.encode("Yes.<|im_end|>", Markers::Parse).unwrap();
    let content = |options| read(&tokenizer, &tokens, options).content;
    assert_eq!(content(options()), "Yes.");
    assert_eq!(content(OutputOptions { skip_special_tokens: false, ..options() }), "Yes.");
    assert_eq!(content(OutputOptions { include_stop: true, ..options() }), "Yes.<|im_end|>");
    let ignored = OutputOptions { end_tokens: vec![], ..options() };
    assert_eq!(content(ignored.clone()), "Yes.");
    assert_eq!(content(OutputOptions { skip_special_tokens: false, ..ignored }), "Yes.<|im_end|>");
}

/// Cases C10 and C12: nothing of the stop string is shown, and only the tokens before it are
/// counted as shown.
#[test]
fn a_stop_string_over_tokens_is_cut_out() {
    let tokenizer = tiny();
    let tokens = tokenizer
        .encode("The rivers are the Aura, the Oulujoki and the Kemijoki.", Markers::Plain)
        .unwrap();
    let answer = read(&tokenizer, &tokens, stop("Aura, the Oulu"));
    assert_eq!(answer.content, "The rivers are the ");
    assert_eq!(answer.matched, Some(MatchedStop::Text("Aura, the Oulu".into())));
    assert_eq!(answer.counts.completion, answer.n_pushed);
    assert!(answer.n_pushed < tokens.len());
    let shown = tokenizer.decode(&tokens[..answer.counts.shown], false);
    assert!(shown.starts_with("The rivers are the") && !shown.contains("Aur"), "{shown}");
    let kept =
        read(&tokenizer, &tokens, OutputOptions { include_stop: true, ..stop("Aura, the Oulu") });
    assert_eq!(kept.content, "The rivers are the Aura, the Oulu");
    assert_eq!(kept.counts.shown, kept.counts.completion);
}

#[test]
fn stop_strings_are_matched_in_reasoning_and_in_markup() {
    let tokenizer = tiny();
    let tokens = tokenizer.encode("Hm. STOP it.\n</think>\n\nYes.", Markers::Parse).unwrap();
    let with = |text: &str| OutputOptions { reasoning: Some(ReasoningStart::Open), ..stop(text) };
    let answer = read(&tokenizer, &tokens, with("STOP"));
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm. ", ""));
    assert_eq!(answer.counts.reasoning, answer.counts.completion);
    let answer = read(&tokenizer, &tokens, with("</think>\n\nY"));
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm. STOP it.\n", ""));
    // A stop string that only begins like the marker does not disturb the count.
    let answer = read(&tokenizer, &tokens, with("</think>\n\nYex"));
    let close = tokens.iter().position(|&t| Some(t) == tokenizer.token_id("</think>")).unwrap();
    assert_eq!((answer.content.as_str(), answer.counts.reasoning), ("Yes.", close + 1));
}

#[test]
fn an_empty_stop_string_is_refused() {
    assert_eq!(OutputParser::new(tiny(), stop("")).err(), Some(StopError::Empty));
}

#[test]
fn tool_calls_are_parsed_after_the_thinking_part() {
    let schema = json!([{"function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}]);
    let tools = Some(Arc::new(Tools::new(schema.as_array().unwrap())));
    let text = "I call f.\n</think>\n\nNow:\n<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>";
    for tokenizer in TOKENIZERS.iter() {
        let tokens = tokenizer.encode(text, Markers::Parse).unwrap();
        let options = OutputOptions {
            reasoning: Some(ReasoningStart::Open),
            tools: tools.clone(),
            ..options()
        };
        let answer = read(tokenizer, &tokens, options);
        assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("I call f.", "Now:"));
        assert_eq!(answer.calls, [("f".into(), "{\"n\": 7}".into())]);
        // Without tools the markup is text, where the tokenizer does not hide it as a control
        // token.
        let answer = read(
            tokenizer,
            &tokens,
            OutputOptions { skip_special_tokens: false, ..Default::default() },
        );
        assert_eq!(answer.content, text);
    }
}

#[test]
fn an_unfinished_character_is_flushed_at_the_end() {
    let tokenizer = tiny();
    let squid = tokenizer.encode("🦑", Markers::Plain).unwrap();
    assert!(squid.len() > 1, "a character of several tokens");
    let answer = read(&tokenizer, &squid[..1], options());
    assert_eq!(answer.content, "\u{FFFD}");
    assert_eq!(answer.counts.shown, 1);
    assert_eq!(read(&tokenizer, &squid, options()).content, "🦑");
}

#[test]
fn a_long_answer_costs_its_length() {
    let tokenizer = tiny();
    let tools = Some(Arc::new(Tools::default()));
    let options = OutputOptions {
        stop: vec!["never this".into(), "\n\n\n\n\n\n#".into()],
        reasoning: Some(ReasoningStart::Open),
        tools,
        ..options()
    };
    let mut parser = OutputParser::new(tokenizer.clone(), options).unwrap();
    let mut deltas = Vec::new();
    for token in (0..4084).cycle().take(100_000) {
        parser.push(token, &mut deltas);
    }
    parser.finish(&mut deltas);
    assert_eq!(parser.counts().completion, 100_000);
}

fn markup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=n>",
        "</parameter>",
        "{\"name\": \"f\"}",
        "\n",
        "\n\n",
        " ",
        "<",
        "{",
        "1",
        "é",
        "a b\n",
    ]);
    // Random pieces seldom open a call, so that some texts begin inside one.
    let begin = prop::sample::select(vec![
        "",
        "</think>\n\n<tool_call>\n<function=f>\n",
        "<tool_call><function=f><parameter=n>",
    ]);
    let pieces = prop::collection::vec(piece, 0..12);
    (begin, pieces).prop_map(|(begin, pieces)| begin.to_owned() + &pieces.concat())
}

proptest! {
    /// The same text in other tokens is the same answer: markers as one token or spelt, and every
    /// character on its own.
    #[test]
    fn any_tokens_of_a_text_give_one_answer(
        text in markup(),
        start in prop::sample::select(vec![ReasoningStart::Open, ReasoningStart::Closed]),
        stop in prop::collection::vec("[ab1{<>é \n]{1,3}", 0..2),
        skip_special_tokens in any::<bool>(),
    ) {
        let schema = json!([{"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}]);
        let options = OutputOptions {
            skip_special_tokens,
            stop,
            reasoning: Some(start),
            tools: Some(Arc::new(Tools::new(schema.as_array().unwrap()))),
            ..OutputOptions::default()
        };
        for tokenizer in TOKENIZERS.iter() {
            let encode = |text: &str, markers| tokenizer.encode(text, markers).unwrap();
            let by_character = text.chars().flat_map(|c| encode(&c.to_string(), Markers::Plain));
            let answers = [
                encode(&text, Markers::Parse),
                encode(&text, Markers::Plain),
                by_character.collect(),
            ]
            .map(|tokens| {
                let answer = read(tokenizer, &tokens, options.clone());
                (answer.reasoning, answer.content, answer.calls, answer.matched)
            });
            prop_assert_eq!(&answers[1], &answers[0]);
            prop_assert_eq!(&answers[2], &answers[0]);
        }
    }

    /// Whatever ids a model of random weights writes: no panic, nothing lost, counts in order.
    #[test]
    fn any_ids_are_read(
        tokens in prop::collection::vec(
            prop_oneof![0u32..4200, 4084u32..4096, any::<u32>()], 0..60),
        reasoning in prop::option::of(
            prop::sample::select(vec![ReasoningStart::Open, ReasoningStart::Closed])),
        with_tools in any::<bool>(),
        skip_special_tokens in any::<bool>(),
        stop in prop::collection::vec("[ a-z<>]{1,3}", 0..3),
    ) {
        let tokenizer = tiny();
        let tools = with_tools.then(Arc::<Tools>::default);
        let options =
            OutputOptions { skip_special_tokens, stop, reasoning, tools, ..OutputOptions::default() };
        let plain = reasoning.is_none() && !with_tools && options.stop.is_empty();
        let answer = read(&tokenizer, &tokens, options);
        prop_assert_eq!(answer.counts.completion, answer.n_pushed);
        if answer.matched.is_none() {
            prop_assert_eq!(answer.counts.shown, tokens.len());
        }
        if plain {
            prop_assert_eq!(answer.content, tokenizer.decode(&tokens, skip_special_tokens));
        }
    }
}
