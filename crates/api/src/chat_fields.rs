//! Reads the body of a chat request into what the chat route works with.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::chat::CHAT;
use crate::fields::nested::{MESSAGE, PART, TOOL, TOOL_CALL};
use crate::fields::{Args, Table, shown};
use crate::prompts::{Conversation, check_model};
use crate::reply::Common;
use crate::sampling::{CHAT_NAMES, Wanted};
use crate::state::ApiState;

/// Most messages, and most tools, of a request.
const MAX_ENTRIES: usize = 16_384;

/// A chat request that was understood.
pub(crate) struct ChatFields {
    /// What decides the shape of the answer.
    pub common: Common,
    /// How to draw.
    pub wanted: Wanted,
    /// What to render.
    pub conversation: Conversation,
    /// Split thinking from the answer.
    pub separate_reasoning: bool,
    /// Entries beside the chosen token; `None` for no log-probabilities.
    pub logprobs: Option<u32>,
    /// Whether an answer may have more than one call.
    pub parallel_calls: bool,
}

/// # Errors
/// Names the first field that is wrong.
pub(crate) fn read(state: &ApiState, mut body: Map<String, Value>) -> Result<ChatFields, ApiError> {
    CHAT.check(&body, "")?;
    let args = Args(&body);
    check_model(state, args)?;
    let common = Common::read(args)?;
    let mut wanted = Wanted::read(state, args, &CHAT_NAMES)?;
    let logprobs = logprobs(args)?;
    wanted.sampling.logprobs = logprobs;
    let kwargs = kwargs(state, args)?;
    let offers_tools = offers_tools(args)?;
    let separate = args.bool("separate_reasoning").unwrap_or(true);
    let parallel_calls = args.bool("parallel_tool_calls").unwrap_or(true);
    let conversation = conversation(&mut body, offers_tools, kwargs)?;
    Ok(ChatFields {
        common,
        wanted,
        conversation,
        separate_reasoning: separate && state.options.parsers.reasoning,
        logprobs,
        parallel_calls,
    })
}

fn logprobs(args: Args<'_>) -> Result<Option<u32>, ApiError> {
    match (args.flag("logprobs"), args.u32("top_logprobs")) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid(
            "top_logprobs",
            "`top_logprobs` is only for requests with `logprobs` true.",
        )),
    }
}

/// Takes messages and tools out of the body and checks the names in them.
///
/// # Errors
/// When there are no messages, or an entry has a field that cannot be honoured.
pub(crate) fn conversation(
    body: &mut Map<String, Value>,
    offers_tools: bool,
    kwargs: Map<String, Value>,
) -> Result<Conversation, ApiError> {
    let messages = take_list(body, "messages")?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "`messages` must have at least one message."));
    }
    for (i, message) in messages.iter().enumerate() {
        check_message(message, &format!("messages[{i}]"))?;
    }
    let tools = take_list(body, "tools")?;
    for (i, tool) in tools.iter().enumerate() {
        let path = format!("tools[{i}]");
        check_entry(&TOOL, tool, &path)?;
        if !tool["function"]["name"].is_string() {
            let param = format!("{path}.function.name");
            return Err(ApiError::invalid(&param, format!("`{param}` is missing.")));
        }
    }
    let tools = if offers_tools { tools } else { Vec::new() };
    Ok(Conversation { messages, tools, kwargs })
}

fn take_list(body: &mut Map<String, Value>, name: &str) -> Result<Vec<Value>, ApiError> {
    match body.remove(name) {
        Some(Value::Array(list)) if list.len() > MAX_ENTRIES => {
            let message =
                format!("`{name}` has {} entries, the most is {MAX_ENTRIES}.", list.len());
            Err(ApiError::invalid(name, message))
        }
        Some(Value::Array(list)) => Ok(list),
        _ => Ok(Vec::new()),
    }
}

fn check_message(message: &Value, path: &str) -> Result<(), ApiError> {
    check_entry(&MESSAGE, message, path)?;
    let list = |name: &str| message[name].as_array().map(Vec::as_slice).unwrap_or_default();
    for (i, part) in list("content").iter().enumerate() {
        // A bare string in a list of parts is a text part.
        if !part.is_string() {
            check_entry(&PART, part, &format!("{path}.content[{i}]"))?;
        }
    }
    for (i, call) in list("tool_calls").iter().enumerate() {
        check_entry(&TOOL_CALL, call, &format!("{path}.tool_calls[{i}]"))?;
    }
    Ok(())
}

fn check_entry(table: &Table, entry: &Value, path: &str) -> Result<(), ApiError> {
    match entry {
        Value::Object(object) => table.check(object, &format!("{path}.")),
        other => {
            let message =
                format!("`{path}` must be an object ({}), not {}.", table.title, shown(other));
            Err(ApiError::invalid(path, message))
        }
    }
}

/// Whether the model sees the tools.
fn offers_tools(args: Args<'_>) -> Result<bool, ApiError> {
    const PARAM: &str = "tool_choice";
    let choice = match args.get(PARAM) {
        None => return Ok(true),
        Some(choice) => choice,
    };
    let has_tools = args.get("tools").and_then(Value::as_array).is_some_and(|t| !t.is_empty());
    match choice.as_str() {
        Some("none") => Ok(false),
        Some("auto") if has_tools => Ok(true),
        Some("auto") => Err(ApiError::invalid(PARAM, "`tool_choice` needs `tools`.")),
        Some("required") => Err(unsupported_choice("`required`")),
        None if choice["function"]["name"].is_string() => {
            Err(unsupported_choice("a named function"))
        }
        _ => Err(ApiError::invalid(
            PARAM,
            format!("`tool_choice` must be \"auto\" or \"none\", not {}.", shown(choice)),
        )),
    }
}

fn unsupported_choice(what: &str) -> ApiError {
    let message = format!(
        "`tool_choice` with {what} is not supported: constrained decoding is not built yet. \
         Accepted: \"auto\", \"none\"."
    );
    ApiError::unsupported("tool_choice", message)
}

/// The template's variables from `chat_template_kwargs`, `reasoning_effort` and `reasoning`.
///
/// # Errors
/// When the template does not read a name, or the fields contradict each other.
pub(crate) fn kwargs(state: &ApiState, args: Args<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs =
        args.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    let reads = |name: &str| state.options.chat_template.as_ref().is_some_and(|t| t.reads(name));
    for (name, value) in &kwargs {
        // To a template without thinking, "no thinking" asks for what happens anyway.
        let off = name == "enable_thinking" && *value == Value::Bool(false);
        if !reads(name) && !off {
            let name: String = name.chars().take(100).collect();
            let param = format!("chat_template_kwargs.{name}");
            let message = format!("The chat template of this model does not read `{name}`.");
            return Err(ApiError::unsupported(&param, message));
        }
    }
    let mut effort = |effort: Option<&str>, param: &str| match effort {
        None => Ok(()),
        Some("none") => no_thinking(&mut kwargs, param),
        Some(level) if reads("reasoning_effort") => {
            kwargs.insert("reasoning_effort".into(), level.into());
            Ok(())
        }
        Some(level) => {
            let level: String = level.chars().take(40).collect();
            let message = format!(
                "`{param}` {level:?} is not supported: the chat template of this model has no levels. \
                 Accepted: \"none\", or leave it out."
            );
            Err(ApiError::unsupported(param, message))
        }
    };
    effort(args.text("reasoning_effort"), "reasoning_effort")?;
    if let Some(reasoning) = args.object("reasoning") {
        effort(reasoning.text("effort"), "reasoning.effort")?;
        if reasoning.bool("enabled") == Some(false) {
            no_thinking(&mut kwargs, "reasoning.enabled")?;
        }
    }
    Ok(kwargs)
}

/// Turns thinking off for the field `by`.
fn no_thinking(kwargs: &mut Map<String, Value>, by: &str) -> Result<(), ApiError> {
    const NAME: &str = "enable_thinking";
    match kwargs.get(NAME) {
        Some(Value::Bool(true)) => {
            let message = format!("`{by}` turns thinking off and `{NAME}` turns it on.");
            Err(ApiError::invalid(by, message))
        }
        _ => {
            kwargs.insert(NAME.into(), false.into());
            Ok(())
        }
    }
}
