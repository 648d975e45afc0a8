//! The plan counts bytes from shapes alone, without seeing the kernels; here the two meet.

use std::path::Path;

use checkpoint::config::LayerKind;
use checkpoint::{Checkpoint, DType};
use kernels::{
    Cpu, DeltaShape, Isa, KvShape, KvStore, KvType, Matrix, Part, StateStore, WeightData,
};
use plan::ModelBytes;

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
        let planned = ModelBytes::of(&checkpoint);
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
        let planned = ModelBytes::of(&checkpoint);
        for max_pending in [0, 1, 3, 15] {
            let bytes = StateStore::bytes_per_slot(&shape, max_pending) as u64;
            assert_eq!(planned.slot(max_pending, false), bytes);
        }
    }
}

#[test]
fn packed_weights_are_as_large_as_planned() {
    let cpu = Cpu::new(1, Isa::Scalar);
    for checkpoint in checkpoints() {
        let config = checkpoint.config();
        let shape = [config.vocab_size, config.hidden_size];
        let embedding = checkpoint.tensor("model.embed_tokens.weight", &shape).unwrap();
        let data = match embedding.dtype() {
            DType::F32 => WeightData::F32(embedding.bytes()),
            DType::Bf16 => WeightData::Bf16(embedding.bytes()),
            DType::F16 => WeightData::F16(embedding.bytes()),
            other => panic!("no golden is stored as {other}"),
        };
        let packed = Matrix::pack(&cpu, shape[1], &[Part { n: shape[0], data }]);
        let planned = ModelBytes::of(&checkpoint);
        assert_eq!(planned.weights.embedding, packed.bytes() as u64);
    }
}
