//! Damaged GGUF files end in an error that names the file and the place; never in a panic.

use checkpoint::{Checkpoint, names};
use proptest::prelude::*;
use proptest::sample::Index;
use testkit::gguf::GgufFile;

use crate::gguf::{OnDisk, hybrid};

/// Opens a file and, when that works, reads everything in it.
fn exercise(file: &OnDisk) {
    let Ok(checkpoint) = Checkpoint::open(&file.path().join("m.gguf")) else { return };
    for spec in names::target(checkpoint.config()) {
        let tensor = checkpoint.tensor(&spec.name, &spec.shape).unwrap();
        assert_eq!(tensor.to_f32().len(), spec.shape.iter().product::<usize>());
    }
    checkpoint.fingerprint().unwrap();
    let _ = checkpoint.tokenizer_json();
    let _ = checkpoint.tokenizer_config();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbled_headers_do_not_panic(
        flips in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        words in prop::collection::vec((any::<Index>(), any::<u64>()), 0..2),
        cut in prop::option::of(any::<Index>()),
    ) {
        let file = hybrid();
        let (header, mut bytes) = (file.header().len(), file.bytes());
        for (at, byte) in flips {
            bytes[at.index(header)] = byte;
        }
        for (at, word) in words {
            let at = at.index(header - 8);
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(cut) = cut {
            let len = cut.index(bytes.len());
            bytes.truncate(len);
        }
        exercise(&OnDisk::raw(&bytes));
    }

    #[test]
    fn garbage_after_the_version_does_not_panic(
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        exercise(&OnDisk::raw(&[b"GGUF\x03\0\0\0", &rest[..]].concat()));
    }

    #[test]
    fn odd_metadata_does_not_panic(
        key in any::<Index>(),
        kind in 0u32..14,
        value in prop::collection::vec(any::<u8>(), 0..24),
    ) {
        const KEYS: [&str; 12] = [
            "general.architecture", "general.alignment", "qwen35.block_count",
            "qwen35.nextn_predict_layers", "qwen35.embedding_length", "qwen35.ssm.time_step_rank",
            "qwen35.attention.head_count", "qwen35.rope.dimension_count",
            "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
            "tokenizer.ggml.eos_token_id",
        ];
        let mut file = GgufFile::default();
        // The first of two entries under one key would be refused, so the odd one stands alone.
        let odd = KEYS[key.index(KEYS.len())];
        file.raw(odd, kind, &value);
        for (key, n) in [("qwen35.block_count", 1), ("qwen35.embedding_length", 8)] {
            if key != odd {
                file.number(key, n);
            }
        }
        if odd != "general.architecture" {
            file.text("general.architecture", "qwen35");
        }
        exercise(&OnDisk::new(&file));
    }
}

#[test]
fn files_of_another_kind_are_told_apart() {
    for (bytes, part) in [
        (&b""[..], "0 bytes are too few"),
        (b"GGUF\x03\0", "too few"),
        (b"PK\x03\x04 an archive of some kind", "does not begin with \"GGUF\""),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0", "big-endian"),
        (b"GGUF\x01\0\0\0\0\0\0\0\0\0\0\0", "version 1; version 3"),
        (b"GGUF\x02\0\0\0\0\0\0\0\0\0\0\0", "version 2; version 3"),
        (b"GGUF\x04\0\0\0\0\0\0\0\0\0\0\0", "version 4; version 3"),
        (b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0", "number of tensors"),
    ] {
        let bytes = if part.contains("number") { &bytes[..12] } else { bytes };
        OnDisk::raw(bytes).refused(&["m.gguf", part]);
    }
}

#[test]
fn lengths_beyond_the_file_are_refused_before_anything_is_allocated() {
    let huge = u64::MAX.to_le_bytes();
    let head = |n_tensors: u64, n_pairs: u64| {
        [b"GGUF\x03\0\0\0", &n_tensors.to_le_bytes()[..], &n_pairs.to_le_bytes()].concat()
    };
    let raw = |parts: &[&[u8]]| OnDisk::raw(&parts.concat());
    raw(&[&head(0, u64::MAX)]).refused(&["metadata", "room for 0"]);
    raw(&[&head(u64::MAX, 0), &[0; 64]]).refused(&["18446744073709551615 tensors", "room for 2"]);
    raw(&[&head(0, 1), &huge, &[0; 64]]).refused(&["metadata entry 0", "bytes more"]);
    let mut file = GgufFile::default();
    // A list of numbers, a list of texts, a text: each longer than the file.
    for (kind, value) in [
        (9, [&4u32.to_le_bytes()[..], &huge].concat()),
        (9, [&8u32.to_le_bytes()[..], &huge].concat()),
        (8, huge.to_vec()),
    ] {
        file = GgufFile::default();
        file.raw("a.key", kind, &value);
        OnDisk::new(&file).refused(&["`a.key`", "incomplete"]);
    }
    file.raw("x", 99, &[]);
    let mut deep = GgufFile::default();
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(40);
    deep.raw("deep", 9, &nested);
    OnDisk::new(&deep).refused(&["`deep`", "deep"]);
}

#[test]
fn malformed_metadata_is_named() {
    let with = |change: &dyn Fn(&mut GgufFile)| {
        let mut file = hybrid();
        change(&mut file);
        OnDisk::new(&file)
    };
    with(&|f| {
        f.number("general.alignment", 24);
    })
    .refused(&["general.alignment", "power of two"]);
    with(&|f| {
        f.text("general.architecture", "qwen35");
    })
    .refused(&["general.architecture", "twice"]);
    with(&|f| {
        f.raw("general.name", 7, &[2]);
    })
    .refused(&["general.name", "truth value"]);
    with(&|f| {
        f.raw("general.name", 13, &[0; 8]);
    })
    .refused(&["general.name", "unknown kind 13"]);
    with(&|f| {
        f.raw("general.name", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]);
    })
    .refused(&["general.name", "UTF-8"]);
    with(&|f| {
        f.number(&"k".repeat(70_000), 1);
    })
    .refused(&["metadata entry", "70000 bytes"]);
}

#[test]
fn malformed_tensors_are_named() {
    let with = |change: &dyn Fn(&mut GgufFile)| {
        let mut file = hybrid();
        change(&mut file);
        OnDisk::new(&file)
    };
    let name = "blk.0.ffn_up.weight";
    let of = |f: &mut GgufFile| f.tensors.iter().position(|t| t.name == name).unwrap();
    for (type_id, said) in [(20, "IQ4_NL"), (10, "Q2_K"), (99, "unknown (number 99)")] {
        with(&|f| {
            let i = of(f);
            f.tensors[i].type_id = type_id;
        })
        .refused(&["m.gguf", name, said, "Q4_K and Q6_K are supported"].map(|part| {
            if part.starts_with("Q4_K") { "Q5_K and Q6_K are supported" } else { part }
        }));
    }
    with(&|f| {
        let i = of(f);
        f.tensors[i].type_id = 8;
    })
    .refused(&[name, "Q8_0", "blocks of 32"]);
    with(&|f| {
        let i = of(f);
        f.tensors[i].shape = vec![64, 8];
    })
    .refused(&["begins at", "blk.0.ffn_up.weight ends"]);
    with(&|f| {
        let i = of(f);
        f.tensors[i].shape = vec![1; 5];
    })
    .refused(&[name, "5 axes"]);
    with(&|f| {
        let i = of(f);
        f.tensors[i].shape = vec![usize::MAX, 8];
    })
    .refused(&[name, "too large"]);
    with(&|f| f.tensors.push(f.tensors[0].clone())).refused(&["token_embd.weight", "twice"]);
    let mut cut = hybrid().bytes();
    cut.truncate(cut.len() - 100);
    OnDisk::raw(&cut).refused(&["m.gguf is cut short", "incomplete"]);
}
