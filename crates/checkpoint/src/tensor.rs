//! One weight, read.

use std::ops::Deref;

use crate::DType;
use crate::decode::decode;

/// A weight as a loader takes it: little-endian, row-major, at any alignment.
///
/// The bytes are mapped and unmapped with the value, so a loader that packs one tensor after
/// another never holds the file beside the packed copy.
#[derive(Debug)]
pub struct Tensor<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Bytes<'a>,
    /// Bytes in the file.
    pub(crate) stored_bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Bytes<'a> {
    Mapped(memmap2::Mmap),
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Tensor<'_> {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extent of every axis, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements, or the blocks that pack them, row after row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that the tensor takes in its file; others than [`Self::bytes`] has when the file
    /// stores it in another form.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// All elements as f32, exactly as the type defines them.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.shape.iter().product()];
        decode(self.dtype, self.bytes(), &mut out);
        out
    }

    /// The same tensor with f32 elements.
    pub fn into_f32(self) -> Tensor<'static> {
        self.with_floats(&self.to_f32())
    }

    /// The same tensor with these elements.
    pub(crate) fn with_floats(&self, elements: &[f32]) -> Tensor<'static> {
        let bytes = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.with_bytes(DType::F32, bytes)
    }

    /// The same tensor, encoded anew.
    pub(crate) fn with_bytes(&self, dtype: DType, bytes: Vec<u8>) -> Tensor<'static> {
        Tensor {
            dtype,
            shape: self.shape.clone(),
            bytes: Bytes::Owned(bytes),
            stored_bytes: self.stored_bytes,
        }
    }
}
