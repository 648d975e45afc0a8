//! A GGUF file is the model that its folder is.

use checkpoint::Checkpoint;
use kernels::{Cpu, Isa};

use super::{BLOCKS, Model, argmax, folder, options, run, span};
use crate::batch::{DraftSpan, Forward};

/// Converted by `tools/make_gguf.py` and the package that llama.cpp's converter writes with.
const CONVERTED: [&str; 3] = ["hybrid-tiny-tied-bf16", "qwen3-tiny-bf16", "llama-tiny-bf16"];

fn open(path: &str) -> Model {
    let checkpoint = Checkpoint::open(&folder(path)).expect(path);
    let cpu = Cpu::new(2, Isa::detect());
    Model::load(&checkpoint, cpu, &options(checkpoint.has_mtp()), &mut |_| {}).expect(path)
}

fn prompt() -> Vec<u32> {
    (0..70).map(|i| (i * 37 + 11) % 352).collect()
}

fn logits(model: &mut Model) -> Vec<f32> {
    let ids = prompt();
    run(model, &ids, span(0, ids.len()))
}

#[test]
fn unquantised_files_give_the_bits_of_the_folder() {
    for name in CONVERTED {
        let (mut file, mut folder) = (open(&format!("gguf/{name}.gguf")), open(name));
        assert!(logits(&mut file) == logits(&mut folder), "{name}");
    }
}

#[test]
fn the_draft_head_of_a_file_drafts_as_the_folders() {
    let name = "hybrid-tiny-tied-bf16";
    let drafts = |path: &str| {
        let mut model = open(path);
        let first = argmax(&logits(&mut model)[69 * 384..]);
        let mut rows = Vec::new();
        let draft = DraftSpan { slot: 0, blocks: &BLOCKS, pos: 69, next: &[first], depth: 3 };
        model.draft(&[draft], &mut |_, _, row| {
            rows.extend_from_slice(row);
            argmax(row)
        });
        rows
    };
    let (file, folder) = (drafts(&format!("gguf/{name}.gguf")), drafts(name));
    assert_eq!(file.len(), 3 * 384);
    assert!(file == folder);
}

/// The converter computes the divisors of llama3 scaling in double precision, a configuration's are
/// computed in single: frequencies differ in their last bits, logits within the golden limits.
#[test]
fn llama3_scaling_comes_out_of_its_tensor() {
    let (mut file, mut folder) =
        (open("gguf/llama3rope-tiny-f32.gguf"), open("llama3rope-tiny-f32"));
    super::golden::check("llama3 rope", &logits(&mut file), &logits(&mut folder));
}
