//! The networks against the goldens of an independent implementation, and against themselves.

mod gguf;
mod golden;
mod invariance;

use std::path::PathBuf;

use checkpoint::Checkpoint;
use kernels::{Bits, Cpu, Isa, KvType};

use crate::batch::{Batch, Forward, Span};
use crate::network::{Model, ModelOptions};

/// The folder of a golden model.
fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(name)
}

fn options(draft: bool) -> ModelOptions {
    ModelOptions {
        bits: Bits::AsStored,
        kv_type: KvType::F32,
        n_blocks: 16,
        n_slots: 4,
        max_rows: 128,
        max_drafts: 4,
        draft,
    }
}

fn load_with(name: &str, cpu: Cpu, options: &ModelOptions) -> Model {
    let checkpoint = Checkpoint::open(&folder(name)).expect(name);
    Model::load(&checkpoint, cpu, options, &mut |_| {}).expect(name)
}

fn load(name: &str) -> Model {
    load_with(name, Cpu::new(2, Isa::detect()), &options(name.starts_with("hybrid")))
}

/// One sequence in slot 0 whose block table is deliberately not in order.
const BLOCKS: [u32; 4] = [5, 2, 9, 0];

fn span(pos: usize, n_rows: usize) -> Span<'static> {
    Span { row: 0, n_rows, pos, blocks: &BLOCKS, slot: 0, n_replay: 0, n_commit: n_rows }
}

/// Runs `tokens` from position `pos` and returns the logits of every row.
fn run(model: &mut Model, tokens: &[u32], span: Span<'_>) -> Vec<f32> {
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    model.logits(&Batch { tokens, spans: &[span], logit_rows: &rows })
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("a row") as u32
}
