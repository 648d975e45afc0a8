//! Test fixtures: goldens, GGUF files, the scripted model, an HTTP client, OpenAI requests and answers.

pub mod client;
pub mod gguf;
pub mod openai;
pub mod scripted;
