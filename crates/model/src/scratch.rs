//! Every activation buffer of a pass, allocated once.

use checkpoint::config::ModelConfig;

use crate::network::ModelOptions;

/// Rows of logits that fit the buffers of a layer at least: the head's weights are read once for so
/// many rows.
const LOGIT_ROWS: usize = 32;

/// Activation buffers for at most `max_rows` rows; shapes are `[rows, width]`, row-major.
pub(crate) struct Scratch {
    /// Residual stream, `[rows, hidden]`.
    pub(crate) hidden: Vec<f32>,
    /// A normed copy of the residual stream, `[rows, hidden]`.
    pub(crate) normed: Vec<f32>,
    /// What lives inside a mixer, inside a feed-forward or between head and sampler, split anew by
    /// each of them: only one runs at a time.
    pub(crate) work: Vec<f32>,
    /// Output of a projection back to the stream, `[rows, hidden]`.
    pub(crate) delta: Vec<f32>,
    /// After the final norm, `[rows, hidden]`; what the head and the draft head read.
    pub(crate) last: Vec<f32>,
    /// Hidden rows fed to the draft head, and what comes back from it, `[rows, hidden]`.
    pub(crate) feed: Vec<f32>,
    /// Rows gathered for the head `[rows, hidden]` or the draft head `[rows, 2 * hidden]`.
    pub(crate) gathered: Vec<f32>,
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
        // Projected, then attended; or projected, convolved, and mixed without and with its gate; or
        // gate, up and their product.
        let linear = config.delta.as_ref().map_or(0, |d| {
            let values = d.n_value_heads * d.value_dim;
            2 * d.n_channels() + 3 * values + 2 * d.n_value_heads
        });
        let work = (qkv + attended).max(linear).max(3 * config.intermediate_size);
        Self {
            hidden: buffer(config.hidden_size),
            normed: buffer(config.hidden_size),
            work: vec![0.0; (rows * work).max(LOGIT_ROWS.min(rows) * config.vocab_size)],
            delta: buffer(config.hidden_size),
            last: buffer(config.hidden_size),
            feed: buffer(config.hidden_size),
            gathered: buffer(2 * config.hidden_size),
            positions: vec![0; rows],
        }
    }
}

/// The beginning of a buffer, cut into parts of these lengths.
pub(crate) fn split<const N: usize>(mut buffer: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| buffer.split_off_mut(..len).expect("the buffers hold the rows of a pass"))
}
