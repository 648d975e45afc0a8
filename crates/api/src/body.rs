//! Reads a request's body as a JSON object, and says what is wrong with it.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, header};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::state::ApiState;

/// The JSON object in the body of `request`.
///
/// # Errors
/// When the body is too large, too slow, not declared as JSON, or not a JSON object.
pub(crate) async fn read_object(
    state: &ApiState,
    request: Request<Body>,
) -> Result<Map<String, Value>, ApiError> {
    let (head, body) = request.into_parts();
    check_content_type(&head.headers)?;
    let limit = state.body_limit;
    // Known before a byte is read, where the client says it.
    if content_length(&head.headers).is_some_and(|length| length > limit as u64) {
        return Err(ApiError::BodyTooLarge(limit));
    }
    let read = tokio::time::timeout(state.options.timeouts.body, to_bytes(body, limit)).await;
    let bytes = read.map_err(|_| ApiError::BodyTimeout)?.map_err(|error| unread(&error, limit))?;
    parse(&bytes)
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
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

fn unread(error: &axum::Error, limit: usize) -> ApiError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return ApiError::BodyTooLarge(limit);
        }
        cause = error.source();
    }
    ApiError::malformed("The body ended before it was complete.")
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
