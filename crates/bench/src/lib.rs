//! Load generation and statistics against an OpenAI-compatible server.
