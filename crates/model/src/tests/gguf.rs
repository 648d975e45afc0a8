//! A GGUF file is the model that its folder is.

use checkpoint::{Checkpoint, DType};
use kernels::{Cpu, Isa};
use testkit::gguf::converted;

use super::{BLOCKS, Model, argmax, folder, options, run, span};
use crate::batch::{DraftSpan, Forward};

/// Converted by `tools/make_gguf.py` and the package that llama.cpp's converter writes with.
const CONVERTED: [&str; 3] = ["hybrid-tiny-tied-bf16", "qwen3-tiny-bf16", "llama-tiny-bf16"];

/// How far logits may be off, relative to their size: documented in `docs/checkpoints.md`.
const Q8_0_RMS: f64 = 2e-2;
const Q4_0_RMS: f64 = 0.3;

fn load(checkpoint: &Checkpoint) -> Model {
    let cpu = Cpu::new(2, Isa::detect());
    Model::load(checkpoint, cpu, &options(checkpoint.has_mtp()), &mut |_| {}).expect("a model")
}

fn open(path: &str) -> Model {
    load(&Checkpoint::open(&folder(path)).expect(path))
}

/// The model inside the binary, from a GGUF file of this type.
fn outrider_tiny(dtype: DType) -> Model {
    let checkpoint = Checkpoint::open(&folder("../models/outrider-tiny")).expect("outrider-tiny");
    let path = std::env::temp_dir().join(format!("outrider-{}-{dtype}.gguf", std::process::id()));
    std::fs::write(&path, converted(&checkpoint, dtype, 1e5).bytes()).expect("a temporary file");
    let model = load(&Checkpoint::open(&path).expect("the converted file"));
    std::fs::remove_file(&path).expect("the temporary file");
    model
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

#[test]
fn outrider_tiny_is_itself_from_a_file_and_close_when_quantised() {
    let mut folder = open("../models/outrider-tiny");
    let reference = logits(&mut folder);
    for dtype in [DType::Bf16, DType::F32] {
        assert!(logits(&mut outrider_tiny(dtype)) == reference, "{dtype}");
    }
    for (dtype, limit) in [(DType::F16, 2e-5), (DType::Q8_0, Q8_0_RMS), (DType::Q4_0, Q4_0_RMS)] {
        let ours = logits(&mut outrider_tiny(dtype));
        let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>();
        let error = norm(&mut ours.iter().zip(&reference).map(|(a, b)| a - b));
        let rms = (error / norm(&mut reference.iter().copied())).sqrt();
        assert!(rms <= limit, "{dtype}: {rms:e} of the logits' size, {limit:e} at most");
        assert!(rms > limit / 100.0, "{dtype}: {rms:e} is too good to be true");
    }
}
