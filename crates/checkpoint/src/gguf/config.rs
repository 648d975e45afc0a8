//! Metadata as the entries of `config.json` and `generation_config.json`.

use serde_json::{Map, Value as Json, json};

use super::meta::Meta;
use super::value::Value;
use super::{Tensors, tokenizer};
use crate::config::LayerKind;
use crate::{CheckpointError, DType};

/// Settings that no network here has, and the value that leaves each without effect.
const NEUTRAL: &[(&str, f64)] = &[
    ("expert_count", 0.0),
    ("expert_used_count", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
    ("embedding_scale", 1.0),
    ("attn_logit_softcapping", 0.0),
    ("final_logit_softcapping", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.clamp_kqv", 0.0),
    ("attention.sliding_window", 0.0),
    ("pooling_type", 0.0),
];

/// The entries of a `config.json`.
pub(super) fn config(
    meta: &Meta<'_>,
    tensors: &Tensors,
) -> Result<Map<String, Json>, CheckpointError> {
    let (arch, model_type, architecture) = family(meta)?;
    let key = |suffix: &str| format!("{arch}.{suffix}");
    let whole = |suffix: &str| meta.whole_required(&key(suffix));
    refuse(meta, arch)?;

    let n_blocks = whole("block_count")?;
    let n_draft = meta.whole(&key("nextn_predict_layers"))?.unwrap_or(0);
    let Some(n_layers) = n_blocks.checked_sub(n_draft).filter(|n| *n > 0) else {
        return Err(meta.error(format!(
            "`{}` is {n_draft} of {n_blocks} blocks; no layer is left",
            key("nextn_predict_layers")
        )));
    };
    let (hidden, n_heads) = (whole("embedding_length")?, whole("attention.head_count")?);
    let head_dim = match meta.whole(&key("attention.key_length"))? {
        Some(n) => n,
        None if n_heads > 0 => hidden / n_heads,
        None => return Err(meta.error(format!("`{}` is 0", key("attention.head_count")))),
    };
    if let Some(n) = meta.whole(&key("attention.value_length"))?
        && n != head_dim
    {
        return Err(meta.error(format!(
            "`{}` is {n} where keys are {head_dim} wide; one width for both is supported",
            key("attention.value_length")
        )));
    }
    let vocab_size = match meta.whole(&key("vocab_size"))? {
        Some(n) => n,
        None => meta.list(tokenizer::TOKENS)?.map_or(0, |list| list.len() as u64),
    };
    let n_kv_heads = meta.whole(&key("attention.head_count_kv"))?.unwrap_or(n_heads);
    let eps = key("attention.layer_norm_rms_epsilon");
    let mut config = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": whole("feed_forward_length")?,
        "num_hidden_layers": n_layers,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": meta.number(&eps)?.ok_or_else(|| meta.missing(&eps))?,
        "max_position_embeddings": whole("context_length")?,
        "rope_parameters": rope(meta, arch, head_dim, tensors)?,
        "tie_word_embeddings": !tensors.has("output.weight"),
        "dtype": dtype(tensors),
        "eos_token_id": tokenizer::end_tokens(meta)?,
        "bos_token_id": meta.token_id(tokenizer::BOS)?,
    });
    if arch == "qwen35" {
        for (entry, value) in linear(meta, n_layers, tensors)? {
            config[entry] = value;
        }
        config["mtp_num_hidden_layers"] = json!(n_draft);
    } else if n_draft > 0 {
        return Err(meta.error(format!(
            "`{}` is {n_draft}; a draft head is supported for qwen35",
            key("nextn_predict_layers")
        )));
    }
    match config {
        Json::Object(config) => Ok(config),
        _ => unreachable!("an object was built"),
    }
}

/// Architecture here, model type and architecture in a `config.json`.
fn family<'a>(meta: &Meta<'a>) -> Result<(&'a str, &'static str, &'static str), CheckpointError> {
    match meta.text("general.type")? {
        None | Some("model") => {}
        Some(other) => {
            return Err(
                meta.error(format!("`general.type` is \"{other}\"; a file with a model is needed"))
            );
        }
    }
    let key = "general.architecture";
    let arch = meta.text(key)?.ok_or_else(|| meta.missing(key))?;
    match arch {
        "qwen35" => Ok((arch, "qwen3_5_text", "Qwen3_5ForCausalLM")),
        "qwen3" => Ok((arch, "qwen3", "Qwen3ForCausalLM")),
        "llama" => Ok((arch, "llama", "LlamaForCausalLM")),
        other => {
            Err(meta
                .error(format!("`{key}` is \"{other}\"; qwen35, qwen3 and llama are supported")))
        }
    }
}

/// Refuses every entry that asks for something that no network here does.
fn refuse(meta: &Meta<'_>, arch: &str) -> Result<(), CheckpointError> {
    for (suffix, neutral) in NEUTRAL {
        let key = format!("{arch}.{suffix}");
        match meta.number(&key)? {
            Some(found) if found != *neutral => {
                return Err(meta.error(format!("`{key}` is {found}; only {neutral} is supported")));
            }
            _ => {}
        }
    }
    for (suffix, wanted) in [("attention.causal", true), ("use_parallel_residual", false)] {
        let key = format!("{arch}.{suffix}");
        match meta.flag(&key)? {
            Some(found) if found != wanted => {
                return Err(meta.error(format!("`{key}` is {found}; only {wanted} is supported")));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The entries of `rope_parameters`.
fn rope(
    meta: &Meta<'_>,
    arch: &str,
    head_dim: u64,
    tensors: &Tensors,
) -> Result<Json, CheckpointError> {
    let key = |suffix: &str| format!("{arch}.rope.{suffix}");
    let scaling = key("scaling.type");
    match meta.text(&scaling)? {
        None | Some("none") => {}
        // The factors are in a tensor of their own then.
        Some("llama3") if tensors.rope_factors.is_some() => {}
        Some(other) => {
            return Err(meta.error(format!(
                "`{scaling}` is \"{other}\"; \"none\", and llama3 by `rope_freqs.weight`, are supported"
            )));
        }
    }
    for suffix in ["scaling.factor", "scale_linear"] {
        match meta.number(&key(suffix))? {
            Some(factor) if factor != 1.0 && factor != 0.0 && tensors.rope_factors.is_none() => {
                return Err(meta.error(format!(
                    "`{}` is {factor}; positions are used as they are here",
                    key(suffix)
                )));
            }
            _ => {}
        }
    }
    let rotary = meta.whole(&key("dimension_count"))?.unwrap_or(head_dim);
    // The next number up, so that multiplying by the width cannot round to just below.
    let factor = (rotary as f64 / head_dim as f64).next_up();
    let mut rope = json!({
        "rope_type": "default",
        "rope_theta": meta.number(&key("freq_base"))?.unwrap_or(10_000.0),
        "partial_rotary_factor": factor,
    });
    if let Some(factors) = &tensors.rope_factors {
        rope["rope_type"] = json!(crate::rope::DIVIDED);
        rope["factors"] = json!(factors);
    }
    Ok(rope)
}

/// The entries about Gated DeltaNet, and which layers are.
fn linear(
    meta: &Meta<'_>,
    n_layers: u64,
    tensors: &Tensors,
) -> Result<Vec<(&'static str, Json)>, CheckpointError> {
    let whole = |suffix: &str| meta.whole_required(&format!("qwen35.ssm.{suffix}"));
    let (n_values, inner) = (whole("time_step_rank")?, whole("inner_size")?);
    if n_values == 0 || !inner.is_multiple_of(n_values) {
        return Err(meta.error(format!(
            "`qwen35.ssm.inner_size` {inner} is no multiple of the {n_values} heads of \
             `qwen35.ssm.time_step_rank`"
        )));
    }
    let mut entries = vec![
        ("linear_num_key_heads", json!(whole("group_count")?)),
        ("linear_num_value_heads", json!(n_values)),
        ("linear_key_head_dim", json!(whole("state_size")?)),
        ("linear_value_head_dim", json!(inner / n_values)),
        ("linear_conv_kernel_dim", json!(whole("conv_kernel")?)),
    ];
    entries.push(match meta.whole("qwen35.full_attention_interval")? {
        Some(interval) => ("full_attention_interval", json!(interval)),
        None => {
            let kind = |i| match tensors.layer_kind(i) {
                LayerKind::Linear => "linear_attention",
                LayerKind::Full => "full_attention",
            };
            // A layer has tensors, so there cannot be more of them.
            let n_layers = (n_layers as usize).min(tensors.entries.len());
            ("layer_types", (0..n_layers).map(kind).collect())
        }
    });
    Ok(entries)
}

/// What the weights are closest to: the type of a KV cache that loses nothing beside them.
fn dtype(tensors: &Tensors) -> &'static str {
    let bytes = |wanted: DType| -> u64 {
        let of_type = tensors.entries.iter().filter(|(_, e)| e.dtype == Ok(wanted));
        of_type.map(|(_, e)| e.n_bytes()).sum()
    };
    let all: u64 = tensors.entries.iter().map(|(_, e)| e.n_bytes()).sum();
    match () {
        () if bytes(DType::F32) > all / 2 => "float32",
        () if bytes(DType::F16) > all / 2 => "float16",
        () => "bfloat16",
    }
}

/// The entries of a `generation_config.json`.
pub(super) fn generation(meta: &Meta<'_>) -> Result<Map<String, Json>, CheckpointError> {
    let mut generation = Map::new();
    for (key, entry) in [
        ("temp", "temperature"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("penalty_repeat", "repetition_penalty"),
    ] {
        if let Some(number) = meta.number(&format!("general.sampling.{key}"))? {
            // Stored as a single; printed as one, so that 0.6 stays 0.6.
            generation.insert(entry.into(), json!(number as f32));
        }
    }
    if let Some(k) = meta.get("general.sampling.top_k") {
        match k {
            Value::Signed(n) if n <= 0 => generation.insert("top_k".into(), json!(0)),
            _ => generation.insert("top_k".into(), json!(meta.whole("general.sampling.top_k")?)),
        };
    }
    Ok(generation)
}
