//! The typed weights of a network, as the forward pass reads them.

use kernels::{ConvWeight, DeltaParams, Matrix};

/// All weights of a model.
pub(crate) struct Weights {
    /// `[vocab, hidden]`; also the head when the two are tied.
    pub(crate) embedding: Matrix,
    pub(crate) layers: Vec<Layer>,
    /// Final norm, `[hidden]`.
    pub(crate) norm: Vec<f32>,
    /// `[vocab, hidden]`, absent when tied.
    pub(crate) head: Option<Matrix>,
    pub(crate) draft: Option<DraftWeights>,
}

impl Weights {
    /// The output matrix `[vocab, hidden]`.
    pub(crate) fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// One decoder layer: a mixer and a feed-forward part, each behind its norm.
pub(crate) struct Layer {
    pub(crate) input_norm: Vec<f32>,
    pub(crate) mixer: Mixer,
    pub(crate) post_norm: Vec<f32>,
    /// `[gate; up]`, `[2 * intermediate, hidden]`.
    pub(crate) gate_up: Matrix,
    /// `[hidden, intermediate]`.
    pub(crate) down: Matrix,
}

impl Layer {
    /// Bytes of its matrices.
    pub(crate) fn bytes(&self) -> usize {
        let mixer = match &self.mixer {
            Mixer::Full(w) => w.qkv.bytes() + w.out.bytes(),
            Mixer::Linear(w) => w.proj.bytes() + w.out.bytes(),
        };
        mixer + self.gate_up.bytes() + self.down.bytes()
    }
}

/// What mixes information between positions.
pub(crate) enum Mixer {
    Full(FullAttention),
    Linear(DeltaNet),
}

/// Softmax attention over paged KV.
pub(crate) struct FullAttention {
    /// `[q (and gate, per head); k; v]` by `hidden`.
    pub(crate) qkv: Matrix,
    pub(crate) out: Matrix,
    /// `[head_dim]` each, where the family normalises queries and keys.
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) k_norm: Option<Vec<f32>>,
    /// Index of this layer in the KV store.
    pub(crate) kv_layer: usize,
}

/// Gated DeltaNet over the recurrent state.
pub(crate) struct DeltaNet {
    /// `[q; k; v; z; b; a]` by `hidden`.
    pub(crate) proj: Matrix,
    pub(crate) conv: ConvWeight,
    pub(crate) params: DeltaParams,
    /// Output norm, `[value_dim]`, plain (not zero-centred).
    pub(crate) norm: Vec<f32>,
    pub(crate) out: Matrix,
    /// Index of this layer in the state store.
    pub(crate) state_layer: usize,
}

/// The multi-token-prediction head; embedding and output matrix are the model's.
pub(crate) struct DraftWeights {
    pub(crate) embedding_norm: Vec<f32>,
    pub(crate) hidden_norm: Vec<f32>,
    /// `[hidden, 2 * hidden]`, embedding half first.
    pub(crate) fc: Matrix,
    pub(crate) layer: Layer,
    pub(crate) norm: Vec<f32>,
}
