//! The only map from what went wrong to what the client sees: status, type, code and text.
//!
//! Every refusal is `{"error":{"message","type","param","code"}}`, the shape OpenAI clients parse.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Why a request was not answered. Callers branch on the variant; people read the text.
#[derive(Debug, Clone, PartialEq)]
pub enum ApiError {
    /// The request is wrong: `param` names the field, where there is one.
    Invalid {
        /// Field the message is about, as a path such as `messages[2].role`.
        param: Option<String>,
        /// What is wrong and what would be right.
        message: String,
    },
    /// The request asks for something that this server does not do.
    Unsupported {
        /// Field that asks for it.
        param: String,
        /// What is not done, and what is accepted.
        message: String,
    },
    /// The field name is not in the table of fields.
    UnknownField {
        /// The name as it was sent.
        param: String,
        /// Text with the nearest known name.
        message: String,
    },
    /// The prompt leaves no room for an answer.
    TooLong {
        /// Field that carries the prompt.
        param: &'static str,
        /// Size and limit in tokens.
        message: String,
    },
    /// The body is larger than any prompt that fits; limit in bytes.
    BodyTooLarge(usize),
    /// The body did not arrive in time.
    BodyTimeout,
    /// The body is declared as something other than JSON.
    NotJson,
    /// Another model was asked for.
    NoSuchModel {
        /// The name as it was sent.
        asked: String,
        /// The name that would have been right.
        served: String,
    },
    /// No such path.
    NoSuchRoute(String),
    /// The path exists, with other methods.
    WrongMethod(String),
    /// The key is missing or wrong.
    Unauthorized,
    /// As many requests wait as may wait.
    QueueFull,
    /// The server is draining or its engine has ended.
    ShuttingDown,
    /// A fault of ours; the text is for the log and says nothing about internals.
    Internal(String),
}

impl ApiError {
    /// A wrong value of a field.
    pub fn invalid(param: &str, message: impl Into<String>) -> ApiError {
        ApiError::Invalid { param: Some(param.to_owned()), message: message.into() }
    }

    /// A body that is wrong as a whole.
    pub fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::Invalid { param: None, message: message.into() }
    }

    /// A field or value that this server does not act on.
    pub fn unsupported(param: &str, message: impl Into<String>) -> ApiError {
        ApiError::Unsupported { param: param.to_owned(), message: message.into() }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.parts().0
    }

    /// The JSON object that clients parse.
    pub fn body(&self) -> Value {
        let (_, kind, code) = self.parts();
        let param = match self {
            ApiError::Invalid { param, .. } => param.clone(),
            ApiError::Unsupported { param, .. } | ApiError::UnknownField { param, .. } => {
                Some(param.clone())
            }
            ApiError::TooLong { param, .. } => Some((*param).to_owned()),
            ApiError::NoSuchModel { .. } => Some("model".to_owned()),
            _ => None,
        };
        json!({"error": {"message": self.to_string(), "type": kind, "param": param, "code": code}})
    }

    fn parts(&self) -> (StatusCode, &'static str, Option<&'static str>) {
        const REQUEST: &str = "invalid_request_error";
        match self {
            ApiError::Invalid { .. } => (StatusCode::BAD_REQUEST, REQUEST, Some("invalid_value")),
            ApiError::Unsupported { .. } => {
                (StatusCode::BAD_REQUEST, REQUEST, Some("unsupported_parameter"))
            }
            ApiError::UnknownField { .. } => {
                (StatusCode::BAD_REQUEST, REQUEST, Some("unknown_parameter"))
            }
            ApiError::TooLong { .. } => {
                (StatusCode::BAD_REQUEST, REQUEST, Some("context_length_exceeded"))
            }
            ApiError::BodyTooLarge(_) => {
                (StatusCode::PAYLOAD_TOO_LARGE, REQUEST, Some("body_too_large"))
            }
            ApiError::BodyTimeout => (StatusCode::REQUEST_TIMEOUT, REQUEST, Some("body_timeout")),
            ApiError::NotJson => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, REQUEST, Some("unsupported_media_type"))
            }
            ApiError::NoSuchModel { .. } => {
                (StatusCode::NOT_FOUND, REQUEST, Some("model_not_found"))
            }
            ApiError::NoSuchRoute(_) => (StatusCode::NOT_FOUND, REQUEST, Some("route_not_found")),
            ApiError::WrongMethod(_) => {
                (StatusCode::METHOD_NOT_ALLOWED, REQUEST, Some("method_not_allowed"))
            }
            ApiError::Unauthorized => {
                (StatusCode::UNAUTHORIZED, "authentication_error", Some("invalid_api_key"))
            }
            ApiError::QueueFull => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", Some("queue_full"))
            }
            ApiError::ShuttingDown => {
                (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error", Some("shutting_down"))
            }
            ApiError::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error", None),
        }
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ApiError::Invalid { message, .. }
            | ApiError::Unsupported { message, .. }
            | ApiError::UnknownField { message, .. }
            | ApiError::TooLong { message, .. } => f.write_str(message),
            ApiError::BodyTooLarge(limit) => write!(
                f,
                "The body is larger than {limit} bytes, more than any prompt of this model's \
                 context length needs."
            ),
            ApiError::BodyTimeout => f.write_str("The body did not arrive in time."),
            ApiError::NotJson => f.write_str(
                "The body must be JSON: send the header `Content-Type: application/json`.",
            ),
            ApiError::NoSuchModel { asked, served } => {
                write!(f, "The model `{asked}` does not exist; this server serves `{served}`.")
            }
            ApiError::NoSuchRoute(path) => write!(f, "There is no route `{path}`."),
            ApiError::WrongMethod(path) => {
                write!(
                    f,
                    "`{path}` does not take this method; the `Allow` header lists those it takes."
                )
            }
            ApiError::Unauthorized => {
                f.write_str("Missing or wrong API key: send `Authorization: Bearer KEY`.")
            }
            ApiError::QueueFull => f.write_str("The request queue is full; try again later."),
            ApiError::ShuttingDown => f.write_str("The server is shutting down."),
            ApiError::Internal(_) => f.write_str("Internal server error; the server's log has it."),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if let ApiError::Internal(detail) = &self {
            tracing::error!("internal error answered with status 500: {detail}");
        }
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        match &self {
            // A step lasts well under a second, so places come free at about this rate.
            ApiError::QueueFull => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // As long as a restart with packed weights takes, roughly.
            ApiError::ShuttingDown => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            }
            ApiError::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // What is left of the body is not read, so the connection cannot be used again.
            ApiError::BodyTooLarge(_) | ApiError::BodyTimeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: ApiError, status: u16, kind: &str, code: Value) {
        assert_eq!(error.status().as_u16(), status, "{error:?}");
        let body = error.body();
        assert_eq!(body["error"]["type"], kind, "{error:?}");
        assert_eq!(body["error"]["code"], code, "{error:?}");
        assert!(!body["error"]["message"].as_str().unwrap().is_empty(), "{error:?}");
    }

    #[test]
    fn each_error_has_status_type_and_code() {
        let request = "invalid_request_error";
        check(ApiError::invalid("top_p", "m"), 400, request, json!("invalid_value"));
        check(ApiError::unsupported("regex", "m"), 400, request, json!("unsupported_parameter"));
        check(ApiError::BodyTooLarge(7), 413, request, json!("body_too_large"));
        check(ApiError::Unauthorized, 401, "authentication_error", json!("invalid_api_key"));
        check(ApiError::QueueFull, 503, "overloaded_error", json!("queue_full"));
        check(ApiError::Internal("worker 3 gone".into()), 500, "internal_error", Value::Null);
    }

    #[test]
    fn an_internal_error_tells_the_client_nothing_about_internals() {
        let body = ApiError::Internal("index out of bounds in step.rs".into()).body();
        assert!(!body.to_string().contains("step.rs"));
    }

    #[test]
    fn overload_says_when_to_come_back() {
        for error in [ApiError::QueueFull, ApiError::ShuttingDown] {
            assert!(error.into_response().headers().contains_key(header::RETRY_AFTER));
        }
    }

    #[test]
    fn the_parameter_is_named() {
        let error = ApiError::NoSuchModel { asked: "a".into(), served: "b".into() };
        assert_eq!(error.body()["error"]["param"], "model");
        assert!(error.to_string().contains("`b`"));
    }
}
