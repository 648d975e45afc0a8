//! How many bytes our own server needs: weights as packed, KV, recurrent state, buffers.
//!
//! The formulas restate from shapes alone what `kernels` and `model` allocate; a test in `testkit`
//! holds them against each other.

use std::fmt;

use checkpoint::config::{AttentionConfig, DeltaConfig, LayerKind, ModelConfig};
use checkpoint::names::{EMBEDDING, HEAD};
use checkpoint::{Checkpoint, DType};

/// Positions of a KV block, outputs of a weight tile.
pub const BLOCK_LEN: usize = 64;
/// Hidden rows that a slot keeps for the draft head.
pub const CARRY_ROWS: usize = 32;
/// Rows of logits that the buffers of a pass hold at least.
const LOGIT_ROWS: usize = 32;
/// Query heads whose results attention keeps for parts of long contexts.
const SPLIT_HEADS: usize = 8192;
/// Parts of a slot begin at multiples of this many elements.
const SLOT_ALIGNMENT: usize = 16;

/// Element type of the KV store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit.
    F32,
    /// 16-bit, the upper half of a 32-bit float.
    Bf16,
    /// 8-bit, with a 32-bit scale for the key and one for the value of each position and head.
    Int8,
}

impl KvType {
    /// The checkpoint's own where nothing is asked for: bf16 if it is that, else f32.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::Bf16 => Self::Bf16,
            _ => Self::F32,
        }
    }

    /// As `--kv-cache-dtype` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// As SGLang spells it.
    pub fn sglang_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::Int8 => "int8",
        }
    }

    /// Bytes of a head of a block with so many elements.
    fn head_bytes(self, n_elements: usize) -> usize {
        match self {
            Self::F32 => 4 * n_elements,
            Self::Bf16 => 2 * n_elements,
            Self::Int8 => n_elements + 2 * 4 * BLOCK_LEN,
        }
    }
}

/// In how many bits the matrices are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// As they are stored.
    #[default]
    AsStored,
    /// 8.
    Int8,
    /// 4; embedding and output matrix 8.
    Int4,
}

impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsStored => "as they are stored",
            Self::Int8 => "int8",
            Self::Int4 => "int4, embedding and output matrix int8",
        })
    }
}

/// A model as far as memory depends on it.
#[derive(Clone, Debug)]
pub struct ModelBytes {
    /// How the weights are packed.
    pub quantization: Quantization,
    /// Whether all products are of floats.
    all_floats: bool,
    /// Shapes.
    pub config: ModelConfig,
    /// Packed weights.
    pub weights: WeightBytes,
}

/// Bytes of the packed weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Decoder layers and the final norm.
    pub layers: u64,
    /// The embedding, which is also the output matrix where the two are tied.
    pub embedding: u64,
    /// The output matrix; 0 where tied.
    pub head: u64,
    /// The draft head; 0 where the configuration declares none.
    pub draft_head: u64,
}

impl WeightBytes {
    /// All that is loaded, with the draft head or without.
    pub fn loaded(&self, with_draft_head: bool) -> u64 {
        let draft_head = if with_draft_head { self.draft_head } else { 0 };
        self.layers + self.embedding + self.head + draft_head
    }
}

impl ModelBytes {
    /// The bytes of a checkpoint.
    pub fn of(checkpoint: &Checkpoint, quantization: Quantization) -> Self {
        let dtype = |name: &str| checkpoint.dtype(name).unwrap_or(checkpoint.config().dtype);
        Self::new(checkpoint.config(), quantization, &dtype)
    }

    /// The bytes of a model whose tensors have these stored types, by canonical name.
    pub fn new(
        config: &ModelConfig,
        quantization: Quantization,
        dtype: &dyn Fn(&str) -> DType,
    ) -> Self {
        let packer = Packer { config, quantization, dtype };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let layer =
            |(i, kind): (usize, &LayerKind)| packer.layer(&format!("model.layers.{i}."), *kind);
        let weights = WeightBytes {
            layers: config.layers.iter().enumerate().map(layer).sum::<u64>() + floats(hidden),
            embedding: packer.matrix(hidden, &[(EMBEDDING, vocab)]),
            head: if config.tied { 0 } else { packer.matrix(hidden, &[(HEAD, vocab)]) },
            draft_head: if config.n_mtp_layers == 0 { 0 } else { packer.draft_head() },
        };
        // A file has one type but for a few tensors.
        let all_floats = packer.format("model.layers.0.mlp.down_proj.weight") == Format::Float;
        Self { quantization, all_floats, config: config.clone(), weights }
    }

    /// Bytes of one KV block of 64 positions over all attention layers, the draft head's included
    /// if it is loaded. The values of a head are padded to whole tiles of 64, its keys are not.
    pub fn kv_block(&self, kv_type: KvType, with_draft_head: bool) -> u64 {
        let AttentionConfig { n_kv_heads, head_dim, .. } = self.config.attention;
        let n_layers = self.config.n_layers(LayerKind::Full) + usize::from(with_draft_head);
        let head = (head_dim + head_dim.next_multiple_of(BLOCK_LEN)) * BLOCK_LEN;
        (n_layers * n_kv_heads * kv_type.head_bytes(head)) as u64
    }

    /// Bytes of the recurrent state of one sequence: per linear layer the convolution's history and
    /// the delta state; and the hidden rows that wait for the draft head if it is loaded.
    pub fn slot(&self, with_draft_head: bool) -> u64 {
        let state = self.config.delta.as_ref().map_or(0, delta_slot);
        let carry = if with_draft_head { CARRY_ROWS * self.config.hidden_size } else { 0 };
        (self.config.n_layers(LayerKind::Linear) * state) as u64 * 4 + floats(carry)
    }

    /// Bytes of the results of attention to parts of contexts: output, maximum and sum.
    pub fn attention_scratch(&self) -> u64 {
        let head = self.config.attention.head_dim.next_multiple_of(BLOCK_LEN) + 2;
        floats(SPLIT_HEADS * head)
    }

    /// Bytes that a draft keeps until the next pass, to be replayed if it is accepted: per linear
    /// layer inputs of the convolution, keys, values and two gates.
    pub fn draft(&self) -> u64 {
        let row = self.config.delta.as_ref().map_or(0, |d| {
            let (keys, values) = (d.n_key_heads * d.key_dim, d.n_value_heads * d.value_dim);
            aligned(d.n_channels() + keys + values + 2 * d.n_value_heads)
        });
        floats(self.config.n_layers(LayerKind::Linear) * row)
    }

    /// Bytes of the activation buffers of a pass of `max_rows` rows, logits included.
    pub fn scratch(&self, max_rows: usize) -> u64 {
        let (row, work) = self.row();
        // Logits take the place of a layer's buffers, some rows at a time.
        let logits = max_rows.min(LOGIT_ROWS) * self.config.vocab_size;
        floats(max_rows * row + (max_rows * work).max(logits))
            + self.attention_scratch()
            + self.quantised_rows(max_rows)
    }

    /// Bytes that one row more adds to these buffers at most.
    pub fn scratch_row(&self) -> u64 {
        let (row, work) = self.row();
        floats(row + work) + self.quantised_rows(1)
    }

    /// Elements of one row of the activation buffers: those of the whole pass, and those of a layer.
    fn row(&self) -> (usize, usize) {
        let ModelConfig { hidden_size, intermediate_size, .. } = self.config;
        let a = &self.config.attention;
        let mut work = qkv_rows(a).iter().sum::<usize>() + a.n_heads * a.head_dim;
        // Keys, queries and gates ready for the delta rule.
        let mut prepared = 0;
        if let Some(d) = &self.config.delta {
            let (keys, values) = (d.n_key_heads * d.key_dim, d.n_value_heads * d.value_dim);
            // Projected; convolved q, k, v; values without and with their gate.
            work = work.max(2 * d.n_channels() + 3 * values + 2 * d.n_value_heads);
            prepared = 2 * (keys + d.n_value_heads);
        }
        // Residual stream, normed, projected back, final, fed to the draft head, and gathered twice
        // as wide; the position. Of a layer: the mixer, or gate and up and their product.
        (7 * hidden_size + prepared + 1, work.max(3 * intermediate_size))
    }
}

/// Columns that share the scale of an activation, and the bytes that belong to them: the numbers,
/// the scale, and five sums. Matrix tiles may read 32 rows behind the last.
const GROUP: usize = 128;
const ROW_GROUP_BYTES: usize = GROUP + 6 * 4;
const SPARE_BYTES: usize = 32 * GROUP;

impl ModelBytes {
    /// Bytes of the rows that a matrix product reads, quantised.
    fn quantised_rows(&self, max_rows: usize) -> u64 {
        let ModelConfig { hidden_size, intermediate_size, .. } = self.config;
        let AttentionConfig { n_heads, head_dim, .. } = self.config.attention;
        let values = self.config.delta.as_ref().map_or(0, |d| d.n_value_heads * d.value_dim);
        let widths = [2 * hidden_size, n_heads * head_dim, values, intermediate_size];
        let width = widths.into_iter().fold(0, usize::max);
        match self.all_floats {
            true => 0,
            false => (max_rows * width.div_ceil(GROUP) * ROW_GROUP_BYTES + SPARE_BYTES) as u64,
        }
    }
}

/// How some rows of a matrix are packed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Floats: bf16 where all neighbours are, else f32.
    Float,
    /// A scale for 128 columns.
    Int8,
    /// A scale for 32 columns, 8 bits or 4.
    Q8_0,
    Q4_0,
}

/// Elements of the recurrent state of one layer of one sequence.
fn delta_slot(d: &DeltaConfig) -> usize {
    // Value columns lie in tiles of 64 or 32 if they fill them, else of 16.
    let columns = [64, 32].into_iter().find(|n| d.value_dim.is_multiple_of(*n)).unwrap_or(16);
    aligned((d.conv_kernel - 1) * d.n_channels())
        + aligned(d.n_value_heads * d.key_dim * d.value_dim.next_multiple_of(columns))
}

fn aligned(len: usize) -> usize {
    len.next_multiple_of(SLOT_ALIGNMENT)
}

/// Rows of the query (with its gate), key and value projections.
fn qkv_rows(a: &AttentionConfig) -> [usize; 3] {
    let (queries, keys) = (a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim);
    [if a.output_gate { 2 * queries } else { queries }, keys, keys]
}

fn floats(n: usize) -> u64 {
    n as u64 * 4
}

/// Sizes of weights as `model` packs them: projections of one input fused, the rest as f32.
struct Packer<'a> {
    config: &'a ModelConfig,
    quantization: Quantization,
    dtype: &'a dyn Fn(&str) -> DType,
}

impl Packer<'_> {
    /// A packed `[n, k]` of several tensors: neighbours of one format together, their rows padded
    /// to tiles of 64.
    fn matrix(&self, k: usize, parts: &[(&str, usize)]) -> u64 {
        let sections = parts.chunk_by(|(a, _), (b, _)| self.format(a) == self.format(b));
        sections.map(|parts| self.section(k, parts)).sum()
    }

    /// bf16, with columns in pairs, if all are, else f32; or numbers with a scale of two bytes for
    /// some columns, which are padded to what the kernels take at a time.
    fn section(&self, k: usize, parts: &[(&str, usize)]) -> u64 {
        let n = parts.iter().map(|(_, n)| n).sum::<usize>().next_multiple_of(BLOCK_LEN);
        let all_bf16 = parts.iter().all(|(name, _)| (self.dtype)(name) == DType::Bf16);
        let row = match self.format(parts[0].0) {
            Format::Float if all_bf16 => 2 * k.next_multiple_of(2),
            Format::Float => 4 * k,
            Format::Int8 => k.next_multiple_of(64) + 2 * k.div_ceil(128),
            Format::Q8_0 => k.next_multiple_of(32) + 2 * k.div_ceil(32),
            Format::Q4_0 => k.next_multiple_of(32) / 2 + 2 * k.div_ceil(32),
        };
        (n * row) as u64
    }

    /// The gates of the recurrence stay floats, and the vocabulary has 8 bits or more; 4 bits stay
    /// 4, and what is stored in 8 bits or fewer in a way that no kernel reads has 8.
    fn format(&self, name: &str) -> Format {
        let is_gate = name.ends_with(".in_proj_a.weight") || name.ends_with(".in_proj_b.weight");
        let is_vocabulary = name == EMBEDDING || name == HEAD;
        match (self.quantization, (self.dtype)(name)) {
            _ if is_gate => Format::Float,
            (_, DType::Q4_0) => Format::Q4_0,
            (Quantization::Int4, _) if !is_vocabulary => Format::Q4_0,
            (_, DType::Q8_0) => Format::Q8_0,
            (Quantization::AsStored, DType::F32 | DType::Bf16 | DType::F16) => Format::Float,
            _ => Format::Int8,
        }
    }

    fn layer(&self, prefix: &str, kind: LayerKind) -> u64 {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let at = |suffix: &str| format!("{prefix}{suffix}");
        let mixer = match kind {
            LayerKind::Full => self.attention(&at("self_attn.")),
            LayerKind::Linear => self.delta_net(&at("linear_attn.")),
        };
        let gate_up = [(&*at("mlp.gate_proj.weight"), inner), (&at("mlp.up_proj.weight"), inner)];
        mixer
            + floats(2 * hidden)
            + self.matrix(hidden, &gate_up)
            + self.matrix(inner, &[(&at("mlp.down_proj.weight"), hidden)])
    }

    fn attention(&self, prefix: &str) -> u64 {
        let hidden = self.config.hidden_size;
        let a = &self.config.attention;
        let at = |suffix: &str| format!("{prefix}{suffix}");
        let [q, k, v] = qkv_rows(a);
        let qkv =
            [(&*at("q_proj.weight"), q), (&at("k_proj.weight"), k), (&at("v_proj.weight"), v)];
        let norms = if a.qk_norm { 2 * a.head_dim } else { 0 };
        self.matrix(hidden, &qkv)
            + self.matrix(a.n_heads * a.head_dim, &[(&at("o_proj.weight"), hidden)])
            + floats(norms)
    }

    fn delta_net(&self, prefix: &str) -> u64 {
        let hidden = self.config.hidden_size;
        let Some(d) = &self.config.delta else { return 0 };
        let at = |suffix: &str| format!("{prefix}{suffix}");
        let values = d.n_value_heads * d.value_dim;
        let projections = [
            (&*at("in_proj_qkv.weight"), d.n_channels()),
            (&at("in_proj_z.weight"), values),
            (&at("in_proj_b.weight"), d.n_value_heads),
            (&at("in_proj_a.weight"), d.n_value_heads),
        ];
        self.matrix(hidden, &projections)
            + self.matrix(values, &[(&at("out_proj.weight"), hidden)])
            + floats(d.conv_kernel * d.n_channels() + 2 * d.n_value_heads + d.value_dim)
    }

    fn draft_head(&self) -> u64 {
        let hidden = self.config.hidden_size;
        self.layer("mtp.layers.0.", LayerKind::Full)
            + self.matrix(2 * hidden, &[("mtp.fc.weight", hidden)])
            + floats(3 * hidden)
    }
}
