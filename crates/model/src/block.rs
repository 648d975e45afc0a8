//! One decoder layer over a flat batch of rows.

use checkpoint::config::ModelConfig;
use kernels::{Cpu, DeltaInput, Fused, Heads, KvStore, Rope, Span, StateStore};

use crate::scratch::{Scratch, split};
use crate::weights::{DeltaNet, FullAttention, Layer, Mixer};

/// What all layers of a pass share.
pub(crate) struct Pass<'a> {
    pub(crate) cpu: &'a Cpu,
    pub(crate) config: &'a ModelConfig,
    pub(crate) rope: &'a Rope,
    pub(crate) spans: &'a [Span<'a>],
    pub(crate) n_rows: usize,
    pub(crate) kv: &'a mut KvStore,
    pub(crate) state: &'a mut StateStore,
    pub(crate) scratch: &'a mut Scratch,
}

impl Pass<'_> {
    /// `hidden += mixer(norm(hidden))`, then `hidden += mlp(norm(hidden))`.
    pub(crate) fn layer(&mut self, layer: &Layer) {
        self.norm(&layer.input_norm);
        match &layer.mixer {
            Mixer::Full(attention) => self.attention(attention),
            Mixer::Linear(delta_net) => self.delta_net(delta_net),
        }
        self.add_delta();
        self.norm(&layer.post_norm);
        self.mlp(layer);
        self.add_delta();
    }

    fn norm(&mut self, weight: &[f32]) {
        let n = self.n_rows * self.config.hidden_size;
        let s = &mut *self.scratch;
        self.cpu.rms_norm(&s.hidden[..n], weight, self.config.rms_eps, &mut s.normed[..n]);
    }

    fn add_delta(&mut self) {
        let n = self.n_rows * self.config.hidden_size;
        self.cpu.add(&mut self.scratch.hidden[..n], &self.scratch.delta[..n]);
    }

    /// Gated softmax attention: `normed` to `delta`.
    fn attention(&mut self, w: &FullAttention) {
        let a = &self.config.attention;
        let (rows, hd, hidden) = (self.n_rows, a.head_dim, self.config.hidden_size);
        let s = &mut *self.scratch;
        let row = w.qkv.n();
        // A gated query head is stored as [query | gate].
        let q_step = if a.output_gate { 2 * hd } else { hd };
        let q = Heads { offset: 0, row, n: a.n_heads, step: q_step, dim: hd };
        let gate = Heads { offset: hd, ..q };
        let k = Heads { offset: a.n_heads * q_step, row, n: a.n_kv_heads, step: hd, dim: hd };
        let v = Heads { offset: k.offset + a.n_kv_heads * hd, ..k };

        let [fused, attended] = split(&mut s.work, [rows * row, rows * a.n_heads * hd]);
        self.cpu.matmul(&w.qkv, &s.normed[..rows * hidden], fused);
        let eps = self.config.rms_eps;
        let positions = &s.positions[..rows];
        let q_norm = w.q_norm.as_deref().map(|n| (n, eps));
        let k_norm = w.k_norm.as_deref().map(|n| (n, eps));
        self.cpu.norm_rope(fused, q, q_norm, self.rope, positions);
        self.cpu.norm_rope(fused, k, k_norm, self.rope, positions);
        self.cpu.kv_append(self.kv, w.kv_layer, self.spans, fused, k, v);
        self.cpu.attend(self.kv, w.kv_layer, self.spans, fused, q, attended);
        if a.output_gate {
            self.cpu.sigmoid_gate(attended, fused, gate);
        }
        self.cpu.matmul(&w.out, attended, &mut s.delta[..rows * hidden]);
    }

    /// Gated DeltaNet: `normed` to `delta`.
    fn delta_net(&mut self, w: &DeltaNet) {
        let d = self.config.delta.as_ref().expect("a linear layer has a delta configuration");
        let (rows, hidden) = (self.n_rows, self.config.hidden_size);
        let s = &mut *self.scratch;
        let row = w.proj.n();
        let n_values = d.n_value_heads * d.value_dim;
        let z = Heads {
            offset: d.n_channels(),
            row,
            n: d.n_value_heads,
            step: d.value_dim,
            dim: d.value_dim,
        };

        let lens = [row, d.n_channels(), n_values, n_values].map(|width| rows * width);
        let [fused, u, mixed, gated] = split(&mut s.work, lens);
        self.cpu.matmul(&w.proj, &s.normed[..rows * hidden], fused);
        let projected = Fused { data: fused, width: row };
        self.cpu.conv_silu(self.state, w.state_layer, self.spans, projected, &w.conv, u);
        let input = DeltaInput { u, rows: projected };
        self.cpu.delta_rule(self.state, w.state_layer, self.spans, input, &w.params, mixed);
        self.cpu.gated_norm(mixed, fused, z, &w.norm, self.config.rms_eps, gated);
        self.cpu.matmul(&w.out, gated, &mut s.delta[..rows * hidden]);
    }

    /// SwiGLU feed-forward: `normed` to `delta`.
    fn mlp(&mut self, w: &Layer) {
        let (rows, hidden, inner) =
            (self.n_rows, self.config.hidden_size, self.config.intermediate_size);
        let s = &mut *self.scratch;
        let [gate_up, activated] = split(&mut s.work, [rows * 2 * inner, rows * inner]);
        self.cpu.matmul(&w.gate_up, &s.normed[..rows * hidden], gate_up);
        self.cpu.swiglu(gate_up, inner, activated);
        self.cpu.matmul(&w.down, activated, &mut s.delta[..rows * hidden]);
    }
}
