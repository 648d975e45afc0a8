//! Models and machines to plan for.

use checkpoint::{DType, ModelConfig};
use plan::{Host, MemoryLimit, ModelBytes, Quantization};
use serde_json::{Value, json};

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn host(memory_bytes: u64) -> Host {
    Host {
        cpu_name: "Some CPU".to_string(),
        n_cores: 8,
        memory_bytes,
        memory_limit: MemoryLimit::Machine,
    }
}

pub(crate) fn model(config: &Value, dtype: DType) -> ModelBytes {
    let config = ModelConfig::parse("config.json", config.to_string().as_bytes()).unwrap();
    ModelBytes::new(&config, Quantization::AsStored, &|_| dtype)
}

/// A hybrid with the head sizes of the published models.
pub(crate) struct Hybrid {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) inner: usize,
    pub(crate) heads: (usize, usize),
    pub(crate) value_heads: usize,
    pub(crate) tied: bool,
}

impl Hybrid {
    pub(crate) fn config(&self) -> Value {
        json!({
            "model_type": "qwen3_5_text", "dtype": "bfloat16", "vocab_size": 248_320,
            "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "intermediate_size": self.inner, "head_dim": 256,
            "num_attention_heads": self.heads.0, "num_key_value_heads": self.heads.1,
            "linear_num_key_heads": 16, "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "max_position_embeddings": 262_144, "mtp_num_hidden_layers": 1,
            "rope_parameters": { "rope_theta": 1e7 }, "tie_word_embeddings": self.tied,
        })
    }
}

pub(crate) fn small() -> ModelBytes {
    let shape = Hybrid {
        hidden: 1024,
        layers: 24,
        inner: 3584,
        heads: (8, 2),
        value_heads: 16,
        tied: true,
    };
    model(&shape.config(), DType::Bf16)
}

pub(crate) fn large() -> ModelBytes {
    let shape = Hybrid {
        hidden: 5120,
        layers: 64,
        inner: 17408,
        heads: (24, 4),
        value_heads: 48,
        tied: false,
    };
    model(&shape.config(), DType::Bf16)
}

pub(crate) fn tiny() -> ModelBytes {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/outrider-tiny");
    ModelBytes::of(&checkpoint::Checkpoint::open(path.as_ref()).unwrap(), Quantization::AsStored)
}

/// A model without recurrent state.
pub(crate) fn dense() -> ModelBytes {
    let config = json!({
        "model_type": "llama", "vocab_size": 32_000, "hidden_size": 576, "num_hidden_layers": 30,
        "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "tie_word_embeddings": true, "dtype": "bfloat16",
    });
    model(&config, DType::Bf16)
}
