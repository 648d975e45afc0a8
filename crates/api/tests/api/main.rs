//! The routes from outside: requests through the router, and over sockets where connections matter.
//!
//! Two backends stand behind them: a script that answers with given tokens, and the real engine over the
//! scripted model. The tokenizer and the chat template are those of outrider-tiny.

mod backends;
mod chat;
mod completions;
mod errors;
mod fields;
mod limits;
mod logprobs;
mod messages;
mod native;
mod ops;
mod seeds;
mod sockets;
mod stops;
mod support;
mod usage;
