//! Which path is answered by what, and what holds for all of them: keys, names of requests, panics.

use std::any::Any;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, Request, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::auth;
use crate::error::ApiError;
use crate::state::ApiState;
use crate::{chat, completions, native, ops};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// All routes.
pub fn router(state: Arc<ApiState>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/models", get(ops::models))
        .route("/v1/models/{*id}", get(ops::model))
        .route("/generate", post(native::generate).put(native::generate))
        .route("/health", get(ops::health))
        .route("/ready", get(ops::health))
        .route("/ping", get(ops::health))
        .route("/health_generate", get(ops::health_generate))
        .route("/server_info", get(ops::server_info))
        .route("/get_server_info", get(ops::server_info))
        .route("/model_info", get(ops::model_info))
        .route("/get_model_info", get(ops::model_info))
        .route("/v1/loads", get(ops::loads))
        .route("/metrics", get(ops::metrics))
        .route("/tokenize", post(ops::tokenize))
        .route("/v1/tokenize", post(ops::tokenize))
        .route("/detokenize", post(ops::detokenize))
        .route("/v1/detokenize", post(ops::detokenize))
        .route("/abort_request", post(ops::abort_request))
        .route("/flush_cache", get(ops::flush_cache).post(ops::flush_cache))
        .fallback(no_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), enter))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(state)
}

/// Checks the key before anything is read, and sends the client's name for the request back.
async fn enter(State(state): State<Arc<ApiState>>, request: Request<Body>, next: Next) -> Response {
    let id = request.headers().get(REQUEST_ID).cloned();
    let access = auth::access(request.uri().path());
    let mut response = match state.options.keys.check(access, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::NoSuchRoute(uri.path().chars().take(200).collect())
}

async fn wrong_method(uri: Uri) -> ApiError {
    ApiError::WrongMethod(uri.path().chars().take(200).collect())
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    ApiError::Internal(format!("a handler panicked: {message}")).into_response()
}
