//! `generation_config.json`: the sampling that a model's makers recommend.

use crate::CheckpointError;
use crate::fields::{Fields, parse_object};

/// Recommended sampling; `None` where the file says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// `false` asks for greedy decoding whatever the temperature.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Number of candidates.
    pub top_k: Option<u32>,
    /// Lowest probability relative to the highest.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that have occurred.
    pub repetition_penalty: Option<f32>,
    /// Tokens that end a sequence: the union of this file's and `config.json`'s, this file's first.
    pub eos_token_ids: Vec<u32>,
}

impl GenerationConfig {
    /// Reads the bytes of the file, if there is one, and adds the end tokens of `config.json`.
    pub(crate) fn parse(bytes: Option<&[u8]>, config_eos: &[u32]) -> Result<Self, CheckpointError> {
        let mut generation = match bytes {
            None => Self::default(),
            Some(bytes) => Self::read(bytes)?,
        };
        for id in config_eos {
            if !generation.eos_token_ids.contains(id) {
                generation.eos_token_ids.push(*id);
            }
        }
        Ok(generation)
    }

    fn read(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let file = "generation_config.json";
        let object = parse_object(file, bytes)?;
        let fields = Fields::new(file, &object);
        let number = |key: &str| Ok(fields.number(key)?.map(|n| n as f32));
        // 0 switches top-k off, as in transformers.
        let top_k = match fields.get("top_k") {
            None => None,
            Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(n) => Some(n),
                None => return Err(fields.wrong("top_k", value, "a whole number from 0")),
            },
        };
        Ok(Self {
            do_sample: fields.flag("do_sample")?,
            temperature: number("temperature")?,
            top_p: number("top_p")?,
            top_k,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            eos_token_ids: fields.token_ids("eos_token_id")?,
        })
    }
}
