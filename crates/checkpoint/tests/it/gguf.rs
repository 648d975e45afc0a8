//! What a GGUF file says, as configuration and canonical tensors.

use std::path::Path;

use checkpoint::config::{Arch, LayerKind};
use checkpoint::{Checkpoint, DType, DraftHead, names};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::gguf::{GgufFile, converted};

use crate::made_up::{Folder, hybrid_config, tensors};

/// A folder with a file in it.
pub(crate) struct OnDisk(TempDir);

impl OnDisk {
    pub(crate) fn new(file: &GgufFile) -> Self {
        Self::raw(&file.bytes())
    }

    pub(crate) fn raw(bytes: &[u8]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("m.gguf", bytes);
        folder
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.path().join(name), bytes).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn open(&self) -> Checkpoint {
        Checkpoint::open(&self.path().join("m.gguf")).unwrap()
    }

    /// The message of the refusal; it must contain every one of `parts`.
    pub(crate) fn refused(&self, parts: &[&str]) {
        refusal(&self.path().join("m.gguf"), parts);
    }
}

pub(crate) fn refusal(path: &Path, parts: &[&str]) {
    let message = Checkpoint::open(path).expect_err("this file must be refused").to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

fn byte_tokenizer() -> Vec<u8> {
    let vocab: serde_json::Map<String, Value> =
        ["a", "b", "ab"].iter().enumerate().map(|(i, t)| (t.to_string(), json!(i))).collect();
    let end = json!({ "id": 23, "content": "<|im_end|>", "special": true, "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false });
    json!({ "version": "1.0", "added_tokens": [end],
        "model": { "type": "BPE", "vocab": vocab, "merges": ["a b"] } })
    .to_string()
    .into_bytes()
}

/// A checkpoint folder of a made-up configuration, with a tokenizer.
pub(crate) fn folder(config: &Value) -> Folder {
    let mut all = tensors(config);
    // From 0.5 to 2 with both signs: arithmetic is done on these, so nothing may be infinite.
    for byte in all.values_mut().flat_map(|t| t.bytes.iter_mut().skip(1).step_by(2)) {
        *byte = *byte & 0x80 | 0x3f;
    }
    let folder = Folder::single(config, &all);
    folder.write("tokenizer.json", &byte_tokenizer());
    folder.write("chat_template.jinja", b"{{ messages[0].content }}");
    folder
}

/// The made-up model of a configuration, and the same as a GGUF file.
fn both(config: &Value, dtype: DType) -> (Checkpoint, GgufFile) {
    let folder = folder(config);
    let checkpoint = folder.open().unwrap();
    let file = converted(&checkpoint, dtype, 1e7);
    (checkpoint, file)
}

/// The tiny hybrid as a GGUF file.
pub(crate) fn hybrid() -> GgufFile {
    both(&hybrid_config(), DType::Bf16).1
}

/// Every tensor of two checkpoints of the same model, and the form that the loader takes.
fn assert_same_weights(ours: &Checkpoint, theirs: &Checkpoint) {
    let config = theirs.config();
    let specs = names::target(config).into_iter().chain(names::draft_head(config));
    for spec in specs {
        let read = |c: &Checkpoint| c.tensor(&spec.name, &spec.shape).unwrap().to_f32();
        let (a, b) = (read(ours), read(theirs));
        if spec.name.ends_with("A_log") {
            // Through a logarithm; the loader takes the decay, which is the same to the bit.
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "{}", spec.name);
            let n = spec.shape[0];
            let (a, b) = (ours.decay(&spec.name, n), theirs.decay(&spec.name, n));
            assert_eq!(a.unwrap(), b.unwrap());
        } else if spec.name.contains("norm") {
            assert!(a.iter().zip(&b).all(|(a, b)| a + 1.0 == b + 1.0), "{}", spec.name);
        } else {
            assert!(a == b, "{}", spec.name);
        }
    }
}

#[test]
fn a_hybrid_with_its_draft_head_is_the_model_of_the_folder() {
    let (folder, file) = both(&hybrid_config(), DType::Bf16);
    let on_disk = OnDisk::new(&file);
    let file = on_disk.open();
    let (ours, theirs) = (file.config(), folder.config());
    assert_eq!(ours.arch, Arch::Qwen35);
    assert_eq!(ours.architecture, theirs.architecture);
    assert_eq!(ours.layers, theirs.layers);
    assert_eq!(ours.attention, theirs.attention);
    assert_eq!(ours.delta, theirs.delta);
    assert_eq!((ours.vocab_size, ours.hidden_size, ours.intermediate_size), (24, 8, 12));
    assert_eq!((ours.rms_eps, ours.tied, ours.max_positions), (1e-6, false, 4096));
    assert_eq!(ours.dtype, DType::Bf16);
    assert_eq!(file.draft_head(), DraftHead::Present);
    assert_eq!(file.generation().eos_token_ids, [23]);
    assert_eq!(file.chat_template().unwrap().unwrap(), "{{ messages[0].content }}");
    assert_eq!(file.tokenizer_config().unwrap()["eos_token"], "<|im_end|>");
    assert_eq!(file.skipped().n_tensors, 0);
    assert!(file.warnings().is_empty());
    assert_same_weights(&file, &folder);
}

/// The heads of the 27B shape: three value heads to each of 16 key heads.
#[test]
fn value_heads_come_back_to_their_key_heads() {
    let mut config = hybrid_config();
    config["linear_num_key_heads"] = json!(16);
    config["linear_num_value_heads"] = json!(48);
    let (folder, file) = both(&config, DType::F32);
    assert_same_weights(&OnDisk::new(&file).open(), &folder);
}

/// Heads of 32 values are moved as whole blocks, narrower ones would cut them.
#[test]
fn quantised_columns_move_in_whole_blocks_or_become_floats() {
    for (value_dim, read_as) in [(32, DType::Q8_0), (16, DType::F32)] {
        let mut config = hybrid_config();
        config["linear_value_head_dim"] = json!(value_dim);
        config["linear_num_value_heads"] = json!(6);
        for size in ["hidden_size", "intermediate_size", "head_dim"] {
            config[size] = json!(32);
        }
        let (folder, file) = both(&config, DType::Q8_0);
        let file = OnDisk::new(&file).open();
        let name = "model.layers.0.linear_attn.out_proj.weight";
        assert_eq!(file.dtype(name), Some(read_as));
        let shape = [32, 6 * value_dim];
        let ours = file.tensor(name, &shape).unwrap();
        assert_eq!(ours.dtype(), read_as);
        assert_eq!(ours.stored_bytes(), 32 * 6 * value_dim as u64 * 34 / 32);
        let theirs = folder.tensor(name, &shape).unwrap().to_f32();
        let largest = theirs.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (a, b) in ours.to_f32().iter().zip(&theirs) {
            assert!((a - b).abs() <= largest / 127.0, "{a} is not {b}");
        }
    }
}

#[test]
fn types_are_counted_and_named() {
    let file = OnDisk::new(&hybrid()).open();
    let types = file.stored_types();
    assert_eq!(types.iter().map(|(t, ..)| *t).collect::<Vec<_>>(), [DType::Bf16, DType::F32]);
    assert_eq!(types.iter().map(|(.., bytes)| bytes).sum::<u64>(), file.weight_bytes());
    assert_eq!(file.dtype("model.norm.weight"), Some(DType::F32));
}

#[test]
fn the_fingerprint_tells_weights_apart() {
    let name = |file: &GgufFile| OnDisk::new(file).open().fingerprint().unwrap();
    let file = hybrid();
    let mut other = hybrid();
    other.tensors.last_mut().unwrap().bytes[0] ^= 1;
    assert_eq!(name(&file), name(&hybrid()));
    assert_ne!(name(&file), name(&other));
}

#[test]
fn without_an_interval_the_tensors_say_which_layers_are_linear() {
    let file = Checkpoint::open(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/gguf/hybrid-tiny-tied-bf16.gguf"),
    )
    .unwrap();
    use LayerKind::{Full, Linear};
    assert_eq!(file.config().layers, [Linear, Full, Linear, Linear, Full, Linear]);
    assert!(file.config().tied);
    // Two end tokens: the one that is named, and the one that ends a text.
    assert_eq!(file.generation().eos_token_ids, [354, 352]);
}

#[test]
fn settings_that_would_change_the_answer_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut GgufFile)| {
        let mut file = hybrid();
        change(&mut file);
        OnDisk::new(&file)
    };
    with(&|f| {
        f.float("qwen35.final_logit_softcapping", 30.0);
    })
    .refused(&["m.gguf", "qwen35.final_logit_softcapping", "30"]);
    with(&|f| {
        f.number("qwen35.expert_count", 8);
    })
    .refused(&["qwen35.expert_count", "8"]);
    with(&|f| {
        f.text("qwen35.rope.scaling.type", "yarn");
    })
    .refused(&["qwen35.rope.scaling.type", "yarn"]);
    with(&|f| {
        f.float("qwen35.rope.scaling.factor", 4.0);
    })
    .refused(&["qwen35.rope.scaling.factor", "4"]);
    with(&|f| {
        f.flag("qwen35.attention.causal", false);
    })
    .refused(&["qwen35.attention.causal"]);
    with(&|f| {
        f.number("qwen35.attention.value_length", 4);
    })
    .refused(&["qwen35.attention.value_length", "4", "8"]);
    with(&|f| {
        f.text("general.type", "adapter");
    })
    .refused(&["general.type", "adapter"]);
    with(&|f| f.tensor("blk.0.attn_q.bias", &[8], 0, vec![0; 32]))
        .refused(&["blk.0.attn_q.bias", "no such tensor"]);
}

#[test]
fn other_architectures_and_missing_keys_are_named() {
    let mut file = GgufFile::default();
    OnDisk::new(&file).refused(&["m.gguf", "general.architecture", "missing"]);
    file.text("general.architecture", "gemma3");
    OnDisk::new(&file).refused(&["gemma3", "qwen35, qwen3 and llama"]);
    let mut file = GgufFile::default();
    file.text("general.architecture", "qwen3");
    OnDisk::new(&file).refused(&["qwen3.block_count", "missing"]);
    file.text("qwen3.block_count", "two");
    OnDisk::new(&file).refused(&["qwen3.block_count", "\"two\"", "whole number"]);
}

#[test]
fn a_missing_tensor_is_named_as_the_file_would() {
    let mut file = hybrid();
    file.tensors.retain(|t| t.name != "blk.3.post_attention_norm.weight");
    OnDisk::new(&file).refused(&["blk.3.post_attention_norm.weight", "missing"]);
    let mut file = hybrid();
    file.tensors.retain(|t| t.name != "blk.4.nextn.eh_proj.weight");
    OnDisk::new(&file).refused(&["blk.4.nextn.eh_proj.weight", "missing"]);
    let mut file = hybrid();
    file.tensors.retain(|t| !t.name.starts_with("blk.4."));
    let on_disk = OnDisk::new(&file);
    let file = on_disk.open();
    assert_eq!(file.draft_head(), DraftHead::Missing);
    assert!(file.warnings()[0].contains("nextn_predict_layers"), "{:?}", file.warnings());
}
