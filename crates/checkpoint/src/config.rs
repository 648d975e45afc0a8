//! `config.json` as a typed [`ModelConfig`], or the entry that cannot be honoured.
//!
//! Entries that would change the answer are honoured or refused by name; entries that no network
//! reads (training settings, labels, cache switches) are ignored.

use serde_json::Value;

use crate::CheckpointError;
use crate::fields::{Fields, parse_object};
use crate::rope;
use crate::{DType, Fp8};

/// The model families that the networks implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// Qwen3.5 and Qwen3.6 dense: Gated DeltaNet and gated full attention.
    Qwen35,
    /// Qwen3 dense.
    Qwen3,
    /// Llama and what shares its graph.
    Llama,
}

/// What mixes positions in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet over a recurrent state.
    Linear,
    /// Softmax attention over all positions.
    Full,
}

/// Everything about a model that is not a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub arch: Arch,
    /// First entry of `architectures`, or the family's usual one when the file has none.
    pub architecture: String,
    /// `model_type` as in the file.
    pub model_type: String,
    /// Rows of the embedding; ids above the tokenizer's are rows without a meaning.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of the feed-forward part.
    pub intermediate_size: usize,
    /// Kind of every layer, first to last.
    pub layers: Vec<LayerKind>,
    /// The full-attention layers (and the draft head's).
    pub attention: AttentionConfig,
    /// The linear layers; present exactly for families that have them.
    pub delta: Option<DeltaConfig>,
    /// Epsilon of every norm except the l2 norm of the delta rule.
    pub rms_eps: f32,
    /// The embedding is also the output matrix.
    pub tied: bool,
    /// `tie_word_embeddings` says one thing at the top level and another in `text_config`; then
    /// the files decide: tied when they hold no `lm_head.weight`.
    pub tie_conflict: bool,
    /// Layers of the multi-token-prediction head that the file declares, 0 or 1.
    pub n_mtp_layers: usize,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// The weights' type as the file declares it; each tensor's own type is what counts.
    pub dtype: DType,
    /// How matrices are stored in 8-bit floats, where `quantization_config` says that they are.
    pub fp8: Option<Fp8>,
    /// End-of-sequence ids of `config.json`; see [`crate::GenerationConfig`] for the union.
    pub eos_token_ids: Vec<u32>,
    /// Beginning-of-sequence id, if any.
    pub bos_token_id: Option<u32>,
}

/// Shape of softmax attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Leading channels of a head that rotate; even.
    pub rotary_dim: usize,
    /// Queries come with a gate of the same shape, per head `[query | gate]`.
    pub output_gate: bool,
    /// Queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Rotary frequencies, `[rotary_dim / 2]`, scaling applied.
    pub inv_freq: Vec<f32>,
}

/// Shape of Gated DeltaNet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Query and key heads; divides `n_value_heads`.
    pub n_key_heads: usize,
    /// Value heads, one state each.
    pub n_value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
}

impl DeltaConfig {
    /// Channels of the convolution: all queries, all keys, all values.
    pub fn n_channels(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim
    }
}

/// Far above every model; keeps the arithmetic on sizes from overflowing.
const MAX_WIDTH: usize = 1 << 20;
const MAX_ROWS: usize = 1 << 24;
const MAX_HEADS: usize = 1 << 12;
const MAX_HEAD_DIM: usize = 1 << 12;
const MAX_LAYERS: usize = 1 << 12;

impl ModelConfig {
    /// Reads the bytes of `config.json`; `file` is the name that errors use.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] names the entry that is missing, malformed or not supported.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let object = parse_object(file, bytes)?;
        let top = Fields::new(file, &object);
        let text = top.nested("text_config")?.unwrap_or(top);
        let (arch, model_type, architecture) = family(top, text)?;
        refuse(arch, text)?;

        let hidden_size = text.size("hidden_size", MAX_WIDTH)?;
        let (tied, tie_conflict) = tie(text)?;
        let n_mtp_layers = match arch {
            Arch::Qwen35 => n_mtp_layers(text)?,
            _ => 0,
        };
        Ok(Self {
            arch,
            architecture,
            model_type,
            vocab_size: text.size("vocab_size", MAX_ROWS)?,
            hidden_size,
            intermediate_size: text.size("intermediate_size", MAX_ROWS)?,
            layers: layers(arch, text)?,
            attention: attention(arch, text, hidden_size)?,
            delta: (arch == Arch::Qwen35).then(|| delta(text)).transpose()?,
            rms_eps: text.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied,
            tie_conflict,
            n_mtp_layers,
            max_positions: text.size("max_position_embeddings", 1 << 30)?,
            dtype: dtype(text)?,
            fp8: Fp8::read(text)?,
            eos_token_ids: text.token_ids("eos_token_id")?,
            bos_token_id: text.token_ids("bos_token_id")?.first().copied(),
        })
    }

    /// Layer norms, head norms and the draft head's norms multiply by `1 + w`.
    pub fn zero_centred_norms(&self) -> bool {
        self.arch == Arch::Qwen35
    }

    /// Number of layers of one kind, without the draft head's.
    pub fn n_layers(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|k| **k == kind).count()
    }
}

/// The family, `model_type` and the architecture, each checked against the other.
fn family(top: Fields<'_>, text: Fields<'_>) -> Result<(Arch, String, String), CheckpointError> {
    let model_type = top.text_required("model_type")?;
    let (arch, known): (Arch, &[&str]) = match model_type {
        "qwen3_5" | "qwen3_5_text" => {
            (Arch::Qwen35, &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"])
        }
        "qwen3" => (Arch::Qwen3, &["Qwen3ForCausalLM"]),
        "llama" => (Arch::Llama, &["LlamaForCausalLM"]),
        other => {
            return Err(top.error(format!(
                "`model_type` is \"{other}\"; qwen3_5, qwen3_5_text, qwen3 and llama are supported"
            )));
        }
    };
    let inner = text.text("model_type")?.unwrap_or(model_type);
    let inner_fits = match arch {
        Arch::Qwen35 => matches!(inner, "qwen3_5" | "qwen3_5_text"),
        _ => inner == model_type,
    };
    if !inner_fits {
        return Err(top.error(format!(
            "`text_config.model_type` is \"{inner}\", which does not go with \"{model_type}\""
        )));
    }
    let architecture = match top.get("architectures") {
        None => known[0],
        Some(Value::Array(list)) if list.len() == 1 && list[0].is_string() => {
            list[0].as_str().unwrap_or_default()
        }
        Some(other) => return Err(top.wrong("architectures", other, "a list with one name")),
    };
    if !known.contains(&architecture) {
        return Err(top.error(format!(
            "`architectures` is [\"{architecture}\"]; for {model_type}, {} is supported",
            known.join(" or ")
        )));
    }
    Ok((arch, model_type.to_string(), architecture.to_string()))
}

/// Refuses every entry that asks for something that no network here does.
fn refuse(arch: Arch, text: Fields<'_>) -> Result<(), CheckpointError> {
    if text.get("compression_config").is_some() {
        return Err(text.error(
            "`compression_config`: such checkpoints are not supported; take the bfloat16 one",
        ));
    }
    for key in ["attention_bias", "mlp_bias", "qkv_bias", "rope_interleaved", "use_sliding_window"]
    {
        must_be(text, key, false)?;
    }
    for key in ["hidden_act", "hidden_activation"] {
        if let Some(act) = text.text(key)?
            && !matches!(act, "silu" | "swish")
        {
            return Err(text.error(format!("`{key}` is \"{act}\"; only \"silu\" is supported")));
        }
    }
    // Qwen3 files carry the width of a window that `use_sliding_window` then leaves off.
    let window_off = text.flag("use_sliding_window")? == Some(false) || arch == Arch::Qwen3;
    if let Some(window) = text.get("sliding_window")
        && !window_off
    {
        return Err(text.wrong("sliding_window", window, "null (attention over all positions)"));
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size"] {
        if let Some(value) = text.get(key) {
            return Err(text.wrong(key, value, "null"));
        }
    }
    if arch == Arch::Qwen35 {
        must_be(text, "attn_output_gate", true)?;
        must_be(text, "mtp_use_dedicated_embeddings", false)?;
        if let Some(act) = text.text("output_gate_type")?
            && !matches!(act, "silu" | "swish")
        {
            return Err(text.error(format!(
                "`output_gate_type` is \"{act}\"; only \"silu\" (\"swish\") is supported"
            )));
        }
    }
    Ok(())
}

fn must_be(text: Fields<'_>, key: &str, wanted: bool) -> Result<(), CheckpointError> {
    match text.flag(key)? {
        Some(found) if found != wanted => {
            Err(text.error(format!("`{key}` is {found}; only {wanted} is supported")))
        }
        _ => Ok(()),
    }
}

/// `(tied, conflict)`: the flag may stand in `text_config`, at the top level, in both or nowhere.
fn tie(text: Fields<'_>) -> Result<(bool, bool), CheckpointError> {
    let key = "tie_word_embeddings";
    let own = text.alone().flag(key)?;
    let outer = match text.outer(key) {
        None => None,
        Some(Value::Bool(b)) => Some(*b),
        Some(other) => return Err(text.wrong(key, other, "true or false")),
    };
    Ok(match (own, outer) {
        (Some(a), Some(b)) if a != b => (false, true),
        (own, outer) => (own.or(outer).unwrap_or(false), false),
    })
}

fn n_mtp_layers(text: Fields<'_>) -> Result<usize, CheckpointError> {
    let key = "mtp_num_hidden_layers";
    match text.get(key) {
        None => Ok(0),
        Some(value) => match value.as_u64() {
            Some(n @ (0 | 1)) => Ok(n as usize),
            _ => Err(text.wrong(key, value, "0 or 1 (one draft layer, used repeatedly)")),
        },
    }
}

fn layers(arch: Arch, text: Fields<'_>) -> Result<Vec<LayerKind>, CheckpointError> {
    let n = text.size("num_hidden_layers", MAX_LAYERS)?;
    let Some(list) = text.get("layer_types") else {
        if arch != Arch::Qwen35 {
            return Ok(vec![LayerKind::Full; n]);
        }
        let interval = text.size_opt("full_attention_interval", MAX_LAYERS)?.unwrap_or(4);
        let kind = |i: usize| match (i + 1).is_multiple_of(interval) {
            true => LayerKind::Full,
            false => LayerKind::Linear,
        };
        return Ok((0..n).map(kind).collect());
    };
    let Value::Array(list) = list else { return Err(text.wrong("layer_types", list, "a list")) };
    if list.len() != n {
        return Err(text.error(format!(
            "`layer_types` has {} entries but `num_hidden_layers` is {n}",
            list.len()
        )));
    }
    let kind = |(i, value): (usize, &Value)| match (value.as_str(), arch) {
        (Some("full_attention"), _) => Ok(LayerKind::Full),
        (Some("linear_attention"), Arch::Qwen35) => Ok(LayerKind::Linear),
        _ => Err(text.wrong(
            &format!("layer_types[{i}]"),
            value,
            if arch == Arch::Qwen35 {
                "\"full_attention\" or \"linear_attention\""
            } else {
                "\"full_attention\""
            },
        )),
    };
    list.iter().enumerate().map(kind).collect()
}

fn attention(
    arch: Arch,
    text: Fields<'_>,
    hidden_size: usize,
) -> Result<AttentionConfig, CheckpointError> {
    let n_heads = text.size("num_attention_heads", MAX_HEADS)?;
    let n_kv_heads = match (text.size_opt("num_key_value_heads", MAX_HEADS)?, arch) {
        (Some(n), _) => n,
        (None, Arch::Llama) => n_heads,
        (None, _) => return Err(text.error("`num_key_value_heads` is missing")),
    };
    divides(text, ("num_key_value_heads", n_kv_heads), ("num_attention_heads", n_heads))?;
    let head_dim = match (text.size_opt("head_dim", MAX_HEAD_DIM)?, arch) {
        (Some(n), _) => n,
        (None, Arch::Qwen35) => 256,
        (None, Arch::Qwen3) => 128,
        (None, Arch::Llama) => {
            divides(text, ("num_attention_heads", n_heads), ("hidden_size", hidden_size))?;
            hidden_size / n_heads
        }
    };
    if head_dim % 2 == 1 {
        return Err(text.error(format!("`head_dim` is {head_dim}; an even number is needed")));
    }
    let defaults = match arch {
        Arch::Qwen35 => rope::Defaults { theta: None, partial_rotary_factor: 0.25 },
        Arch::Qwen3 => rope::Defaults { theta: None, partial_rotary_factor: 1.0 },
        Arch::Llama => rope::Defaults { theta: Some(10_000.0), partial_rotary_factor: 1.0 },
    };
    let (rotary_dim, inv_freq) = rope::read(text, head_dim, defaults)?;
    Ok(AttentionConfig {
        n_heads,
        n_kv_heads,
        head_dim,
        rotary_dim,
        output_gate: arch == Arch::Qwen35,
        qk_norm: arch != Arch::Llama,
        inv_freq,
    })
}

fn delta(text: Fields<'_>) -> Result<DeltaConfig, CheckpointError> {
    let config = DeltaConfig {
        n_key_heads: text.size("linear_num_key_heads", MAX_HEADS)?,
        n_value_heads: text.size("linear_num_value_heads", MAX_HEADS)?,
        key_dim: text.size("linear_key_head_dim", MAX_HEAD_DIM)?,
        value_dim: text.size("linear_value_head_dim", MAX_HEAD_DIM)?,
        conv_kernel: text.size_opt("linear_conv_kernel_dim", 8)?.unwrap_or(4),
    };
    divides(
        text,
        ("linear_num_key_heads", config.n_key_heads),
        ("linear_num_value_heads", config.n_value_heads),
    )?;
    Ok(config)
}

fn divides(
    text: Fields<'_>,
    (small, n): (&str, usize),
    (large, m): (&str, usize),
) -> Result<(), CheckpointError> {
    match m.is_multiple_of(n) {
        true => Ok(()),
        false => Err(text.error(format!("`{small}` {n} does not divide `{large}` {m}"))),
    }
}

/// `dtype`, or `torch_dtype` as it was called before; bfloat16 when the file says nothing.
fn dtype(text: Fields<'_>) -> Result<DType, CheckpointError> {
    let key = if text.get("dtype").is_some() { "dtype" } else { "torch_dtype" };
    match text.text(key)?.map(|name| name.trim_start_matches("torch.")) {
        None | Some("bfloat16") => Ok(DType::Bf16),
        Some("float16") => Ok(DType::F16),
        Some("float32") => Ok(DType::F32),
        Some(other) => Err(text
            .error(format!("`{key}` is \"{other}\"; bfloat16, float16 and float32 are supported"))),
    }
}
