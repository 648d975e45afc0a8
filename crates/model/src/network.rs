//! The whole network: embedding, layers, head; and what it keeps between passes.

use checkpoint::Checkpoint;
use checkpoint::config::{LayerKind, ModelConfig};
use kernels::{
    Bits, Cpu, DeltaShape, KV_BLOCK, KvShape, KvStore, KvType, Rope, Span, StateStore, WeightFormat,
};

use crate::batch::{Batch, DraftSpan, Forward};
use crate::block::Pass;
use crate::draft_head::Carry;
use crate::load::{self, LoadError, Progress};
use crate::scratch::Scratch;
use crate::weights::Weights;

/// Sizes of a model's stores and buffers; they come from the plan.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// In how many bits the matrices are packed.
    pub bits: Bits,
    /// Element type of the KV store.
    pub kv_type: KvType,
    /// KV blocks of 64 positions, all layers.
    pub n_blocks: usize,
    /// Recurrent-state slots.
    pub n_slots: usize,
    /// Most rows of one pass.
    pub max_rows: usize,
    /// Most draft rows of one pass, all sequences together.
    pub max_drafts: usize,
    /// Whether to load the draft head.
    pub draft: bool,
}

/// A loaded network with its KV and recurrent state.
pub struct Model {
    pub(crate) cpu: Cpu,
    pub(crate) config: ModelConfig,
    pub(crate) rope: Rope,
    pub(crate) weights: Weights,
    pub(crate) kv: KvStore,
    pub(crate) state: StateStore,
    pub(crate) scratch: Scratch,
    pub(crate) carry: Carry,
}

/// A point in a pass at which the residual stream can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// After the embedding.
    Embedding,
    /// After this layer.
    Layer(usize),
    /// After the final norm.
    Final,
}

impl Model {
    /// Loads and packs the weights and allocates every store.
    pub fn load(
        checkpoint: &Checkpoint,
        cpu: Cpu,
        options: &ModelOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, LoadError> {
        let config = checkpoint.config().clone();
        let weights = load::weights(checkpoint, &cpu, (options.bits, options.draft), progress)?;
        let n_linear = config.layers.iter().filter(|k| **k == LayerKind::Linear).count();
        let n_kv_layers = config.layers.len() - n_linear + usize::from(options.draft);
        let kv_shape = KvShape {
            n_layers: n_kv_layers,
            n_blocks: options.n_blocks,
            n_kv_heads: config.attention.n_kv_heads,
            head_dim: config.attention.head_dim,
        };
        let state_shape = state_shape(&config, n_linear);
        Ok(Self {
            rope: Rope::new(config.attention.inv_freq.clone()),
            kv: KvStore::new(kv_shape, options.kv_type),
            state: StateStore::new(state_shape, options.n_slots, options.max_drafts),
            scratch: Scratch::new(&config, options),
            carry: Carry::new(options, config.hidden_size),
            cpu,
            weights,
            config,
        })
    }

    /// The configuration the model was loaded with.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The instruction set and threads it runs on.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Bytes of weights that one decode step reads: layers and head, not the embedding rows.
    pub fn step_weight_bytes(&self) -> usize {
        self.weights.layers.iter().map(|l| l.bytes()).sum::<usize>() + self.weights.head().bytes()
    }

    /// Element format of the packed layers.
    pub fn weight_format(&self) -> WeightFormat {
        self.weights.layers[0].down.format()
    }

    /// Bytes of KV and recurrent state that a pass touches for one sequence of `n_positions`:
    /// keys and values read, the delta state read and written.
    pub fn sequence_bytes(&self, n_positions: usize) -> usize {
        let shape = self.kv.shape();
        let block = KvStore::bytes_per_block(shape, self.kv.kv_type());
        let n_layers = shape.n_layers - usize::from(self.weights.draft.is_some());
        let kv = block / shape.n_layers.max(1) * n_layers * n_positions / KV_BLOCK;
        let d = self.state.shape();
        let state = d.n_layers * d.n_value_heads * d.key_dim * d.value_dim * size_of::<f32>();
        kv + 2 * state
    }

    /// [`Forward::forward`] that shows the residual stream `[rows, hidden]` to `look` on its way.
    pub fn forward_traced(
        &mut self,
        batch: &Batch<'_>,
        look: &mut dyn FnMut(Stage, &[f32]),
        take: &mut dyn FnMut(usize, &[f32]),
    ) {
        let (rows, width) = (batch.tokens.len(), self.config.hidden_size);
        let n = rows * width;
        self.scratch.set_positions(batch.spans);
        self.cpu.embed(&self.weights.embedding, batch.tokens, &mut self.scratch.hidden[..n]);
        look(Stage::Embedding, &self.scratch.hidden[..n]);
        for (i, layer) in self.weights.layers.iter().enumerate() {
            let mut pass = Pass {
                cpu: &self.cpu,
                config: &self.config,
                rope: &self.rope,
                spans: batch.spans,
                n_rows: rows,
                kv: &mut self.kv,
                state: &mut self.state,
                scratch: &mut self.scratch,
            };
            pass.layer(layer);
            look(Stage::Layer(i), &self.scratch.hidden[..n]);
        }
        let s = &mut self.scratch;
        let eps = self.config.rms_eps;
        self.cpu.rms_norm(&s.hidden[..n], &self.weights.norm, eps, &mut s.last[..n]);
        look(Stage::Final, &s.last[..n]);

        for (i, row) in batch.logit_rows.iter().enumerate() {
            let from = *row as usize * width;
            s.gathered[i * width..][..width].copy_from_slice(&s.last[from..from + width]);
        }
        self.head(batch.logit_rows.len(), take);
        if self.weights.draft.is_some() {
            self.fill_draft_rows(batch);
        }
    }

    /// Logits of the first `n_rows` gathered rows `[n_rows, hidden]`, as many at a time as the work
    /// buffer holds.
    pub(crate) fn head(&mut self, n_rows: usize, take: &mut dyn FnMut(usize, &[f32])) {
        let (width, vocab) = (self.config.hidden_size, self.config.vocab_size);
        let Scratch { gathered, work, .. } = &mut self.scratch;
        let group = work.len() / vocab;
        for first in (0..n_rows).step_by(group) {
            let n = group.min(n_rows - first);
            let logits = &mut work[..n * vocab];
            self.cpu.matmul(self.weights.head(), &gathered[first * width..][..n * width], logits);
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                take(first + i, row);
            }
        }
    }
}

impl Forward for Model {
    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn forward(&mut self, batch: &Batch<'_>, take: &mut dyn FnMut(usize, &[f32])) {
        self.forward_traced(batch, &mut |_, _| {}, take);
    }

    fn draft(
        &mut self,
        spans: &[DraftSpan<'_>],
        pick: &mut dyn FnMut(usize, usize, &[f32]) -> u32,
    ) {
        self.run_draft_head(spans, pick);
    }

    fn copy_state(&mut self, from: u32, to: u32) {
        self.state.copy_slot(from, to);
        self.carry.clear(to);
    }

    fn copy_block(&mut self, from: u32, to: u32) {
        self.kv.copy_block(from, to);
    }
}

impl Scratch {
    pub(crate) fn set_positions(&mut self, spans: &[Span<'_>]) {
        for span in spans {
            for i in 0..span.n_rows {
                self.positions[span.row + i] = (span.pos + i) as u32;
            }
        }
    }
}

/// What a slot holds; a network without linear layers has slots without state.
fn state_shape(config: &ModelConfig, n_layers: usize) -> DeltaShape {
    let Some(d) = &config.delta else {
        return DeltaShape {
            n_layers: 0,
            n_key_heads: 1,
            n_value_heads: 1,
            key_dim: 1,
            value_dim: 1,
            conv_kernel: 1,
        };
    };
    DeltaShape {
        n_layers,
        n_key_heads: d.n_key_heads,
        n_value_heads: d.n_value_heads,
        key_dim: d.key_dim,
        value_dim: d.value_dim,
        conv_kernel: d.conv_kernel,
    }
}
