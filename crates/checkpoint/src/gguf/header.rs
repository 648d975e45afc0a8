//! The header of a GGUF file, version 3: metadata, then where each tensor lies.

use std::collections::HashSet;

use super::cursor::{Cursor, Malformed};
use super::value::Value;
use crate::restore::Stored;
use crate::shard::Entry;
use crate::{CheckpointError, DType};

/// The types that weights may have, as errors list them.
const SUPPORTED: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K";
const MAX_DIMS: u32 = 4;
/// The format's own limit on a key; tensor names are held to it too.
const MAX_NAME_BYTES: usize = 65_535;
/// A key's length, its value's kind and one byte of each.
const MIN_PAIR_BYTES: usize = 8 + 4 + 1;
/// A name's length, the number of axes, the type and the offset.
const MIN_TENSOR_BYTES: usize = 8 + 4 + 4 + 8;
const DEFAULT_ALIGNMENT: u64 = 32;

/// What a file says of itself.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    /// Pairs in file order; no key stands twice.
    pub(crate) metadata: Vec<(&'a str, Value<'a>)>,
    /// In the order of their data, none of which overlaps.
    pub(crate) tensors: Vec<Entry>,
}

impl<'a> Header<'a> {
    /// Reads and checks a header; `bytes` is the whole file, `file` its name.
    pub(crate) fn parse(file: &str, bytes: &'a [u8]) -> Result<Self, CheckpointError> {
        let bad = |problem: String| CheckpointError::header(file, problem);
        let cut = |what: &str| {
            let what = what.to_string();
            move |e: Malformed| {
                bad(format!("{what}: {}; damaged, or the download may be incomplete", e.0))
            }
        };
        check_magic(bytes).map_err(bad)?;
        let mut cursor = Cursor::new(&bytes[8..]);
        let n_tensors = cursor.u64().map_err(cut("the number of tensors"))?;
        let n_pairs = cursor.count(MIN_PAIR_BYTES).map_err(cut("the metadata"))?;

        let mut metadata = Vec::with_capacity(n_pairs);
        let mut seen = HashSet::with_capacity(n_pairs);
        for i in 0..n_pairs {
            let key = cursor.text().map_err(cut(&format!("metadata entry {i}")))?;
            if key.len() > MAX_NAME_BYTES {
                return Err(bad(format!("metadata entry {i}: a key of {} bytes", key.len())));
            }
            let value = Value::read(&mut cursor).map_err(cut(&format!("`{key}`")))?;
            if !seen.insert(key) {
                return Err(bad(format!("`{key}` stands twice")));
            }
            metadata.push((key, value));
        }
        let alignment = alignment(&metadata).map_err(bad)?;

        let room = cursor.rest().len() / MIN_TENSOR_BYTES;
        let n_tensors = usize::try_from(n_tensors).ok().filter(|n| *n <= room).ok_or_else(|| {
            bad(format!("{n_tensors} tensors, but the file has room for {room}; damaged, or the download may be incomplete"))
        })?;
        let mut tensors = Vec::with_capacity(n_tensors);
        let mut seen = HashSet::with_capacity(n_tensors);
        for i in 0..n_tensors {
            let name = cursor.text().map_err(cut(&format!("tensor {i}")))?;
            if name.len() > MAX_NAME_BYTES {
                return Err(bad(format!("tensor {i}: a name of {} bytes", name.len())));
            }
            if !seen.insert(name) {
                return Err(CheckpointError::tensor(name, file, "it stands twice"));
            }
            let raw = RawTensor::read(&mut cursor).map_err(cut(&format!("tensor `{name}`")))?;
            let entry = raw.entry(name, alignment);
            tensors.push(entry.map_err(|problem| CheckpointError::tensor(name, file, problem))?);
        }
        let data_start = (bytes.len() - cursor.rest().len()) as u64;
        place(file, &mut tensors, data_start.next_multiple_of(alignment), alignment)?;
        if let Some(entry) = tensors.iter().find(|t| t.range.end > bytes.len() as u64) {
            return Err(CheckpointError::Truncated {
                file: file.to_string(),
                tensor: entry.name.clone(),
                needs: entry.range.end,
                has: bytes.len() as u64,
            });
        }
        Ok(Self { metadata, tensors })
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<Value<'a>> {
        self.metadata.iter().find(|(k, _)| *k == key).map(|(_, value)| *value)
    }
}

fn check_magic(bytes: &[u8]) -> Result<(), String> {
    let Some((head, _)) = bytes.split_at_checked(8) else {
        return Err(format!(
            "{} bytes are too few for a GGUF file; the download may be incomplete",
            bytes.len()
        ));
    };
    if head == b"version " {
        return Err("a Git LFS pointer, not the weights; run `git lfs pull`".to_string());
    }
    if &head[..4] != b"GGUF" {
        return Err("not a GGUF file: it does not begin with \"GGUF\"".to_string());
    }
    match u32::from_le_bytes([head[4], head[5], head[6], head[7]]) {
        3 => Ok(()),
        version @ (1 | 2) => {
            Err(format!("GGUF version {version}; version 3 is supported, convert the model anew"))
        }
        // Version 3 with its bytes the other way round.
        0x0300_0000 => Err("a big-endian GGUF file; little-endian ones are supported".to_string()),
        version => Err(format!("GGUF version {version}; version 3 is supported")),
    }
}

fn alignment(metadata: &[(&str, Value<'_>)]) -> Result<u64, String> {
    match metadata.iter().find(|(key, _)| *key == "general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some((_, Value::Unsigned(n))) if n.is_power_of_two() && *n <= 1 << 20 => Ok(*n),
        Some((_, value)) => {
            Err(format!("`general.alignment` is {value:?}; a power of two is needed"))
        }
    }
}

/// A tensor as the file describes it.
struct RawTensor {
    /// Innermost first.
    dims: Vec<u64>,
    type_id: u32,
    /// From the start of the data.
    offset: u64,
}

impl RawTensor {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let n = cursor.u32()?;
        if n > MAX_DIMS {
            return Err(Malformed(format!("{n} axes, {MAX_DIMS} at most")));
        }
        let dims = (0..n).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
        Ok(Self { dims, type_id: cursor.u32()?, offset: cursor.u64()? })
    }

    /// The entry, its range still counted from the start of the data.
    fn entry(self, name: &str, alignment: u64) -> Result<Entry, String> {
        let dtype = dtype(self.type_id).ok_or_else(|| {
            let name = type_name(self.type_id);
            format!("its type is {name}; {SUPPORTED} are supported")
        })?;
        let shape = self.dims.iter().rev().map(|n| usize::try_from(*n).ok());
        let shape: Option<Vec<usize>> = shape.collect();
        let bytes = shape.as_deref().and_then(|shape| dtype.bytes_of(shape));
        let (Some(shape), Some(bytes)) = (shape, bytes) else {
            let (elements, _) = dtype.block();
            return Err(format!(
                "{dtype} of {:?} (innermost first) is no whole number of blocks of {elements}, or too large",
                self.dims
            ));
        };
        if !self.offset.is_multiple_of(alignment) {
            return Err(format!(
                "its data begins at {}, no multiple of the alignment {alignment}",
                self.offset
            ));
        }
        let end = self.offset.checked_add(bytes).filter(|end| *end < u64::MAX / 2);
        let end = end.ok_or_else(|| format!("its data begins at {}", self.offset))?;
        Ok(Entry {
            name: name.to_string(),
            dtype: Ok(dtype),
            shape,
            range: self.offset..end,
            stored: Stored::default(),
        })
    }
}

/// Tensors lie one after another, each at the next multiple of the alignment: a tensor of another
/// size than its shape says would overlap its neighbour or leave a gap.
fn place(
    file: &str,
    tensors: &mut [Entry],
    data_start: u64,
    alignment: u64,
) -> Result<(), CheckpointError> {
    tensors.sort_by_key(|t| (t.range.start, t.range.end));
    let mut at = 0;
    let mut before = "the header";
    for entry in tensors.iter() {
        if entry.range.start != at {
            let problem = format!(
                "its data begins at {} behind the header, not where {before} ends, at {at}",
                entry.range.start
            );
            return Err(CheckpointError::tensor(&entry.name, file, problem));
        }
        at = entry.range.end.next_multiple_of(alignment);
        before = &entry.name;
    }
    for entry in tensors {
        entry.range = entry.range.start + data_start..entry.range.end + data_start;
    }
    Ok(())
}

fn dtype(id: u32) -> Option<DType> {
    Some(match id {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        30 => DType::Bf16,
        _ => return None,
    })
}

/// What the format calls a type that is not read here.
fn type_name(id: u32) -> String {
    const NAMES: [(u32, &str); 24] = [
        (9, "Q8_1"),
        (10, "Q2_K"),
        (11, "Q3_K"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (20, "IQ4_NL"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (23, "IQ4_XS"),
        (24, "I8"),
        (25, "I16"),
        (26, "I32"),
        (27, "I64"),
        (28, "F64"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (39, "MXFP4"),
        (40, "NVFP4"),
        (4, "Q4_2"),
        (5, "Q4_3"),
    ];
    match NAMES.iter().find(|(known, _)| *known == id) {
        Some((_, name)) => (*name).to_string(),
        None => format!("unknown (number {id})"),
    }
}
