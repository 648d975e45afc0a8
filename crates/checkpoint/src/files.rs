//! Where a checkpoint's files are, and what stands in them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fields::parse_object;
use crate::gguf::Gguf;
use crate::names;
use crate::shard::{Entry, Shard};
use crate::{CheckpointError, ModelConfig};

/// The files of a checkpoint that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedFiles {
    /// `config.json`.
    pub config: &'static [u8],
    /// `generation_config.json`.
    pub generation_config: &'static [u8],
    /// `model.safetensors`.
    pub weights: &'static [u8],
    /// `tokenizer.json`.
    pub tokenizer: &'static [u8],
    /// `tokenizer_config.json`.
    pub tokenizer_config: &'static [u8],
    /// `chat_template.jinja`.
    pub chat_template: &'static [u8],
}

#[derive(Debug)]
pub(crate) enum Files {
    Folder(PathBuf),
    Embedded(EmbeddedFiles),
    Gguf(Gguf),
}

/// Open weight files, and their tensors by canonical name and shard.
pub(crate) type Weights = (Vec<Shard>, Vec<(String, usize, Entry)>);

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

impl Files {
    /// The files at a path: a folder, or a `.gguf` file.
    pub(crate) fn at(path: &Path) -> Result<Self, CheckpointError> {
        let is_gguf = path.extension().is_some_and(|e| e == "gguf");
        if path.is_file() && !is_gguf {
            let file = path.display().to_string();
            let problem = "a checkpoint is a folder or a .gguf file, and this is neither";
            return Err(CheckpointError::config(&file, problem));
        }
        if !path.join("config.json").exists()
            && let Some(model) = Gguf::find(path)?
        {
            return Ok(Self::Gguf(Gguf::open(&model)?));
        }
        Ok(Self::Folder(path.to_path_buf()))
    }

    /// The bytes of a file; `None` when there is no such file.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                match std::fs::read(&path) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(CheckpointError::io("read", &path, e)),
                }
            }
            Self::Gguf(gguf) => Ok(gguf.read(name)?.map(Cow::Owned)),
            Self::Embedded(files) => Ok(match name {
                "config.json" => Some(files.config),
                "generation_config.json" => Some(files.generation_config),
                "tokenizer.json" => Some(files.tokenizer),
                "tokenizer_config.json" => Some(files.tokenizer_config),
                "chat_template.jinja" => Some(files.chat_template),
                _ => None,
            }
            .map(Cow::Borrowed)),
        }
    }

    pub(crate) fn required(
        &self,
        name: &str,
        why: &str,
    ) -> Result<Cow<'static, [u8]>, CheckpointError> {
        self.read(name)?.ok_or_else(|| self.missing(name, why))
    }

    fn missing(&self, name: &str, why: &str) -> CheckpointError {
        let path = match self {
            Self::Folder(folder) => folder.join(name),
            Self::Embedded(_) | Self::Gguf(_) => PathBuf::from(name),
        };
        CheckpointError::MissingFile { path, why: why.to_string() }
    }

    /// The name that errors about the configuration use.
    pub(crate) fn config_name(&self) -> String {
        match self {
            Self::Gguf(gguf) => gguf.path().display().to_string(),
            _ => "config.json".to_string(),
        }
    }

    /// Opens all weight files and reads their headers.
    pub(crate) fn weights(&self, config: &ModelConfig) -> Result<Weights, CheckpointError> {
        let shards = match self {
            Self::Gguf(gguf) => return gguf.weights(config),
            Self::Embedded(files) => vec![Shard::embedded(SINGLE, files.weights)],
            Self::Folder(folder) => self.shards(folder)?,
        };
        let mut entries = Vec::new();
        for (i, shard) in shards.iter().enumerate() {
            let of_shard = shard.entries()?;
            entries.extend(of_shard.into_iter().map(|e| (names::canonical(&e.name), i, e)));
        }
        Ok((shards, entries))
    }

    /// `model.safetensors`, or else the shards that the index names.
    fn shards(&self, folder: &Path) -> Result<Vec<Shard>, CheckpointError> {
        let single = folder.join(SINGLE);
        if single.exists() {
            return Ok(vec![Shard::open(&single, SINGLE)?]);
        }
        let index = self.required(INDEX, "there is no model.safetensors either, so no weights")?;
        let by_shard = shard_names(&index)?;
        let absent: Vec<_> = by_shard.iter().filter(|(s, _)| !folder.join(s).exists()).collect();
        if let Some((first, tensor)) = absent.first() {
            return Err(CheckpointError::MissingFile {
                path: folder.join(first),
                why: format!(
                    "the index puts `{tensor}` in it; {} of {} weight files are missing, \
                     the download may be incomplete",
                    absent.len(),
                    by_shard.len()
                ),
            });
        }
        by_shard.keys().map(|name| Shard::open(&folder.join(name), name)).collect()
    }

    pub(crate) fn location(&self) -> String {
        match self {
            Self::Gguf(gguf) => gguf.path().display().to_string(),
            Self::Folder(folder) => folder.display().to_string(),
            Self::Embedded(_) => "the embedded model".to_string(),
        }
    }

    /// How a draft head is declared, and how its tensors' names begin.
    pub(crate) fn draft_words(&self, config: &ModelConfig) -> (&'static str, String) {
        match self {
            Self::Gguf(_) => ("nextn_predict_layers", format!("blk.{}.", config.layers.len())),
            _ => ("mtp_num_hidden_layers 1", names::MTP_PREFIX.to_string()),
        }
    }

    /// What a person should know about these files before using them.
    pub(crate) fn warnings(&self) -> Result<Vec<String>, CheckpointError> {
        match self {
            Self::Gguf(gguf) => gguf.warnings(),
            _ => Ok(Vec::new()),
        }
    }

    /// The other name that a canonical tensor goes by in these files.
    pub(crate) fn spelling(&self, name: &str, config: &ModelConfig) -> String {
        match self {
            Self::Gguf(_) => Gguf::spelling(name, config),
            _ => names::composite(name),
        }
    }
}

/// File names of the shards, each with one tensor that the index puts there.
pub(crate) fn shard_names(index: &[u8]) -> Result<BTreeMap<String, String>, CheckpointError> {
    let object = parse_object(INDEX, index)?;
    let Some(Value::Object(map)) = object.get("weight_map") else {
        return Err(CheckpointError::config(INDEX, "`weight_map` is missing or not an object"));
    };
    let mut shards = BTreeMap::new();
    for (tensor, file) in map {
        match file.as_str() {
            Some(file) if is_plain_name(file) => {
                shards.entry(file.to_string()).or_insert_with(|| tensor.clone());
            }
            _ => {
                let problem = format!("`{tensor}` is in {file}; a file name is needed");
                return Err(CheckpointError::config(INDEX, problem));
            }
        }
    }
    Ok(shards)
}

/// One path component that is neither hidden nor a parent: an index must not reach elsewhere.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', '\0'])
}
