//! Which file a path means, and models in several files.

use checkpoint::{Checkpoint, names};
use testkit::gguf::GgufFile;

use crate::gguf::{OnDisk, folder, hybrid, refusal};
use crate::made_up::hybrid_config;

fn sharded(n: usize) -> OnDisk {
    let folder = OnDisk::raw(b"");
    std::fs::remove_file(folder.path().join("m.gguf")).unwrap();
    for (i, shard) in hybrid().shards(n).iter().enumerate() {
        folder.write(&format!("m-{:05}-of-{n:05}.gguf", i + 1), shard);
    }
    folder
}

#[test]
fn a_folder_with_one_model_is_that_model() {
    let folder = OnDisk::new(&hybrid());
    folder.write("mmproj-m.gguf", b"a vision tower");
    Checkpoint::open(folder.path()).unwrap();
    folder.write("n.gguf", b"another");
    refusal(folder.path(), &["2 models", "m.gguf", "n.gguf"]);
    Checkpoint::open(&sharded(3).path().join("")).unwrap();
}

/// Where both forms lie side by side, the folder's `config.json` decides.
#[test]
fn a_hugging_face_folder_stays_one() {
    let folder = folder(&hybrid_config());
    folder.write("m.gguf", b"not looked at");
    folder.open().unwrap();
}

#[test]
fn other_files_are_no_checkpoints() {
    let folder = OnDisk::raw(b"");
    folder.write("weights.bin", b"x");
    refusal(&folder.path().join("weights.bin"), &["weights.bin", "folder or a .gguf file"]);
}

#[test]
fn shards_are_one_model_whichever_is_named() {
    let whole = OnDisk::new(&hybrid()).open();
    let folder = sharded(3);
    for i in 1..=3 {
        let path = folder.path().join(format!("m-{i:05}-of-00003.gguf"));
        let shards = Checkpoint::open(&path).unwrap();
        assert_eq!(shards.fingerprint().unwrap(), whole.fingerprint().unwrap());
        for spec in names::target(whole.config()) {
            let read = |c: &Checkpoint| c.tensor(&spec.name, &spec.shape).unwrap().to_f32();
            assert!(read(&shards) == read(&whole), "{}", spec.name);
        }
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = sharded(3);
    std::fs::remove_file(folder.path().join("m-00002-of-00003.gguf")).unwrap();
    let first = folder.path().join("m-00001-of-00003.gguf");
    refusal(&first, &["m-00002-of-00003.gguf", "1 of 3", "incomplete"]);
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let folder = sharded(3);
    let path = |i: usize| folder.path().join(format!("m-{i:05}-of-00003.gguf"));
    std::fs::copy(path(2), path(3)).unwrap();
    refusal(&path(1), &["m-00003-of-00003.gguf", "split.no", "1"]);
    // A shard of a model in two files under the name of one of three.
    folder.write("m-00003-of-00003.gguf", &hybrid().shards(2)[1]);
    refusal(&path(1), &["m-00003-of-00003.gguf", "split.count", "2"]);
    // A shard under another name.
    std::fs::copy(path(1), folder.path().join("m.gguf")).unwrap();
    folder.refused(&["m.gguf", "split.count", "-00001-of-00003.gguf"]);
    let folder = sharded(2);
    let mut short = GgufFile::default();
    short.raw("split.no", 2, &[1, 0]).raw("split.count", 2, &[2, 0]);
    folder.write("m-00002-of-00002.gguf", &short.bytes());
    refusal(&folder.path().join("m-00001-of-00002.gguf"), &["split.tensors.count", "hold"]);
}
