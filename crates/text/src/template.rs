//! The chat template: a conversation to token ids.
//!
//! What the user wrote can look like a control token but never becomes one: markers are recognised
//! only where the template wrote them (`guard.rs` says how), and everything between them is encoded
//! as plain text.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::Arc;

use minijinja::{Environment, Value};
use serde_json::{Map, Value as Json, json};

use crate::guard::{self, Guard};
use crate::jinja::{self, Raised};
use crate::messages::{self, Conversation, MessageError};
use crate::tokenizer::{Tokenizer, TokenizerError};

const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";

/// Names that `chat_template_kwargs` must not take, since the request has its own fields for them.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// What is rendered.
#[derive(Clone, Copy, Debug)]
pub struct ChatRequest<'a> {
    /// OpenAI messages.
    pub messages: &'a [Json],
    /// OpenAI tools; none is an empty slice.
    pub tools: &'a [Json],
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further variables for the template (`enable_thinking`).
    pub kwargs: &'a Map<String, Json>,
}

/// A rendered and encoded conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt as text, exactly as the template wrote it.
    pub text: String,
    /// The prompt as token ids.
    pub tokens: Vec<u32>,
    /// Where turns begin, as ascending offsets into `tokens`: each is a place where a later prompt
    /// of the same conversation may go on differently. With a generation prompt the last one is
    /// where that begins. Empty where the template has no token that opens a turn.
    pub turn_starts: Vec<usize>,
    /// Whether the prompt ends inside an open thinking part, so that the answer begins with
    /// reasoning.
    pub thinking_open: bool,
}

/// Why a template cannot be loaded or a conversation not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The model folder has no chat template.
    #[error("this model has no chat template")]
    Missing,
    /// The files of the template cannot be read.
    #[error("the chat template cannot be read: {0}")]
    Unreadable(String),
    /// The conversation itself is malformed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A template variable that the request sets by its own field.
    #[error("chat_template_kwargs must not set {0:?}")]
    ReservedKwarg(String),
    /// The template refused the conversation with a message of its own.
    #[error("the chat template refuses this conversation: {message}{}",
        late_system.map_or(String::new(), |i| format!(" (messages[{i}] has the role system)")))]
    Refused {
        /// The template's words.
        message: String,
        /// Index of the first system message that does not stand at the start, the usual reason for
        /// a refusal.
        late_system: Option<usize>,
    },
    /// The template failed on this conversation, for example because a field that it reads has
    /// another form. Like a refusal this depends on the request, and is the request's fault as far
    /// as the server can tell.
    #[error("the chat template fails on this conversation: {0}")]
    Failed(String),
    /// The rendered text cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The chat template of a model, with its tokenizer.
pub struct ChatTemplate {
    env: Environment<'static>,
    tokenizer: Arc<Tokenizer>,
    /// `bos_token`, `eos_token` and so on, as the template may print them.
    special_tokens: Vec<(String, String)>,
    has_tool_use: bool,
    /// All template sources, whose characters cannot be stand-ins.
    sources: String,
    guarded: BTreeSet<char>,
    /// The token that opens a turn.
    turn_start: Option<u32>,
    /// Whether the template looks for a thinking part in the content of an assistant's message.
    splits_thinking: bool,
}

impl ChatTemplate {
    /// Takes the text of `chat_template.jinja` where the model has one, else the `chat_template`
    /// entry of `tokenizer_config.json` (a string, or a list of named templates of which `default`
    /// and `tool_use` are used).
    pub fn new(
        jinja_file: Option<&str>,
        tokenizer_config: &[u8],
        tokenizer: Arc<Tokenizer>,
    ) -> Result<ChatTemplate, TemplateError> {
        let config: Json = serde_json::from_slice(tokenizer_config)
            .map_err(|e| TemplateError::Unreadable(format!("tokenizer_config.json: {e}")))?;
        let templates = match jinja_file {
            Some(source) => vec![("default".to_owned(), source.to_owned())],
            None => config_templates(&config)?,
        };
        let unreadable = |e: minijinja::Error| TemplateError::Unreadable(format!("{e:#}"));
        let mut env = jinja::environment().map_err(unreadable)?;
        let mut sources = String::new();
        for (name, source) in templates {
            sources.push_str(&source);
            env.add_template_owned(name, jinja::without_generation_blocks(&source))
                .map_err(unreadable)?;
        }
        env.get_template("default").map_err(|_| TemplateError::Missing)?;
        let think = [THINK_OPEN, THINK_CLOSE];
        let mut template = ChatTemplate {
            has_tool_use: env.get_template("tool_use").is_ok(),
            env,
            special_tokens: special_tokens(&config),
            sources,
            guarded: guard::guarded_chars(tokenizer.marker_texts().chain(think)),
            tokenizer,
            turn_start: None,
            splits_thinking: false,
        };
        template.turn_start = template.find_turn_start();
        template.splits_thinking = template.looks_for_thinking();
        Ok(template)
    }

    /// Renders and encodes a conversation.
    pub fn render(&self, request: ChatRequest<'_>) -> Result<Rendered, TemplateError> {
        if let Some(name) = request.kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
            return Err(TemplateError::ReservedKwarg(name.clone()));
        }
        let conversation = messages::normalise(request.messages, self.splits_thinking)?;
        let guard = self.guard(&conversation, &request)?;
        let text = self.render_guarded(&conversation, &request, &guard)?;
        self.encode(&text, &guard, request.add_generation_prompt)
    }

    /// Whether the template mentions the variable `name`; one that it does not mention cannot act.
    pub fn reads(&self, name: &str) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        !name.is_empty() && self.sources.split(|c| !is_word(c)).any(|word| word == name)
    }

    /// Chooses stand-ins that occur neither in the request nor in the template.
    fn guard(
        &self,
        conversation: &Conversation,
        request: &ChatRequest<'_>,
    ) -> Result<Guard, TemplateError> {
        let json = conversation.messages.iter().chain(request.tools).chain(request.kwargs.values());
        let texts = json.flat_map(guard::strings).chain(request.kwargs.keys().map(String::as_str));
        Guard::new(&self.guarded, texts.chain([self.sources.as_str()])).ok_or_else(|| {
            TemplateError::Failed("every private character of Unicode is in use".into())
        })
    }

    /// The rendered text, with stand-ins in what came from the request.
    fn render_guarded(
        &self,
        conversation: &Conversation,
        request: &ChatRequest<'_>,
        guard: &Guard,
    ) -> Result<String, TemplateError> {
        let list =
            |items: &[Json]| -> Value { items.iter().map(|item| guard.hide_value(item)).collect() };
        let tools = if request.tools.is_empty() { Value::from(()) } else { list(request.tools) };
        let name =
            if self.has_tool_use && !request.tools.is_empty() { "tool_use" } else { "default" };
        let special = self
            .special_tokens
            .iter()
            .map(|(name, text)| (name.clone(), Value::from(text.as_str())));
        let kwargs =
            request.kwargs.iter().map(|(name, value)| (name.clone(), guard.hide_value(value)));
        let own = [
            ("messages".to_owned(), list(&conversation.messages)),
            ("tools".to_owned(), tools),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), Value::from(request.add_generation_prompt)),
        ];
        let context = Value::from_pairs(own.into_iter().chain(special).chain(kwargs));
        let template = self.env.get_template(name).map_err(|_| TemplateError::Missing)?;
        template.render(context).map_err(|error| match raised(&error) {
            Some(message) => TemplateError::Refused {
                message: guard.reveal(message),
                late_system: conversation.late_system,
            },
            None => TemplateError::Failed(guard.reveal(&error.to_string())),
        })
    }

    fn encode(
        &self,
        text: &str,
        guard: &Guard,
        add_generation_prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        let mut tokens = Vec::new();
        let mut turn_starts = Vec::new();
        let (mut from, mut last_turn) = (0, 0);
        for (id, span) in self.tokenizer.find_markers(text) {
            // A marker without a character to guard could be the user's; it stays text.
            let marker = &text[span.clone()];
            if !marker.starts_with(|c| self.guarded.contains(&c))
                && !marker.ends_with(|c| self.guarded.contains(&c))
            {
                continue;
            }
            self.tokenizer.encode_plain(&guard.reveal(&text[from..span.start]), &mut tokens)?;
            if Some(id) == self.turn_start {
                turn_starts.push(tokens.len());
                last_turn = span.start;
            }
            tokens.push(id);
            from = span.end;
        }
        self.tokenizer.encode_plain(&guard.reveal(&text[from..]), &mut tokens)?;
        let thinking_open = add_generation_prompt && self.ends_in_thinking(text, last_turn);
        Ok(Rendered { text: guard.reveal(text), tokens, turn_starts, thinking_open })
    }

    /// Whether a thinking part is open at the end of `text`, whose last turn begins at `last_turn`.
    fn ends_in_thinking(&self, text: &str, last_turn: usize) -> bool {
        if self.turn_start.is_none() {
            // The tag may stand anywhere, in the template's instructions for example; only the very
            // end tells.
            return text.trim_end().ends_with(THINK_OPEN);
        }
        let prompt = &text[last_turn..];
        prompt.rfind(THINK_OPEN).is_some_and(|open| !prompt[open..].contains(THINK_CLOSE))
    }

    /// The marker that the generation prompt begins with, if it does: it opens every turn.
    fn find_turn_start(&self) -> Option<u32> {
        let messages = [json!({"role": "user", "content": "x"})];
        let mut request = ChatRequest {
            messages: &messages,
            tools: &[],
            add_generation_prompt: false,
            kwargs: &Map::new(),
        };
        let closed = self.render(request).ok()?;
        request.add_generation_prompt = true;
        let open = self.render(request).ok()?;
        let prompt = open.text.strip_prefix(&closed.text)?;
        let (id, span) = self.tokenizer.find_markers(prompt).into_iter().next()?;
        (span.start == 0).then_some(id)
    }

    /// Whether `</think>` in an assistant's content does not come out as it was.
    fn looks_for_thinking(&self) -> bool {
        let text = "a</think>b";
        let messages = [
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": text}),
        ];
        let request = ChatRequest {
            messages: &messages,
            tools: &[],
            add_generation_prompt: false,
            kwargs: &Map::new(),
        };
        let conversation = Conversation { messages: messages.to_vec(), late_system: None };
        let rendered = self.render_guarded(&conversation, &request, &Guard::default());
        rendered.is_ok_and(|rendered| !rendered.contains(text))
    }
}

/// What `raise_exception` said, if it caused this error.
fn raised(error: &minijinja::Error) -> Option<&str> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message);
        }
        source = error.source();
    }
    None
}

/// The named templates of a `tokenizer_config.json`.
fn config_templates(config: &Json) -> Result<Vec<(String, String)>, TemplateError> {
    match config.get("chat_template") {
        None | Some(Json::Null) => Err(TemplateError::Missing),
        Some(Json::String(source)) => Ok(vec![("default".into(), source.clone())]),
        Some(Json::Array(named)) => {
            let text =
                |entry: &Json, key: &str| entry.get(key).and_then(Json::as_str).map(str::to_owned);
            named
                .iter()
                .map(|entry| Some((text(entry, "name")?, text(entry, "template")?)))
                .collect::<Option<_>>()
                .ok_or_else(|| {
                    TemplateError::Unreadable(
                        "an entry of chat_template has no name or template".into(),
                    )
                })
        }
        Some(_) => {
            Err(TemplateError::Unreadable("chat_template is neither a string nor a list".into()))
        }
    }
}

/// The special tokens that a template may print by name.
fn special_tokens(config: &Json) -> Vec<(String, String)> {
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
        .into_iter()
        .filter_map(|name| {
            let entry = config.get(name)?;
            let text = entry.as_str().or_else(|| entry.get("content")?.as_str())?;
            Some((name.to_owned(), text.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests;
