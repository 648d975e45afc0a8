//! The model inside the binary: `outrider-tiny`, a demonstration and test model.

use checkpoint::EmbeddedFiles;

/// The name it is asked for by, and served under.
pub(crate) const NAME: &str = "outrider-tiny";

/// What it is, for the README, the start-up log and `/v1/models`.
pub(crate) const NOTE: &str = "demonstration and test model of about 5 M parameters: \
     it writes Python-like code and short chats, and knows nothing";

/// The files of the checkpoint.
pub(crate) const FILES: EmbeddedFiles = EmbeddedFiles {
    config: include_bytes!("../../../models/outrider-tiny/config.json"),
    generation_config: include_bytes!("../../../models/outrider-tiny/generation_config.json"),
    tokenizer: include_bytes!("../../../models/outrider-tiny/tokenizer.json"),
    tokenizer_config: include_bytes!("../../../models/outrider-tiny/tokenizer_config.json"),
    chat_template: include_bytes!("../../../models/outrider-tiny/chat_template.jinja"),
    weights: include_bytes!("../../../models/outrider-tiny/model.safetensors"),
};
