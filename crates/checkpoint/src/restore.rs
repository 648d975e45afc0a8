//! Undoing what the writer of a file did to a tensor.

use crate::shard::Entry;
use crate::tensor::Tensor;
use crate::{CheckpointError, DType};

/// How a file holds a tensor: in which order, and what its numbers stand for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) order: Option<Order>,
    pub(crate) values: Values,
}

/// What the stored numbers are.
#[derive(Clone, Debug, Default)]
pub(crate) enum Values {
    /// The weights.
    #[default]
    Plain,
    /// `1 + w`, where the model's own form is centred on zero.
    OnePlus,
    /// `-exp(w)`.
    NegExp,
    /// Weights without their scales; those are another tensor.
    Scaled(Box<Scales>),
}

/// A factor for each `block` of rows and columns; blocks at the edges may be cut.
#[derive(Clone, Debug)]
pub(crate) struct Scales {
    pub(crate) shard: usize,
    pub(crate) entry: Entry,
    pub(crate) block: [usize; 2],
}

/// Two axes that the writer exchanged: `[outer][b][a][unit]` in the file for `[outer][a][b][unit]`,
/// after `skip` elements that stayed where they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) axis: Axis,
    pub(crate) skip: usize,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) unit: usize,
}

/// Which index an [`Order`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Rows,
    Columns,
}

impl Stored {
    /// The type that a tensor of this stored type has once it is restored.
    pub(crate) fn read_dtype(&self, stored: DType) -> DType {
        let cuts_blocks =
            self.order.is_some_and(|o| o.axis == Axis::Columns && !o.is_whole_blocks(stored));
        match self.values {
            Values::Plain if !cuts_blocks => stored,
            _ => DType::F32,
        }
    }
}

impl Order {
    fn is_whole_blocks(&self, dtype: DType) -> bool {
        let (elements, _) = dtype.block();
        self.skip.is_multiple_of(elements) && self.unit.is_multiple_of(elements)
    }

    /// The tensor in its own order. Rows and whole blocks move as they are; a column order that
    /// would cut blocks makes the elements f32.
    pub(crate) fn restore<'a>(&self, tensor: Tensor<'a>) -> Tensor<'a> {
        if self.axis == Axis::Columns && !self.is_whole_blocks(tensor.dtype) {
            return self.restore(tensor.into_f32());
        }
        let (rows, columns) = match tensor.shape.split_first() {
            Some((rows, rest)) => (*rows, rest.iter().product::<usize>()),
            None => return tensor,
        };
        let (elements, block_bytes) = tensor.dtype.block();
        let row_bytes = columns / elements * block_bytes;
        let (line_bytes, step) = match self.axis {
            Axis::Rows => (rows * row_bytes, row_bytes),
            Axis::Columns => (row_bytes, block_bytes),
        };
        let per_step = if self.axis == Axis::Rows { 1 } else { elements };
        let (skip, unit) = (self.skip / per_step * step, self.unit / per_step * step);
        let mut out = Vec::with_capacity(tensor.bytes().len());
        for line in tensor.bytes().chunks_exact(line_bytes) {
            let (head, rest) = line.split_at(skip);
            out.extend_from_slice(head);
            for i in 0..rest.len() / unit {
                let from = self.stored_index(i) * unit;
                out.extend_from_slice(&rest[from..from + unit]);
            }
        }
        tensor.with_bytes(tensor.dtype, out)
    }

    /// Where in the file unit `i` stands.
    fn stored_index(&self, i: usize) -> usize {
        let (outer, a, b) = (i / (self.a * self.b), i / self.b % self.a, i % self.b);
        (outer * self.b + b) * self.a + a
    }
}

impl Values {
    /// The weights themselves; `scales` is called when there are any.
    pub(crate) fn restore<'a>(
        &self,
        tensor: Tensor<'a>,
        scales: impl FnOnce(&Scales) -> Result<Vec<f32>, CheckpointError>,
    ) -> Result<Tensor<'a>, CheckpointError> {
        let mut elements = match self {
            Self::Plain => return Ok(tensor),
            _ => tensor.to_f32(),
        };
        match self {
            Self::Plain => {}
            // Exact for every 1 + w that was rounded to f32: adding 1 again gives the same bits.
            Self::OnePlus => elements.iter_mut().for_each(|x| *x -= 1.0),
            Self::NegExp => elements.iter_mut().for_each(|x| *x = libm::logf(-*x)),
            Self::Scaled(spec) => {
                let (scales, columns) = (scales(spec)?, tensor.shape[1]);
                let per_row = columns.div_ceil(spec.block[1]);
                for (i, row) in elements.chunks_exact_mut(columns).enumerate() {
                    let scales = &scales[i / spec.block[0] * per_row..][..per_row];
                    for (block, scale) in row.chunks_mut(spec.block[1]).zip(scales) {
                        block.iter_mut().for_each(|x| *x *= scale);
                    }
                }
            }
        }
        Ok(tensor.with_floats(&elements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Bytes;

    fn bytes(shape: &[usize], dtype: DType, bytes: Vec<u8>) -> Tensor<'static> {
        let stored_bytes = bytes.len() as u64;
        Tensor { dtype, shape: shape.to_vec(), bytes: Bytes::Owned(bytes), stored_bytes }
    }

    #[test]
    fn exchanged_rows_come_back() {
        // Two key heads with three value heads each, two rows a head, after one row of another kind.
        let order = Order { axis: Axis::Rows, skip: 1, a: 2, b: 3, unit: 2 };
        let stored = [9, 0, 1, 6, 7, 2, 3, 8, 10, 4, 5, 11, 12].map(|row: u8| [row; 4]).concat();
        let restored = order.restore(bytes(&[13, 1], DType::F32, stored));
        let rows: Vec<u8> = restored.bytes().iter().step_by(4).copied().collect();
        assert_eq!(rows, [9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]);
    }

    #[test]
    fn columns_move_as_whole_blocks_or_as_floats() {
        let order = Order { axis: Axis::Columns, skip: 0, a: 2, b: 2, unit: 32 };
        let block = |q: u8| [&[0, 0x3c][..], &[q; 32]].concat();
        let row = |order: [u8; 4]| order.map(block).concat();
        let stored = [row([0, 2, 1, 3]), row([4, 6, 5, 7])].concat();
        let restored = order.restore(bytes(&[2, 128], DType::Q8_0, stored.clone()));
        assert_eq!(restored.bytes(), [row([0, 1, 2, 3]), row([4, 5, 6, 7])].concat());
        // Heads of 16 would cut the blocks of 32.
        let order = Order { unit: 16, ..order };
        let stored_type = Stored { order: Some(order), ..Stored::default() };
        assert_eq!(stored_type.read_dtype(DType::Q8_0), DType::F32);
        assert_eq!(stored_type.read_dtype(DType::Bf16), DType::Bf16);
        let restored = order.restore(bytes(&[2, 128], DType::Q8_0, stored));
        assert_eq!(restored.dtype(), DType::F32);
        let heads: Vec<f32> = restored.to_f32().iter().step_by(16).copied().collect();
        let expected = [0u8, 2, 0, 2, 1, 3, 1, 3, 4, 6, 4, 6, 5, 7, 5, 7].map(f32::from);
        assert_eq!(heads, expected);
    }

    #[test]
    fn one_plus_is_undone_to_the_bit() {
        for w in [-1.5f32, -0.999_999_9, -0.3, -1e-9, 0.0, 3e-8, 0.123_456_79, 1.0, 77.7] {
            let stored = 1.0 + w;
            let tensor = bytes(&[1], DType::F32, stored.to_le_bytes().to_vec());
            let restored = Values::OnePlus.restore(tensor, |_| unreachable!()).unwrap();
            assert_eq!(restored.to_f32()[0] + 1.0, stored);
        }
    }
}
