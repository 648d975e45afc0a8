//! A checkpoint as llama.cpp's converter would store it.

use checkpoint::config::{Arch, LayerKind, ModelConfig};
use checkpoint::names::{self, TensorSpec};
use checkpoint::{Checkpoint, DType};
use serde_json::Value;

use super::{GgufFile, quantised};

const LAYER: [(&str, &str); 18] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
    ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    ("linear_attn.conv1d.weight", "ssm_conv1d.weight"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm.weight", "ssm_norm.weight"),
    ("linear_attn.out_proj.weight", "ssm_out.weight"),
];

/// The whole model, its matrices as `dtype`; qwen35 and qwen3 only. A configuration holds the
/// frequencies of its rope only, so the base comes from the caller.
///
/// # Panics
/// For a checkpoint that cannot be read.
pub fn converted(checkpoint: &Checkpoint, dtype: DType, rope_base: f32) -> GgufFile {
    let config = checkpoint.config();
    let mut file = GgufFile::default();
    metadata(&mut file, config, rope_base);
    let tokens = checkpoint.tokenizer_json().expect("a tokenizer");
    let generation = checkpoint.generation();
    tokenizer(&mut file, &tokens, "qwen35", config.vocab_size);
    file.number("tokenizer.ggml.eos_token_id", generation.eos_token_ids[0] as usize);
    for (key, value) in [("temp", generation.temperature), ("top_p", generation.top_p)] {
        if let Some(value) = value {
            file.float(&format!("general.sampling.{key}"), value);
        }
    }
    if let Some(k) = generation.top_k {
        file.number("general.sampling.top_k", k as usize);
    }
    if let Some(template) = checkpoint.chat_template().expect("a template") {
        file.text("tokenizer.chat_template", &template);
    }
    let draft = if checkpoint.has_mtp() { names::draft_head(config) } else { Vec::new() };
    for spec in names::target(config).into_iter().chain(draft) {
        let weights = checkpoint.tensor(&spec.name, &spec.shape).expect("a tensor").to_f32();
        let (shape, weights) = stored(&spec, weights, config);
        let is_matrix = shape.len() == 2 && !spec.name.ends_with("conv1d.weight");
        let (type_id, bytes) = quantised(&weights, if is_matrix { dtype } else { DType::F32 });
        file.tensor(&named(&spec.name, config), &shape, type_id, bytes);
    }
    file
}

fn metadata(file: &mut GgufFile, config: &ModelConfig, rope_base: f32) {
    let arch = match config.arch {
        Arch::Qwen35 => "qwen35",
        Arch::Qwen3 => "qwen3",
        Arch::Llama => panic!("the order of llama's queries is not written here"),
    };
    let a = &config.attention;
    let key = |suffix: &str| format!("{arch}.{suffix}");
    file.text("general.architecture", arch);
    for (suffix, n) in [
        ("block_count", config.layers.len() + config.n_mtp_layers),
        ("context_length", config.max_positions),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", a.n_heads),
        ("attention.head_count_kv", a.n_kv_heads),
        ("attention.key_length", a.head_dim),
        ("rope.dimension_count", a.rotary_dim),
        ("vocab_size", config.vocab_size),
        ("nextn_predict_layers", config.n_mtp_layers),
    ] {
        file.number(&key(suffix), n);
    }
    file.float(&key("attention.layer_norm_rms_epsilon"), config.rms_eps);
    file.float(&key("rope.freq_base"), rope_base);
    let Some(d) = &config.delta else { return };
    for (suffix, n) in [
        ("ssm.conv_kernel", d.conv_kernel),
        ("ssm.state_size", d.key_dim),
        ("ssm.group_count", d.n_key_heads),
        ("ssm.time_step_rank", d.n_value_heads),
        ("ssm.inner_size", d.n_value_heads * d.value_dim),
    ] {
        file.number(&key(suffix), n);
    }
    let first_full = config.layers.iter().position(|kind| *kind == LayerKind::Full);
    file.number(&key("full_attention_interval"), first_full.expect("a full layer") + 1);
}

/// The rest of a llama that is as small as one can be.
pub fn skeleton(file: &mut GgufFile, vocab_size: usize) {
    file.text("general.architecture", "llama");
    for suffix in [
        "block_count",
        "context_length",
        "attention.head_count",
        "embedding_length",
        "feed_forward_length",
    ] {
        file.number(&format!("llama.{suffix}"), if suffix == "embedding_length" { 2 } else { 1 });
    }
    file.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let mut tensor = |name: &str, shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        file.tensor(name, shape, 0, vec![0; n * 4]);
    };
    tensor("token_embd.weight", &[vocab_size, 2]);
    tensor("output_norm.weight", &[2]);
    for norm in ["attn_norm", "ffn_norm"] {
        tensor(&format!("blk.0.{norm}.weight"), &[2]);
    }
    for square in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        tensor(&format!("blk.0.{square}.weight"), &[2, 2]);
    }
    for (name, shape) in [("ffn_gate", [1, 2]), ("ffn_up", [1, 2]), ("ffn_down", [2, 1])] {
        tensor(&format!("blk.0.{name}.weight"), &shape);
    }
}

/// Vocabulary and merges of a `tokenizer.json`, which cuts text as `pre` names it.
///
/// # Panics
/// If it is none of a byte-level BPE.
pub fn tokenizer(file: &mut GgufFile, json: &[u8], pre: &str, vocab_size: usize) {
    let json: Value = serde_json::from_slice(json).expect("JSON");
    let mut rows: Vec<(String, i32)> = (0..vocab_size).map(|i| (format!("[PAD{i}]"), 5)).collect();
    for (text, id) in json["model"]["vocab"].as_object().expect("a vocabulary") {
        rows[id.as_u64().expect("an id") as usize] = (text.clone(), 1);
    }
    for token in json["added_tokens"].as_array().expect("added tokens") {
        let kind = if token["special"] == true { 3 } else { 4 };
        let text = token["content"].as_str().expect("a text");
        rows[token["id"].as_u64().expect("an id") as usize] = (text.to_string(), kind);
    }
    let merges = json["model"]["merges"].as_array().expect("merges").iter();
    let merges: Vec<String> = merges
        .map(|pair| match pair {
            Value::String(pair) => pair.clone(),
            pair => format!("{} {}", pair[0].as_str().expect("a"), pair[1].as_str().expect("b")),
        })
        .collect();
    let kinds: Vec<i32> = rows.iter().map(|(_, kind)| *kind).collect();
    file.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", rows.iter().map(|(text, _)| text.as_str()))
        .numbers("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", merges.iter().map(String::as_str));
}

/// Shape and values as the converter stores them.
fn stored(spec: &TensorSpec, weights: Vec<f32>, config: &ModelConfig) -> (Vec<usize>, Vec<f32>) {
    let name = spec.name.as_str();
    let mut shape = spec.shape.clone();
    let Some(d) = &config.delta else { return (shape, weights) };
    let Some((_, part)) = name.rsplit_once("linear_attn.") else {
        let is_norm = name.ends_with("norm.weight") || name.contains("pre_fc_norm");
        let plus = if is_norm { 1.0 } else { 0.0 };
        return (shape, weights.into_iter().map(|w| w + plus).collect());
    };
    if part == "conv1d.weight" {
        shape.remove(1);
    }
    let columns = shape.get(1).copied().unwrap_or(1);
    let per_key = d.n_value_heads / d.n_key_heads;
    // Where in the canonical order the head stands that is `i`-th in the file.
    let head = |i: usize| i % d.n_key_heads * per_key + i / d.n_key_heads;
    let row = |i: usize, skip: usize, unit: usize| match i.checked_sub(skip) {
        None => i,
        Some(i) => skip + head(i / unit) * unit + i % unit,
    };
    let keys = 2 * d.n_key_heads * d.key_dim;
    let from = |r: usize, c: usize| match part {
        "in_proj_qkv.weight" | "conv1d.weight" => (row(r, keys, d.value_dim), c),
        "in_proj_z.weight" => (row(r, 0, d.value_dim), c),
        "out_proj.weight" => (r, row(c, 0, d.value_dim)),
        "norm.weight" => (r, c),
        _ => (row(r, 0, 1), c),
    };
    let value = |i: usize| {
        let (r, c) = from(i / columns, i % columns);
        let w = weights[r * columns + c];
        if part == "A_log" { -f64::from(w).exp() as f32 } else { w }
    };
    let values = (0..weights.len()).map(value).collect();
    (shape, values)
}

fn named(name: &str, config: &ModelConfig) -> String {
    let last = config.layers.len();
    let layer = |suffix: &str| match suffix {
        "post_attention_layernorm.weight" if config.arch == Arch::Qwen35 => {
            "post_attention_norm.weight"
        }
        "post_attention_layernorm.weight" => "ffn_norm.weight",
        "linear_attn.A_log" => "ssm_a",
        _ => LAYER.iter().find(|(ours, _)| *ours == suffix).expect("a known tensor").1,
    };
    match name {
        names::EMBEDDING => "token_embd.weight".to_string(),
        names::HEAD => "output.weight".to_string(),
        "model.norm.weight" => "output_norm.weight".to_string(),
        "mtp.fc.weight" => format!("blk.{last}.nextn.eh_proj.weight"),
        "mtp.pre_fc_norm_embedding.weight" => format!("blk.{last}.nextn.enorm.weight"),
        "mtp.pre_fc_norm_hidden.weight" => format!("blk.{last}.nextn.hnorm.weight"),
        "mtp.norm.weight" => format!("blk.{last}.nextn.shared_head_norm.weight"),
        _ => match name.strip_prefix("mtp.layers.0.") {
            Some(suffix) => format!("blk.{last}.{}", layer(suffix)),
            None => {
                let rest = name.strip_prefix("model.layers.").expect("a layer");
                let (i, suffix) = rest.split_once('.').expect("a number");
                format!("blk.{i}.{}", layer(suffix))
            }
        },
    }
}
