//! What `config.json` may say: defaults, layouts, and refusals by name.

use checkpoint::ModelConfig;
use checkpoint::config::{Arch, LayerKind};
use serde_json::{Value, json};

use crate::made_up::{composite, hybrid_config};

fn parse(config: &Value) -> Result<ModelConfig, checkpoint::CheckpointError> {
    ModelConfig::parse("config.json", config.to_string().as_bytes())
}

fn qwen3_config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 4096, "rope_theta": 1_000_000, "rope_scaling": null,
        "use_sliding_window": false, "sliding_window": null, "max_window_layers": 2,
    })
}

fn llama_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 2048,
    })
}

#[test]
fn absent_entries_take_the_familys_defaults() {
    let mut hybrid = hybrid_config();
    for key in [
        "head_dim",
        "full_attention_interval",
        "rms_norm_eps",
        "hidden_act",
        "linear_conv_kernel_dim",
        "tie_word_embeddings",
        "mtp_num_hidden_layers",
        "eos_token_id",
        "architectures",
        "dtype",
    ] {
        hybrid.as_object_mut().unwrap().remove(key);
    }
    hybrid["rope_parameters"] = json!({ "rope_theta": 1e7 });
    let config = parse(&hybrid).unwrap();
    assert_eq!((config.attention.head_dim, config.attention.rotary_dim), (256, 64));
    assert_eq!(config.layers[3], LayerKind::Full);
    assert_eq!(config.n_layers(LayerKind::Linear), 3);
    assert_eq!((config.rms_eps, config.tied, config.n_mtp_layers), (1e-6, false, 0));
    assert_eq!(config.delta.unwrap().conv_kernel, 4);
    assert_eq!(config.architecture, "Qwen3_5ForCausalLM");
    assert_eq!((config.eos_token_ids, config.bos_token_id), (vec![], None));

    let llama = parse(&llama_config()).unwrap();
    assert_eq!((llama.attention.head_dim, llama.attention.n_kv_heads), (2, 4));
    assert_eq!((llama.arch, llama.attention.qk_norm), (Arch::Llama, false));
    let qwen3 = parse(&qwen3_config()).unwrap();
    assert_eq!((qwen3.arch, qwen3.attention.rotary_dim), (Arch::Qwen3, 8));
    assert!(qwen3.attention.qk_norm && !qwen3.attention.output_gate);
}

#[test]
fn rope_is_read_nested_first_and_flat_else() {
    let nested = parse(&hybrid_config()).unwrap();
    let mut flat = hybrid_config();
    flat.as_object_mut().unwrap().remove("rope_parameters");
    flat["rope_theta"] = json!(1e7);
    flat["partial_rotary_factor"] = json!(0.25);
    assert_eq!(parse(&flat).unwrap(), nested);

    let mut both = hybrid_config();
    both["rope_theta"] = json!(5);
    both["partial_rotary_factor"] = json!(1.0);
    assert_eq!(parse(&both).unwrap(), nested);

    // Part nested, part flat.
    let mut split = hybrid_config();
    split["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": 1e7 });
    split["partial_rotary_factor"] = json!(0.5);
    assert_eq!(parse(&split).unwrap().attention.rotary_dim, 4);
}

#[test]
fn llama3_scaling_keeps_fast_frequencies_and_stretches_slow_ones() {
    let mut llama = llama_config();
    llama["head_dim"] = json!(64);
    let plain = parse(&llama).unwrap().attention.inv_freq;
    llama["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let scaled = parse(&llama).unwrap().attention.inv_freq;
    for (plain, scaled) in plain.iter().zip(&scaled) {
        let wavelength = 2.0 * std::f64::consts::PI / f64::from(*plain);
        if wavelength < 16.0 {
            assert_eq!(scaled, plain);
        } else if wavelength > 64.0 {
            assert_eq!(*scaled, plain / 8.0);
        } else {
            let s = (64.0 / wavelength - 1.0) / 3.0;
            let expected = f64::from(*plain) * ((1.0 - s) / 8.0 + s);
            assert!((f64::from(*scaled) / expected - 1.0).abs() < 1e-6);
        }
    }
    assert!(scaled.windows(2).all(|pair| pair[0] > pair[1]));
    // The older spelling of the type.
    let by_type = llama["rope_scaling"].as_object_mut().unwrap();
    let kind = by_type.remove("rope_type").unwrap();
    by_type.insert("type".into(), kind);
    assert_eq!(parse(&llama).unwrap().attention.inv_freq, scaled);
}

#[test]
fn harmless_entries_are_ignored() {
    let mut config = hybrid_config();
    for (key, value) in [
        ("attention_dropout", json!(0.1)),
        ("id2label", json!({ "0": "LABEL_0" })),
        ("use_cache", json!(false)),
        ("pad_token_id", json!(null)),
        ("some_future_switch", json!("on")),
        ("mamba_ssm_dtype", json!("float32")),
        ("output_gate_type", json!("swish")),
    ] {
        config[key] = value;
    }
    assert_eq!(parse(&config).unwrap(), parse(&hybrid_config()).unwrap());
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let rope = |kind: &str| json!({ "rope_type": kind, "rope_theta": 1e7, "factor": 4.0 });
    for (base, key, value) in [
        (hybrid_config(), "model_type", json!("qwen3_5_moe")),
        (hybrid_config(), "model_type", json!(null)),
        (hybrid_config(), "architectures", json!(["Qwen3_5ForSequenceClassification"])),
        (hybrid_config(), "architectures", json!([])),
        (hybrid_config(), "hidden_act", json!("gelu")),
        (hybrid_config(), "attention_bias", json!(true)),
        (hybrid_config(), "attn_output_gate", json!(false)),
        (hybrid_config(), "output_gate_type", json!("sigmoid")),
        (hybrid_config(), "mtp_use_dedicated_embeddings", json!(true)),
        (hybrid_config(), "mtp_num_hidden_layers", json!(2)),
        (hybrid_config(), "quantization_config", json!({ "quant_method": "fp8" })),
        (hybrid_config(), "rope_parameters", rope("yarn")),
        (hybrid_config(), "rope_parameters", json!({ "full_attention": {} })),
        (hybrid_config(), "rope_parameters", json!({ "rope_type": "default" })),
        (hybrid_config(), "layer_types", json!(["linear_attention"])),
        (hybrid_config(), "layer_types", json!(["full_attention", "x", "x", "x"])),
        (hybrid_config(), "linear_num_value_heads", json!(3)),
        (hybrid_config(), "linear_conv_kernel_dim", json!(9)),
        (hybrid_config(), "head_dim", json!(9)),
        (hybrid_config(), "num_key_value_heads", json!(3)),
        (hybrid_config(), "hidden_size", json!(0)),
        (hybrid_config(), "hidden_size", json!(-8)),
        (hybrid_config(), "hidden_size", json!("8")),
        (hybrid_config(), "hidden_size", json!(1u64 << 40)),
        (hybrid_config(), "vocab_size", json!(null)),
        (hybrid_config(), "rms_norm_eps", json!(0)),
        (hybrid_config(), "eos_token_id", json!([1, "x"])),
        (hybrid_config(), "tie_word_embeddings", json!("yes")),
        (hybrid_config(), "dtype", json!("float8_e4m3fn")),
        (hybrid_config(), "text_config", json!([])),
        (qwen3_config(), "use_sliding_window", json!(true)),
        (qwen3_config(), "layer_types", json!(["full_attention", "sliding_attention"])),
        (qwen3_config(), "rope_scaling", json!({ "type": "linear", "factor": 2.0 })),
        (qwen3_config(), "rope_theta", json!(null)),
        (llama_config(), "sliding_window", json!(4096)),
        (llama_config(), "mlp_bias", json!(true)),
        (llama_config(), "rope_scaling", rope("llama3")),
        (llama_config(), "num_attention_heads", json!(3)),
    ] {
        let mut config = base;
        config[key] = value.clone();
        let error = parse(&config).expect_err(&format!("{key}: {value}")).to_string();
        assert!(error.starts_with("config.json: "), "{error}");
        let named = match key {
            "rope_parameters" | "rope_scaling" => "rope",
            key => key,
        };
        assert!(error.contains(named), "{key}: {value} gave: {error}");
    }
    // In a composite file an entry counts wherever it stands.
    for (at_top, key) in [(true, "quantization_config"), (false, "quantization_config")] {
        let mut config = composite(hybrid_config());
        let place = if at_top { &mut config } else { &mut config["text_config"] };
        place[key] = json!({ "bits": 4 });
        assert!(parse(&config).unwrap_err().to_string().contains(key));
    }
    let mut config = composite(hybrid_config());
    config["text_config"]["model_type"] = json!("llama");
    assert!(parse(&config).unwrap_err().to_string().contains("text_config.model_type"));
}

/// The geometry and the parameter counts of the published models.
#[test]
fn published_shapes_have_the_published_numbers_of_parameters() {
    let published = |h: u64, layers: u64, inner: u64, heads: (u64, u64), nv: u64, tied: bool| {
        composite(json!({
            "model_type": "qwen3_5_text", "vocab_size": 248_320, "hidden_size": h,
            "num_hidden_layers": layers, "intermediate_size": inner, "head_dim": 256,
            "num_attention_heads": heads.0, "num_key_value_heads": heads.1,
            "linear_num_key_heads": 16, "linear_num_value_heads": nv,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "max_position_embeddings": 262_144, "mtp_num_hidden_layers": 1,
            "rope_parameters": { "rope_theta": 1e7 }, "tie_word_embeddings": tied,
        }))
    };
    for (config, total, mtp) in [
        (published(1024, 24, 3584, (8, 2), 16, true), 0.7728, 0.0205),
        (published(2048, 24, 6144, (8, 2), 16, true), 1.9427, 0.0608),
        (published(2560, 32, 9216, (16, 4), 32, true), 4.3264, 0.1206),
        (published(4096, 32, 12288, (16, 4), 32, false), 9.1971, 0.2433),
        (published(5120, 64, 17408, (24, 4), 48, false), 27.3207, 0.4247),
    ] {
        let config = parse(&config).unwrap();
        let count = |specs: Vec<checkpoint::names::TensorSpec>| {
            specs.iter().map(|s| s.shape.iter().product::<usize>()).sum::<usize>() as f64 / 1e9
        };
        let draft = count(checkpoint::names::draft_head(&config));
        let all = count(checkpoint::names::target(&config)) + draft;
        assert!((all - total).abs() < 1e-4, "{all} is not {total}");
        assert!((draft - mtp).abs() < 1e-4, "{draft} is not {mtp}");
    }
}
