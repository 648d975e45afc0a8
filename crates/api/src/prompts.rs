//! Text to token ids, off the async threads.

use std::sync::Arc;

use serde_json::{Map, Value};
use text::tokenizer::Markers;
use text::{ChatRequest, Rendered, TemplateError};

use crate::error::ApiError;
use crate::fields::Args;
use crate::generation::{Prompt, too_long};
use crate::state::ApiState;

/// The name that stands for whatever model is served.
const ANY_MODEL: &str = "default";

/// # Errors
/// When the request names another model.
pub(crate) fn check_model(state: &ApiState, args: Args<'_>) -> Result<(), ApiError> {
    let served = &state.options.model.served_name;
    match args.text("model") {
        Some(asked) if asked != served && asked != ANY_MODEL => {
            let asked = asked.chars().take(200).collect();
            Err(ApiError::NoSuchModel { asked, served: served.clone() })
        }
        _ => Ok(()),
    }
}

/// A chat to render.
pub(crate) struct Conversation {
    /// OpenAI messages.
    pub messages: Vec<Value>,
    /// Tools that the model sees.
    pub tools: Vec<Value>,
    /// Values for the template.
    pub kwargs: Map<String, Value>,
}

/// Renders and encodes a chat for an answer.
///
/// # Errors
/// When the messages cannot be shown to this model, or are longer than its context.
pub(crate) async fn of_chat(
    state: &Arc<ApiState>,
    conversation: Conversation,
) -> Result<Prompt, ApiError> {
    let n_bytes = conversation.messages.iter().map(text_len).sum();
    check_len(state, n_bytes, "messages")?;
    let rendered = render(state, conversation).await?;
    Ok(Prompt {
        ids: rendered.tokens,
        boundaries: rendered.turn_starts,
        thinking_open: rendered.thinking_open,
    })
}

/// Encodes raw prompts for answers.
///
/// # Errors
/// When a prompt is empty or longer than the context.
pub(crate) async fn of_texts(
    state: &Arc<ApiState>,
    texts: Vec<String>,
    param: &'static str,
) -> Result<Vec<Prompt>, ApiError> {
    for text in &texts {
        check_len(state, text.len(), param)?;
    }
    let encoded = encode(state, texts).await?;
    let prompt = |ids: Vec<u32>| match ids.is_empty() {
        true => Err(empty(param)),
        false => Ok(Prompt { ids, ..Prompt::default() }),
    };
    encoded.into_iter().map(prompt).collect()
}

/// Prompts of token ids.
///
/// # Errors
/// When there is an id that the model does not have.
pub(crate) fn of_ids(state: &ApiState, ids: Vec<u32>, param: &str) -> Result<Prompt, ApiError> {
    let vocab_size = state.options.model.vocab_size;
    match ids.iter().find(|id| **id as usize >= vocab_size) {
        None if ids.is_empty() => Err(empty(param)),
        None => Ok(Prompt { ids, ..Prompt::default() }),
        Some(id) => {
            let message = format!("`{param}` has the id {id}; ids are below {vocab_size}.");
            Err(ApiError::invalid(param, message))
        }
    }
}

fn empty(param: &str) -> ApiError {
    ApiError::invalid(param, format!("`{param}` must have at least one token."))
}

/// Renders and encodes a chat.
///
/// # Errors
/// When the messages cannot be shown to this model.
pub(crate) async fn render(
    state: &Arc<ApiState>,
    conversation: Conversation,
) -> Result<Rendered, ApiError> {
    blocking(state, move |state| {
        let Some(template) = &state.options.chat_template else {
            return Err(no_template());
        };
        let Conversation { messages, tools, kwargs } = conversation;
        let request = ChatRequest {
            messages: &messages,
            tools: &tools,
            add_generation_prompt: true,
            kwargs: &kwargs,
        };
        template.render(request).map_err(refusal)
    })
    .await
}

/// Encodes texts: marker text in them becomes markers, and what the model expects before a text is put
/// before them.
///
/// # Errors
/// When the tokenizer gives up.
pub(crate) async fn encode(
    state: &Arc<ApiState>,
    texts: Vec<String>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    blocking(state, move |state| {
        let tokenizer = &state.options.tokenizer;
        let encode = |text: String| {
            let mut ids = tokenizer.prefix_ids().to_vec();
            ids.extend(tokenizer.encode(&text, Markers::Parse).map_err(not_encoded)?);
            Ok(ids)
        };
        texts.into_iter().map(encode).collect()
    })
    .await
}

/// Runs text work on a thread where it may take its time; few run at once.
async fn blocking<T: Send + 'static>(
    state: &Arc<ApiState>,
    work: impl FnOnce(&ApiState) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(&state.encoders).acquire_owned().await;
    let shared = Arc::clone(state);
    let work = move || {
        // Held by the work itself: a client that leaves does not make room for more of it.
        let _permit = permit;
        work(&shared)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(ApiError::Internal(format!("text work failed: {panic}"))))
}

/// Refuses at once what is too long whatever its tokens are.
fn check_len(state: &ApiState, n_bytes: usize, param: &'static str) -> Result<(), ApiError> {
    let at_least = n_bytes.div_ceil(state.longest_token);
    let limit = state.options.sizes.context_len;
    if at_least < limit {
        return Ok(());
    }
    Err(too_long(param, &format!("of {n_bytes} bytes has at least {at_least} tokens"), limit))
}

/// Bytes of the texts of a message's content.
fn text_len(message: &Value) -> usize {
    match &message["content"] {
        Value::String(text) => text.len(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).map(str::len).sum()
        }
        _ => 0,
    }
}

fn no_template() -> ApiError {
    ApiError::unsupported(
        "messages",
        "This model has no chat template: send a prompt to `/v1/completions`.",
    )
}

fn not_encoded(error: text::TokenizerError) -> ApiError {
    ApiError::Internal(format!("a prompt could not be encoded: {error}"))
}

fn refusal(error: TemplateError) -> ApiError {
    match error {
        TemplateError::Missing => no_template(),
        TemplateError::Tokenizer(error) => not_encoded(error),
        TemplateError::Unreadable(why) => ApiError::Internal(why),
        TemplateError::ReservedKwarg(_) => {
            ApiError::invalid("chat_template_kwargs", format!("{error}."))
        }
        _ => ApiError::invalid("messages", format!("{error}.")),
    }
}
