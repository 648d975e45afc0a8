//! What llama.cpp's converter calls each tensor.

use crate::config::{Arch, ModelConfig};
use crate::names::{EMBEDDING, HEAD, MTP_PREFIX};
use crate::restore::{Axis, Order, Stored, Values};

const NORM: &str = "model.norm.weight";
/// Behind the prefix of a layer: `blk.<i>.` there, `model.layers.<i>.` here.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm.weight", "input_layernorm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
];
/// The draft head is the block after the last layer; beside a layer's tensors it has these.
const DRAFT: &[(&str, &str)] = &[
    ("nextn.eh_proj.weight", "fc.weight"),
    ("nextn.enorm.weight", "pre_fc_norm_embedding.weight"),
    ("nextn.hnorm.weight", "pre_fc_norm_hidden.weight"),
    ("nextn.shared_head_norm.weight", "norm.weight"),
];
const POST_NORM: &str = "post_attention_layernorm.weight";

/// The norm before the feed-forward part goes by two names.
fn post_norm(arch: Arch) -> &'static str {
    match arch {
        Arch::Qwen35 => "post_attention_norm.weight",
        Arch::Qwen3 | Arch::Llama => "ffn_norm.weight",
    }
}

/// The canonical name of a tensor; one that no model here has keeps its own.
pub(super) fn canonical(name: &str, config: &ModelConfig) -> String {
    let known = match name {
        "token_embd.weight" => Some(EMBEDDING.to_string()),
        "output_norm.weight" => Some(NORM.to_string()),
        "output.weight" => Some(HEAD.to_string()),
        _ => in_block(name, config),
    };
    known.unwrap_or_else(|| name.to_string())
}

fn in_block(name: &str, config: &ModelConfig) -> Option<String> {
    let (block, suffix) = name.strip_prefix("blk.")?.split_once('.')?;
    let (block, n_layers) = (block.parse::<usize>().ok()?, config.layers.len());
    let find = |table: &[(&str, &'static str)]| {
        table.iter().find(|(theirs, _)| *theirs == suffix).map(|(_, ours)| *ours)
    };
    let layer = || match suffix == post_norm(config.arch) {
        true => Some(POST_NORM),
        false => find(LAYER),
    };
    if block < n_layers {
        return Some(format!("model.layers.{block}.{}", layer()?));
    }
    if block != n_layers || config.n_mtp_layers == 0 {
        return None;
    }
    match find(DRAFT) {
        Some(ours) => Some(format!("{MTP_PREFIX}{ours}")),
        None => Some(format!("{MTP_PREFIX}layers.0.{}", layer()?)),
    }
}

/// What a canonical tensor is called in these files.
pub(super) fn spelling(name: &str, config: &ModelConfig) -> String {
    let back = |table: &[(&'static str, &str)], suffix: &str| {
        table.iter().find(|(_, ours)| *ours == suffix).map(|(theirs, _)| *theirs)
    };
    let layer = |suffix: &str| match suffix {
        POST_NORM => Some(post_norm(config.arch)),
        _ => back(LAYER, suffix),
    };
    let last = config.layers.len();
    let known = if let Some(rest) = name.strip_prefix("mtp.layers.0.") {
        layer(rest).map(|theirs| format!("blk.{last}.{theirs}"))
    } else if let Some(rest) = name.strip_prefix(MTP_PREFIX) {
        back(DRAFT, rest).map(|theirs| format!("blk.{last}.{theirs}"))
    } else if let Some((i, rest)) =
        name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'))
    {
        layer(rest).map(|theirs| format!("blk.{i}.{theirs}"))
    } else {
        match name {
            EMBEDDING => Some("token_embd.weight".to_string()),
            NORM => Some("output_norm.weight".to_string()),
            HEAD => Some("output.weight".to_string()),
            _ => None,
        }
    };
    known.unwrap_or_else(|| name.to_string())
}

/// How the converter stored a tensor.
pub(super) fn stored(canonical: &str, config: &ModelConfig) -> Stored {
    let linear = canonical.rsplit_once("linear_attn.").map(|(_, rest)| rest);
    match (config.arch, linear) {
        (Arch::Llama, _) => Stored { order: rotary_order(canonical, config), ..Stored::default() },
        (Arch::Qwen35, Some(suffix)) => Stored {
            order: head_order(suffix, config),
            values: if suffix == "A_log" { Values::NegExp } else { Values::Plain },
        },
        (Arch::Qwen35, None) if canonical.ends_with("norm.weight") || is_draft_norm(canonical) => {
            Stored { values: Values::OnePlus, ..Stored::default() }
        }
        _ => Stored::default(),
    }
}

fn is_draft_norm(canonical: &str) -> bool {
    canonical.starts_with("mtp.pre_fc_norm_")
}

/// Llama's queries and keys: channels that rotate together lie side by side in the file, half a
/// head apart here.
fn rotary_order(canonical: &str, config: &ModelConfig) -> Option<Order> {
    let rotates = canonical.ends_with("q_proj.weight") || canonical.ends_with("k_proj.weight");
    let half = config.attention.head_dim / 2;
    rotates.then_some(Order { axis: Axis::Rows, skip: 0, a: 2, b: half, unit: 1 })
}

/// Value heads: those of one key head lie together here; in the file the first of each key head
/// come first, then the second of each.
fn head_order(suffix: &str, config: &ModelConfig) -> Option<Order> {
    let d = config.delta.as_ref()?;
    let heads = |axis, skip, unit| {
        Some(Order { axis, skip, a: d.n_key_heads, b: d.n_value_heads / d.n_key_heads, unit })
    };
    if d.n_key_heads == d.n_value_heads {
        return None;
    }
    match suffix {
        "in_proj_qkv.weight" | "conv1d.weight" => {
            heads(Axis::Rows, 2 * d.n_key_heads * d.key_dim, d.value_dim)
        }
        "in_proj_z.weight" => heads(Axis::Rows, 0, d.value_dim),
        "in_proj_b.weight" | "in_proj_a.weight" | "A_log" | "dt_bias" => heads(Axis::Rows, 0, 1),
        "out_proj.weight" => heads(Axis::Columns, 0, d.value_dim),
        _ => None,
    }
}
