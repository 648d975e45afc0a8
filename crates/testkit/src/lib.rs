//! Test fixtures: goldens, the scripted model, an HTTP client.
