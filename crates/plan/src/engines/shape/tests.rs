//! Published sizes of the 27B hybrid, and a config that lacks fields.

use serde_json::{Value, json};

use super::super::GIB;
use super::{FeedForward, ModelShape};
use crate::engines::EngineError;

/// `config.json` of Qwen3.6-27B as far as sizes depend on it.
pub(crate) fn qwen_27b() -> ModelShape {
    let config = json!({
        "text_config": {
            "dtype": "bfloat16", "hidden_size": 5120, "num_hidden_layers": 64,
            "intermediate_size": 17408, "vocab_size": 248_320, "num_attention_heads": 24,
            "num_key_value_heads": 4, "head_dim": 256, "attn_output_gate": true,
            "full_attention_interval": 4, "linear_num_key_heads": 16,
            "linear_num_value_heads": 48, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
            "mtp_num_hidden_layers": 1, "max_position_embeddings": 262_144,
            "tie_word_embeddings": false
        },
        "vision_config": {
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3,
            "temporal_patch_size": 2, "patch_size": 16, "num_position_embeddings": 2304,
            "spatial_merge_size": 2, "out_hidden_size": 5120
        }
    });
    ModelShape::from_config("Qwen3.6-27B", &config).unwrap()
}

/// A 35B hybrid with experts of which 3B are active.
pub(crate) fn qwen_35b_a3b() -> ModelShape {
    let config = json!({
        "dtype": "bfloat16", "hidden_size": 2048, "num_hidden_layers": 40, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "vocab_size": 248_320,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "mtp_num_hidden_layers": 1, "max_position_embeddings": 262_144
    });
    ModelShape::from_config("Qwen3.6-35B-A3B", &config).unwrap()
}

fn near(value: f64, expected: f64, relative: f64) {
    assert!((value / expected - 1.0).abs() <= relative, "{value} is not near {expected}");
}

#[test]
fn the_27b_has_its_published_weights() {
    let shape = qwen_27b();
    let language = shape.weight_bytes(1) - shape.vision_params as f64 * 2.0;
    near(language / GIB, 50.1, 0.002);
    near(shape.vision_params as f64 * 2.0 / GIB, 0.86, 0.01);
    near(shape.mtp_bytes(1) / GIB, 0.79, 0.005);
    near(shape.mtp_bytes(2) / GIB, 0.44, 0.02);
    near(shape.weight_bytes(1) + shape.mtp_bytes(1), 55.56e9, 0.002);
}

#[test]
fn kv_and_state_are_exact() {
    let shape = qwen_27b();
    assert_eq!(shape.kv_bytes_per_token(1, 16, 2.0), 65_536.0);
    assert_eq!(shape.kv_bytes_per_token(2, 16, 2.0), 32_768.0);
    assert_eq!(shape.kv_bytes_per_token(2, 17, 2.0), 34_816.0);
    assert_eq!(shape.kv_bytes_per_token(4, 17, 1.0), 8_704.0);
    assert_eq!(shape.state_bytes(2, 3, 2.0, 4.0), 76_972_032.0);
    near(shape.state_bytes(1, 3, 2.0, 4.0) / 1_048_576.0, 146.81, 1e-4);
    near(shape.state_bytes(2, 3, 2.0, 2.0) / 1_048_576.0, 37.41, 1e-3);
    near(shape.state_bytes(1, 3, 4.0, 4.0) / 1_048_576.0, 149.63, 1e-4);
    // Slots against tokens: bf16 state, fp8 KV, 17 layers.
    let slot = shape.state_bytes(1, 3, 2.0, 2.0) / shape.kv_bytes_per_token(1, 17, 1.0);
    near(slot, 2253.18, 1e-5);
}

#[test]
fn experts_are_visited_by_more_tokens_more_often() {
    let shape = qwen_35b_a3b();
    near(shape.weight_bytes(1) / 2.0, 35e9, 0.03);
    assert_eq!(shape.kv_bytes_per_token(1, 10, 2.0), 20_480.0);
    near(shape.state_bytes(1, 3, 2.0, 4.0) / 1_048_576.0, 61.4, 1e-3);
    for (n_tokens, n_experts) in [(1.0, 8.0), (4.0, 31.0), (32.0, 163.0), (128.0, 252.0)] {
        near(shape.experts_visited(n_tokens), n_experts, 0.02);
    }
    near(shape.operations_per_token() / 2.0, 3e9, 0.15);
}

#[test]
fn a_text_model_without_states() {
    let config = json!({
        "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128, "vocab_size": 100,
        "num_attention_heads": 4, "torch_dtype": "float32", "tie_word_embeddings": true
    });
    let shape = ModelShape::from_config("tiny", &config).unwrap();
    assert_eq!((shape.n_attention_layers, shape.head_dim, shape.n_kv_heads), (4, 16, 4));
    assert_eq!(shape.state_bytes(1, 3, 2.0, 4.0), 0.0);
    assert_eq!(shape.mtp_bytes(1), 0.0);
    assert_eq!(shape.feed_forward, FeedForward::Dense { inner: 128 });
    assert_eq!(shape.weight_bytes(1), (4 * (4 * 64 * 64 + 3 * 64 * 128)) as f64 * 4.0 + 12_800.0);
}

#[test]
fn quantised_layers_are_smaller() {
    let mut config = json!({
        "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128, "vocab_size": 100,
        "num_attention_heads": 4, "quantization_config": {"quant_method": "fp8"}
    });
    let bytes =
        |config: &Value| ModelShape::from_config("tiny", config).unwrap().layer_bytes_per_param;
    assert_eq!(bytes(&config), 1.0);
    config["quantization_config"] = json!({"quant_method": "awq", "bits": 4});
    assert!(bytes(&config) > 0.5 && bytes(&config) < 0.55);
}

#[test]
fn a_missing_size_is_named() {
    let error = ModelShape::from_config("x", &json!({"hidden_size": 64})).unwrap_err();
    assert_eq!(error, EngineError::Config("num_hidden_layers"));
    let half = json!({
        "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 9,
        "intermediate_size": 128, "layer_types": ["linear_attention", "full_attention"]
    });
    let error = ModelShape::from_config("x", &half).unwrap_err();
    assert_eq!(error, EngineError::Config("linear_num_key_heads"));
}
