//! Tool calls in the text of an answer, as a stream of deltas in OpenAI's form.
//!
//! Two forms are read. Qwen's XML form, whose parameter values are plain text and get the type that
//! the tool's schema declares (a string where it declares none, or where the text does not fit):
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//! and the Hermes form, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.
//!
//! The result does not depend on how the text is cut. Rules:
//! - Text before, between and after calls is content; white space around calls is dropped, other
//!   white space kept.
//! - Text in a call that is neither tag nor value has no place in it and is content, from its first
//!   character that is no white space up to the next tag.
//! - One line break after the opening and one before the closing parameter tag belong to the tags,
//!   all else to the value. A closing tag counts only where the next tag follows it, so a value may
//!   contain `</parameter>`.
//! - A value of type string is streamed; others are sent when they are complete.
//! - A function that is not among the request's tools is passed on: its caller can tell the model
//!   better than we can.
//! - What is not a call after all (no function, broken JSON) is content, markup included.
//! - A call that is cut off leaves its arguments unfinished, so that nobody runs half a call; never
//!   made to look whole.

use std::sync::Arc;

use crate::delta::{Delta, push_content};
use crate::schema::{Tools, Types};

mod markup;

use markup::{
    CALL, CALL_END, FUNCTION, FUNCTION_END, Name, Nesting, PARAMETER, PARAMETER_END, Tag, escaped,
    hermes_call, name_at, tag_at,
};

/// Incremental parser of one answer.
#[derive(Debug)]
pub struct ToolCallParser {
    tools: Arc<Tools>,
    /// Ids are this and the index of the call.
    id_prefix: String,
    /// Text not yet taken; what is before `at` has been.
    text: String,
    at: usize,
    state: State,
    n_calls: usize,
    /// White space that is content only if content follows.
    space: String,
    /// Whether nothing but white space came since the last call.
    after_call: bool,
    /// The text of a call until it is certain to be one.
    raw: String,
    function: String,
    n_parameters: usize,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Content, looking for a call.
    Content,
    /// After `<tool_call>`.
    Opened,
    /// In the name of a function.
    FunctionName,
    /// In a function, after a tag or at the `<` of one.
    Function,
    /// In a function, in text that is no tag: white space belongs to it, as white space after a tag
    /// does not.
    Stray,
    /// In the name of a parameter.
    ParameterName,
    /// In the value of a parameter.
    Value,
    /// After a tag that ends the value if the right tag follows it.
    ValueEnd(&'static str),
    /// After a function.
    FunctionEnd,
    /// In the JSON object of a Hermes call.
    Object(Nesting),
}

/// The parameter value being read.
#[derive(Debug, Default)]
struct Value {
    types: Types,
    key: String,
    /// The text so far, where it cannot be streamed.
    text: String,
    /// A tag that may end the value, and the white space after it.
    end: String,
    /// Nothing of the value has been taken: a line break now belongs to the opening tag.
    at_start: bool,
    /// A line break that belongs to the value only if more follows.
    line_break: bool,
}

/// What a step of the parser came to.
enum Step {
    /// Go on with the text that is left.
    Next,
    /// The text that is left says nothing yet.
    Wait,
}

impl ToolCallParser {
    /// A parser for an answer with these tools. Call ids are `id_prefix` and the index of the call.
    pub fn new(tools: Arc<Tools>, id_prefix: impl Into<String>) -> ToolCallParser {
        ToolCallParser {
            tools,
            id_prefix: id_prefix.into(),
            text: String::new(),
            at: 0,
            state: State::Content,
            n_calls: 0,
            space: String::new(),
            after_call: false,
            raw: String::new(),
            function: String::new(),
            n_parameters: 0,
            value: Value::default(),
        }
    }

    /// Takes the next piece of text and appends what is certain to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.text.push_str(text);
        let text = std::mem::take(&mut self.text);
        self.at = 0;
        while self.at < text.len() && matches!(self.step(&text[self.at..], out), Step::Next) {}
        self.text = text;
        self.text.drain(..self.at);
        self.at = 0;
    }

    /// Ends the text.
    pub fn finish(&mut self, out: &mut Vec<Delta>) {
        let text = std::mem::take(&mut self.text);
        match self.state {
            State::Content => self.content(&text, out),
            State::Opened | State::FunctionName | State::Object(_) => {
                self.raw.push_str(&text);
                self.reject(out);
            }
            State::Value => {
                self.take_value(&text, out);
                self.cut_value(out);
            }
            State::ValueEnd(_) => {
                // The tag that would prove it is missing, but nothing else can follow any more.
                self.end_value(out);
            }
            State::Function | State::Stray | State::ParameterName | State::FunctionEnd => {}
        }
        if !self.after_call {
            push_content(out, &self.space);
        }
        self.space.clear();
    }

    /// How many calls have begun.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    fn step(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        match self.state {
            State::Content => self.step_content(text, out),
            State::Opened => self.step_opened(text, out),
            State::FunctionName => self.step_function_name(text, out),
            State::Function => self.step_function(text, out),
            State::Stray => self.step_stray(text, out),
            State::ParameterName => self.step_parameter_name(text, out),
            State::Value => self.step_value(text, out),
            State::ValueEnd(tag) => self.step_value_end(text, tag, out),
            State::FunctionEnd => self.step_function_end(text),
            State::Object(nesting) => self.step_object(text, nesting, out),
        }
    }

    fn step_content(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        let n = text.find('<').unwrap_or(text.len());
        if n > 0 {
            self.content(&text[..n], out);
            return self.take(n);
        }
        match tag_at(text, &[CALL]) {
            Tag::Found(tag) => {
                self.raw.push_str(tag);
                self.state = State::Opened;
                self.take(tag.len())
            }
            Tag::Begun => Step::Wait,
            Tag::None => {
                self.content("<", out);
                self.take(1)
            }
        }
    }

    fn step_opened(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        let n_space = text.len() - text.trim_start().len();
        if n_space > 0 {
            self.raw.push_str(&text[..n_space]);
            return self.take(n_space);
        }
        if text.starts_with('{') {
            self.state = State::Object(Nesting::default());
            return Step::Next;
        }
        match tag_at(text, &[FUNCTION]) {
            Tag::Found(tag) => {
                self.raw.push_str(tag);
                self.state = State::FunctionName;
                self.take(tag.len())
            }
            Tag::Begun => Step::Wait,
            Tag::None => self.reject(out),
        }
    }

    fn step_function_name(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        match name_at(text) {
            Name::Found(name) => {
                self.begin_call(name.trim(), out);
                self.state = State::Function;
                self.take(name.len() + 1)
            }
            Name::Begun => Step::Wait,
            Name::None => self.reject(out),
        }
    }

    fn step_function(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        let n_space = text.len() - text.trim_start().len();
        if n_space > 0 {
            return self.take(n_space);
        }
        match tag_at(text, &[PARAMETER, FUNCTION_END, CALL_END]) {
            Tag::Found(PARAMETER) => {
                self.state = State::ParameterName;
                self.take(PARAMETER.len())
            }
            Tag::Found(tag) => {
                self.end_arguments(out);
                self.state = if tag == CALL_END { State::Content } else { State::FunctionEnd };
                self.take(tag.len())
            }
            Tag::Begun => Step::Wait,
            Tag::None => {
                // A `<` that begins no tag is taken here, or it would be tried again.
                let n = usize::from(text.starts_with('<'));
                self.content(&text[..n], out);
                self.state = State::Stray;
                self.take(n)
            }
        }
    }

    fn step_stray(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        let n = text.find('<').unwrap_or(text.len());
        self.content(&text[..n], out);
        if n < text.len() {
            self.state = State::Function;
        }
        self.take(n)
    }

    fn step_parameter_name(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        match name_at(text) {
            Name::Found(name) => {
                let key = name.trim().to_owned();
                let types = self.tools.types(&self.function, &key);
                self.value = Value { types, key, at_start: true, ..Value::default() };
                if types.is_text() {
                    self.open_value(out);
                    self.arguments("\"", out);
                }
                self.state = State::Value;
                self.take(name.len() + 1)
            }
            Name::Begun => Step::Wait,
            Name::None => {
                self.content(PARAMETER, out);
                self.state = State::Stray;
                Step::Next
            }
        }
    }

    fn step_value(&mut self, text: &str, out: &mut Vec<Delta>) -> Step {
        let n = text.find('<').unwrap_or(text.len());
        if n > 0 {
            self.take_value(&text[..n], out);
            return self.take(n);
        }
        match tag_at(text, &[PARAMETER_END, FUNCTION_END]) {
            Tag::Found(tag) => {
                self.value.end.push_str(tag);
                self.state = State::ValueEnd(tag);
                self.take(tag.len())
            }
            Tag::Begun => Step::Wait,
            Tag::None => {
                self.take_value("<", out);
                self.take(1)
            }
        }
    }

    fn step_value_end(&mut self, text: &str, tag: &'static str, out: &mut Vec<Delta>) -> Step {
        let n_space = text.len() - text.trim_start().len();
        if n_space > 0 {
            self.value.end.push_str(&text[..n_space]);
            return self.take(n_space);
        }
        let after_parameter: &[_] = &[PARAMETER, FUNCTION_END, CALL_END];
        match tag_at(text, if tag == PARAMETER_END { after_parameter } else { &[CALL_END] }) {
            Tag::Found(_) => {
                self.end_value(out);
                self.state = State::Function;
                if tag == FUNCTION_END {
                    self.end_arguments(out);
                    self.state = State::FunctionEnd;
                }
            }
            Tag::Begun => return Step::Wait,
            Tag::None => {
                let end = std::mem::take(&mut self.value.end);
                self.take_value(&end, out);
                self.state = State::Value;
            }
        }
        Step::Next
    }

    fn step_function_end(&mut self, text: &str) -> Step {
        let n_space = text.len() - text.trim_start().len();
        if n_space > 0 {
            return self.take(n_space);
        }
        match tag_at(text, &[CALL_END, FUNCTION]) {
            Tag::Found(CALL_END) => {
                self.state = State::Content;
                self.take(CALL_END.len())
            }
            // Several functions in one `<tool_call>`.
            Tag::Found(tag) => {
                self.raw.push_str(tag);
                self.state = State::FunctionName;
                self.take(tag.len())
            }
            Tag::Begun => Step::Wait,
            Tag::None => {
                self.state = State::Content;
                Step::Next
            }
        }
    }

    fn step_object(&mut self, text: &str, mut nesting: Nesting, out: &mut Vec<Delta>) -> Step {
        let end = text.bytes().position(|byte| nesting.step(byte));
        let n = end.map_or(text.len(), |last| last + 1);
        self.raw.push_str(&text[..n]);
        self.value.text.push_str(&text[..n]);
        self.state = State::Object(nesting);
        if end.is_some() {
            let object = std::mem::take(&mut self.value.text);
            match hermes_call(&object) {
                Some((name, arguments)) => {
                    self.begin_call(&name, out);
                    self.arguments(&arguments, out);
                    self.state = State::FunctionEnd;
                }
                None => {
                    self.reject(out);
                }
            }
        }
        self.take(n)
    }

    /// Passes over `n` bytes of text.
    fn take(&mut self, n: usize) -> Step {
        self.at += n;
        Step::Next
    }

    fn content(&mut self, text: &str, out: &mut Vec<Delta>) {
        let body = text.trim_end();
        if !body.is_empty() {
            push_content(out, &self.space);
            push_content(out, body);
            self.space.clear();
            self.after_call = false;
        }
        self.space.push_str(&text[body.len()..]);
    }

    /// What looked like a call is content.
    fn reject(&mut self, out: &mut Vec<Delta>) -> Step {
        let raw = std::mem::take(&mut self.raw);
        self.content(&raw, out);
        self.state = State::Content;
        Step::Next
    }

    fn begin_call(&mut self, name: &str, out: &mut Vec<Delta>) {
        let index = self.n_calls;
        let id = format!("{}{index}", self.id_prefix);
        out.push(Delta::ToolCallStart { index, id, name: name.to_owned() });
        self.n_calls += 1;
        self.n_parameters = 0;
        self.function = name.to_owned();
        self.raw.clear();
        self.space.clear();
        self.after_call = true;
    }

    fn arguments(&mut self, fragment: &str, out: &mut Vec<Delta>) {
        let current = self.n_calls - 1;
        match out.last_mut() {
            _ if fragment.is_empty() => {}
            Some(Delta::ToolCallArguments { index, fragment: last }) if *index == current => {
                last.push_str(fragment)
            }
            _ => {
                out.push(Delta::ToolCallArguments { index: current, fragment: fragment.to_owned() })
            }
        }
    }

    fn end_arguments(&mut self, out: &mut Vec<Delta>) {
        self.arguments(if self.n_parameters == 0 { "{}" } else { "}" }, out);
    }

    /// The key of the current parameter and what stands around it.
    fn open_value(&mut self, out: &mut Vec<Delta>) {
        let before = if self.n_parameters == 0 { "{" } else { ", " };
        self.n_parameters += 1;
        let head = format!("{before}\"{}\": ", escaped(&self.value.key));
        self.arguments(&head, out);
    }

    fn take_value(&mut self, text: &str, out: &mut Vec<Delta>) {
        let mut text = text;
        if self.value.at_start && !text.is_empty() {
            self.value.at_start = false;
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if text.is_empty() {
            return;
        }
        let before = if std::mem::take(&mut self.value.line_break) { "\n" } else { "" };
        if let Some(body) = text.strip_suffix('\n') {
            self.value.line_break = true;
            text = body;
        }
        for piece in [before, text] {
            if self.value.types.is_text() {
                self.arguments(&escaped(piece), out);
            } else {
                self.value.text.push_str(piece);
            }
        }
    }

    fn end_value(&mut self, out: &mut Vec<Delta>) {
        let value = std::mem::take(&mut self.value);
        if value.types.is_text() {
            self.arguments("\"", out);
            return;
        }
        let json = value.types.convert(&value.text);
        let json = json.unwrap_or_else(|| format!("\"{}\"", escaped(&value.text)));
        self.value.key = value.key;
        self.open_value(out);
        self.arguments(&json, out);
    }

    /// The answer ended inside a value: what there is of it, as a string without an end.
    fn cut_value(&mut self, out: &mut Vec<Delta>) {
        if !self.value.types.is_text() {
            self.open_value(out);
            let text = format!("\"{}", escaped(&self.value.text));
            self.arguments(&text, out);
        }
    }
}

#[cfg(test)]
mod tests;
