//! From a checkpoint to packed weights.

use checkpoint::config::{LayerKind, ModelConfig};
use checkpoint::names::{EMBEDDING, HEAD};
use checkpoint::{Checkpoint, CheckpointError, DType, Tensor};
use kernels::{Bits, ConvWeight, Cpu, DeltaParams, Matrix, Part, WeightData};

use crate::weights::{DeltaNet, DraftWeights, FullAttention, Layer, Mixer, Weights};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files are not what the configuration says.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Drafting was asked of a checkpoint that has no draft head.
    #[error(
        "the checkpoint has no draft head (no tensor starts with `mtp.`): start with --speculative-algorithm none"
    )]
    NoDraftHead,
}

/// How far loading has come, in bytes of weights as stored.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes packed so far.
    pub done_bytes: u64,
    /// Bytes to pack in all.
    pub total_bytes: u64,
}

/// Reads and packs every weight in so many bits; `draft` asks for the draft head too.
pub(crate) fn weights(
    checkpoint: &Checkpoint,
    cpu: &Cpu,
    (bits, draft): (Bits, bool),
    progress: &mut dyn FnMut(Progress),
) -> Result<Weights, LoadError> {
    if draft && !checkpoint.has_mtp() {
        return Err(LoadError::NoDraftHead);
    }
    let mut loader = Loader {
        checkpoint,
        config: checkpoint.config(),
        cpu,
        bits,
        done_bytes: 0,
        n_full: 0,
        n_linear: 0,
        progress,
    };
    Ok(loader.model(draft)?)
}

struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    cpu: &'a Cpu,
    bits: Bits,
    done_bytes: u64,
    n_full: usize,
    n_linear: usize,
    progress: &'a mut dyn FnMut(Progress),
}

impl Loader<'_> {
    fn model(&mut self, draft: bool) -> Result<Weights, CheckpointError> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let embedding = self.matrix(hidden, &[(EMBEDDING, vocab)])?;
        let kinds = self.config.layers.clone();
        let layers = kinds
            .iter()
            .enumerate()
            .map(|(i, kind)| self.layer(&format!("model.layers.{i}."), *kind))
            .collect::<Result<_, _>>()?;
        let norm = self.norm("model.norm.weight", hidden)?;
        let head = match self.config.tied {
            true => None,
            false => Some(self.matrix(hidden, &[(HEAD, vocab)])?),
        };
        let draft = draft.then(|| self.draft_head()).transpose()?;
        Ok(Weights { embedding, layers, norm, head, draft })
    }

    fn layer(&mut self, prefix: &str, kind: LayerKind) -> Result<Layer, CheckpointError> {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let input_norm = self.norm(&name("input_layernorm.weight"), hidden)?;
        let mixer = match kind {
            LayerKind::Full => Mixer::Full(self.attention(&name("self_attn."))?),
            LayerKind::Linear => Mixer::Linear(self.delta_net(&name("linear_attn."))?),
        };
        Ok(Layer {
            input_norm,
            mixer,
            post_norm: self.norm(&name("post_attention_layernorm.weight"), hidden)?,
            gate_up: self.matrix(
                hidden,
                &[(&name("mlp.gate_proj.weight"), inner), (&name("mlp.up_proj.weight"), inner)],
            )?,
            down: self.matrix(inner, &[(&name("mlp.down_proj.weight"), hidden)])?,
        })
    }

    fn attention(&mut self, prefix: &str) -> Result<FullAttention, CheckpointError> {
        let hidden = self.config.hidden_size;
        let a = self.config.attention.clone();
        let (n_q, n_kv) = (a.n_heads * a.head_dim, a.n_kv_heads * a.head_dim);
        let n_q_rows = if a.output_gate { 2 * n_q } else { n_q };
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let qkv = self.matrix(
            hidden,
            &[
                (&name("q_proj.weight"), n_q_rows),
                (&name("k_proj.weight"), n_kv),
                (&name("v_proj.weight"), n_kv),
            ],
        )?;
        let out = self.matrix(n_q, &[(&name("o_proj.weight"), hidden)])?;
        let head_norm = |loader: &Self, suffix: &str| {
            a.qk_norm.then(|| loader.norm(&name(suffix), a.head_dim)).transpose()
        };
        let (q_norm, k_norm) =
            (head_norm(self, "q_norm.weight")?, head_norm(self, "k_norm.weight")?);
        let kv_layer = self.n_full;
        self.n_full += 1;
        Ok(FullAttention { qkv, out, q_norm, k_norm, kv_layer })
    }

    fn delta_net(&mut self, prefix: &str) -> Result<DeltaNet, CheckpointError> {
        let hidden = self.config.hidden_size;
        let d = self.config.delta.clone().expect("a linear layer has a delta configuration");
        let n_channels = d.n_channels();
        let n_values = d.n_value_heads * d.value_dim;
        let name = |suffix: &str| format!("{prefix}{suffix}");
        let proj = self.matrix(
            hidden,
            &[
                (&name("in_proj_qkv.weight"), n_channels),
                (&name("in_proj_z.weight"), n_values),
                (&name("in_proj_b.weight"), d.n_value_heads),
                (&name("in_proj_a.weight"), d.n_value_heads),
            ],
        )?;
        let conv = self.plain(&name("conv1d.weight"), &[n_channels, 1, d.conv_kernel])?;
        let state_layer = self.n_linear;
        self.n_linear += 1;
        Ok(DeltaNet {
            proj,
            conv: ConvWeight::new(d.conv_kernel, &conv),
            params: DeltaParams {
                b: n_channels + n_values,
                a: n_channels + n_values + d.n_value_heads,
                neg_exp_a_log: self.checkpoint.decay(&name("A_log"), d.n_value_heads)?,
                dt_bias: self.plain(&name("dt_bias"), &[d.n_value_heads])?,
            },
            norm: self.plain(&name("norm.weight"), &[d.value_dim])?,
            out: self.matrix(n_values, &[(&name("out_proj.weight"), hidden)])?,
            state_layer,
        })
    }

    fn draft_head(&mut self) -> Result<DraftWeights, CheckpointError> {
        let hidden = self.config.hidden_size;
        Ok(DraftWeights {
            embedding_norm: self.norm("mtp.pre_fc_norm_embedding.weight", hidden)?,
            hidden_norm: self.norm("mtp.pre_fc_norm_hidden.weight", hidden)?,
            fc: self.matrix(2 * hidden, &[("mtp.fc.weight", hidden)])?,
            layer: self.layer("mtp.layers.0.", LayerKind::Full)?,
            norm: self.norm("mtp.norm.weight", hidden)?,
        })
    }

    /// Packs matrices `[n, k]` that share their input, one under the other.
    fn matrix(&mut self, k: usize, parts: &[(&str, usize)]) -> Result<Matrix, CheckpointError> {
        let tensors = parts
            .iter()
            .map(|(name, n)| {
                let tensor = self.checkpoint.tensor(name, &[*n, k])?;
                let bits = bits_of(name, tensor.dtype(), self.bits);
                Ok((bits, if is_gate(name) { floats(tensor) } else { readable(tensor) }))
            })
            .collect::<Result<Vec<_>, CheckpointError>>()?;
        let parts: Vec<Part<'_>> = parts
            .iter()
            .zip(&tensors)
            .map(|((_, n), (bits, tensor))| Part { n: *n, data: data(tensor), bits: *bits })
            .collect();
        let packed = Matrix::pack(self.cpu, k, &parts);
        self.done_bytes += tensors.iter().map(|(_, t)| t.stored_bytes()).sum::<u64>();
        (self.progress)(Progress {
            done_bytes: self.done_bytes,
            total_bytes: self.checkpoint.weight_bytes().max(self.done_bytes),
        });
        Ok(packed)
    }

    /// A norm weight in the form the kernel multiplies by: `1 + w` where the family centres on zero.
    fn norm(&self, name: &str, len: usize) -> Result<Vec<f32>, CheckpointError> {
        let mut weight = self.plain(name, &[len])?;
        if self.config.zero_centred_norms() {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }

    fn plain(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, CheckpointError> {
        Ok(self.checkpoint.tensor(name, shape)?.to_f32())
    }
}

/// In how many bits the matrix of this name is packed where `asked` is asked for.
///
/// The gates of the recurrence stay floats: they are few, and their errors add up over the whole
/// sequence. The embedding, and the output matrix, have 8 bits or more: every logit is taken as it
/// comes from there. What is stored in 8 bits or fewer in a way that no kernel reads has 8.
fn bits_of(name: &str, dtype: DType, asked: Bits) -> Bits {
    let is_vocabulary = name == EMBEDDING || name == HEAD;
    match (asked, dtype) {
        _ if is_gate(name) => Bits::AsStored,
        (Bits::Four, _) if is_vocabulary => Bits::Eight,
        (Bits::AsStored, DType::F32 | DType::Bf16 | DType::F16 | DType::Q8_0 | DType::Q4_0) => {
            Bits::AsStored
        }
        (Bits::AsStored, _) => Bits::Eight,
        _ => asked,
    }
}

/// Whether a matrix computes the gates of the recurrence.
fn is_gate(name: &str) -> bool {
    name.ends_with(".in_proj_a.weight") || name.ends_with(".in_proj_b.weight")
}

/// A tensor in a type that the kernels pack.
fn readable(tensor: Tensor<'_>) -> Tensor<'_> {
    match tensor.dtype() {
        DType::Q8_0 | DType::Q4_0 => tensor,
        _ => floats(tensor),
    }
}

fn floats(tensor: Tensor<'_>) -> Tensor<'_> {
    match tensor.dtype() {
        DType::F32 | DType::Bf16 | DType::F16 => tensor,
        _ => tensor.into_f32(),
    }
}

fn data<'a>(tensor: &'a Tensor<'_>) -> WeightData<'a> {
    match tensor.dtype() {
        DType::Bf16 => WeightData::Bf16(tensor.bytes()),
        DType::F16 => WeightData::F16(tensor.bytes()),
        DType::Q8_0 => WeightData::Q8_0(tensor.bytes()),
        DType::Q4_0 => WeightData::Q4_0(tensor.bytes()),
        _ => WeightData::F32(tensor.bytes()),
    }
}
