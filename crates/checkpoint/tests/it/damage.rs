//! Damaged files end in an error or in a checkpoint that can be read; never in a panic.

use checkpoint::{Checkpoint, ModelConfig, names};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};

use crate::made_up::{Folder, Tensors, composite, hybrid_config, safetensors, tensors};

/// Opens a folder and, when that works, reads everything in it.
fn exercise(folder: &Folder) {
    let Ok(checkpoint) = Checkpoint::open(folder.path()) else { return };
    let config = checkpoint.config().clone();
    for spec in names::target(&config) {
        let tensor = checkpoint.tensor(&spec.name, &spec.shape).unwrap();
        assert_eq!(tensor.to_f32().len(), spec.shape.iter().product::<usize>());
    }
    checkpoint.fingerprint().unwrap();
}

/// A value that some entry could hold by mistake.
fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!([])),
        Just(json!({})),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..70).prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        "[a-z_]{0,12}".prop_map(Value::from),
        prop::collection::vec("[a-z_]{0,12}", 0..6).prop_map(|v| json!(v)),
    ]
}

/// Every entry of an object, also of nested ones, as a path.
fn paths(object: &Map<String, Value>, prefix: &str) -> Vec<String> {
    object
        .iter()
        .flat_map(|(key, value)| {
            let path = format!("{prefix}/{key}");
            let inner = value.as_object().map_or(Vec::new(), |o| paths(o, &path));
            std::iter::once(path).chain(inner)
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn odd_configurations_do_not_panic(
        nested in any::<bool>(),
        changes in prop::collection::vec((any::<Index>(), odd_value()), 1..4),
    ) {
        let mut config = hybrid_config();
        if nested {
            config = composite(config);
        }
        for (at, value) in changes {
            let paths = paths(config.as_object().unwrap(), "");
            if let Some(entry) = config.pointer_mut(at.get::<String>(&paths)) {
                *entry = value;
            }
        }
        if let Ok(config) = ModelConfig::parse("config.json", config.to_string().as_bytes()) {
            let specs = names::target(&config);
            prop_assert!(specs.iter().all(|spec| spec.shape.iter().all(|n| *n > 0)));
        }
    }

    #[test]
    fn garbled_json_does_not_panic(
        at in any::<Index>(), byte in any::<u8>(), cut in any::<Index>(),
    ) {
        let mut bytes = hybrid_config().to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = ModelConfig::parse("config.json", &bytes);
        let _ = ModelConfig::parse("config.json", &bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn garbled_weight_files_do_not_panic(
        flips in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<Index>()),
    ) {
        let config = hybrid_config();
        let mut bytes = safetensors(&tensors(&config));
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (at, byte) in flips {
            // Most of the file is data, where any byte is as good as any other.
            let at = at.index(header);
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            let len = cut.index(bytes.len());
            bytes.truncate(len);
        }
        let folder = Folder::new(&config);
        folder.write("model.safetensors", &bytes);
        exercise(&folder);
    }

    #[test]
    fn headers_that_lie_do_not_panic(
        target in any::<Index>(),
        begin in prop_oneof![0u64..5000, any::<u64>()],
        end in prop_oneof![0u64..5000, any::<u64>()],
        shape in prop::collection::vec(prop_oneof![0u64..9, any::<u64>()], 0..4),
        dtype in prop::sample::select(vec!["BF16", "F32", "F8_E4M3", "Q"]),
        header_length in prop::option::of(any::<u64>()),
    ) {
        let config = hybrid_config();
        let (mut header, data) = split(&tensors(&config));
        let name = target.get(&header.keys().cloned().collect::<Vec<_>>()).clone();
        header[&name] = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, end] });
        let text = Value::Object(header).to_string();
        let mut bytes = header_length.unwrap_or(text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&data);
        let folder = Folder::new(&config);
        folder.write("model.safetensors", &bytes);
        exercise(&folder);
    }
}

/// Header object and data of a safetensors file.
fn split(tensors: &Tensors) -> (Map<String, Value>, Vec<u8>) {
    let bytes = safetensors(tensors);
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + n]).unwrap(), bytes[8 + n..].to_vec())
}

/// Writes a file with the given header entries behind the data of a good one.
fn with_header(change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) -> Folder {
    let config = hybrid_config();
    let (mut header, mut data) = split(&tensors(&config));
    change(&mut header, &mut data);
    let text = Value::Object(header).to_string();
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(&data);
    let folder = Folder::new(&config);
    folder.write("model.safetensors", &bytes);
    folder
}

#[test]
fn overlaps_gaps_and_leftovers_are_named() {
    let norm = "model.norm.weight";
    with_header(|header, _| header[norm]["data_offsets"] = json!([0, 16]))
        .refused(&["model.safetensors", "starts at byte"]);
    with_header(|header, _| header[norm]["shape"] = json!([9])).refused(&[
        norm,
        "takes 18 bytes",
        "gives it 16",
    ]);
    with_header(|_, data| data.extend([0; 3])).refused(&["3 bytes follow"]);
    with_header(|header, _| header[norm]["data_offsets"] = json!([16, 0])).refused(&[norm]);
    with_header(|header, _| header[norm] = json!("x")).refused(&[norm, "not valid"]);
    with_header(|header, _| {
        header.insert("__metadata__".into(), json!({ "format": "pt" }));
    })
    .open()
    .unwrap();
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let config = hybrid_config();
    let (header, data) = split(&tensors(&config));
    let mut text = Value::Object(header).to_string();
    let entry = r#""model.norm.weight":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]},"#;
    text.insert_str(1, entry);
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(&data);
    let folder = Folder::new(&config);
    folder.write("model.safetensors", &bytes);
    folder.refused(&["model.norm.weight", "twice"]);
}

#[test]
fn files_that_are_no_weights_are_refused() {
    let folder = Folder::new(&hybrid_config());
    for (bytes, part) in [
        (&b""[..], "too few"),
        (b"<html>Access denied</html>", "not a safetensors file"),
        (b"\x00\x10\x00\x00\x00\x00\x00\x00{}", "may be incomplete"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00[]", "header is not valid"),
    ] {
        folder.write("model.safetensors", bytes);
        folder.refused(&["model.safetensors", part]);
    }
    // A pointer file of Git LFS that was never replaced by its content.
    folder.write("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0");
    folder.refused(&["model.safetensors", "Git LFS"]);
}
