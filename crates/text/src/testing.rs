//! What the tests of several files need: the tokenizers and templates of the repository.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{ChatTemplate, Tokenizer};

/// Every kind of tokenizer and template in the repository.
pub(crate) const FOLDERS: [&str; 2] = ["models/outrider-tiny", "golden/hybrid-tiny-f32"];

/// A file of the repository.
pub(crate) fn read(path: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn tokenizer(folder: &str) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::from_json(&read(&format!("{folder}/tokenizer.json"))).unwrap())
}

pub(crate) fn template(folder: &str) -> ChatTemplate {
    let config = read(&format!("{folder}/tokenizer_config.json"));
    let jinja = (folder == FOLDERS[0])
        .then(|| String::from_utf8(read(&format!("{folder}/chat_template.jinja"))).unwrap());
    ChatTemplate::new(jinja.as_deref(), &config, tokenizer(folder)).unwrap()
}
