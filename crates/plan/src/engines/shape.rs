//! Bytes of a model: weights, KV per token, recurrent state per slot, from its `config.json`.
//!
//! Wider than what our own server runs (experts, quantised weights), because other servers run it.

use serde_json::Value;

use super::EngineError;

/// The Gated DeltaNet layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaShape {
    /// Layers of this kind.
    pub n_layers: u64,
    /// Key heads.
    pub n_key_heads: u64,
    /// Value heads.
    pub n_value_heads: u64,
    /// Elements per key head.
    pub key_dim: u64,
    /// Elements per value head.
    pub value_dim: u64,
    /// Width of the causal convolution.
    pub conv_kernel: u64,
}

impl DeltaShape {
    /// Channels that pass the convolution.
    #[must_use]
    pub fn conv_channels(&self) -> u64 {
        self.n_value_heads * self.value_dim + 2 * self.n_key_heads * self.key_dim
    }
}

/// The feed-forward part of every layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// One gated feed-forward of this inner width.
    Dense {
        /// Inner width.
        inner: u64,
    },
    /// Routed experts and a shared one.
    Experts {
        /// Experts per layer.
        n: u64,
        /// Experts that one token visits.
        top: u64,
        /// Inner width of an expert.
        inner: u64,
        /// Inner width of the shared expert, 0 without one.
        shared: u64,
    },
}

/// Sizes of a model as far as memory and speed depend on them.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// What to call it in a report.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Rows of the embedding.
    pub vocab: u64,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Full-attention layers.
    pub n_attention_layers: u64,
    /// Query heads.
    pub n_heads: u64,
    /// Key/value heads.
    pub n_kv_heads: u64,
    /// Elements per attention head.
    pub head_dim: u64,
    /// Whether the query projection carries an output gate.
    pub output_gate: bool,
    /// The Gated DeltaNet layers of a hybrid model.
    pub delta: Option<DeltaShape>,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// Layers of the draft head, 0 without one.
    pub n_mtp_layers: u64,
    /// Parameters of the vision tower, 0 for a text model.
    pub vision_params: u64,
    /// Longest sequence.
    pub max_positions: u64,
    /// Bytes per parameter of the layers' matrices; embedding and head count two.
    pub layer_bytes_per_param: f64,
}

/// Bytes per parameter of embedding, head and vision tower: quantisers leave them at 16 bits.
const PLAIN_BYTES: f64 = 2.0;

impl ModelShape {
    /// Reads a `config.json`, composite (`text_config`) or flat.
    ///
    /// # Errors
    /// When a size that cannot be guessed is missing.
    pub fn from_config(name: &str, config: &Value) -> Result<ModelShape, EngineError> {
        let text = config.get("text_config").unwrap_or(config);
        let number = |key: &str| text.get(key).and_then(Value::as_u64);
        let need = |key: &'static str| number(key).ok_or(EngineError::Config(key));
        let (hidden, n_layers) = (need("hidden_size")?, need("num_hidden_layers")?);
        let n_heads = need("num_attention_heads")?;
        let n_delta_layers = delta_layers(text, n_layers);
        let delta = if n_delta_layers == 0 {
            None
        } else {
            Some(DeltaShape {
                n_layers: n_delta_layers,
                n_key_heads: need("linear_num_key_heads")?,
                n_value_heads: need("linear_num_value_heads")?,
                key_dim: need("linear_key_head_dim")?,
                value_dim: need("linear_value_head_dim")?,
                conv_kernel: need("linear_conv_kernel_dim")?,
            })
        };
        let feed_forward = match number("num_experts").filter(|n| *n > 0) {
            Some(n) => FeedForward::Experts {
                n,
                top: need("num_experts_per_tok")?,
                inner: need("moe_intermediate_size")?,
                shared: number("shared_expert_intermediate_size").unwrap_or(0),
            },
            None => FeedForward::Dense { inner: need("intermediate_size")? },
        };
        let flag = |key: &str| text.get(key).and_then(Value::as_bool);
        Ok(ModelShape {
            name: name.to_owned(),
            hidden,
            vocab: need("vocab_size")?,
            tied: flag("tie_word_embeddings")
                .or_else(|| config.get("tie_word_embeddings").and_then(Value::as_bool))
                .unwrap_or(false),
            n_attention_layers: n_layers - n_delta_layers,
            n_heads,
            n_kv_heads: number("num_key_value_heads").unwrap_or(n_heads),
            head_dim: number("head_dim").unwrap_or(hidden / n_heads.max(1)),
            output_gate: flag("attn_output_gate").unwrap_or(delta.is_some()),
            delta,
            feed_forward,
            n_mtp_layers: number("mtp_num_hidden_layers")
                .or_else(|| number("num_nextn_predict_layers"))
                .unwrap_or(0),
            vision_params: config.get("vision_config").map_or(0, vision_params),
            max_positions: number("max_position_embeddings").unwrap_or(0),
            layer_bytes_per_param: layer_bytes_per_param(config, text),
        })
    }

    /// Bytes of KV for one token on one device: `n_layers` attention layers, `element` bytes each.
    #[must_use]
    pub fn kv_bytes_per_token(&self, tp: usize, n_layers: u64, element: f64) -> f64 {
        let heads = (self.n_kv_heads as f64 / tp as f64).max(1.0);
        heads * 2.0 * self.head_dim as f64 * n_layers as f64 * element
    }

    /// Bytes of one recurrent-state slot on one device, 0 without such layers.
    ///
    /// `conv_rows` inputs of the convolution at `conv` bytes, the delta state at `ssm` bytes.
    #[must_use]
    pub fn state_bytes(&self, tp: usize, conv_rows: u64, conv: f64, ssm: f64) -> f64 {
        let Some(delta) = &self.delta else { return 0.0 };
        let tp = tp as f64;
        let conv_bytes = delta.conv_channels() as f64 / tp * conv_rows as f64 * conv;
        let values = (delta.n_value_heads * delta.value_dim * delta.key_dim) as f64 / tp;
        delta.n_layers as f64 * (conv_bytes + values * ssm)
    }

    /// Bytes of the target's weights on one device: layers, embedding, head, vision tower.
    #[must_use]
    pub fn weight_bytes(&self, tp: usize) -> f64 {
        let head = if self.tied { 0.0 } else { self.head_bytes() };
        let vision = self.vision_params as f64 * PLAIN_BYTES;
        (self.layer_bytes(self.n_experts()) + self.head_bytes() + head + vision) / tp as f64
    }

    /// Bytes of the draft head's weights on one device; its projection is not split.
    #[must_use]
    pub fn mtp_bytes(&self, tp: usize) -> f64 {
        let per_layer = self.attention_params() + self.feed_forward_params(self.n_experts());
        let split = self.n_mtp_layers as f64 * per_layer * self.layer_bytes_per_param;
        let projection = if self.n_mtp_layers == 0 { 0.0 } else { 2.0 * square(self.hidden) };
        split / tp as f64 + projection * PLAIN_BYTES
    }

    /// Bytes that one forward of `n_tokens` rows reads on one device: layers, visited experts, head.
    #[must_use]
    pub fn read_bytes(&self, tp: usize, n_tokens: f64) -> f64 {
        (self.layer_bytes(self.experts_visited(n_tokens)) + self.head_bytes()) / tp as f64
    }

    /// Multiplications of one row, twice the parameters that it passes.
    #[must_use]
    pub fn operations_per_token(&self) -> f64 {
        let params = self.layer_bytes(self.experts_visited(1.0)) / self.layer_bytes_per_param;
        2.0 * (params + (self.vocab * self.hidden) as f64)
    }

    /// Bytes of the head, which a draft reads too.
    #[must_use]
    pub fn head_bytes(&self) -> f64 {
        (self.vocab * self.hidden) as f64 * PLAIN_BYTES
    }

    /// Number of layers of the target.
    #[must_use]
    pub fn n_layers(&self) -> u64 {
        self.n_attention_layers + self.delta.map_or(0, |delta| delta.n_layers)
    }

    fn n_experts(&self) -> f64 {
        match self.feed_forward {
            FeedForward::Dense { .. } => 0.0,
            FeedForward::Experts { n, .. } => n as f64,
        }
    }

    /// Expected number of different experts that `n_tokens` independent tokens visit in a layer.
    fn experts_visited(&self, n_tokens: f64) -> f64 {
        match self.feed_forward {
            FeedForward::Dense { .. } => 0.0,
            FeedForward::Experts { n, top, .. } => {
                let n = n as f64;
                n * (1.0 - (1.0 - top as f64 / n).powf(n_tokens))
            }
        }
    }

    fn layer_bytes(&self, n_experts: f64) -> f64 {
        let delta =
            self.delta.map_or(0.0, |delta| delta.n_layers as f64 * self.delta_params(&delta));
        let attention = self.n_attention_layers as f64 * self.attention_params();
        let feed_forward = self.n_layers() as f64 * self.feed_forward_params(n_experts);
        (delta + attention + feed_forward) * self.layer_bytes_per_param
    }

    fn attention_params(&self) -> f64 {
        let query = self.n_heads * self.head_dim;
        let key_value = self.n_kv_heads * self.head_dim;
        let query_rows = if self.output_gate { 2 * query } else { query };
        (self.hidden * (query_rows + 2 * key_value + query)) as f64
    }

    fn delta_params(&self, delta: &DeltaShape) -> f64 {
        let value = delta.n_value_heads * delta.value_dim;
        let rows = delta.conv_channels() + 2 * value + 2 * delta.n_value_heads;
        (self.hidden * rows + delta.conv_channels() * delta.conv_kernel) as f64
    }

    fn feed_forward_params(&self, n_experts: f64) -> f64 {
        let hidden = self.hidden as f64;
        match self.feed_forward {
            FeedForward::Dense { inner } => 3.0 * hidden * inner as f64,
            FeedForward::Experts { n, inner, shared, .. } => {
                3.0 * hidden * (n_experts * inner as f64 + shared as f64) + hidden * n as f64
            }
        }
    }
}

fn square(n: u64) -> f64 {
    (n * n) as f64
}

/// Layers with a recurrent state, from the list of layer types or the interval.
fn delta_layers(text: &Value, n_layers: u64) -> u64 {
    if let Some(kinds) = text.get("layer_types").and_then(Value::as_array) {
        return kinds.iter().filter(|kind| *kind == "linear_attention").count() as u64;
    }
    match text.get("full_attention_interval").and_then(Value::as_u64) {
        Some(interval) if interval > 0 => n_layers - n_layers / interval,
        _ => 0,
    }
}

/// Parameters of a vision tower: blocks, patch and position embedding, merger.
fn vision_params(vision: &Value) -> u64 {
    let number = |key: &str| vision.get(key).and_then(Value::as_u64).unwrap_or(0);
    let (hidden, inner) = (number("hidden_size"), number("intermediate_size"));
    let blocks = number("depth") * (4 * hidden * hidden + 2 * hidden * inner);
    let patch = number("in_channels") * number("temporal_patch_size") * number("patch_size").pow(2);
    let merged = hidden * number("spatial_merge_size").pow(2);
    let merger = merged * (merged + number("out_hidden_size"));
    blocks + hidden * (patch + number("num_position_embeddings")) + merger
}

/// Bytes per parameter of the layers, from the quantisation or the type of the checkpoint.
fn layer_bytes_per_param(config: &Value, text: &Value) -> f64 {
    let quantisation =
        config.get("quantization_config").or_else(|| text.get("quantization_config"));
    if let Some(quantisation) = quantisation {
        let bits = quantisation.get("bits").or_else(|| quantisation.get("weight_bits"));
        let method = quantisation.get("quant_method").and_then(Value::as_str).unwrap_or("");
        return match bits.and_then(Value::as_f64) {
            // A group of 128 shares a scale and a zero point.
            Some(bits) => bits / 8.0 + 2.5 / 128.0,
            None if method.contains("fp4") => 0.5 + 1.0 / 16.0,
            None => 1.0,
        };
    }
    let dtype = text.get("dtype").or_else(|| text.get("torch_dtype")).and_then(Value::as_str);
    if dtype == Some("float32") { 4.0 } else { PLAIN_BYTES }
}

#[cfg(test)]
pub(super) mod tests;
