//! Checkpoints: Hugging Face folders, the hub, and typed configuration.
