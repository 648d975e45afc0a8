//! Keys and values of the attention layers, in blocks of 64 positions.

use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::math::to_bf16;
use crate::memory::{Arena, Disjoint};
use crate::span::{Span, check_rows};
use crate::tile::{TILE, Tile};

/// Positions of a block.
pub const KV_BLOCK: usize = TILE;

// A bf16 pair is read as a word and written as halves, the first in the low one.
const _: () = assert!(cfg!(target_endian = "little"));

/// Sizes of a [`KvStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Attention layers, the draft head's included.
    pub n_layers: usize,
    /// Blocks of 64 positions, shared by all sequences.
    pub n_blocks: usize,
    /// Key/value heads of a layer.
    pub n_kv_heads: usize,
    /// Elements of a head; even.
    pub head_dim: usize,
}

/// How a [`KvStore`] stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to nearest, ties to even.
    Bf16,
}

impl KvType {
    fn element_bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::Bf16 => 2,
        }
    }
}

/// Keys and values: for each layer, block and head a key tile `[head_dim][64 positions]` and
/// value tiles `[head_dim/64][64 positions][64]`, in the layouts of [`Matrix`](crate::Matrix) tiles, so that attention
/// is made of matrix products with tiles. The last value tile is padded with zeros.
pub struct KvStore {
    shape: KvShape,
    kv_type: KvType,
    cells: Arena,
}

impl KvStore {
    /// An empty store. Its memory is backed when it is first written.
    ///
    /// # Panics
    /// If `head_dim` is odd.
    pub fn new(shape: KvShape, kv_type: KvType) -> KvStore {
        assert!(shape.head_dim.is_multiple_of(2), "head_dim {} is odd", shape.head_dim);
        let bytes = shape.n_blocks * KvStore::bytes_per_block(&shape, kv_type);
        KvStore { shape, kv_type, cells: Arena::new(bytes) }
    }

    /// Bytes of one block over all layers.
    pub fn bytes_per_block(shape: &KvShape, kv_type: KvType) -> usize {
        shape.n_layers * shape.n_kv_heads * head_elements(shape) * kv_type.element_bytes()
    }

    /// The sizes it was made with.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// How it stores its elements.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// Copies a block over another, all layers.
    ///
    /// # Panics
    /// If a block does not exist.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        let n_blocks = self.shape.n_blocks;
        let (from, to) = (from as usize, to as usize);
        assert!(from.max(to) < n_blocks, "blocks {from} and {to} of {n_blocks}");
        let len = KvStore::bytes_per_block(&self.shape, self.kv_type) / self.shape.n_layers.max(1);
        let cells = self.cells.as_mut_slice::<u8>();
        for layer in 0..self.shape.n_layers {
            let first = layer * n_blocks;
            cells.copy_within((first + from) * len..(first + from + 1) * len, (first + to) * len);
        }
    }

    /// First element of a head of a block.
    fn start(&self, layer: usize, block: u32, head: usize) -> usize {
        let shape = &self.shape;
        ((layer * shape.n_blocks + block as usize) * shape.n_kv_heads + head) * head_elements(shape)
    }

    fn tile(&self, start: usize, len: usize) -> Tile<'_> {
        match self.kv_type {
            KvType::F32 => Tile::F32(&self.cells.as_slice()[start..start + len]),
            KvType::Bf16 => Tile::Bf16(&self.cells.as_slice()[start / 2..(start + len) / 2]),
        }
    }

    /// The keys of a block: 64 outputs over `head_dim`.
    pub(crate) fn keys(&self, layer: usize, block: u32, head: usize) -> Tile<'_> {
        self.tile(self.start(layer, block, head), self.shape.head_dim * KV_BLOCK)
    }

    /// Channels `64 i ..` of the values of a block: 64 outputs over the positions.
    pub(crate) fn values(&self, layer: usize, block: u32, head: usize, i: usize) -> Tile<'_> {
        let first = (self.shape.head_dim + i * TILE) * KV_BLOCK;
        self.tile(self.start(layer, block, head) + first, TILE * KV_BLOCK)
    }

    /// Checks a layer and that the block tables hold the positions of the spans.
    #[track_caller]
    pub(crate) fn check(&self, layer: usize, spans: &[Span<'_>]) {
        let shape = &self.shape;
        assert!(layer < shape.n_layers, "layer {layer} of {}", shape.n_layers);
        for span in spans {
            let n_blocks = (span.pos + span.n_rows).div_ceil(KV_BLOCK);
            assert!(span.blocks.len() >= n_blocks, "the block table is too short: {span:?}");
            let used = &span.blocks[..n_blocks];
            assert!(
                used.iter().all(|&block| (block as usize) < shape.n_blocks),
                "a block outside the store of {}: {span:?}",
                shape.n_blocks
            );
        }
    }
}

/// Width of the values of a head, padded to whole tiles.
pub(crate) fn padded_dim(head_dim: usize) -> usize {
    head_dim.next_multiple_of(TILE)
}

/// Elements of the key and value tiles of a head.
fn head_elements(shape: &KvShape) -> usize {
    (shape.head_dim + padded_dim(shape.head_dim)) * KV_BLOCK
}

impl Cpu {
    /// Writes the keys and values of all rows of the spans at their positions. `k` (after norm
    /// and rotation) and `v` address the heads inside the fused `rows`.
    ///
    /// # Panics
    /// If sizes do not fit together, or a block table does not hold the positions of its span.
    pub fn kv_append(
        &self,
        kv: &mut KvStore,
        layer: usize,
        spans: &[Span<'_>],
        rows: &[f32],
        k: Heads,
        v: Heads,
    ) {
        let m = rows.len() / k.row;
        k.check(rows.len(), m);
        v.check(rows.len(), m);
        check_rows(spans, m);
        kv.check(layer, spans);
        let shape = kv.shape;
        for heads in [k, v] {
            assert_eq!((heads.n, heads.dim), (shape.n_kv_heads, shape.head_dim), "{heads:?}");
        }
        let n_rows: usize = spans.iter().map(|span| span.n_rows).sum();
        // One task for each head, over all spans: whatever the block tables, no two tasks share
        // an element.
        let task = Append { shape, layer, spans, rows, k, v };
        let cost = n_rows * 8 * shape.head_dim;
        match kv.kv_type {
            KvType::F32 => {
                let cells = Disjoint::new(kv.cells.as_mut_slice());
                self.run(shape.n_kv_heads, cost, &|head| task.run(&cells, head, f32_index, |x| x));
            }
            KvType::Bf16 => {
                let cells = Disjoint::new(kv.cells.as_mut_slice());
                self.run(shape.n_kv_heads, cost, &|head| {
                    task.run(&cells, head, bf16_index, to_bf16);
                });
            }
        }
    }
}

/// Index of (k, n) in an f32 tile.
fn f32_index(k: usize, n: usize) -> usize {
    k * TILE + n
}

/// Index of (k, n) in a bf16 tile, in halves of words.
fn bf16_index(k: usize, n: usize) -> usize {
    (k / 2 * TILE + n) * 2 + k % 2
}

struct Append<'a> {
    shape: KvShape,
    layer: usize,
    spans: &'a [Span<'a>],
    rows: &'a [f32],
    k: Heads,
    v: Heads,
}

impl Append<'_> {
    /// Writes one head of all spans.
    fn run<T: Copy>(
        &self,
        cells: &Disjoint<'_, T>,
        head: usize,
        index: impl Fn(usize, usize) -> usize,
        convert: impl Fn(f32) -> T,
    ) {
        let KvShape { n_blocks, n_kv_heads, head_dim, .. } = self.shape;
        let len = head_elements(&self.shape);
        for span in self.spans {
            // The rows that fall into one block, block by block.
            let mut row = 0;
            while row < span.n_rows {
                let (block, offset) = ((span.pos + row) / KV_BLOCK, (span.pos + row) % KV_BLOCK);
                let n = (KV_BLOCK - offset).min(span.n_rows - row);
                let block = self.layer * n_blocks + span.blocks[block] as usize;
                let start = (block * n_kv_heads + head) * len;
                // SAFETY: a task takes elements of its own head only, one block at a time.
                let cells = unsafe { cells.part(start..start + len) };
                let (keys, values) = cells.split_at_mut(head_dim * KV_BLOCK);
                for d in 0..head_dim {
                    for i in 0..n {
                        let key = self.rows[self.k.start(span.row + row + i, head) + d];
                        keys[index(d, offset + i)] = convert(key);
                    }
                }
                for i in 0..n {
                    let value = self.v.of(self.rows, span.row + row + i, head);
                    for (tile, value) in value.chunks(TILE).enumerate() {
                        let first = tile * TILE * KV_BLOCK;
                        for (d, &value) in value.iter().enumerate() {
                            values[first + index(offset + i, d)] = convert(value);
                        }
                    }
                }
                row += n;
            }
        }
    }
}
