//! The one table of weight names: every tensor that a configuration needs, with its shape.
//!
//! Names are canonical: the prefix is `model.`, also where the files say `model.language_model.`.

use crate::config::{LayerKind, ModelConfig};

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Canonical name.
    pub name: String,
    /// Shape that the configuration implies.
    pub shape: Vec<usize>,
}

/// The embedding, `[vocab, hidden]`.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The output matrix, `[vocab, hidden]`; absent when tied.
pub const HEAD: &str = "lm_head.weight";
/// Start of every name of the draft head.
pub const MTP_PREFIX: &str = "mtp.";
const COMPOSITE_PREFIX: &str = "model.language_model.";

/// All tensors of the target model, in the order of the forward pass.
pub fn target(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut table = Table { config, specs: Vec::new() };
    table.add(EMBEDDING, &[config.vocab_size, config.hidden_size]);
    for (i, kind) in config.layers.iter().enumerate() {
        table.layer(&format!("model.layers.{i}."), *kind);
    }
    table.add("model.norm.weight", &[config.hidden_size]);
    if !config.tied {
        table.add(HEAD, &[config.vocab_size, config.hidden_size]);
    }
    table.specs
}

/// All tensors of the draft head; empty where the configuration declares none.
pub fn draft_head(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut table = Table { config, specs: Vec::new() };
    if config.n_mtp_layers > 0 {
        let hidden = config.hidden_size;
        table.add("mtp.pre_fc_norm_embedding.weight", &[hidden]);
        table.add("mtp.pre_fc_norm_hidden.weight", &[hidden]);
        table.add("mtp.fc.weight", &[hidden, 2 * hidden]);
        table.layer("mtp.layers.0.", LayerKind::Full);
        table.add("mtp.norm.weight", &[hidden]);
    }
    table.specs
}

struct Table<'a> {
    config: &'a ModelConfig,
    specs: Vec<TensorSpec>,
}

impl Table<'_> {
    fn add(&mut self, name: &str, shape: &[usize]) {
        self.specs.push(TensorSpec { name: name.to_string(), shape: shape.to_vec() });
    }

    fn layer(&mut self, prefix: &str, kind: LayerKind) {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let at = |suffix: &str| format!("{prefix}{suffix}");
        self.add(&at("input_layernorm.weight"), &[hidden]);
        match kind {
            LayerKind::Full => self.attention(&at("self_attn.")),
            LayerKind::Linear => self.delta_net(&at("linear_attn.")),
        }
        self.add(&at("post_attention_layernorm.weight"), &[hidden]);
        self.add(&at("mlp.gate_proj.weight"), &[inner, hidden]);
        self.add(&at("mlp.up_proj.weight"), &[inner, hidden]);
        self.add(&at("mlp.down_proj.weight"), &[hidden, inner]);
    }

    fn attention(&mut self, prefix: &str) {
        let hidden = self.config.hidden_size;
        let a = &self.config.attention;
        let (head_dim, qk_norm, gates) = (a.head_dim, a.qk_norm, usize::from(a.output_gate));
        let (n_q, n_kv) = (a.n_heads * head_dim, a.n_kv_heads * head_dim);
        let at = |suffix: &str| format!("{prefix}{suffix}");
        self.add(&at("q_proj.weight"), &[(1 + gates) * n_q, hidden]);
        self.add(&at("k_proj.weight"), &[n_kv, hidden]);
        self.add(&at("v_proj.weight"), &[n_kv, hidden]);
        self.add(&at("o_proj.weight"), &[hidden, n_q]);
        if qk_norm {
            self.add(&at("q_norm.weight"), &[head_dim]);
            self.add(&at("k_norm.weight"), &[head_dim]);
        }
    }

    fn delta_net(&mut self, prefix: &str) {
        let hidden = self.config.hidden_size;
        let Some(d) = &self.config.delta else { return };
        let (channels, n_v, taps) = (d.n_channels(), d.n_value_heads, d.conv_kernel);
        let (values, value_dim) = (n_v * d.value_dim, d.value_dim);
        let at = |suffix: &str| format!("{prefix}{suffix}");
        self.add(&at("in_proj_qkv.weight"), &[channels, hidden]);
        self.add(&at("in_proj_z.weight"), &[values, hidden]);
        self.add(&at("in_proj_b.weight"), &[n_v, hidden]);
        self.add(&at("in_proj_a.weight"), &[n_v, hidden]);
        self.add(&at("conv1d.weight"), &[channels, 1, taps]);
        self.add(&at("A_log"), &[n_v]);
        self.add(&at("dt_bias"), &[n_v]);
        self.add(&at("norm.weight"), &[value_dim]);
        self.add(&at("out_proj.weight"), &[hidden, values]);
    }
}

/// The canonical name of a tensor in the files.
pub(crate) fn canonical(name: &str) -> String {
    match name.strip_prefix(COMPOSITE_PREFIX) {
        Some(rest) => format!("model.{rest}"),
        None => name.to_string(),
    }
}

/// The name that a canonical one has in a composite checkpoint.
pub(crate) fn composite(name: &str) -> String {
    match name.strip_prefix("model.") {
        Some(rest) => format!("{COMPOSITE_PREFIX}{rest}"),
        None => name.to_string(),
    }
}

/// Not needed, and not to be missed: the vision tower, rotary frequencies (they follow from the
/// configuration) and a draft head that the configuration does not declare.
pub(crate) fn is_harmless(name: &str, config: &ModelConfig) -> bool {
    name.starts_with("model.visual.")
        || name.starts_with("visual.")
        || name.ends_with("rotary_emb.inv_freq")
        || (name.starts_with(MTP_PREFIX) && config.n_mtp_layers == 0)
}
