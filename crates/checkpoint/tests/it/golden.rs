//! The checkpoints of the repository: every golden folder and the embedded model.

use std::path::{Path, PathBuf};

use checkpoint::config::{Arch, LayerKind};
use checkpoint::{Checkpoint, DType, DraftHead, EmbeddedFiles, ModelConfig};
use safetensors::SafeTensors;

fn repo(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&repo("golden").join(name)).unwrap()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn every_golden_folder_opens_and_is_used_up() {
    for (name, arch, draft_head, n_skipped) in [
        ("hybrid-tiny-f32", Arch::Qwen35, DraftHead::Present, 0),
        ("hybrid-tiny-bf16", Arch::Qwen35, DraftHead::Present, 1),
        ("hybrid-tiny-tied-f32", Arch::Qwen35, DraftHead::Present, 1),
        ("hybrid-tiny-tied-bf16", Arch::Qwen35, DraftHead::Present, 0),
        ("qwen3-tiny-f32", Arch::Qwen3, DraftHead::NotDeclared, 0),
        ("qwen3-tiny-bf16", Arch::Qwen3, DraftHead::NotDeclared, 0),
        ("llama-tiny-f32", Arch::Llama, DraftHead::NotDeclared, 0),
        ("llama-tiny-bf16", Arch::Llama, DraftHead::NotDeclared, 0),
        ("llama3rope-tiny-f32", Arch::Llama, DraftHead::NotDeclared, 0),
    ] {
        let checkpoint = open(name);
        assert_eq!(checkpoint.config().arch, arch, "{name}");
        assert_eq!(checkpoint.draft_head(), draft_head, "{name}");
        assert_eq!(checkpoint.skipped().n_tensors, n_skipped, "{name}");
        assert!(checkpoint.warnings().is_empty(), "{name}: {:?}", checkpoint.warnings());
        let generation = checkpoint.generation();
        assert_eq!(generation.eos_token_ids, [354, 352], "{name}");
        assert_eq!(generation.temperature, Some(0.7), "{name}");
        assert_eq!((generation.top_k, generation.top_p), (Some(20), Some(0.95)), "{name}");
        assert!(!checkpoint.tokenizer_json().unwrap().is_empty());
    }
}

#[test]
fn the_hybrids_differ_where_their_files_do() {
    let (linear, full) = (LayerKind::Linear, LayerKind::Full);
    let by_interval = open("hybrid-tiny-f32");
    let config = by_interval.config();
    let period = [linear, linear, linear, full];
    assert_eq!(config.layers, [period, period].concat());
    assert!(!config.tied && config.zero_centred_norms());
    assert_eq!((config.attention.head_dim, config.attention.rotary_dim), (32, 8));
    assert_eq!(config.dtype, DType::F32);

    let listed = open("hybrid-tiny-tied-f32");
    let config = listed.config();
    assert_eq!(config.layers, [linear, full, linear, linear, full, linear]);
    assert!(config.tied);
    assert_eq!((config.attention.rotary_dim, config.rms_eps), (16, 1e-5));
    assert_eq!(config.delta.as_ref().unwrap().n_channels(), 2 * 2 * 32 + 6 * 16);

    // Each tensor's own type counts: a bfloat16 checkpoint with float32 in it.
    let mixed = open("hybrid-tiny-bf16");
    assert_eq!(mixed.config().dtype, DType::Bf16);
    assert_eq!(mixed.dtype("model.layers.0.linear_attn.A_log"), Some(DType::F32));
    assert_eq!(mixed.dtype("model.layers.0.linear_attn.dt_bias"), Some(DType::Bf16));
}

#[test]
fn tensors_are_the_ones_of_the_file() {
    let name = "hybrid-tiny-bf16";
    let bytes = std::fs::read(repo("golden").join(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let checkpoint = open(name);
    for (stored, canonical) in [
        ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("model.language_model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.A_log"),
        ("mtp.fc.weight", "mtp.fc.weight"),
    ] {
        let stored = file.tensor(stored).unwrap();
        let tensor = checkpoint.tensor(canonical, stored.shape()).unwrap();
        assert_eq!(tensor.bytes(), stored.data(), "{canonical}");
    }
    // bfloat16 is the upper half of a float32.
    let tensor = checkpoint.tensor("model.norm.weight", &[64]).unwrap();
    let upper = |b: &[u8]| u32::from(u16::from_le_bytes([b[0], b[1]])) << 16;
    let expected: Vec<u32> = tensor.bytes().chunks_exact(2).map(upper).collect();
    let bits: Vec<u32> = tensor.to_f32().iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits, expected);
}

#[test]
fn inv_freq_is_torchs_bit_for_bit_and_good_to_the_last_position() {
    let bytes = std::fs::read(repo("golden/units.safetensors")).unwrap();
    let units = SafeTensors::deserialize(&bytes).unwrap();
    let get = |name: &str| floats(units.tensor(name).unwrap().data());
    let text = std::fs::read_to_string(repo("golden/hybrid-tiny-f32/config.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json["head_dim"] = 256.into();
    let config = ModelConfig::parse("config.json", json.to_string().as_bytes()).unwrap();
    let inv_freq = &config.attention.inv_freq;
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(inv_freq), bits(&get("rope.inv_freq")));

    let positions = units.tensor("rope.pos").unwrap();
    let positions = positions.data().chunks_exact(8);
    let (cos, sin) = (get("rope.cos"), get("rope.sin"));
    let mut last = 0;
    for (row, position) in positions.enumerate() {
        let position = i64::from_le_bytes(position.try_into().unwrap());
        for (j, f) in inv_freq.iter().enumerate() {
            let angle = f64::from(position as f32 * f);
            assert!((angle.cos() - f64::from(cos[row * 32 + j])).abs() < 1e-6);
            assert!((angle.sin() - f64::from(sin[row * 32 + j])).abs() < 1e-6);
        }
        last = position;
    }
    assert_eq!(last, 262_143);
}

#[test]
fn the_embedded_model_opens_without_files() {
    let checkpoint = Checkpoint::embedded(EmbeddedFiles {
        config: include_bytes!("../../../../models/outrider-tiny/config.json"),
        generation_config: include_bytes!(
            "../../../../models/outrider-tiny/generation_config.json"
        ),
        weights: include_bytes!("../../../../models/outrider-tiny/model.safetensors"),
        tokenizer: include_bytes!("../../../../models/outrider-tiny/tokenizer.json"),
        tokenizer_config: include_bytes!("../../../../models/outrider-tiny/tokenizer_config.json"),
        chat_template: include_bytes!("../../../../models/outrider-tiny/chat_template.jinja"),
    })
    .unwrap();
    let folder = Checkpoint::open(&repo("models/outrider-tiny")).unwrap();
    assert_eq!(checkpoint.config(), folder.config());
    assert_eq!(checkpoint.fingerprint().unwrap(), folder.fingerprint().unwrap());
    assert_eq!(checkpoint.chat_template().unwrap(), folder.chat_template().unwrap());
    let shape = [4096, 192];
    let name = "model.embed_tokens.weight";
    assert_eq!(
        checkpoint.tensor(name, &shape).unwrap().bytes(),
        folder.tensor(name, &shape).unwrap().bytes()
    );
    assert!(checkpoint.config().tied && checkpoint.has_mtp());
}
