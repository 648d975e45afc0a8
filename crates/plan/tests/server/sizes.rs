//! Bytes of the published models.

use checkpoint::DType;
use plan::{KvType, ModelBytes, Quantization};

use crate::models::{dense, large, model, small, tiny};

/// KiB of KV for one token.
fn kv_per_token(model: &ModelBytes, draft: bool) -> f64 {
    model.kv_block(KvType::Bf16, draft) as f64 / 64.0 / 1024.0
}

#[test]
fn kv_state_and_weights_of_the_published_models() {
    let (small, large) = (small(), large());
    assert_eq!((kv_per_token(&small, false), kv_per_token(&small, true)), (12.0, 14.0));
    assert_eq!((kv_per_token(&large, false), kv_per_token(&large, true)), (64.0, 68.0));
    assert_eq!(small.kv_block(KvType::F32, false), 2 * small.kv_block(KvType::Bf16, false));

    // Delta state and convolution history, both f32.
    let per_layer = |value_heads: u64, channels: u64| (value_heads * 128 * 128 + 3 * channels) * 4;
    assert_eq!(small.slot(false), 18 * per_layer(16, 6144));
    assert_eq!(large.slot(false), 48 * per_layer(48, 10240));
    // A pending row: convolution inputs, keys, values, two gates. The carry: 32 hidden rows.
    let pending = (6144 + 2048 + 2048 + 2 * 16) * 4;
    let carry = 32 * 1024 * 4;
    assert_eq!((small.draft(), small.slot(true) - small.slot(false)), (18 * pending, carry));

    // Two bytes per parameter, give or take norms in f32 and padding of a few rows.
    for (model, parameters) in [(&small, 0.7728e9), (&large, 27.3207e9)] {
        let ratio = model.weights.loaded(true) as f64 / (2.0 * parameters);
        assert!((1.0..1.003).contains(&ratio), "{ratio}");
    }
    assert_eq!(small.weights.head, 0);
    assert_eq!(large.weights.head, large.weights.embedding);
    assert!(small.weights.loaded(false) < small.weights.loaded(true));
}

#[test]
fn rows_are_padded_to_tiles_and_one_wide_part_widens_a_projection() {
    let config = serde_json::json!({
        "model_type": "qwen3", "vocab_size": 65, "hidden_size": 7, "num_hidden_layers": 1,
        "intermediate_size": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80,
        "max_position_embeddings": 64, "rope_theta": 1e4, "tie_word_embeddings": true,
    });
    let narrow = model(&config, DType::Bf16);
    assert_eq!(narrow.weights.embedding, 128 * 8 * 2);
    let wide = model(&config, DType::F16);
    assert_eq!(wide.weights.embedding, 128 * 7 * 4);
    // [q; k; v], out, [gate; up], down; head norms; layer norms and the final one.
    let layers = 320 * 8 * 2 + 64 * 160 * 2 + 64 * 8 * 2 + 64 * 4 * 2 + 4 * (2 * 80 + 3 * 7);
    assert_eq!(narrow.weights.layers, layers);
    // Keys as they are, values to whole tiles.
    assert_eq!(narrow.kv_block(KvType::F32, false), (80 + 128) * 64 * 4);

    let mixed = ModelBytes::new(&narrow.config, Quantization::AsStored, &|name| match name
        .contains("k_proj")
    {
        true => DType::F32,
        false => DType::Bf16,
    });
    assert_eq!(mixed.weights.layers - narrow.weights.layers, 320 * 7 * 4 - 320 * 8 * 2);
}

#[test]
fn models_without_linear_layers_have_no_state() {
    assert_eq!((dense().slot(false), dense().draft()), (0, 0));
    assert_eq!(dense().weights.draft_head, 0);
    assert!(tiny().slot(false) > 0);
}
