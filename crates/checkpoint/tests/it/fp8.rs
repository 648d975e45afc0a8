//! FP8 checkpoints with a scale per block.

use checkpoint::DType;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::made_up::{Folder, Stored, Tensors, hybrid_config, tensors};

const NAME: &str = "model.layers.0.mlp.down_proj.weight";

fn config(block: [usize; 2]) -> Value {
    let mut config = hybrid_config();
    config["quantization_config"] = json!({
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": block, "modules_to_not_convert": ["lm_head", "model.embed_tokens"],
    });
    config
}

fn fp8(shape: [usize; 2], byte: u8) -> Stored {
    Stored { dtype: "F8_E4M3", shape: shape.to_vec(), bytes: vec![byte; shape[0] * shape[1]] }
}

fn scales(shape: [usize; 2], values: &[f32]) -> Stored {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Stored { dtype: "F32", shape: shape.to_vec(), bytes }
}

/// The tiny hybrid with one matrix `[8, 12]` in FP8, all ones, blocks of 5 rows and 8 columns.
fn model() -> Tensors {
    let mut all = tensors(&hybrid_config());
    all.insert(NAME.into(), fp8([8, 12], 0x38));
    all.insert(format!("{NAME}_scale_inv"), scales([2, 2], &[1.0, 2.0, 3.0, 4.0]));
    all
}

#[test]
fn blocks_at_the_edges_are_cut() {
    let folder = Folder::single(&config([5, 8]), &model());
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.dtype(NAME), Some(DType::F32));
    let tensor = checkpoint.tensor(NAME, &[8, 12]).unwrap();
    assert_eq!((tensor.dtype(), tensor.stored_bytes()), (DType::F32, 96));
    for (i, x) in tensor.to_f32().iter().enumerate() {
        let (row, column) = (i / 12, i % 12);
        assert_eq!(*x, (1 + row / 5 * 2 + column / 8) as f32, "[{row}, {column}]");
    }
    // Scales count as weights that are read, not as tensors that nobody needs.
    assert_eq!(checkpoint.skipped().n_tensors, 0);
    let plain = Folder::single(&hybrid_config(), &tensors(&hybrid_config())).open().unwrap();
    assert_eq!(checkpoint.weight_bytes(), plain.weight_bytes() - 96 + 16);
}

#[test]
fn matrices_have_the_values_that_torch_computes() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/gguf/fp8.safetensors");
    let file = std::fs::read(file).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    for name in ["edges", "bf16_scales"] {
        let stored = |part: &str, dtype| {
            let view = file.tensor(&format!("{name}.{part}")).unwrap();
            Stored { dtype, shape: view.shape().to_vec(), bytes: view.data().to_vec() }
        };
        let weight = stored("weight", "F8_E4M3");
        let [n, k] = weight.shape[..] else { panic!("a matrix") };
        let mut config = config([128, 128]);
        (config["hidden_size"], config["intermediate_size"]) = (json!(n), json!(k));
        let mut all = tensors(&config);
        all.insert(NAME.into(), weight);
        let scale_type = if name == "edges" { "F32" } else { "BF16" };
        all.insert(format!("{NAME}_scale_inv"), stored("scale_inv", scale_type));
        let folder = Folder::single(&config, &all);
        let ours = folder.open().unwrap().tensor(NAME, &[n, k]).unwrap().to_f32();
        let theirs = file.tensor(&format!("{name}.values")).unwrap();
        let theirs =
            theirs.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        assert!(ours.into_iter().eq(theirs), "{name}");
    }
}

#[test]
fn scales_that_are_not_what_they_should_be_are_named() {
    let scale = format!("{NAME}_scale_inv");
    let mut all = model();
    all.remove(&scale);
    Folder::single(&config([5, 8]), &all).refused(&[NAME, &scale, "missing"]);
    Folder::single(&config([4, 4]), &model()).refused(&[&scale, "[2, 2]", "[2, 3]"]);
    let without = hybrid_config();
    Folder::single(&without, &model()).refused(&[NAME, "F8_E4M3", "quantization_config"]);
    // A matrix that the configuration says was left alone.
    let mut config = config([5, 8]);
    config["quantization_config"]["modules_to_not_convert"] = json!(["model.layers.0.mlp"]);
    Folder::single(&config, &model()).refused(&[NAME, "modules_to_not_convert"]);
    config["quantization_config"]["modules_to_not_convert"] =
        json!(["model.layers.0.ml", "lm_head"]);
    Folder::single(&config, &model()).open().unwrap();
    // Scales of a matrix that is not in FP8.
    let mut all = model();
    all.insert(NAME.into(), Stored::filled(NAME, &[8, 12]));
    Folder::single(&config, &all).refused(&[&scale, "no such tensor"]);
}

#[test]
fn other_methods_are_refused_by_name() {
    let refused = |quantization: Value, parts: &[&str]| {
        let mut config = hybrid_config();
        config["quantization_config"] = quantization;
        Folder::single(&config, &tensors(&hybrid_config())).refused(parts);
    };
    for method in ["awq", "gptq", "compressed-tensors", "bitsandbytes", "modelopt"] {
        refused(json!({ "quant_method": method }), &["quantization_config.quant_method", method]);
    }
    refused(json!({}), &["quantization_config.quant_method", "missing"]);
    refused(json!({ "quant_method": "fp8" }), &["weight_block_size", "[128, 128]"]);
    refused(
        json!({ "quant_method": "fp8", "weight_block_size": [128, 0] }),
        &["weight_block_size", "[128,0]"],
    );
    refused(
        json!({ "quant_method": "fp8", "activation_scheme": "static" }),
        &["activation_scheme", "static"],
    );
    refused(json!({ "quant_method": "fp8", "fmt": "e5m2" }), &["fmt", "e5m2", "e4m3"]);
    refused(json!("fp8"), &["quantization_config", "an object"]);
    refused(
        json!({ "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": 1 }),
        &["modules_to_not_convert"],
    );
}
