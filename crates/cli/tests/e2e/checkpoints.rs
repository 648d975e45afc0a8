//! Case C24: checkpoints that are not whole are refused by name before anything is served, and ones laid
//! out differently are the same model.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::prompts;
use crate::server::{Server, failure_of, native, output};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// A copy of outrider-tiny to change.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for name in [
            CONFIG,
            WEIGHTS,
            "generation_config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ] {
            fs::copy(original(name), folder.path(name)).unwrap();
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn change_config(&self, change: impl FnOnce(&mut Map<String, Value>)) {
        let path = self.path(CONFIG);
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(config.as_object_mut().unwrap());
        fs::write(path, config.to_string()).unwrap();
    }

    /// Writes the tensors anew under the names that `rename` gives them; `None` leaves one out.
    fn rename_tensors(&self, rename: impl Fn(&str) -> Option<String>) {
        let (header, data) = tensors();
        let (mut new_header, mut new_data) = (Map::new(), Vec::<u8>::new());
        for (name, mut entry) in header {
            let Some(name) = rename(&name) else { continue };
            let [begin, end] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
            let at = new_data.len();
            new_data.extend(&data[begin..end]);
            entry["data_offsets"] = json!([at, new_data.len()]);
            new_header.insert(name, entry);
        }
        let text = Value::Object(new_header).to_string();
        let mut file = (text.len() as u64).to_le_bytes().to_vec();
        file.extend(text.as_bytes());
        file.extend(new_data);
        fs::write(self.path(WEIGHTS), file).unwrap();
    }

    /// What `serve` says when it must not start; every message names the folder's file or entry.
    fn refused(&self) -> String {
        failure_of(&["serve", "--port", "0", self.name()])
    }

    fn tokens(&self, flags: &[&str]) -> Vec<u32> {
        let server = Server::start(&[&[self.name()], flags].concat());
        answer(&server)
    }
}

fn original(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/outrider-tiny").join(name)
}

/// Header entries, without the metadata, and data of the weights file.
fn tensors() -> (Map<String, Value>, Vec<u8>) {
    let mut bytes = fs::read(original(WEIGHTS)).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let data = bytes.split_off(8 + len);
    let mut header: Map<String, Value> = serde_json::from_slice(&bytes[8..]).unwrap();
    header.remove("__metadata__");
    (header, data)
}

fn answer(server: &Server) -> Vec<u32> {
    let sampling = json!({"temperature": 0, "max_new_tokens": 32, "ignore_eos": true});
    output(&server.ok("/generate", &native(prompts::KINDS[1], sampling)))
}

/// What a message must contain.
fn assert_names(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = Folder::new();
    let shard = |name: &str| match name.contains("layers.3.") {
        true => "model-00002-of-00003.safetensors",
        false => "model-00001-of-00003.safetensors",
    };
    let map: Map<String, Value> =
        tensors().0.keys().map(|name| (name.clone(), shard(name).into())).collect();
    fs::write(
        folder.path("model.safetensors.index.json"),
        json!({"metadata": {}, "weight_map": map}).to_string(),
    )
    .unwrap();
    fs::rename(folder.path(WEIGHTS), folder.path("model-00001-of-00003.safetensors")).unwrap();
    assert_names(
        &folder.refused(),
        &["model-00002-of-00003.safetensors", "layers.3.", "the download may be incomplete"],
    );
}

#[test]
fn a_short_file_is_named_with_its_tensor() {
    let folder = Folder::new();
    let (header, data) = tensors();
    let end_of = |entry: &Value| entry["data_offsets"][1].as_u64().unwrap() as usize;
    let cut = header.iter().filter(|(_, entry)| end_of(entry) > data.len() - 4096);
    let (first, _) = cut.min_by_key(|(_, entry)| end_of(entry)).unwrap();
    let len = fs::metadata(folder.path(WEIGHTS)).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(folder.path(WEIGHTS)).unwrap();
    file.set_len(len - 4096).unwrap();
    assert_names(&folder.refused(), &[WEIGHTS, first, "the download may be incomplete"]);
    file.set_len(100).unwrap();
    assert_names(&folder.refused(), &[WEIGHTS]);
}

#[test]
fn a_missing_tensor_is_named() {
    let folder = Folder::new();
    let (missing, _) = tensors().0.into_iter().find(|(name, _)| name.contains("mlp")).unwrap();
    folder.rename_tensors(|name| (name != missing).then(|| name.to_owned()));
    assert_names(&folder.refused(), &[&missing, "missing"]);
    let folder = Folder::new();
    folder.change_config(|config| {
        config.insert("tie_word_embeddings".into(), json!(false));
    });
    assert_names(&folder.refused(), &["lm_head.weight", "tie_word_embeddings"]);
}

#[test]
fn a_wrong_shape_and_an_unknown_architecture_are_named() {
    let folder = Folder::new();
    folder.change_config(|config| {
        config.insert("intermediate_size".into(), json!(500));
    });
    assert_names(&folder.refused(), &["mlp", "500", "512"]);
    let folder = Folder::new();
    folder.change_config(|config| {
        config.insert("architectures".into(), json!(["GizmoForCausalLM"]));
        config.insert("model_type".into(), json!("gizmo"));
    });
    let message = folder.refused();
    assert!(message.to_lowercase().contains("gizmo"), "{message}");
    fs::remove_file(folder.path(CONFIG)).unwrap();
    assert_names(&folder.refused(), &[CONFIG]);
}

/// A declared draft head without tensors: no drafts, said so; asked for drafts, no start.
#[test]
fn a_missing_draft_head_is_told() {
    let folder = Folder::new();
    folder.rename_tensors(|name| (!name.starts_with("mtp.")).then(|| name.to_owned()));
    let server = Server::start(&[folder.name()]);
    let log = server.log();
    let warning =
        log.lines().find(|line| line.contains("WARN: ")).unwrap_or_else(|| panic!("{log}"));
    assert_names(warning, &["mtp."]);
    let tokens = answer(&server);
    assert_eq!(server.total("n_drafted"), 0);
    assert_eq!(tokens, answer(&Server::start(&["--speculative-algorithm", "none"])));
    let asked = ["serve", "--port", "0", folder.name(), "--speculative-algorithm", "NEXTN"];
    assert_names(&failure_of(&asked), &["mtp.", "--speculative-algorithm none"]);
}

/// The folder is the model inside the binary, and so is the same with the text settings nested.
#[test]
fn the_same_weights_in_another_layout_are_the_same_model() {
    let expected = answer(&Server::start(&[]));
    let folder = Folder::new();
    assert_eq!(folder.tokens(&[]), expected);
    folder.rename_tensors(|name| {
        Some(match name.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => name.to_owned(),
        })
    });
    folder.change_config(|config| {
        let mut text = std::mem::take(config);
        text.remove("architectures");
        config.insert("architectures".into(), json!(["Qwen3_5ForConditionalGeneration"]));
        config.insert("model_type".into(), json!("qwen3_5"));
        config.insert("text_config".into(), Value::Object(text));
    });
    assert_eq!(folder.tokens(&["--speculative-num-steps", "3"]), expected);
}
