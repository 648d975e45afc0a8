//! A checkpoint: where its files are, and the check that they hold what the configuration needs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::fields::parse_object;
use crate::files::{EmbeddedFiles, Files};
use crate::found::{Found, Taken, check_shape};
use crate::names;
use crate::restore::{Scales, Values};
use crate::shard::{Entry, Shard};
use crate::{CheckpointError, DType, GenerationConfig, ModelConfig, Tensor};

/// A model's files, checked, with its weights mapped on demand.
#[derive(Debug)]
pub struct Checkpoint {
    files: Files,
    pub(crate) config_bytes: Vec<u8>,
    config: ModelConfig,
    generation: GenerationConfig,
    pub(crate) shards: Vec<Shard>,
    /// The needed tensors only.
    pub(crate) tensors: Taken,
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

impl Checkpoint {
    /// Opens a Hugging Face folder or a GGUF file (any shard of it, or the folder that holds it
    /// and no other) and checks it.
    ///
    /// # Errors
    /// When a file is missing or damaged, when the configuration asks for something that is not
    /// supported, or when a tensor is missing, is in two files, or has another shape or type than
    /// the configuration implies.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::from_files(Files::at(path)?)
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
        let mut config = ModelConfig::parse(&files.config_name(), &config_bytes)?;
        let generation = GenerationConfig::parse(
            files.read("generation_config.json")?.as_deref(),
            &config.eos_token_ids,
        )?;
        let (shards, entries) = files.weights(&config)?;
        let mut warnings = files.warnings()?;
        if config.tie_conflict {
            config.tied = !entries.iter().any(|(name, ..)| name == names::HEAD);
            warnings.push(format!(
                "config.json: `tie_word_embeddings` differs between the top level and text_config; \
                 the files hold {} output matrix, so the two are {}",
                if config.tied { "no" } else { "an" },
                if config.tied { "tied" } else { "not tied" },
            ));
        }
        let mut found = Found::new(&files, &shards, &config, entries)?;
        let mut tensors = found.target()?;
        let draft_head = found.draft_head(&mut tensors)?;
        let rest = found.entries;
        if draft_head == DraftHead::Missing {
            let (key, prefix) = files.draft_words(&config);
            warnings.push(format!(
                "{} declares a draft head ({key}) but no tensor name starts with `{prefix}`: the \
                 model runs without speculation",
                files.config_name(),
            ));
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
        checkpoint.account_for_rest(rest)?;
        Ok(checkpoint)
    }

    /// Every tensor that was not taken must be one that cannot change the answer.
    fn account_for_rest(&mut self, rest: Taken) -> Result<(), CheckpointError> {
        for (name, (shard, entry)) in rest {
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

    /// The element type that a needed tensor is read with, by canonical name.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.tensors.get(name).and_then(|(_, entry)| entry.read_dtype())
    }

    /// Reads a tensor, by canonical name (`model.…`, `lm_head.weight`, `mtp.…`), in its canonical
    /// form. It is mapped where the file holds it so, and else restored: put in order, scaled.
    ///
    /// # Errors
    /// When the model has no such tensor, its shape is another one, or its file has changed.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, CheckpointError> {
        let (tensor, values) = self.ordered(name, shape)?;
        values.restore(tensor, |scales| self.scales(scales))
    }

    /// What the state of each value head decays by: `-exp(A_log)`, of a tensor `A_log`. Files that
    /// hold it in this form are taken at their word, without the detour over the logarithm.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn decay(&self, name: &str, n: usize) -> Result<Vec<f32>, CheckpointError> {
        let (tensor, values) = self.ordered(name, &[n])?;
        if matches!(values, Values::NegExp) {
            return Ok(tensor.to_f32());
        }
        let a_log = values.restore(tensor, |scales| self.scales(scales))?.to_f32();
        // Rounded once, from double precision: the same bits as a file that holds the exponential.
        Ok(a_log.into_iter().map(|a| -libm::exp(f64::from(a)) as f32).collect())
    }

    /// A tensor in its order, and what its values are.
    fn ordered(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<(Tensor<'_>, &Values), CheckpointError> {
        let Some((shard, entry)) = self.tensors.get(name) else {
            return Err(CheckpointError::tensor(
                name,
                &self.files.location(),
                "not among the tensors that this model needs",
            ));
        };
        let shard = &self.shards[*shard];
        check_shape(entry, shape, &shard.name)?;
        let tensor = shard.tensor(entry)?;
        let tensor = match &entry.stored.order {
            Some(order) => order.restore(tensor),
            None => tensor,
        };
        Ok((tensor, &entry.stored.values))
    }

    fn scales(&self, scales: &Scales) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.shards[scales.shard].tensor(&scales.entry)?.to_f32())
    }

    /// Stored bytes of all needed tensors, draft head included.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|(_, entry)| entry.stored_bytes()).sum()
    }

    /// How many needed tensors the files hold of each type, and their bytes; most bytes first.
    pub fn stored_types(&self) -> Vec<(DType, usize, u64)> {
        let mut types: BTreeMap<DType, (usize, u64)> = BTreeMap::new();
        for (_, entry) in self.tensors.values() {
            if let Ok(dtype) = entry.dtype {
                let (n, bytes) = types.entry(dtype).or_default();
                (*n, *bytes) = (*n + 1, *bytes + entry.stored_bytes());
            }
        }
        let mut types: Vec<_> = types.into_iter().map(|(t, (n, bytes))| (t, n, bytes)).collect();
        types.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        types
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
