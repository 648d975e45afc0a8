//! The header of a safetensors file, checked.
//!
//! It is read here and not by the format's own crate so that every error names the tensor.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::restore::Stored;
use crate::shard::{Entry, Shard};
use crate::{CheckpointError, DType};

/// The format's own limit on a header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The types of the format that weights may have.
fn dtype(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "BF16" => Some(DType::Bf16),
        "F16" => Some(DType::F16),
        "F8_E4M3" => Some(DType::F8E4m3),
        _ => None,
    }
}

impl Shard {
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
        let dtype = dtype(&raw.dtype).ok_or(raw.dtype);
        if let Ok(dtype) = &dtype {
            let needs = dtype
                .bytes_of(&raw.shape)
                .ok_or_else(|| bad(format!("the shape {:?} overflows", raw.shape)))?;
            if needs != end - begin {
                return Err(bad(format!(
                    "{dtype} {:?} takes {needs} bytes but the header gives it {}",
                    raw.shape,
                    end - begin
                )));
            }
        }
        let range = start + begin..start + end;
        Ok(Entry { name, dtype, shape: raw.shape, range, stored: Stored::default() })
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
