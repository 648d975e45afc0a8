//! Tiny checkpoints: a configuration, and every tensor that it needs with a recognisable filling.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::{Checkpoint, CheckpointError, ModelConfig, names};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A stored tensor: the type's name in the format, shape, bytes.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) dtype: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Stored {
    /// bfloat16 elements that differ between names and between positions.
    pub(crate) fn filled(name: &str, shape: &[usize]) -> Self {
        let seed = name.bytes().fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
        let n: usize = shape.iter().product();
        let bytes = (0..n as u32)
            .flat_map(|i| ((seed ^ i.wrapping_mul(2_654_435_761)) as u16 | 0x3f00).to_le_bytes())
            .collect();
        Self { dtype: "BF16", shape: shape.to_vec(), bytes }
    }
}

pub(crate) type Tensors = BTreeMap<String, Stored>;

/// A flat hybrid of two layers with a draft head, not tied.
pub(crate) fn hybrid_config() -> Value {
    json!({
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 24, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": 4, "full_attention_interval": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_act": "silu",
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25,
        },
        "mtp_num_hidden_layers": 1, "eos_token_id": 23, "dtype": "bfloat16",
        "tie_word_embeddings": false,
    })
}

/// The same model as published checkpoints lay it out: text settings nested.
pub(crate) fn composite(mut text: Value) -> Value {
    text.as_object_mut().unwrap().remove("architectures");
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": { "hidden_size": 16, "hidden_act": "gelu_pytorch_tanh" },
    })
}

/// The names of a flat checkpoint as a composite one has them.
pub(crate) fn composite_names(tensors: Tensors) -> Tensors {
    let rename = |name: String| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name,
    };
    tensors.into_iter().map(|(name, stored)| (rename(name), stored)).collect()
}

/// All tensors that a configuration needs, draft head included.
pub(crate) fn tensors(config: &Value) -> Tensors {
    let config = ModelConfig::parse("config.json", config.to_string().as_bytes()).unwrap();
    names::target(&config)
        .into_iter()
        .chain(names::draft_head(&config))
        .map(|spec| (spec.name.clone(), Stored::filled(&spec.name, &spec.shape)))
        .collect()
}

/// A safetensors file, written independently of the reader under test.
pub(crate) fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, stored)| {
        let dtype = match stored.dtype {
            "BF16" => safetensors::Dtype::BF16,
            "F16" => safetensors::Dtype::F16,
            "F32" => safetensors::Dtype::F32,
            "U8" => safetensors::Dtype::U8,
            "F8_E4M3" => safetensors::Dtype::F8_E4M3,
            other => panic!("no such type: {other}"),
        };
        let shape = stored.shape.clone();
        (name, safetensors::tensor::TensorView::new(dtype, shape, &stored.bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// A checkpoint folder that goes away with the value.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new(config: &Value) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("config.json", config.to_string().as_bytes());
        folder
    }

    /// A folder with one weight file.
    pub(crate) fn single(config: &Value, tensors: &Tensors) -> Self {
        let folder = Self::new(config);
        folder.write("model.safetensors", &safetensors(tensors));
        folder
    }

    /// A folder with the tensors dealt over `n` shards and an index.
    pub(crate) fn sharded(config: &Value, tensors: &Tensors, n: usize) -> Self {
        let folder = Self::new(config);
        let name = |i: usize| format!("model-{:05}-of-{n:05}.safetensors", i + 1);
        let mut shards = vec![Tensors::new(); n];
        let mut map = serde_json::Map::new();
        for (i, (tensor, stored)) in tensors.iter().enumerate() {
            shards[i % n].insert(tensor.clone(), stored.clone());
            map.insert(tensor.clone(), json!(name(i % n)));
        }
        for (i, shard) in shards.iter().enumerate() {
            folder.write(&name(i), &safetensors(shard));
        }
        let index = json!({ "metadata": {}, "weight_map": map });
        folder.write("model.safetensors.index.json", index.to_string().as_bytes());
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.file(name), bytes).unwrap();
    }

    pub(crate) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(self.path())
    }

    /// The message of the refusal; it must contain every one of `parts`.
    pub(crate) fn refused(&self, parts: &[&str]) -> String {
        let message = self.open().expect_err("this checkpoint must be refused").to_string();
        for part in parts {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
        message
    }
}
