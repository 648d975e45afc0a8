//! Reads a request's body as a JSON object, and says what is wrong with it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::ApiError;
use crate::state::{ApiState, BODY_UNIT};

/// A body that was read.
pub(crate) struct Read {
    /// The JSON object.
    pub(crate) object: Map<String, Value>,
    /// Its share of the memory for bodies, to be given back when the prompt in it is encoded.
    pub(crate) room: Room,
}

/// A share of the memory for bodies.
pub(crate) type Room = Option<OwnedSemaphorePermit>;

/// The JSON object in the body of `request`.
///
/// # Errors
/// When the body is too large, too slow, not declared as JSON, or not a JSON object.
pub(crate) async fn read_object(
    state: &ApiState,
    request: Request<Body>,
) -> Result<Read, ApiError> {
    let (head, body) = request.into_parts();
    check_content_type(&head.headers)?;
    let limit = state.body_limit;
    let length = content_length(&head.headers);
    let read = async {
        let n_units = length.unwrap_or(limit).min(limit).div_ceil(BODY_UNIT).max(1);
        // The semaphore is never closed.
        let room = Arc::clone(&state.bodies).acquire_many_owned(n_units as u32).await.ok();
        let bytes = collect(body, length.unwrap_or(0), limit).await?;
        Ok(Read { object: parse(&bytes)?, room })
    };
    let in_time = tokio::time::timeout(state.options.timeouts.body, read).await;
    in_time.unwrap_or(Err(ApiError::BodyTimeout))
}

/// The bytes of a body. One that is too large is read to its end all the same, since a client that
/// reads only after it has written would see a broken connection instead of the answer.
async fn collect(body: Body, length: usize, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut frames = body.into_data_stream();
    let mut bytes = Vec::with_capacity(length.min(limit));
    let mut too_large = length > limit;
    while let Some(frame) = frames.next().await {
        let frame =
            frame.map_err(|_| ApiError::malformed("The body ended before it was complete."))?;
        too_large |= bytes.len() + frame.len() > limit;
        if too_large {
            bytes = Vec::new();
        } else {
            bytes.extend_from_slice(&frame);
        }
    }
    if too_large { Err(ApiError::BodyTooLarge(limit)) } else { Ok(bytes) }
}

fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A browser lets any page send other content types to any server; only JSON needs its consent.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let kind = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let json = kind.eq_ignore_ascii_case("application/json")
        || (kind.starts_with("application/") && kind.ends_with("+json"));
    if json { Ok(()) } else { Err(ApiError::NotJson) }
}

/// The JSON object that `bytes` are.
///
/// # Errors
/// With the position of the fault.
pub(crate) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ApiError::malformed("The body must be a JSON object.")),
        Err(error) => Err(ApiError::malformed(format!("The body is not valid JSON: {error}."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &[u8]) -> String {
        let error = parse(body).expect_err("accepted");
        assert_eq!(error.status().as_u16(), 400);
        error.to_string()
    }

    /// Case C22: broken JSON and broken Unicode.
    #[test]
    fn broken_json_is_refused_with_its_position() {
        for (body, says) in [
            (&br#"{"messages":["#[..], "line 1 column 13"),
            (br#"{"a":"cut \ud83e off"}"#, "column 17"),
            (br#"{"a":"\udd91 tail"}"#, "column 12"),
            (br#"{"a":"\ud83e"}"#, "column"),
            (b"{\"a\":\"\xff\xfe\"}", "column"),
            (br#"{"temperature":NaN}"#, "column 16"),
            (br#"{"temperature":Infinity}"#, "column 16"),
            (br#"{"temperature":1e999}"#, "out of range"),
            (br#"{"a":1} x"#, "trailing"),
            (b"", "EOF"),
            (b"[1]", "object"),
        ] {
            let message = refusal(body);
            assert!(message.contains(says), "{message}");
        }
        let message = refusal("[".repeat(20_000).as_bytes());
        assert!(message.contains("recursion limit"), "{message}");
    }

    #[test]
    fn a_paired_surrogate_is_a_character() {
        assert_eq!(parse(br#"{"a":"whole \ud83e\udd91"}"#).unwrap()["a"], "whole 🦑");
    }

    #[test]
    fn only_json_may_be_declared() {
        let check = |value: &str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]);
            check_content_type(&headers)
        };
        assert_eq!(check("application/json; charset=utf-8"), Ok(()));
        assert_eq!(check("application/problem+json"), Ok(()));
        assert_eq!(check_content_type(&HeaderMap::new()), Ok(()));
        assert_eq!(check("text/plain"), Err(ApiError::NotJson));
        assert_eq!(check("application/x-www-form-urlencoded"), Err(ApiError::NotJson));
    }
}
