//! Cases of the reasoning split, each in every cutting.

use super::*;
use proptest::prelude::*;

/// Reasoning, content, and where the thinking part closed.
type Split = (String, String, Option<usize>);

fn split(start: ReasoningStart, call_closes: bool, pieces: &[&str]) -> Split {
    let mut splitter = ReasoningSplitter::new(start, call_closes);
    let (mut reasoning, mut content) = (String::new(), String::new());
    for piece in pieces {
        splitter.push(piece, &mut reasoning, &mut content);
    }
    splitter.finish(&mut reasoning, &mut content);
    (reasoning, content, splitter.closed_at())
}

/// Splits `text` whole, in single characters and at every cut.
#[track_caller]
fn check(start: ReasoningStart, text: &str, reasoning: &str, content: &str) {
    let whole = split(start, true, &[text]);
    assert_eq!((whole.0.as_str(), whole.1.as_str()), (reasoning, content));
    let chars: Vec<&str> = text.split("").collect();
    assert_eq!(split(start, true, &chars), whole);
    for cut in (0..text.len()).filter(|&cut| text.is_char_boundary(cut)) {
        assert_eq!(split(start, true, &[&text[..cut], &text[cut..]]), whole, "cut at {cut}");
    }
}

use ReasoningStart::{Closed, Open};

#[test]
fn an_open_thinking_part_is_reasoning_until_it_closes() {
    check(Open, "Hm.\n</think>\n\nYes.", "Hm.", "Yes.");
    check(Open, "\n\nHm\n\nso\n\n</think>Yes.\n", "Hm\n\nso", "Yes.\n");
    check(Open, "</think>\n\nYes", "", "Yes");
    check(Open, "a </thin </think>b</think>c", "a </thin ", "b</think>c");
}

#[test]
fn an_answer_cut_in_the_thinking_part_is_reasoning() {
    check(Open, "Hm, let me", "Hm, let me", "");
    check(Open, "Hm.\n\n", "Hm.\n\n", "");
    check(Open, "Hm.\n</thi", "Hm.\n</thi", "");
    check(Open, "", "", "");
    check(Open, "Hm.</think>\n\n", "Hm.", "");
}

#[test]
fn a_closed_thinking_part_leaves_the_text_alone() {
    check(Closed, "\nYes </think> <think>\n", "", "\nYes </think> <think>\n");
    check(Closed, "  <thin", "", "  <thin");
}

#[test]
fn a_model_may_open_the_thinking_part_itself() {
    check(Closed, "\n<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.");
    check(Closed, "<think>\nHm", "Hm", "");
    check(Open, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.");
    let far = " ".repeat(MAX_LEADING_SPACE + 1) + "<think>x";
    check(Closed, &far, "", &far);
}

#[test]
fn a_tool_call_closes_the_thinking_part() {
    check(Open, "Call it.\n<tool_call>\n{}</tool_call>", "Call it.", "<tool_call>\n{}</tool_call>");
    let (reasoning, content, closed_at) = split(Open, false, &["x<tool_call>"]);
    assert_eq!((reasoning.as_str(), content.as_str(), closed_at), ("x<tool_call>", "", None));
}

#[test]
fn the_place_of_the_end_is_after_the_marker() {
    assert_eq!(split(Open, true, &["Hm.</th", "ink>\n\n", "Yes"]).2, Some("Hm.</think>".len()));
    assert_eq!(split(Open, true, &["Hm.\n", "<tool_call>"]).2, Some("Hm.\n".len()));
}

#[test]
fn long_runs_of_line_breaks_cost_their_length() {
    let mut splitter = ReasoningSplitter::new(Open, true);
    let (mut reasoning, mut content) = (String::new(), String::new());
    splitter.push("x", &mut reasoning, &mut content);
    for _ in 0..200_000 {
        splitter.push("\n", &mut reasoning, &mut content);
    }
    assert_eq!(reasoning, "x");
    splitter.push("y", &mut reasoning, &mut content);
    assert_eq!(reasoning.len(), 200_002);
}

proptest! {
    #[test]
    fn nothing_but_markers_and_line_breaks_is_lost(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "<", "</", "think>", "\n", " ", "a", "é",
        ]), 0..14),
        open in any::<bool>(),
        call_closes in any::<bool>(),
    ) {
        let start = if open { Open } else { Closed };
        let text = pieces.concat();
        let whole = split(start, call_closes, &[&text]);
        prop_assert_eq!(&split(start, call_closes, &pieces), &whole);
        let chars: Vec<&str> = text.split("").collect();
        prop_assert_eq!(&split(start, call_closes, &chars), &whole);
        // One opening and one closing marker at most are taken out.
        let n = |text: &str| text.chars().filter(|c| !matches!(c, '\n' | ' ')).count();
        let lost = n(&text) - n(&whole.0) - n(&whole.1);
        prop_assert!([0, OPEN.len(), CLOSE.len(), OPEN.len() + CLOSE.len()].contains(&lost), "{}", lost);
    }
}
