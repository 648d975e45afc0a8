//! Incomplete and contradictory checkpoints are refused by name, or run as documented.

use checkpoint::{CheckpointError, DraftHead};
use serde_json::json;

use crate::made_up::{
    Folder, Stored, composite, composite_names, hybrid_config, safetensors, tensors,
};

#[test]
fn a_whole_checkpoint_opens_in_one_file_and_in_shards() {
    let config = hybrid_config();
    let all = tensors(&config);
    let single = Folder::single(&config, &all).open().unwrap();
    let sharded_folder = Folder::sharded(&config, &all, 3);
    let sharded = sharded_folder.open().unwrap();
    for (name, stored) in &all {
        for checkpoint in [&single, &sharded] {
            assert_eq!(checkpoint.tensor(name, &stored.shape).unwrap().bytes(), stored.bytes);
        }
    }
    let bytes: usize = all.values().map(|stored| stored.bytes.len()).sum();
    assert_eq!(single.weight_bytes(), bytes as u64);
    assert_eq!(single.skipped(), Default::default());
    assert_eq!(single.draft_head(), DraftHead::Present);
    assert!(single.warnings().is_empty());
    assert_eq!(single.fingerprint().unwrap(), sharded.fingerprint().unwrap());
}

#[test]
fn a_missing_shard_is_named() {
    let config = hybrid_config();
    let folder = Folder::sharded(&config, &tensors(&config), 3);
    std::fs::remove_file(folder.file("model-00002-of-00003.safetensors")).unwrap();
    folder.refused(&["model-00002-of-00003.safetensors", "1 of 3", "may be incomplete"]);
}

#[test]
fn a_short_shard_is_named_with_its_first_tensor_past_the_end() {
    let config = hybrid_config();
    let all = tensors(&config);
    let folder = Folder::sharded(&config, &all, 3);
    let shard = "model-00003-of-00003.safetensors";
    let bytes = std::fs::read(folder.file(shard)).unwrap();
    folder.write(shard, &bytes[..bytes.len() - 100]);
    folder.refused(&[shard, "tensor `", "may be incomplete"]);

    // One byte too few: the tensor whose bytes lie last in the file.
    folder.write(shard, &bytes[..bytes.len() - 1]);
    match folder.open() {
        Err(CheckpointError::Truncated { file, needs, has, .. }) => {
            assert_eq!((file.as_str(), needs), (shard, bytes.len() as u64));
            assert_eq!(has, needs - 1);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_shard_cut_after_opening_is_an_error_and_not_a_crash() {
    let config = hybrid_config();
    let folder = Folder::single(&config, &tensors(&config));
    let checkpoint = folder.open().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.file("model.safetensors"));
    file.unwrap().set_len(4096).unwrap();
    let error = checkpoint.tensor("model.norm.weight", &[8]).unwrap_err();
    assert!(matches!(error, CheckpointError::Truncated { .. }), "{error}");
}

#[test]
fn a_draft_head_that_is_declared_but_absent_is_a_condition_and_not_an_error() {
    let config = hybrid_config();
    let mut all = tensors(&config);
    all.retain(|name, _| !name.starts_with("mtp."));
    let folder = Folder::single(&config, &all);
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.draft_head(), DraftHead::Missing);
    assert!(!checkpoint.has_mtp() && !checkpoint.has("mtp.fc.weight"));
    assert!(checkpoint.warnings()[0].contains("mtp."), "{:?}", checkpoint.warnings());
}

#[test]
fn part_of_a_draft_head_is_an_incomplete_download() {
    let config = hybrid_config();
    let mut all = tensors(&config);
    all.remove("mtp.layers.0.self_attn.k_norm.weight");
    Folder::single(&config, &all).refused(&["mtp.layers.0.self_attn.k_norm.weight", "missing"]);
}

#[test]
fn a_draft_head_that_is_not_declared_is_skipped_and_counted() {
    let mut config = hybrid_config();
    let all = tensors(&config);
    config["mtp_num_hidden_layers"] = json!(0);
    let checkpoint = Folder::single(&config, &all).open().unwrap();
    assert_eq!(checkpoint.draft_head(), DraftHead::NotDeclared);
    assert_eq!(checkpoint.skipped().n_tensors, 15);
}

#[test]
fn tied_without_an_output_matrix_uses_the_embedding() {
    let mut config = hybrid_config();
    config["tie_word_embeddings"] = json!(true);
    let checkpoint = Folder::single(&config, &tensors(&config)).open().unwrap();
    assert!(checkpoint.config().tied);
    assert!(!checkpoint.has("lm_head.weight"));
    assert!(checkpoint.warnings().is_empty());
}

#[test]
fn tied_with_another_output_matrix_follows_the_flag_and_says_so() {
    let mut config = hybrid_config();
    let mut all = tensors(&config);
    config["tie_word_embeddings"] = json!(true);
    let folder = Folder::single(&config, &all);
    let checkpoint = folder.open().unwrap();
    assert!(checkpoint.config().tied && !checkpoint.has("lm_head.weight"));
    assert!(checkpoint.warnings()[0].contains("lm_head.weight"), "{:?}", checkpoint.warnings());

    // An identical copy is only a waste of bytes.
    all.insert("lm_head.weight".into(), all["model.embed_tokens.weight"].clone());
    let checkpoint = Folder::single(&config, &all).open().unwrap();
    assert!(checkpoint.warnings().is_empty());
    assert_eq!(checkpoint.skipped().n_tensors, 1);
}

#[test]
fn not_tied_without_an_output_matrix_is_refused_by_name() {
    let config = hybrid_config();
    let mut all = tensors(&config);
    all.remove("lm_head.weight");
    Folder::single(&config, &all).refused(&["`lm_head.weight`", "tie_word_embeddings", "[24, 8]"]);
}

#[test]
fn a_tie_flag_that_contradicts_itself_follows_the_files_and_says_so() {
    for tied in [true, false] {
        let mut text = hybrid_config();
        text["tie_word_embeddings"] = json!(tied);
        let all = tensors(&text);
        text["tie_word_embeddings"] = json!(false);
        let mut config = composite(text);
        config["tie_word_embeddings"] = json!(true);
        let checkpoint = Folder::single(&config, &all).open().unwrap();
        assert_eq!(checkpoint.config().tied, tied);
        assert!(checkpoint.warnings()[0].contains("tie_word_embeddings"));
    }
}

#[test]
fn nested_text_settings_are_the_same_model() {
    let flat = hybrid_config();
    let all = tensors(&flat);
    let mut nested_tensors = composite_names(all.clone());
    let vision = "model.visual.patch_embed.weight";
    nested_tensors.insert(vision.into(), Stored::filled(vision, &[3, 4]));
    let flat = Folder::single(&flat, &all).open().unwrap();
    let nested = Folder::single(&composite(hybrid_config()), &nested_tensors).open().unwrap();

    let mut config = nested.config().clone();
    config.architecture = flat.config().architecture.clone();
    config.model_type = flat.config().model_type.clone();
    assert_eq!(&config, flat.config());
    for (name, stored) in &all {
        assert_eq!(nested.tensor(name, &stored.shape).unwrap().bytes(), stored.bytes);
    }
    assert_eq!((nested.skipped().n_tensors, nested.skipped().bytes), (1, 24));
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let config = hybrid_config();
    let mut all = tensors(&config);
    let folder = Folder::sharded(&config, &all, 2);
    // The second shard gets everything; half of that is in the first one too.
    folder.write("model-00002-of-00002.safetensors", &safetensors(&all));
    folder.refused(&["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);

    // The same tensor under both prefixes is the same mistake.
    let norm = all["model.norm.weight"].clone();
    all.insert("model.language_model.norm.weight".into(), norm);
    Folder::single(&config, &all).refused(&["model.norm.weight", "model.language_model.norm"]);
}

#[test]
fn missing_misshapen_and_mistyped_tensors_are_named_with_what_would_be_right() {
    let config = hybrid_config();
    let all = tensors(&config);
    let name = "model.layers.3.self_attn.q_proj.weight";

    let mut missing = all.clone();
    missing.remove(name);
    Folder::single(&config, &missing).refused(&[name, "missing", "[64, 8]"]);

    // Without the output gate the query projection has half the rows.
    let mut wrong = all.clone();
    wrong.insert(name.into(), Stored::filled(name, &[32, 8]));
    let parts = [name, "model.safetensors", "[32, 8]", "[64, 8]"];
    Folder::single(&config, &wrong).refused(&parts);

    let mut quantised = all.clone();
    quantised.insert(name.into(), Stored { dtype: "U8", shape: vec![64, 8], bytes: vec![1; 512] });
    Folder::single(&config, &quantised).refused(&[name, "U8", "BF16"]);

    // A tensor that the networks would not read changes the answer when it is left out.
    let mut extra = all;
    let bias = "model.layers.3.self_attn.q_proj.bias";
    extra.insert(bias.into(), Stored::filled(bias, &[64]));
    Folder::single(&config, &extra).refused(&[bias, "no such tensor"]);
}

#[test]
fn missing_files_are_named() {
    let config = hybrid_config();
    Folder::new(&config).refused(&["model.safetensors.index.json", "no weights"]);
    let empty = tempfile::tempdir().unwrap();
    let error = checkpoint::Checkpoint::open(empty.path()).unwrap_err();
    assert!(error.to_string().contains("config.json is missing"), "{error}");

    let folder = Folder::single(&config, &tensors(&config));
    let checkpoint = folder.open().unwrap();
    let error = checkpoint.tokenizer_json().unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert_eq!(checkpoint.chat_template().unwrap(), None);
    assert!(checkpoint.tokenizer_config().unwrap().is_empty());
}

#[test]
fn an_index_cannot_reach_outside_the_folder() {
    let config = hybrid_config();
    for file in ["../model.safetensors", "/etc/passwd", "", ".."] {
        let folder = Folder::new(&config);
        let index = json!({ "weight_map": { "model.norm.weight": file } });
        folder.write("model.safetensors.index.json", index.to_string().as_bytes());
        folder.refused(&["model.norm.weight", "a file name is needed"]);
    }
}

#[test]
fn the_fingerprint_follows_the_weights() {
    let config = hybrid_config();
    let mut all = tensors(&config);
    let before = Folder::single(&config, &all).open().unwrap().fingerprint().unwrap();
    assert_eq!(before.len(), 16);
    let norm = all.get_mut("model.norm.weight").unwrap();
    norm.bytes[0] ^= 1;
    let after = Folder::single(&config, &all).open().unwrap().fingerprint().unwrap();
    assert_ne!(before, after);
}

#[test]
fn the_chat_template_has_a_file_of_its_own_or_stands_in_the_tokenizer_config() {
    let config = hybrid_config();
    let folder = Folder::single(&config, &tensors(&config));
    let template = || folder.open().unwrap().chat_template().unwrap();
    folder.write("tokenizer_config.json", br#"{"chat_template": "inline"}"#);
    assert_eq!(template().as_deref(), Some("inline"));
    let named = br#"{"chat_template": [{"name": "tool_use", "template": "t"},
                                       {"name": "default", "template": "d"}]}"#;
    folder.write("tokenizer_config.json", named);
    assert_eq!(template().as_deref(), Some("d"));
    folder.write("chat_template.jinja", b"file");
    assert_eq!(template().as_deref(), Some("file"));
}
