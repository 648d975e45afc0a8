//! Keys and values of the attention layers, in blocks of 64 positions.

use std::ops::Range;

use bytemuck::Pod;

use crate::attention::{SPLIT_HEADS, part_len};
use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::isa::Target;
use crate::kv_int8::{Int8Head, MAX_DIM, SCALE_BYTES, quantise_on};
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

impl KvShape {
    /// Number of a head of a block among all.
    fn head(&self, layer: usize, block: u32, head: usize) -> usize {
        (layer * self.n_blocks + block as usize) * self.n_kv_heads + head
    }
}

/// How a [`KvStore`] stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to nearest, ties to even.
    Bf16,
    /// The nearest multiple of a 127th of the head's largest element, one scale for the key and
    /// one for the value of each position and head.
    Int8,
}

impl KvType {
    /// Bytes of a head of a block.
    fn head_bytes(self, shape: &KvShape) -> usize {
        let n = head_elements(shape);
        match self {
            KvType::F32 => 4 * n,
            KvType::Bf16 => 2 * n,
            KvType::Int8 => n + SCALE_BYTES,
        }
    }
}

/// Keys and values: for each layer, block and head a key tile `[head_dim][64 positions]` and
/// value tiles `[head_dim/64][64 positions][64]`, in the layouts of [`Matrix`](crate::Matrix) tiles, so that attention
/// is made of matrix products with tiles. The last value tile is padded with zeros. Int8 tiles hold
/// pairs of rows as bf16 tiles do; in front of them are the scales of the keys and of the values.
pub struct KvStore {
    shape: KvShape,
    kv_type: KvType,
    cells: Arena,
    /// Scratch of [`Cpu::attend`], of which it never needs more.
    parts: Vec<f32>,
}

impl KvStore {
    /// An empty store. Its memory is backed when it is first written.
    ///
    /// # Panics
    /// If `head_dim` is odd, or above 512 with int8.
    pub fn new(shape: KvShape, kv_type: KvType) -> KvStore {
        assert!(shape.head_dim.is_multiple_of(2), "head_dim {} is odd", shape.head_dim);
        assert!(kv_type != KvType::Int8 || shape.head_dim <= MAX_DIM, "int8 heads of {shape:?}");
        let bytes = shape.n_blocks * KvStore::bytes_per_block(&shape, kv_type);
        let parts = vec![0.0; KvStore::scratch_bytes(&shape) / size_of::<f32>()];
        KvStore { shape, kv_type, cells: Arena::new(bytes), parts }
    }

    /// Bytes of one block over all layers.
    pub fn bytes_per_block(shape: &KvShape, kv_type: KvType) -> usize {
        shape.n_layers * shape.n_kv_heads * kv_type.head_bytes(shape)
    }

    /// Bytes that a store needs beside its blocks, to split long contexts among threads.
    pub fn scratch_bytes(shape: &KvShape) -> usize {
        SPLIT_HEADS * part_len(shape.head_dim) * size_of::<f32>()
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

    /// A head of a block, in elements.
    fn head<T: Pod>(&self, layer: usize, block: u32, head: usize) -> &[T] {
        let len = self.kv_type.head_bytes(&self.shape) / size_of::<T>();
        let start = self.shape.head(layer, block, head) * len;
        &self.cells.as_slice()[start..start + len]
    }

    fn tile(&self, layer: usize, block: u32, head: usize, elements: Range<usize>) -> Tile<'_> {
        match self.kv_type {
            KvType::F32 => Tile::F32(&self.head(layer, block, head)[elements]),
            KvType::Bf16 => {
                Tile::Bf16(&self.head(layer, block, head)[elements.start / 2..elements.end / 2])
            }
            KvType::Int8 => unreachable!("int8 keys and values are read with their scales"),
        }
    }

    /// The keys of a block of f32 or bf16: 64 outputs over `head_dim`.
    pub(crate) fn keys(&self, layer: usize, block: u32, head: usize) -> Tile<'_> {
        self.tile(layer, block, head, 0..self.shape.head_dim * KV_BLOCK)
    }

    /// Channels `64 i ..` of the values of a block of f32 or bf16: 64 outputs over the positions.
    pub(crate) fn values(&self, layer: usize, block: u32, head: usize, i: usize) -> Tile<'_> {
        let first = (self.shape.head_dim + i * TILE) * KV_BLOCK;
        self.tile(layer, block, head, first..first + TILE * KV_BLOCK)
    }

    /// Keys and values of a block of int8.
    pub(crate) fn int8(&self, layer: usize, block: u32, head: usize) -> Int8Head<'_> {
        debug_assert_eq!(self.kv_type, KvType::Int8);
        Int8Head::new(self.head(layer, block, head), self.shape.head_dim)
    }

    /// Where a head of a block begins, for prefetches.
    pub(crate) fn head_start(&self, layer: usize, block: u32, head: usize) -> *const u8 {
        self.head(layer, block, head).as_ptr()
    }

    /// Lends the scratch of attention, to be given back; after a panic it is made anew.
    pub(crate) fn take_parts(&mut self) -> Vec<f32> {
        let mut parts = std::mem::take(&mut self.parts);
        parts.resize(KvStore::scratch_bytes(&self.shape) / size_of::<f32>(), 0.0);
        parts
    }

    pub(crate) fn return_parts(&mut self, parts: Vec<f32>) {
        self.parts = parts;
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
                    task.run(&cells, head, pair_index, to_bf16);
                });
            }
            KvType::Int8 => {
                let cells = Disjoint::new(kv.cells.as_mut_slice());
                self.run(shape.n_kv_heads, cost, &|head| {
                    task.run_int8(self.target(), &cells, head)
                });
            }
        }
    }
}

/// Index of (k, n) in an f32 tile.
fn f32_index(k: usize, n: usize) -> usize {
    k * TILE + n
}

/// Index of (k, n) in a tile that holds pairs of k.
fn pair_index(k: usize, n: usize) -> usize {
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

/// Rows that fall into one block.
struct Stretch {
    /// Number of the head of the block among all.
    head: usize,
    /// First row in the batch, and how many.
    row: usize,
    n: usize,
    /// Where the first row goes within the block.
    offset: usize,
}

impl Append<'_> {
    /// All rows, by block.
    fn stretches(&self, head: usize) -> impl Iterator<Item = Stretch> {
        self.spans.iter().flat_map(move |span| {
            let end = span.pos + span.n_rows;
            (span.pos / KV_BLOCK..end.div_ceil(KV_BLOCK)).map(move |block| {
                let first = span.pos.max(block * KV_BLOCK);
                Stretch {
                    head: self.shape.head(self.layer, span.blocks[block], head),
                    row: span.row + first - span.pos,
                    n: end.min((block + 1) * KV_BLOCK) - first,
                    offset: first % KV_BLOCK,
                }
            })
        })
    }

    /// Writes one head of all spans.
    fn run<T: Copy>(
        &self,
        cells: &Disjoint<'_, T>,
        head: usize,
        index: impl Fn(usize, usize) -> usize,
        convert: impl Fn(f32) -> T,
    ) {
        let head_dim = self.shape.head_dim;
        let len = head_elements(&self.shape);
        for Stretch { head: at, row, n, offset } in self.stretches(head) {
            // SAFETY: a task takes elements of its own head only, one block at a time.
            let cells = unsafe { cells.part(at * len..(at + 1) * len) };
            let (keys, values) = cells.split_at_mut(head_dim * KV_BLOCK);
            for d in 0..head_dim {
                for i in 0..n {
                    let key = self.rows[self.k.start(row + i, head) + d];
                    keys[index(d, offset + i)] = convert(key);
                }
            }
            for i in 0..n {
                let value = self.v.of(self.rows, row + i, head);
                for (tile, value) in value.chunks(TILE).enumerate() {
                    let first = tile * TILE * KV_BLOCK;
                    for (d, &value) in value.iter().enumerate() {
                        values[first + index(offset + i, d)] = convert(value);
                    }
                }
            }
        }
    }

    /// The same in int8, with the scales.
    fn run_int8(&self, target: Target, cells: &Disjoint<'_, u8>, head: usize) {
        let head_dim = self.shape.head_dim;
        let len = KvType::Int8.head_bytes(&self.shape);
        let mut integers = [0; MAX_DIM];
        let integers = &mut integers[..head_dim];
        for Stretch { head: at, row, n, offset } in self.stretches(head) {
            // SAFETY: a task takes elements of its own head only, one block at a time.
            let cells = unsafe { cells.part(at * len..(at + 1) * len) };
            let (scales, tiles) = cells.split_at_mut(SCALE_BYTES);
            let (keys, values) = tiles.split_at_mut(head_dim * KV_BLOCK);
            let scales: &mut [f32] = bytemuck::cast_slice_mut(scales);
            let (key_scales, value_scales) = scales.split_at_mut(KV_BLOCK);
            for i in 0..n {
                let (key, scale) =
                    (self.k.of(self.rows, row + i, head), &mut key_scales[offset + i]);
                quantise_on(target, key, 127.0, integers, scale);
                for (d, &x) in integers.iter().enumerate() {
                    keys[pair_index(d, offset + i)] = x as u8;
                }
                let (value, scale) =
                    (self.v.of(self.rows, row + i, head), &mut value_scales[offset + i]);
                quantise_on(target, value, 127.0, integers, scale);
                for (d, &x) in integers.iter().enumerate() {
                    let first = d / TILE * TILE * KV_BLOCK;
                    values[first + pair_index(offset + i, d % TILE)] = x as u8;
                }
            }
        }
    }
}
