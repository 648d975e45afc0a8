//! Damaged cases: whatever is cut, mixed or missing, a diagnosis ends with a report and never with a panic.

use std::fs;
use std::path::{Path, PathBuf};

use diagnose::{collect, render, report};
use proptest::prelude::*;

use crate::scenario::Folder;

/// Every file of every case, its path and its bytes.
fn files() -> Vec<(String, Vec<u8>)> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() { walk(&path, out) } else { out.push(path) }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/diagnose");
    let mut paths = Vec::new();
    walk(&root, &mut paths);
    paths.sort();
    paths
        .into_iter()
        .filter_map(|path| {
            let inside = path.strip_prefix(&root).ok()?.to_str()?.split_once('/')?.1.to_owned();
            Some((inside, fs::read(&path).ok()?))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_folders_are_judged(
        picks in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let all = files();
        let folder = Folder::new();
        for (file, from, to, byte) in picks {
            let (path, bytes) = &all[file.index(all.len())];
            let (a, b) = (from.index(bytes.len().max(1)), to.index(bytes.len().max(1)));
            let mut damaged = bytes.clone();
            damaged.truncate(b.max(1));
            if let Some(slot) = damaged.get_mut(a) {
                *slot = byte;
            }
            folder.write_bytes(path, &damaged);
        }
        let evidence = collect::from_folder(folder.path()).expect("collected");
        let built = report::build(&evidence);
        let outputs = [render::text(&built), render::markdown(&built), render::html(&built), render::json(&built).to_string()];
        for output in &outputs {
            let is_plain = !output.is_empty() && !output.chars().any(|c| c.is_control() && c != '\n');
            prop_assert!(is_plain, "an output holds control characters");
        }
        prop_assert!(matches!(built.exit_code, 0 | 10 | 11 | 12));
    }
}
