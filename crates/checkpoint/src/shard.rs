//! A weight file and what its header says of each tensor.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::restore::{Stored, Values};
use crate::tensor::Bytes;
use crate::{CheckpointError, DType, Tensor};

/// A weight file: a file on disk, or bytes inside the program.
#[derive(Debug)]
pub(crate) struct Shard {
    /// File name, as errors show it.
    pub(crate) name: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(File),
    Static(&'static [u8]),
}

/// A tensor's entry in a header. `range` counts from the start of the file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The type, or its name when it is none that weights may have; most are never read.
    pub(crate) dtype: Result<DType, String>,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<u64>,
    /// How the file holds it.
    pub(crate) stored: Stored,
}

impl Entry {
    /// The element type that the tensor has once it is read.
    pub(crate) fn read_dtype(&self) -> Option<DType> {
        self.dtype.as_ref().ok().map(|dtype| self.stored.read_dtype(*dtype))
    }

    pub(crate) fn type_name(&self) -> &str {
        match &self.dtype {
            Ok(dtype) => dtype.name(),
            Err(name) => name,
        }
    }

    /// Bytes in the files, scales included.
    pub(crate) fn stored_bytes(&self) -> u64 {
        match &self.stored.values {
            Values::Scaled(scales) => self.n_bytes() + scales.entry.n_bytes(),
            _ => self.n_bytes(),
        }
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Shard {
    pub(crate) fn open(path: &Path, name: &str) -> Result<Self, CheckpointError> {
        let file = File::open(path).map_err(|e| CheckpointError::io("open", path, e))?;
        Ok(Self { name: name.to_string(), source: Source::File(file) })
    }

    pub(crate) fn embedded(name: &str, bytes: &'static [u8]) -> Self {
        Self { name: name.to_string(), source: Source::Static(bytes) }
    }

    pub(crate) fn len(&self) -> Result<u64, CheckpointError> {
        match &self.source {
            Source::File(file) => Ok(file.metadata().map_err(|e| self.io("examine", e))?.len()),
            Source::Static(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn io(&self, action: &'static str, error: std::io::Error) -> CheckpointError {
        CheckpointError::io(action, Path::new(&self.name), error)
    }

    pub(crate) fn bad(&self, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::header(&self.name, problem)
    }

    pub(crate) fn truncated(&self, entry: &Entry, has: u64) -> CheckpointError {
        CheckpointError::Truncated {
            file: self.name.clone(),
            tensor: entry.name.clone(),
            needs: entry.range.end,
            has,
        }
    }

    /// Copies a small part of the file.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<u8>, CheckpointError> {
        match &self.source {
            Source::Static(bytes) => Ok(bytes[range.start as usize..range.end as usize].to_vec()),
            Source::File(file) => {
                let mut buffer = vec![0; (range.end - range.start) as usize];
                file.read_exact_at(&mut buffer, range.start).map_err(|e| self.io("read", e))?;
                Ok(buffer)
            }
        }
    }

    /// Maps a part of the file that lies within it.
    pub(crate) fn bytes(&self, range: &Range<u64>) -> Result<Bytes<'_>, CheckpointError> {
        Ok(match &self.source {
            Source::Static(bytes) => {
                Bytes::Borrowed(&bytes[range.start as usize..range.end as usize])
            }
            Source::File(_) if range.is_empty() => Bytes::Borrowed(&[]),
            Source::File(file) => Bytes::Mapped(map(file, range).map_err(|e| self.io("map", e))?),
        })
    }

    /// Maps one tensor, as it is stored.
    pub(crate) fn tensor(&self, entry: &Entry) -> Result<Tensor<'_>, CheckpointError> {
        let dtype = match &entry.dtype {
            Ok(dtype) => *dtype,
            Err(_) => return Err(self.unreadable(entry)),
        };
        // The file was whole when it was opened; a page beyond its end would be a SIGBUS.
        let has = self.len()?;
        if has < entry.range.end {
            return Err(self.truncated(entry, has));
        }
        let bytes = self.bytes(&entry.range)?;
        Ok(Tensor { dtype, shape: entry.shape.clone(), bytes, stored_bytes: entry.n_bytes() })
    }

    /// The refusal of a type that is not supported.
    pub(crate) fn unreadable(&self, entry: &Entry) -> CheckpointError {
        CheckpointError::tensor(
            &entry.name,
            &self.name,
            format!(
                "its type is {}; BF16, F16, F32 and F8_E4M3 with scales are supported",
                entry.type_name()
            ),
        )
    }
}

/// Maps a whole file.
pub(crate) fn map_file(path: &Path) -> Result<Bytes<'static>, CheckpointError> {
    let file = File::open(path).map_err(|e| CheckpointError::io("open", path, e))?;
    let n_bytes = file.metadata().map_err(|e| CheckpointError::io("examine", path, e))?.len();
    match n_bytes {
        0 => Ok(Bytes::Borrowed(&[])),
        _ => {
            let map = map(&file, &(0..n_bytes));
            Ok(Bytes::Mapped(map.map_err(|e| CheckpointError::io("map", path, e))?))
        }
    }
}

#[allow(unsafe_code)]
fn map(file: &File, range: &Range<u64>) -> std::io::Result<memmap2::Mmap> {
    let mut options = memmap2::MmapOptions::new();
    options.offset(range.start).len((range.end - range.start) as usize);
    // SAFETY: the mapping is private and read-only and lies within the file, which was checked just
    // before. Whoever rewrites a weight file while it is being loaded gets wrong weights and
    // whoever truncates it a SIGBUS, with every program that maps files.
    unsafe { options.map(file) }
}
