//! A checkpoint: where its files are, and the check that they hold what the configuration needs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::fields::parse_object;
use crate::names::{self, TensorSpec};
use crate::safetensors::{DType, Entry, Shard, Tensor};
use crate::{CheckpointError, GenerationConfig, ModelConfig};

/// A model's files, checked, with its weights mapped on demand.
#[derive(Debug)]
pub struct Checkpoint {
    files: Files,
    pub(crate) config_bytes: Vec<u8>,
    config: ModelConfig,
    generation: GenerationConfig,
    pub(crate) shards: Vec<Shard>,
    /// By canonical name: shard index and entry. Holds the needed tensors only.
    pub(crate) tensors: BTreeMap<String, (usize, Entry)>,
    draft_head: DraftHead,
    skipped: Skipped,
    warnings: Vec<String>,
}

/// Whether the files hold a multi-token-prediction head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftHead {
    /// The configuration declares one and the files hold all of it.
    Present,
    /// The configuration declares none.
    NotDeclared,
    /// The configuration declares one, but no tensor name starts with `mtp.`: the model runs, and
    /// speculation with its own head must be refused.
    Missing,
}

/// Tensors in the files that text generation does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub n_tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

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
enum Files {
    Folder(PathBuf),
    Embedded(EmbeddedFiles),
}

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

impl Files {
    /// The bytes of a file; `None` when there is no such file.
    fn read(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, CheckpointError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                match std::fs::read(&path) {
                    Ok(bytes) => Ok(Some(Cow::Owned(bytes))),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(CheckpointError::io("read", &path, e)),
                }
            }
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

    fn required(&self, name: &str, why: &str) -> Result<Cow<'static, [u8]>, CheckpointError> {
        self.read(name)?.ok_or_else(|| self.missing(name, why))
    }

    fn missing(&self, name: &str, why: &str) -> CheckpointError {
        let path = match self {
            Self::Folder(folder) => folder.join(name),
            Self::Embedded(_) => PathBuf::from(name),
        };
        CheckpointError::MissingFile { path, why: why.to_string() }
    }

    /// Opens all weight files: `model.safetensors`, or else the shards that the index names.
    fn shards(&self) -> Result<Vec<Shard>, CheckpointError> {
        let folder = match self {
            Self::Embedded(files) => return Ok(vec![Shard::embedded(SINGLE, files.weights)]),
            Self::Folder(folder) => folder,
        };
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

    fn location(&self) -> String {
        match self {
            Self::Folder(folder) => folder.display().to_string(),
            Self::Embedded(_) => "the embedded model".to_string(),
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

impl Checkpoint {
    /// Opens a Hugging Face folder and checks it.
    ///
    /// # Errors
    /// When a file is missing or damaged, when the configuration asks for something that is not
    /// supported, or when a tensor is missing, is in two files, or has another shape or type than
    /// the configuration implies.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        Self::from_files(Files::Folder(folder.to_path_buf()))
    }

    /// Opens a checkpoint whose files are part of the program; the same checks apply.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn embedded(files: EmbeddedFiles) -> Result<Self, CheckpointError> {
        Self::from_files(Files::Embedded(files))
    }

    fn from_files(files: Files) -> Result<Self, CheckpointError> {
        let why = "a checkpoint folder has one; is this the right folder?";
        let config_bytes = files.required("config.json", why)?.into_owned();
        let mut config = ModelConfig::parse("config.json", &config_bytes)?;
        let generation = GenerationConfig::parse(
            files.read("generation_config.json")?.as_deref(),
            &config.eos_token_ids,
        )?;
        let shards = files.shards()?;
        let mut found = Found::read(&shards)?;
        let mut warnings = Vec::new();
        if config.tie_conflict {
            config.tied = !found.entries.contains_key(names::HEAD);
            warnings.push(format!(
                "config.json: `tie_word_embeddings` differs between the top level and text_config; \
                 the files hold {} output matrix, so the two are {}",
                if config.tied { "no" } else { "an" },
                if config.tied { "tied" } else { "not tied" },
            ));
        }
        let location = files.location();
        let mut tensors = BTreeMap::new();
        for spec in names::target(&config) {
            let entry = found.take(&spec, &shards, &location)?;
            tensors.insert(spec.name, entry);
        }
        let draft_head = found.draft_head(&config, &shards, &location, &mut tensors)?;
        if draft_head == DraftHead::Missing {
            warnings.push(
                "config.json declares a draft head (mtp_num_hidden_layers 1) but no tensor name \
                 starts with `mtp.`: the model runs without speculation"
                    .to_string(),
            );
        }
        let mut checkpoint = Self {
            files,
            config_bytes,
            config,
            generation,
            shards,
            tensors,
            draft_head,
            skipped: Skipped::default(),
            warnings,
        };
        checkpoint.account_for_rest(found)?;
        Ok(checkpoint)
    }

    /// Every tensor that was not taken must be one that cannot change the answer.
    fn account_for_rest(&mut self, found: Found) -> Result<(), CheckpointError> {
        for (name, (shard, entry)) in found.entries {
            if name == names::HEAD && self.config.tied {
                self.warn_if_untied(shard, &entry)?;
            } else if !names::is_harmless(&name, &self.config) {
                return Err(CheckpointError::tensor(
                    &entry.name,
                    &self.shards[shard].name,
                    format!(
                        "a {} model has no such tensor; leaving it out would change the answers",
                        self.config.model_type
                    ),
                ));
            }
            self.skipped.n_tensors += 1;
            self.skipped.bytes += entry.n_bytes();
        }
        Ok(())
    }

    /// The flag says tied and the files hold an output matrix all the same: the flag decides, as
    /// it does in SGLang and vLLM, and a matrix that differs from the embedding is reported.
    fn warn_if_untied(&mut self, shard: usize, head: &Entry) -> Result<(), CheckpointError> {
        let (embedding_shard, embedding) = &self.tensors[names::EMBEDDING];
        let same = head.dtype == embedding.dtype
            && head.shape == embedding.shape
            && self.shards[shard].tensor(head)?.bytes()
                == self.shards[*embedding_shard].tensor(embedding)?.bytes();
        if !same {
            self.warnings.push(format!(
                "`tie_word_embeddings` is true but {} holds a `{}` that differs from the \
                 embedding: the flag decides, the embedding is the output matrix",
                self.shards[shard].name, head.name
            ));
        }
        Ok(())
    }

    /// The typed configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Recommended sampling and the end tokens of both files.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// What a person should read before serving this checkpoint, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Whether the files hold the draft head.
    pub fn draft_head(&self) -> DraftHead {
        self.draft_head
    }

    /// The files hold the draft head.
    pub fn has_mtp(&self) -> bool {
        self.draft_head == DraftHead::Present
    }

    /// The files hold this tensor, and the model needs it.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Stored element type of a needed tensor, by canonical name.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.tensors.get(name).and_then(|(_, entry)| entry.weight_dtype())
    }

    /// Maps a tensor, by canonical name (`model.…`, `lm_head.weight`, `mtp.…`).
    ///
    /// # Errors
    /// When the model has no such tensor, its shape is another one, or its file has changed.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let Some((shard, entry)) = self.tensors.get(name) else {
            return Err(CheckpointError::tensor(
                name,
                &self.files.location(),
                "not among the tensors that this model needs",
            ));
        };
        let shard = &self.shards[*shard];
        check_shape(entry, shape, &shard.name)?;
        shard.tensor(entry)
    }

    /// Stored bytes of all needed tensors, draft head included.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|(_, entry)| entry.n_bytes()).sum()
    }

    /// Vision tensors and others that are not read.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// The bytes of `tokenizer.json`.
    ///
    /// # Errors
    /// When the file is missing or cannot be read.
    pub fn tokenizer_json(&self) -> Result<Cow<'static, [u8]>, CheckpointError> {
        let why = "a tokenizer in this form is needed (a tokenizer.model alone is not enough)";
        self.files.required("tokenizer.json", why)
    }

    /// `tokenizer_config.json`; empty when there is no such file.
    ///
    /// # Errors
    /// When the file cannot be read or is not a JSON object.
    pub fn tokenizer_config(&self) -> Result<Map<String, Value>, CheckpointError> {
        let file = "tokenizer_config.json";
        match self.files.read(file)? {
            Some(bytes) => parse_object(file, &bytes),
            None => Ok(Map::new()),
        }
    }

    /// The chat template: `chat_template.jinja`, or else the entry of `tokenizer_config.json`
    /// (of several named ones, `default`).
    ///
    /// # Errors
    /// When a file cannot be read or the template is not text.
    pub fn chat_template(&self) -> Result<Option<String>, CheckpointError> {
        let file = "chat_template.jinja";
        if let Some(bytes) = self.files.read(file)? {
            let text = String::from_utf8(bytes.into_owned())
                .map_err(|e| CheckpointError::config(file, format!("not UTF-8: {e}")))?;
            return Ok(Some(text));
        }
        let config = self.tokenizer_config()?;
        let template = match config.get("chat_template") {
            Some(Value::Array(list)) => list
                .iter()
                .find(|named| named["name"] == "default")
                .and_then(|named| named.get("template")),
            other => other,
        };
        match template {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(CheckpointError::config(
                "tokenizer_config.json",
                "`chat_template` is neither a string nor a list of named templates",
            )),
        }
    }
}

/// Every tensor of the files by canonical name; what is needed is taken out one by one.
struct Found {
    entries: BTreeMap<String, (usize, Entry)>,
}

impl Found {
    fn read(shards: &[Shard]) -> Result<Self, CheckpointError> {
        let mut entries: BTreeMap<String, (usize, Entry)> = BTreeMap::new();
        for (i, shard) in shards.iter().enumerate() {
            for entry in shard.entries()? {
                let name = names::canonical(&entry.name);
                if let Some((other, twin)) = entries.get(&name) {
                    return Err(CheckpointError::tensor(
                        &entry.name,
                        &shard.name,
                        format!(
                            "it is also in {} as `{}`; one must go",
                            shards[*other].name, twin.name
                        ),
                    ));
                }
                entries.insert(name, (i, entry));
            }
        }
        Ok(Self { entries })
    }

    fn take(
        &mut self,
        spec: &TensorSpec,
        shards: &[Shard],
        location: &str,
    ) -> Result<(usize, Entry), CheckpointError> {
        let Some((i, entry)) = self.entries.remove(&spec.name) else {
            let (name, shape) = (&spec.name, &spec.shape);
            let problem = match name.as_str() {
                names::HEAD => format!(
                    "missing; `tie_word_embeddings` is false, so the files must hold it, {shape:?}"
                ),
                _ => format!(
                    "missing, also as `{}`; the configuration implies {shape:?}",
                    names::composite(name)
                ),
            };
            return Err(CheckpointError::tensor(name, location, problem));
        };
        let file = &shards[i].name;
        check_shape(&entry, &spec.shape, file)?;
        match entry.weight_dtype() {
            Some(_) => Ok((i, entry)),
            None => Err(CheckpointError::tensor(
                &entry.name,
                file,
                format!("its type is {}; BF16, F16 and F32 are supported", entry.dtype),
            )),
        }
    }

    /// All of the draft head or nothing of it; a part of it is a damaged checkpoint.
    fn draft_head(
        &mut self,
        config: &ModelConfig,
        shards: &[Shard],
        location: &str,
        tensors: &mut BTreeMap<String, (usize, Entry)>,
    ) -> Result<DraftHead, CheckpointError> {
        if config.n_mtp_layers == 0 {
            return Ok(DraftHead::NotDeclared);
        }
        if !self.entries.keys().any(|name| name.starts_with(names::MTP_PREFIX)) {
            return Ok(DraftHead::Missing);
        }
        for spec in names::draft_head(config) {
            let entry = self.take(&spec, shards, location)?;
            tensors.insert(spec.name, entry);
        }
        Ok(DraftHead::Present)
    }
}

fn check_shape(entry: &Entry, shape: &[usize], file: &str) -> Result<(), CheckpointError> {
    match entry.shape == shape {
        true => Ok(()),
        false => Err(CheckpointError::tensor(
            &entry.name,
            file,
            format!("its shape is {:?}; {shape:?} is needed", entry.shape),
        )),
    }
}
