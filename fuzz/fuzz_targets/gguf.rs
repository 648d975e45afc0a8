//! A GGUF file with any content is opened or refused.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use checkpoint::Checkpoint;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("outrider-fuzz-{}.gguf", std::process::id())));

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    std::fs::write(&*FILE, bytes).expect("a file can be written");
    if let Ok(checkpoint) = Checkpoint::open(&FILE) {
        let _ = (checkpoint.tokenizer_json(), checkpoint.tokenizer_config(), checkpoint.chat_template());
        let _ = (checkpoint.weight_bytes(), checkpoint.stored_types(), checkpoint.skipped());
    }
});
