//! The plan counts bytes from shapes alone, without seeing the kernels; here the two meet.

use std::path::Path;

use checkpoint::config::LayerKind;
use checkpoint::{Checkpoint, DType};
use kernels::{
    Bits, Cpu, DeltaShape, Isa, KvShape, KvStore, KvType, Matrix, Part, StateStore, WeightData,
};
use model::Model;
use model::network::ModelOptions;
use plan::{ModelBytes, Quantization};

fn checkpoints() -> impl Iterator<Item = Checkpoint> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["golden/hybrid-tiny-f32", "golden/hybrid-tiny-tied-bf16", "golden/qwen3-tiny-bf16"]
        .into_iter()
        .chain(["golden/llama-tiny-f32", "models/outrider-tiny"])
        .map(move |folder| Checkpoint::open(&root.join(folder)).unwrap())
}

#[test]
fn kv_blocks_are_as_large_as_planned() {
    for checkpoint in checkpoints() {
        let config = checkpoint.config();
        let planned = ModelBytes::of(&checkpoint, Quantization::AsStored);
        for with_draft_head in [false, true] {
            let shape = KvShape {
                n_layers: config.n_layers(LayerKind::Full) + usize::from(with_draft_head),
                n_blocks: 1,
                n_kv_heads: config.attention.n_kv_heads,
                head_dim: config.attention.head_dim,
            };
            let bytes = |kv_type| KvStore::bytes_per_block(&shape, kv_type) as u64;
            assert_eq!(planned.kv_block(plan::KvType::F32, with_draft_head), bytes(KvType::F32));
            assert_eq!(planned.kv_block(plan::KvType::Bf16, with_draft_head), bytes(KvType::Bf16));
            assert_eq!(planned.kv_block(plan::KvType::Int8, with_draft_head), bytes(KvType::Int8));
            assert_eq!(planned.attention_scratch(), KvStore::scratch_bytes(&shape) as u64);
        }
    }
}

#[test]
fn state_slots_are_as_large_as_planned() {
    for checkpoint in checkpoints() {
        let config = checkpoint.config();
        let Some(delta) = &config.delta else { continue };
        let shape = DeltaShape {
            n_layers: config.n_layers(LayerKind::Linear),
            n_key_heads: delta.n_key_heads,
            n_value_heads: delta.n_value_heads,
            key_dim: delta.key_dim,
            value_dim: delta.value_dim,
            conv_kernel: delta.conv_kernel,
        };
        let planned = ModelBytes::of(&checkpoint, Quantization::AsStored);
        assert_eq!(planned.slot(false), StateStore::bytes_per_slot(&shape) as u64);
        assert_eq!(planned.draft(), StateStore::bytes_per_draft(&shape) as u64);
    }
}

/// A model whose pools are as small as they can be.
fn load(checkpoint: &Checkpoint, bits: Bits) -> Model {
    let options = ModelOptions {
        bits,
        kv_type: KvType::F32,
        n_blocks: 1,
        n_slots: 1,
        max_rows: 1,
        max_drafts: 1,
        draft: false,
    };
    Model::load(checkpoint, Cpu::new(1, Isa::detect()), &options, &mut |_| {}).unwrap()
}

#[test]
fn packed_weights_are_as_large_as_planned() {
    for checkpoint in checkpoints() {
        let config = checkpoint.config();
        // Norms and the like, which are not matrices and never quantised.
        let mut plain = None;
        for (quantization, bits) in [
            (Quantization::AsStored, Bits::AsStored),
            (Quantization::Int8, Bits::Eight),
            (Quantization::Int4, Bits::Four),
        ] {
            let planned = ModelBytes::of(&checkpoint, quantization).weights;
            let head = if config.tied { planned.embedding } else { planned.head };
            let read = load(&checkpoint, bits).step_weight_bytes() as u64;
            let others = (planned.layers + head).checked_sub(read).expect("matrices and others");
            assert_eq!(*plain.get_or_insert(others), others, "{quantization}");
            assert!(others < 4 * 64 * config.hidden_size as u64 * config.layers.len() as u64);
        }
        let shape = [config.vocab_size, config.hidden_size];
        let embedding = checkpoint.tensor("model.embed_tokens.weight", &shape).unwrap();
        let data = match embedding.dtype() {
            DType::F32 => WeightData::F32(embedding.bytes()),
            DType::Bf16 => WeightData::Bf16(embedding.bytes()),
            DType::F16 => WeightData::F16(embedding.bytes()),
            other => panic!("no golden is stored as {other}"),
        };
        for (quantization, bits) in
            [(Quantization::AsStored, Bits::AsStored), (Quantization::Int4, Bits::Eight)]
        {
            let part = Part { n: shape[0], data, bits };
            let packed = Matrix::pack(&Cpu::new(1, Isa::detect()), shape[1], &[part]);
            let planned = ModelBytes::of(&checkpoint, quantization);
            assert_eq!(planned.weights.embedding, packed.bytes() as u64);
        }
    }
}
