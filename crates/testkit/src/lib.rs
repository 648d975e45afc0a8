//! Test fixtures: goldens, the scripted model, an HTTP client, OpenAI requests and answers.

pub mod client;
pub mod openai;
pub mod scripted;
