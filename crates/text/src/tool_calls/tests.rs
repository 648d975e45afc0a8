//! Cases of the tool-call parser: each text is parsed whole, at every cut and at every piece size.

use super::*;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// What a stream of deltas amounts to.
#[derive(Debug, Default, PartialEq)]
struct Parsed {
    content: String,
    calls: Vec<(String, String)>,
}

/// Folds deltas as a client does, and checks that names come once and in order.
fn fold(deltas: &[Delta]) -> Parsed {
    let mut parsed = Parsed::default();
    for delta in deltas {
        match delta {
            Delta::Content(text) => parsed.content.push_str(text),
            Delta::Reasoning(_) => panic!("the call parser makes no reasoning"),
            Delta::ToolCallStart { index, id, name } => {
                assert_eq!(*index, parsed.calls.len());
                assert_eq!(*id, format!("call-{index}"));
                parsed.calls.push((name.clone(), String::new()));
            }
            Delta::ToolCallArguments { index, fragment } => {
                assert_eq!(index + 1, parsed.calls.len());
                parsed.calls[*index].1.push_str(fragment);
            }
        }
    }
    parsed
}

fn parse(tools: &Arc<Tools>, pieces: &[&str]) -> Parsed {
    let mut parser = ToolCallParser::new(tools.clone(), "call-");
    let mut deltas = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut deltas);
    }
    parser.finish(&mut deltas);
    fold(&deltas)
}

/// Cuts `text` into pieces of `n` characters.
fn pieces(text: &str, n: usize) -> Vec<&str> {
    let mut rest = text;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Parses `text` in every way and returns the one result.
fn parse_all_ways(tools: &[Json], text: &str) -> Parsed {
    let tools = Arc::new(Tools::new(tools));
    let whole = parse(&tools, &[text]);
    for n in 1..=40 {
        assert_eq!(parse(&tools, &pieces(text, n)), whole, "in pieces of {n} characters");
    }
    for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
        let (before, after) = text.split_at(cut);
        assert_eq!(parse(&tools, &[before, after]), whole, "cut after {before:?}");
    }
    whole
}

fn check(tools: &[Json], text: &str, content: &str, calls: &[(&str, Json)]) {
    let parsed = parse_all_ways(tools, text);
    assert_eq!(parsed.content, content);
    let got: Vec<(&str, Json)> = parsed
        .calls
        .iter()
        .map(|(name, arguments)| (name.as_str(), serde_json::from_str(arguments).unwrap()))
        .collect();
    assert_eq!(got, calls);
}

/// The input of a case in `cases/api-cases.jsonl`.
fn case(id: &str) -> Json {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/api-cases.jsonl");
    let cases = std::fs::read_to_string(path).unwrap();
    let mut cases = cases.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
    cases.find(|case| case["id"] == id).unwrap()["input"].clone()
}

#[test]
fn case_c17_cutting_does_not_matter() {
    let input = case("C17");
    let calls: Vec<(&str, Json)> = input["want"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| (call["name"].as_str().unwrap(), call["arguments"].clone()))
        .collect();
    let text = input["model_text"].as_str().unwrap();
    check(input["tools"].as_array().unwrap(), text, "Setting it now.", &calls);
}

#[test]
fn case_c18_types_follow_the_schema() {
    let input = case("C18");
    let tool = json!({"type": "function", "function": input["tool"]});
    let text = input["model_text"].as_str().unwrap();
    check(&[tool], text, "", &[("book", input["want"].clone())]);
}

#[test]
fn the_hermes_form_is_read() {
    let text = concat!(
        "Sure.\n<tool_call>\n",
        r#"{"name": "add", "arguments": {"a": "}</tool_call>\"", "b": [1, {}]}}"#,
        "\n</tool_call>\n",
        r#"<tool_call>{"arguments": "{\"x\": 1}", "name": "two"}</tool_call>"#,
        "\n<tool_call>{\"name\": \"none\"}</tool_call>\nDone. ",
    );
    check(
        &[],
        text,
        "Sure.\nDone. ",
        &[
            ("add", json!({"a": "}</tool_call>\"", "b": [1, {}]})),
            ("two", json!({"x": 1})),
            ("none", json!({})),
        ],
    );
}

#[test]
fn what_is_not_a_call_stays_content() {
    for text in [
        "a < b, <tool>, </tool_call> and <tool_call",
        "<tool_call>just talk</tool_call> ",
        "<tool_call>\n{\"no\": \"name\"}\n</tool_call>\n",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {broken}}</tool_call> x",
        "<tool_call>\n<function=\nname>\n</function>",
        "<tool_call><function=>",
        "<tool_call>\n<func",
        "<tool_call>{\"name\": \"f\", \"argu",
        "blanks at the end \n\n",
    ] {
        let parsed = parse_all_ways(&[], text);
        assert_eq!(parsed, Parsed { content: text.into(), calls: vec![] });
    }
}

#[test]
fn a_call_after_a_failed_one_is_found() {
    check(
        &[],
        "<tool_call>no\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "<tool_call>no",
        &[("f", json!({}))],
    );
}

#[test]
fn values_may_contain_tags() {
    let text = concat!(
        "<tool_call>\n<function=write>\n<parameter=xml>\n",
        "<a>\n<parameter>1</parameter>\n<b></function> </b>\n</a>\n</parameter>\n",
        "<parameter=end>\n</parameter>\n<parameter=empty>\n\n</parameter>\n",
        "<parameter=lines>\n\n\nx\n\n\n</parameter>\n</function>\n</tool_call>",
    );
    let want = json!({
        "xml": "<a>\n<parameter>1</parameter>\n<b></function> </b>\n</a>",
        "end": "", "empty": "", "lines": "\n\nx\n\n",
    });
    check(&[], text, "", &[("write", want)]);
}

#[test]
fn text_in_a_call_outside_its_values_is_content() {
    let open = "<tool_call><function=f>";
    let parameter = "<parameter=a>\n1\n</parameter>";
    for (stray, content) in [
        ("{\n", "{\n"),
        ("a b\n\tc ", "a b\n\tc "),
        (" \n é x", "é x"),
        ("\u{2003}é\u{2003}", "é\u{2003}"),
        ("\n<b> x </b>\n", "<b> x </b>\n"),
        ("< <\n<<", "< <\n<"),
        ("<parameter=\n x", "<parameter=\n x"),
        ("<parameter=> <", "<parameter=> "),
    ] {
        // At the end of the answer, where a `<` alone is a tag that was cut off.
        let parsed = parse_all_ways(&[], &format!("{open}{stray}"));
        assert_eq!(
            parsed,
            Parsed { content: content.into(), calls: vec![("f".into(), "".into())] }
        );
    }
    let text = format!("I\n{open}\n x y \n{parameter}\n</function>\n</tool_call>\nDone");
    check(&[], &text, "Ix y \n\nDone", &[("f", json!({"a": "1"}))]);
}

#[test]
fn missing_closing_tags_are_forgiven() {
    let text = concat!(
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</tool_call>\n",
        "<tool_call>\n<function=g>\n<parameter=b>\n2\n</function>\n</tool_call>\n",
        "<tool_call>\n<function=h>\n</function>\n<function=i>\n</function>\n</tool_call>",
    );
    check(
        &[],
        text,
        "",
        &[("f", json!({"a": "1"})), ("g", json!({"b": "2"})), ("h", json!({})), ("i", json!({}))],
    );
}

#[test]
fn a_call_cut_off_is_never_whole() {
    let input = case("C17");
    let tools = input["tools"].as_array().unwrap();
    let text = input["model_text"].as_str().unwrap();
    let first_end = text.find("</function>").unwrap() + "</function>".len();
    for cut in (0..first_end).filter(|&cut| text.is_char_boundary(cut)) {
        let parsed = parse_all_ways(tools, &text[..cut]);
        if let [(_, arguments)] = &parsed.calls[..] {
            assert!(
                serde_json::from_str::<Json>(arguments).is_err(),
                "cut after {:?}",
                &text[..cut]
            );
        }
    }
    let parsed = parse_all_ways(tools, "<tool_call>\n<function=set_timer>\n<parameter=minutes>\n7");
    assert_eq!(parsed.calls, [("set_timer".into(), "{\"minutes\": \"7".into())]);
}

#[test]
fn strings_are_streamed() {
    let mut parser = ToolCallParser::new(Arc::default(), "call-");
    let mut deltas = Vec::new();
    parser.push("<tool_call>\n<function=f>\n<parameter=text>\nfirst \"half\"", &mut deltas);
    assert_eq!(fold(&deltas).calls, [("f".into(), "{\"text\": \"first \\\"half\\\"".into())]);
}

#[test]
fn long_answers_cost_their_length() {
    for unit in
        ["\n", "<", "x ", "</parameter>\n", "<tool_call>", "<tool_call>{\"", "{", "<parameter="]
    {
        let mut parser = ToolCallParser::new(Arc::default(), "call-");
        let mut deltas = Vec::new();
        parser.push("<tool_call>\n<function=f>\n<parameter=text>\n", &mut deltas);
        for _ in 0..50_000 {
            parser.push(unit, &mut deltas);
            deltas.clear();
        }
        parser.finish(&mut deltas);
        let mut parser = ToolCallParser::new(Arc::default(), "call-");
        for _ in 0..50_000 {
            parser.push(unit, &mut deltas);
            deltas.clear();
        }
        parser.finish(&mut deltas);
    }
}

fn markup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "<tool_call>",
            "</tool_call>",
            "<function=f>",
            "<function=",
            "</function>",
            "<parameter=n>",
            "<parameter=s>",
            "</parameter>",
            "\n",
            " ",
            "\u{2003}",
            "{",
            "}",
            "\"",
            "\\",
            "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
            "<",
            ">",
            "1",
            "é",
        ])
        .prop_map(str::to_owned),
        "[a-z<>/= \n]{0,6}",
    ];
    // Random pieces seldom open a call, so that some texts begin inside one.
    let begin = prop::sample::select(vec![
        "",
        "<tool_call><function=f>",
        "<tool_call><function=f><parameter=n>",
        "<tool_call><function=f><parameter=s>",
        "<tool_call><function=f></function>",
    ]);
    let pieces = prop::collection::vec(piece, 0..14);
    (begin, pieces).prop_map(|(begin, pieces)| begin.to_owned() + &pieces.concat())
}

proptest! {
    #[test]
    fn any_text_in_any_pieces_gives_one_result(
        text in markup(),
        sizes in prop::collection::vec(1usize..9, 1..20),
    ) {
        let parameters = json!({"properties": {"n": {"type": "integer"}}});
        let tools = Arc::new(Tools::new(&[json!({"name": "f", "parameters": parameters})]));
        let whole = parse(&tools, &[&text]);
        let mut rest = text.as_str();
        let mut cut = Vec::new();
        for size in sizes {
            let end = rest.char_indices().nth(size).map_or(rest.len(), |(at, _)| at);
            cut.push(&rest[..end]);
            rest = &rest[end..];
        }
        cut.push(rest);
        prop_assert_eq!(parse(&tools, &cut), whole);
    }
}
