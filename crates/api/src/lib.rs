//! HTTP: the OpenAI routes and the operations routes.
//!
//! A request passes through these files: `server.rs` (the connection), `routes.rs` (key and path),
//! `body.rs` (JSON), `fields/` (the policy of every field), `chat.rs`, `completions.rs` or `native.rs`
//! (what is asked for), `prompts.rs` (text to token ids), `generation.rs` (into the engine and back as
//! text), and out through `sse.rs` or `whole.rs` in the shapes of `wire.rs`.

pub mod auth;
pub mod backend;
mod body;
mod chat;
mod chat_fields;
mod completions;
pub mod error;
pub mod fields;
mod generation;
mod health;
mod limits;
mod logprobs;
mod native;
mod ops;
mod prompts;
mod reply;
mod routes;
mod sampling;
mod server;
mod sse;
mod stall;
pub mod state;
mod whole;
mod wire;

pub use routes::router;
pub use server::run;
