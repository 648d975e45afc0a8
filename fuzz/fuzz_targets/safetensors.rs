//! A folder with any `config.json` and any `model.safetensors` is opened or refused.

#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use checkpoint::{Checkpoint, ModelConfig};

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("outrider-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    folder
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // A zero byte parts the configuration from the header of the tensors.
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let config = parts.next().unwrap_or_default();
    let header = parts.next().unwrap_or_default();
    let parsed = ModelConfig::parse("config.json", config);
    if parsed.is_err() && header.is_empty() {
        return;
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.extend_from_slice(&[0; 64]);
    std::fs::write(FOLDER.join("config.json"), config).expect("a file can be written");
    std::fs::write(FOLDER.join("model.safetensors"), file).expect("a file can be written");
    if let Ok(checkpoint) = Checkpoint::open(&FOLDER) {
        let _ = (checkpoint.weight_bytes(), checkpoint.stored_types(), checkpoint.skipped());
    }
});
