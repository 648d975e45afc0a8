//! Every activation buffer of a pass, allocated once.

use checkpoint::config::ModelConfig;

use crate::network::ModelOptions;

/// Activation buffers for at most `max_rows` rows; shapes are `[rows, width]`, row-major.
pub(crate) struct Scratch {
    /// Residual stream, `[rows, hidden]`.
    pub(crate) hidden: Vec<f32>,
    /// A normed copy of the residual stream, `[rows, hidden]`.
    pub(crate) normed: Vec<f32>,
    /// Output of a fused projection, `[rows, widest of qkv and qkv+z+b+a]`.
    pub(crate) fused: Vec<f32>,
    /// Convolved q, k, v of a linear layer, `[rows, channels]`.
    pub(crate) conv: Vec<f32>,
    /// Mixer output before and after its gate, `[rows, widest of the two mixers]`.
    pub(crate) mixed: Vec<f32>,
    pub(crate) gated: Vec<f32>,
    /// Output of a projection back to the stream, `[rows, hidden]`.
    pub(crate) delta: Vec<f32>,
    /// `[rows, 2 * intermediate]` and `[rows, intermediate]`.
    pub(crate) gate_up: Vec<f32>,
    pub(crate) inner: Vec<f32>,
    /// After the final norm, `[rows, hidden]`; what the head and the draft head read.
    pub(crate) last: Vec<f32>,
    /// Hidden rows fed to the draft head, and what comes back from it, `[rows, hidden]`.
    pub(crate) feed: Vec<f32>,
    /// Rows gathered for the head `[rows, hidden]` or the draft head `[rows, 2 * hidden]`.
    pub(crate) gathered: Vec<f32>,
    /// `[logit rows, vocab]`.
    pub(crate) logits: Vec<f32>,
    /// Absolute position of every row.
    pub(crate) positions: Vec<u32>,
}

impl Scratch {
    pub(crate) fn new(config: &ModelConfig, options: &ModelOptions) -> Self {
        let rows = options.max_rows;
        let buffer = |width: usize| vec![0.0; rows * width];
        let a = &config.attention;
        let attended = a.n_heads * a.head_dim;
        let qkv = attended * if a.output_gate { 2 } else { 1 } + 2 * a.n_kv_heads * a.head_dim;
        let (channels, values, proj) = config.delta.as_ref().map_or((0, 0, 0), |d| {
            let values = d.n_value_heads * d.value_dim;
            (d.n_channels(), values, d.n_channels() + values + 2 * d.n_value_heads)
        });
        Self {
            hidden: buffer(config.hidden_size),
            normed: buffer(config.hidden_size),
            fused: buffer(qkv.max(proj)),
            conv: buffer(channels),
            mixed: buffer(attended.max(values)),
            gated: buffer(values),
            delta: buffer(config.hidden_size),
            gate_up: buffer(2 * config.intermediate_size),
            inner: buffer(config.intermediate_size),
            last: buffer(config.hidden_size),
            feed: buffer(config.hidden_size),
            gathered: buffer(2 * config.hidden_size),
            logits: vec![0.0; options.max_logit_rows * config.vocab_size],
            positions: vec![0; rows],
        }
    }
}
