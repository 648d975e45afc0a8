//! Files of JSON lines that several processes may append to.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// Appends `line`, its end included, to a file that was opened to read and append.
///
/// One write, so that processes that share the file cannot mix their lines. Where the last line
/// has no end, as a full disk leaves it, it stays the only one that cannot be read.
///
/// # Errors
/// When the file cannot be read or written.
pub fn append(file: &mut File, line: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(line.len() + 1);
    if is_cut(file)? {
        bytes.push(b'\n');
    }
    bytes.extend_from_slice(line);
    file.write_all(&bytes)
}

/// Whether the last line has no end.
fn is_cut(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
