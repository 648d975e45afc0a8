//! HTTP: the OpenAI routes and the operations routes.

pub mod error;
pub mod fields;
