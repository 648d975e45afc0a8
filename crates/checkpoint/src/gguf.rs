//! GGUF files: a whole model in one file, or in numbered shards.
//!
//! The metadata is turned into the JSON files of a Hugging Face folder and the tensors get their
//! canonical names and form, so everything behind this module sees one kind of checkpoint.

mod config;
mod cursor;
mod header;
mod meta;
mod names;
mod tokenizer;
mod value;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use self::header::Header;
use self::meta::Meta;
use self::value::Value;
use crate::config::{Arch, LayerKind};
use crate::files::Weights;
use crate::shard::{Entry, Shard, map_file};
use crate::{CheckpointError, ModelConfig};

/// Divisors of the rotary frequencies; they are part of the configuration.
const ROPE_FACTORS: &str = "rope_freqs.weight";
const TEMPLATE: &str = "tokenizer.chat_template";

/// The files of a model.
#[derive(Debug)]
pub(crate) struct Gguf {
    /// As errors name them; the metadata is in the first.
    paths: Vec<PathBuf>,
    tensors: Tensors,
}

/// The tensors of all shards, under their own names.
#[derive(Debug, Default)]
struct Tensors {
    entries: Vec<(usize, Entry)>,
    rope_factors: Option<Vec<f32>>,
}

impl Tensors {
    fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(_, entry)| entry.name == name)
    }

    fn layer_kind(&self, layer: usize) -> LayerKind {
        match self.has(&format!("blk.{layer}.ssm_a")) {
            true => LayerKind::Linear,
            false => LayerKind::Full,
        }
    }
}

impl Gguf {
    /// The model that a path names: a file, any shard of one, or the only one in a folder.
    /// `None` for a folder without any.
    pub(crate) fn find(path: &Path) -> Result<Option<PathBuf>, CheckpointError> {
        if !path.is_dir() {
            return Ok(Some(path.to_path_buf()));
        }
        let entries = std::fs::read_dir(path).map_err(|e| CheckpointError::io("read", path, e))?;
        let mut models: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "gguf"))
            // A vision tower beside its model.
            .filter(|path| !file_name(path).starts_with("mmproj"))
            .filter(|path| ShardName::parse(path).is_none_or(|name| name.number == 1))
            .collect();
        models.sort();
        match models.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            several => {
                let names: Vec<String> = several.iter().map(|path| file_name(path)).collect();
                Err(CheckpointError::config(
                    &path.display().to_string(),
                    format!("{} models are in it, name one: {}", several.len(), names.join(", ")),
                ))
            }
        }
    }

    /// Reads and checks the headers of a file and its other shards.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let name = ShardName::parse(path);
        let paths = match &name {
            None => vec![path.to_path_buf()],
            Some(name) => name.all(),
        };
        let absent: Vec<&PathBuf> = paths.iter().filter(|path| !path.exists()).collect();
        if let Some(first) = absent.first() {
            return Err(CheckpointError::MissingFile {
                path: (*first).clone(),
                why: format!(
                    "{} of {} files of this model are missing; the download may be incomplete",
                    absent.len(),
                    paths.len()
                ),
            });
        }
        let mut tensors = Tensors::default();
        let mut n_declared = None;
        for (i, path) in paths.iter().enumerate() {
            let file = path.display().to_string();
            let bytes = map_file(path)?;
            let header = Header::parse(&file, &bytes)?;
            let meta = Meta::new(&file, &header);
            check_shard(&meta, i, paths.len())?;
            n_declared = meta.whole("split.tensors.count")?.or(n_declared);
            for entry in header.tensors {
                if entry.name == ROPE_FACTORS {
                    let shard = Shard::open(path, &file)?;
                    tensors.rope_factors = Some(shard.tensor(&entry)?.to_f32());
                }
                tensors.entries.push((i, entry));
            }
        }
        match n_declared {
            Some(n) if n != tensors.entries.len() as u64 => Err(CheckpointError::header(
                &paths[0].display().to_string(),
                format!(
                    "`split.tensors.count` is {n} but the {} files hold {} tensors",
                    paths.len(),
                    tensors.entries.len()
                ),
            )),
            _ => Ok(Self { paths, tensors }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// What a file of a Hugging Face folder would hold; `None` for one that it would not have.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let file = self.path().display().to_string();
        let bytes = map_file(self.path())?;
        let header = Header::parse(&file, &bytes)?;
        let meta = Meta::new(&file, &header);
        let object = |map: Map<String, Json>| Some(Json::Object(map).to_string().into_bytes());
        Ok(match name {
            "config.json" => object(config::config(&meta, &self.tensors)?),
            "generation_config.json" => object(config::generation(&meta)?),
            "tokenizer.json" => Some(tokenizer::json(&meta)?),
            "tokenizer_config.json" => object(tokenizer::config(&meta)?),
            "chat_template.jinja" => meta.text(TEMPLATE)?.map(|text| text.as_bytes().to_vec()),
            _ => None,
        })
    }

    /// What a person should know before using this file.
    pub(crate) fn warnings(&self) -> Result<Vec<String>, CheckpointError> {
        let file = self.path().display().to_string();
        let bytes = map_file(self.path())?;
        let header = Header::parse(&file, &bytes)?;
        let is_bpe = header.get("tokenizer.ggml.model") == Some(Value::Text("gpt2"));
        Ok(match header.get("tokenizer.ggml.pre") {
            None if is_bpe => vec![format!(
                "{file}: `tokenizer.ggml.pre` is missing, text is cut as by \"default\"; \
                 answers may be worse than they should, convert the model anew"
            )],
            _ => Vec::new(),
        })
    }

    /// All files and what is in them, under canonical names.
    pub(crate) fn weights(&self, config: &ModelConfig) -> Result<Weights, CheckpointError> {
        let shards = self.paths.iter().map(|path| Shard::open(path, &path.display().to_string()));
        let shards = shards.collect::<Result<_, _>>()?;
        let is_read = |name: &str| config.arch == Arch::Llama && name == ROPE_FACTORS;
        let entries = self.tensors.entries.iter().filter(|(_, entry)| !is_read(&entry.name));
        let canonical = |(shard, entry): &(usize, Entry)| {
            let mut entry = entry.clone();
            let name = names::canonical(&entry.name, config);
            entry.stored = names::stored(&name, config);
            // Here the convolution's kernel has an axis of one channel.
            if name.ends_with("conv1d.weight") && entry.shape.len() == 2 {
                entry.shape.insert(1, 1);
            }
            (name, *shard, entry)
        };
        Ok((shards, entries.map(canonical).collect()))
    }

    /// What a canonical tensor is called in these files.
    pub(crate) fn spelling(name: &str, config: &ModelConfig) -> String {
        names::spelling(name, config)
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The place of a shard by its own metadata must be the one by its name.
fn check_shard(meta: &Meta<'_>, i: usize, n: usize) -> Result<(), CheckpointError> {
    let count = meta.whole("split.count")?.unwrap_or(1);
    if count != n as u64 {
        return Err(meta.error(format!(
            "`split.count` is {count} but the file's name makes it one of {n}; \
             shards keep their names, …-00001-of-{count:05}.gguf"
        )));
    }
    match meta.whole("split.no")? {
        Some(no) if no != i as u64 => {
            Err(meta.error(format!("`split.no` is {no} but by its name it is {i} (from 0)")))
        }
        _ => Ok(()),
    }
}

/// `<stem>-00002-of-00005.gguf`.
struct ShardName {
    stem: PathBuf,
    number: usize,
    n: usize,
}

/// More shards than any model has.
const MAX_SHARDS: usize = 10_000;

impl ShardName {
    fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, n) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let all = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            all.then(|| text.parse::<usize>().ok()).flatten()
        };
        let (number, n) = (digits(number)?, digits(n)?);
        ((1..=n).contains(&number) && n <= MAX_SHARDS).then(|| Self {
            stem: path.with_file_name(stem),
            number,
            n,
        })
    }

    fn all(&self) -> Vec<PathBuf> {
        let name = |i| {
            let mut name = self.stem.clone().into_os_string();
            name.push(format!("-{i:05}-of-{:05}.gguf", self.n));
            PathBuf::from(name)
        };
        (1..=self.n).map(name).collect()
    }
}
