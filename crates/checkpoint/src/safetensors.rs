//! One safetensors file: its header, checked, and its tensors, mapped one at a time.
//!
//! The header is read here and not by the format's own crate so that every error names the tensor.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use half::{bf16, f16};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::CheckpointError;

/// Element type of a stored weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// The upper half of a single.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    fn parse(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "BF16" => Some(Self::Bf16),
            "F16" => Some(Self::F16),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
        })
    }
}

/// A weight as it lies in its file: little-endian, row-major, at any alignment.
///
/// The bytes are mapped and unmapped with the value, so a loader that packs one tensor after
/// another never holds the file beside the packed copy.
#[derive(Debug)]
pub struct Tensor<'a> {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes<'a>,
}

impl Tensor<'_> {
    /// Element type as stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent of every axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The stored bytes, `product(shape) * dtype.size()` of them.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Borrowed(bytes) => bytes,
        }
    }

    /// All elements as f32, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        let pair = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        match self.dtype {
            DType::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            DType::Bf16 => {
                bytes.chunks_exact(2).map(|b| bf16::from_bits(pair(b)).to_f32()).collect()
            }
            DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_bits(pair(b)).to_f32()).collect(),
        }
    }
}

#[derive(Debug)]
enum Bytes<'a> {
    Mapped(memmap2::Mmap),
    Borrowed(&'a [u8]),
}

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
    /// As in the file; most types are never read.
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) range: Range<u64>,
}

impl Entry {
    /// The element type, if it is one that weights may have.
    pub(crate) fn weight_dtype(&self) -> Option<DType> {
        DType::parse(&self.dtype)
    }

    pub(crate) fn n_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The format's own limit on a header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

impl Shard {
    pub(crate) fn open(path: &Path, name: &str) -> Result<Self, CheckpointError> {
        let file = File::open(path).map_err(|e| CheckpointError::io("open", path, e))?;
        Ok(Self { name: name.to_string(), source: Source::File(file) })
    }

    pub(crate) fn embedded(name: &str, bytes: &'static [u8]) -> Self {
        Self { name: name.to_string(), source: Source::Static(bytes) }
    }

    fn len(&self) -> Result<u64, CheckpointError> {
        match &self.source {
            Source::File(file) => Ok(file.metadata().map_err(|e| self.io("examine", e))?.len()),
            Source::Static(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn io(&self, action: &'static str, error: std::io::Error) -> CheckpointError {
        CheckpointError::io(action, Path::new(&self.name), error)
    }

    fn bad(&self, problem: impl Into<String>) -> CheckpointError {
        CheckpointError::header(&self.name, problem)
    }

    fn truncated(&self, entry: &Entry, has: u64) -> CheckpointError {
        CheckpointError::Truncated {
            file: self.name.clone(),
            tensor: entry.name.clone(),
            needs: entry.range.end,
            has,
        }
    }

    /// Reads and checks the header: every entry is well formed, has as many bytes as its shape
    /// says, overlaps no other and ends within the file.
    pub(crate) fn entries(&self) -> Result<Vec<Entry>, CheckpointError> {
        let file_bytes = self.len()?;
        if file_bytes < 8 {
            return Err(self.bad(format!(
                "{file_bytes} bytes are too few for a safetensors file; \
                 the download may be incomplete"
            )));
        }
        let mut length = [0; 8];
        length.copy_from_slice(&self.read(0..8)?);
        if &length == b"version " {
            return Err(self.bad("a Git LFS pointer, not the weights; run `git lfs pull`"));
        }
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES {
            return Err(self.bad(format!(
                "not a safetensors file: the header would have {header_bytes} bytes"
            )));
        }
        if 8 + header_bytes > file_bytes {
            return Err(self.bad(format!(
                "the header has {header_bytes} bytes but the file only {file_bytes}; \
                 the download may be incomplete"
            )));
        }
        let data_start = 8 + header_bytes;
        let header: Header = serde_json::from_slice(&self.read(8..data_start)?)
            .map_err(|e| self.bad(format!("the header is not valid: {e}")))?;
        let mut entries = header
            .0
            .into_iter()
            .filter(|(name, _)| name != "__metadata__")
            .map(|(name, value)| self.entry(name, value, data_start))
            .collect::<Result<Vec<_>, _>>()?;
        self.check_layout(&mut entries, data_start, file_bytes)?;
        Ok(entries)
    }

    fn entry(&self, name: String, value: Value, start: u64) -> Result<Entry, CheckpointError> {
        let bad = |problem: String| CheckpointError::tensor(&name, &self.name, problem);
        let raw: RawEntry = serde_json::from_value(value)
            .map_err(|e| bad(format!("its header entry is not valid: {e}")))?;
        let [begin, end] = raw.data_offsets;
        if begin > end || end > u64::MAX - start {
            return Err(bad(format!("its bytes run from {begin} to {end}")));
        }
        if let Some(dtype) = DType::parse(&raw.dtype) {
            let needs = raw
                .shape
                .iter()
                .try_fold(dtype.size() as u64, |n, d| n.checked_mul(*d as u64))
                .ok_or_else(|| bad(format!("the shape {:?} overflows", raw.shape)))?;
            if needs != end - begin {
                return Err(bad(format!(
                    "{dtype} {:?} takes {needs} bytes but the header gives it {}",
                    raw.shape,
                    end - begin
                )));
            }
        }
        Ok(Entry { name, dtype: raw.dtype, shape: raw.shape, range: start + begin..start + end })
    }

    /// Tensors lie one after another without gaps and fill the file.
    fn check_layout(
        &self,
        entries: &mut [Entry],
        data_start: u64,
        file_bytes: u64,
    ) -> Result<(), CheckpointError> {
        entries.sort_by(|a, b| {
            (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name))
        });
        let mut at = data_start;
        let mut before = "the header";
        for entry in entries.iter() {
            if entry.range.start != at {
                return Err(CheckpointError::tensor(
                    &entry.name,
                    &self.name,
                    format!(
                        "it starts at byte {}, not where {before} ends, at {at}",
                        entry.range.start
                    ),
                ));
            }
            at = entry.range.end;
            before = &entry.name;
        }
        if let Some(cut) = entries.iter().find(|entry| entry.range.end > file_bytes) {
            return Err(self.truncated(cut, file_bytes));
        }
        match file_bytes - at {
            0 => Ok(()),
            extra => Err(self.bad(format!("{extra} bytes follow the last tensor, `{before}`"))),
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

    /// Maps one tensor.
    pub(crate) fn tensor(&self, entry: &Entry) -> Result<Tensor<'_>, CheckpointError> {
        let Some(dtype) = entry.weight_dtype() else {
            return Err(CheckpointError::tensor(
                &entry.name,
                &self.name,
                format!("its type is {}; BF16, F16 and F32 are supported", entry.dtype),
            ));
        };
        let bytes = match &self.source {
            Source::Static(bytes) => {
                Bytes::Borrowed(&bytes[entry.range.start as usize..entry.range.end as usize])
            }
            Source::File(_) if entry.n_bytes() == 0 => Bytes::Borrowed(&[]),
            Source::File(file) => {
                // The file was whole when it was opened; a page beyond its end would be a SIGBUS.
                let has = self.len()?;
                if has < entry.range.end {
                    return Err(self.truncated(entry, has));
                }
                Bytes::Mapped(map(file, &entry.range).map_err(|e| self.io("map", e))?)
            }
        };
        Ok(Tensor { dtype, shape: entry.shape.clone(), bytes })
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

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The header's entries in file order; a name that stands twice is an error, not an overwrite.
struct Header(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("`{name}` stands twice")));
                    }
                    entries.push((name, value));
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
