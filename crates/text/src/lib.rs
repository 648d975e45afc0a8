//! Tokenizer, chat template, detokenizer, stop strings, reasoning and tool calls.
