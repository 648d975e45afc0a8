//! A server configuration in canonical factors, and the difference between two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::engine::{Engine, Version};
use crate::factor::Factor;
use crate::flags::{self, Flag, Takes};
use crate::redact;
use crate::value::{Value, normalise};

/// What a setting sets: a factor, or a flag that has no canonical name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A factor of the table.
    Known(Factor),
    /// An engine's own flag, without dashes; shown as `raw.NAME`.
    Raw(String),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Known(factor) => f.write_str(factor.name()),
            Key::Raw(name) => write!(f, "raw.{name}"),
        }
    }
}

impl From<Factor> for Key {
    fn from(factor: Factor) -> Key {
        Key::Known(factor)
    }
}

impl Serialize for Key {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(match name.strip_prefix("raw.") {
            Some(raw) => Key::Raw(raw.to_owned()),
            None => Factor::from_name(&name).map_or(Key::Raw(name), Key::Known),
        })
    }
}

/// One setting as it was found, redacted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The value in normal form.
    pub value: Value,
    /// The flag or variable as it was spelled.
    pub flag: String,
    /// Whether the engine filled it in, so that nobody asked for it.
    #[serde(default)]
    pub resolved: bool,
}

impl Setting {
    /// A setting that somebody asked for.
    fn asked(value: Value, flag: &str) -> Setting {
        Setting { value, flag: flag.to_owned(), resolved: false }
    }

    /// Whether it came from the environment, which a command line does not show.
    pub fn is_variable(&self) -> bool {
        !self.flag.starts_with('-') && self.flag.starts_with(|c: char| c.is_ascii_uppercase())
    }
}

/// What was asked of a server, by factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Whose configuration it is.
    pub engine: Engine,
    /// The version, where the source tells it.
    pub version: Option<Version>,
    /// Whether the source lists every argument with its resolved value, so that an absent one is truly unset.
    pub whole: bool,
    /// Whether the source shows the environment too, so that an absent variable is truly unset.
    #[serde(default)]
    pub environment_known: bool,
    /// The settings.
    pub settings: BTreeMap<Key, Setting>,
    /// Factors that a dump lists and leaves open.
    #[serde(default)]
    pub open: BTreeSet<Factor>,
}

/// Arguments of a dump that differ between any two starts and mean nothing.
const NOISE: &[&str] = &[
    "random-seed",
    "seed",
    "nccl-port",
    "tokenizer-path",
    "tokenizer",
    "launch-command",
    "startup-time",
    "pid",
    "download-dir",
    "max-req-input-len",
    "kv-events",
    "frontend",
    "status",
    "dist-init-addr",
    "warmups",
    "uvicorn-access-log",
    "skip-server-warmup",
    "watchdog-timeout",
    "grpc-mode",
    "node-rank",
    "api-key",
    "admin-api-key",
    "model-tag",
    "device-config",
];

impl Config {
    /// An empty configuration of an engine.
    pub fn new(engine: Engine) -> Config {
        Config {
            engine,
            version: None,
            whole: false,
            environment_known: false,
            settings: BTreeMap::new(),
            open: BTreeSet::new(),
        }
    }

    /// The value asked for a factor, if any.
    pub fn get(&self, factor: Factor) -> Option<&Value> {
        self.settings.get(&Key::Known(factor)).map(|setting| &setting.value)
    }

    /// The value asked for a factor as a number.
    pub fn number(&self, factor: Factor) -> Option<f64> {
        self.get(factor)?.as_f64()
    }

    /// Sets a factor directly, as a log header or an endpoint states it.
    pub fn state(&mut self, factor: Factor, value: Value, source: &str) {
        self.settings
            .insert(factor.into(), Setting { value, flag: source.to_owned(), resolved: true });
    }

    /// Takes one flag with the word that belongs to it, if any.
    pub fn set_flag(&mut self, name: &str, word: Option<&str>) {
        let name = flags::canonical_name(name);
        let Some((flag, negated)) = flags::lookup(self.engine, &name) else {
            return self.set_raw(&name, word);
        };
        let value = match (flag.takes, word) {
            (Takes::Json, Some(word)) => return self.set_json(&name, word),
            (Takes::Turns(to), None) => Value::Bool(to != negated),
            (Takes::Turns(to), Some(word)) => match Value::parse(word).as_bool() {
                Some(given) => Value::Bool((given == to) != negated),
                None => return,
            },
            (Takes::Optional, None) => Value::Bool(!negated),
            (_, Some(word)) => normalise(flag.factor, &redact::value(&name, word)),
            (_, None) => return,
        };
        self.insert(flag, &name, value);
    }

    /// Takes a variable of the environment, if it is one that counts.
    pub fn set_variable(&mut self, name: &str, word: &str) {
        let known = flags::variables(self.engine)
            .iter()
            .chain(flags::COMMON_VARIABLES)
            .find(|(known, _)| *known == name);
        let key = match known {
            Some((_, factor)) => {
                if self.settings.contains_key(&Key::Known(*factor)) {
                    return; // a flag beats the variable
                }
                let value = match *factor {
                    Factor::ExecCudaGraph => {
                        Value::Bool(!Value::parse(word).as_bool().unwrap_or(true))
                    }
                    factor => normalise(factor, &redact::value(name, word)),
                };
                self.settings.insert((*factor).into(), Setting::asked(value, name));
                return;
            }
            None if is_engine_variable(name) => Key::Raw(name.to_owned()),
            None => return,
        };
        let value = Value::parse(&redact::value(name, word));
        self.settings.insert(key, Setting::asked(value, name));
    }

    /// Takes a whole dump of arguments: `server_args`, `non-default args`, `/server_info`, a YAML file.
    pub fn set_dump(&mut self, dump: &serde_json::Map<String, Json>) {
        for (key, value) in dump {
            let name = flags::canonical_name(&format!("--{key}"));
            if name == "--version" {
                self.version = value.as_str().and_then(Version::parse).or(self.version.take());
                continue;
            }
            match value {
                Json::Null => {
                    self.open.extend(flags::lookup(self.engine, &name).map(|(flag, _)| flag.factor))
                }
                Json::Object(inner) => self.set_object(&name, inner),
                Json::Array(items) => {
                    let words: Vec<String> = items.iter().filter_map(word_of).collect();
                    if let Some(first) = words.first() {
                        let largest = words.iter().filter_map(|w| w.parse::<i64>().ok()).max();
                        let is_sizes =
                            largest.is_some() && words.iter().all(|w| w.parse::<i64>().is_ok());
                        let word =
                            if is_sizes { largest.unwrap_or(0).to_string() } else { first.clone() };
                        self.set_from_dump(&name, &word);
                    }
                }
                other => {
                    if let Some(word) = word_of(other) {
                        self.set_from_dump(&name, &word);
                    }
                }
            }
        }
    }

    /// In a dump several flags may speak of one factor; the ones left at their default must not silence the others.
    fn set_from_dump(&mut self, name: &str, word: &str) {
        if let Some((flag, _)) = flags::lookup(self.engine, name)
            && self.settings.contains_key(&Key::Known(flag.factor))
        {
            let resting = match flag.takes {
                Takes::Turns(_) => Value::parse(word).as_bool() == Some(false),
                _ => flag.default == Some(word),
            };
            if resting {
                return;
            }
        }
        self.set_flag(name, Some(word));
    }

    fn set_json(&mut self, name: &str, word: &str) {
        if let Ok(Json::Object(object)) = serde_json::from_str(word) {
            self.set_object(name, &object);
        } else if let Some(Json::Object(object)) = crate::pyrepr::parse(word) {
            self.set_object(name, &object);
        }
    }

    fn set_object(&mut self, name: &str, object: &serde_json::Map<String, Json>) {
        let head = match flags::lookup(self.engine, name) {
            Some((flag, _)) => flag.names[0].text,
            None => name,
        };
        for (key, value) in object {
            let dotted = flags::canonical_name(&format!("{head}.{key}"));
            match value {
                Json::Array(items) => {
                    let largest = items.iter().filter_map(Json::as_i64).max();
                    match largest {
                        Some(n) => self.set_flag(&dotted, Some(&n.to_string())),
                        None => self.set_flag(&dotted, Some(&value.to_string())),
                    }
                }
                Json::Null | Json::Object(_) => {}
                other => {
                    if let Some(word) = word_of(other) {
                        self.set_flag(&dotted, Some(&word));
                    }
                }
            }
        }
    }

    fn insert(&mut self, flag: &Flag, name: &str, value: Value) {
        self.settings.insert(flag.factor.into(), Setting::asked(value, name));
    }

    fn set_raw(&mut self, name: &str, word: Option<&str>) {
        const MOST: usize = 2000; // a hostile command line must not grow the map without end
        let bare = name.trim_start_matches('-');
        if bare.is_empty()
            || bare.len() > 80
            || NOISE.contains(&bare)
            || self.settings.len() >= MOST
        {
            return;
        }
        let value = word.map_or(Value::Bool(true), |word| Value::parse(&redact::value(name, word)));
        self.settings
            .insert(Key::Raw(redact::text(bare)), Setting::asked(value, &redact::text(name)));
    }

    /// Fills what is open, or `auto`, with what the engine made of it.
    pub fn fill(&mut self, resolved: &Config) {
        for (key, setting) in &resolved.settings {
            let is_open =
                self.settings.get(key).is_none_or(|known| known.value.as_str() == Some("auto"));
            if is_open {
                self.settings.insert(key.clone(), Setting { resolved: true, ..setting.clone() });
            }
        }
        self.version = self.version.take().or_else(|| resolved.version.clone());
    }

    /// Takes the variables of the environment from another source that speaks of the same server.
    pub fn take_environment(&mut self, other: &Config) {
        for (key, setting) in other.settings.iter().filter(|(_, setting)| setting.is_variable()) {
            self.settings.entry(key.clone()).or_insert_with(|| setting.clone());
        }
        self.environment_known |= other.environment_known;
    }

    /// The settings in which two configurations differ, by their effective values.
    pub fn differences(&self, other: &Config) -> Vec<Difference> {
        crate::effective::differences(self, other)
    }
}

/// Variables worth keeping although no factor names them.
fn is_engine_variable(name: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "CUDA_",
        "NCCL_",
        "SGLANG_",
        "SGL_",
        "VLLM_",
        "LLAMA_ARG_",
        "GGML_",
        "OUTRIDER_",
        "TORCH_",
        "PYTORCH_",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !redact::is_secret_name(name)
}

fn word_of(value: &Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(number.to_string()),
        Json::Bool(b) => Some(b.to_string()),
        _ => None,
    }
}

/// A setting that is not the same on two sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// What differs.
    pub key: Key,
    /// The effective value on the first side; nothing where it is not known.
    pub a: Option<Value>,
    /// The effective value on the second side.
    pub b: Option<Value>,
}

impl Difference {
    /// The factor, for settings that have a canonical name.
    pub fn factor(&self) -> Option<Factor> {
        match self.key {
            Key::Known(factor) => Some(factor),
            Key::Raw(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resting_switch_of_a_dump_does_not_silence_another() {
        let mut config = Config::new(Engine::Sglang);
        let dump = serde_json::json!({
            "disable_cuda_graph": true, "disable_decode_cuda_graph": false,
            "cuda_graph_max_bs_decode": [1, 2, 8], "max_running_requests": null, "random_seed": 7,
        });
        config.set_dump(dump.as_object().unwrap());
        assert_eq!(config.get(Factor::ExecCudaGraph), Some(&Value::Bool(false)));
        assert_eq!(config.get(Factor::ExecGraphMaxBs), Some(&Value::Int(8)));
        assert_eq!(config.settings.len(), 2);
    }

    #[test]
    fn json_flags_open_into_their_keys() {
        let mut config = Config::new(Engine::Vllm);
        config.set_flag(
            "--speculative-config",
            Some(r#"{"method":"mtp","num_speculative_tokens":3}"#),
        );
        config.set_flag("--compilation_config", Some(r#"{"cudagraph_mode":"NONE"}"#));
        assert_eq!(config.get(Factor::SpecNumSteps), Some(&Value::Int(3)));
        assert_eq!(config.get(Factor::SpecMethod), Some(&Value::Text("mtp".into())));
        assert_eq!(config.get(Factor::ExecCudaGraph), Some(&Value::Bool(false)));
    }

    #[test]
    fn a_flag_beats_its_variable() {
        let mut config = Config::new(Engine::LlamaCpp);
        config.set_flag("-c", Some("65536"));
        config.set_variable("LLAMA_ARG_CTX_SIZE", "4096");
        config.set_variable("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz");
        assert_eq!(config.get(Factor::ModelMaxContext), Some(&Value::Int(65_536)));
        assert_eq!(config.settings.len(), 1);
    }
}
