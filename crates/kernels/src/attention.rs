//! Causal attention over the KV blocks of each sequence.

use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::isa::{Target, per_isa};
use crate::kv_store::{KV_BLOCK, KvStore, padded_dim};
use crate::lanes::{LANES, Lanes};
use crate::math::exp;
use crate::memory::{Disjoint, with_scratch};
use crate::norm::scaled;
use crate::span::{Span, check_rows};
use crate::tile::{Rows, TILE, product};

/// Query heads (of all rows) that one task carries through the blocks.
const HEADS_PER_TASK: usize = 64;

/// The running softmax of one query head.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Softmax {
    /// Largest score so far.
    max: f32,
    /// Sum of `exp(score - max)`.
    sum: f32,
}

/// One block of the online softmax of one query head. In: the products of the query with the
/// 64 keys, of which `n_valid` count. Out: their weights, 0 for the others; `output` is rescaled
/// to the new maximum.
#[inline(always)]
fn softmax_block<V: Lanes>(
    scores: &mut [f32; TILE],
    n_valid: usize,
    scale: f32,
    state: &mut Softmax,
    output: &mut [f32],
) {
    // What lies behind the last valid key may be anything, NaN included.
    scores[n_valid..].fill(f32::NEG_INFINITY);
    let (lanes, _) = scores.as_chunks_mut::<LANES>();
    let mut v = [V::splat(0.0); TILE / LANES];
    for (v, lanes) in v.iter_mut().zip(&*lanes) {
        *v = V::load(lanes).mul(V::splat(scale));
    }
    let block_max = v[0].max(v[1]).max(v[2].max(v[3])).largest();
    let max = if block_max > state.max { block_max } else { state.max };
    for (v, lanes) in v.iter_mut().zip(lanes) {
        *v = exp(v.sub(V::splat(max)));
        v.store(lanes);
    }
    let sum = v[0].add(v[1]).add(v[2].add(v[3])).sum();
    let mut correction = [0.0; LANES];
    exp(V::splat(state.max - max)).store(&mut correction);
    let correction = correction[0];
    *state = Softmax { max, sum: state.sum.mul_add(correction, sum) };
    if correction != 1.0 {
        let (output, _) = output.as_chunks_mut::<LANES>();
        for lanes in output {
            V::load(lanes).mul(V::splat(correction)).store(lanes);
        }
    }
}

per_isa!(fn softmax_block_on(
    scores: &mut [f32; TILE],
    n_valid: usize,
    scale: f32,
    state: &mut Softmax,
    output: &mut [f32],
) = softmax_block);

per_isa!(fn scaled_on(x: &[f32], scale: f32, y: &mut [f32]) = scaled);

/// Consecutive rows of one span, for the query heads of one kv head.
struct Chunk<'a> {
    kv: &'a KvStore,
    layer: usize,
    /// Block table of the sequence.
    blocks: &'a [u32],
    kv_head: usize,
    /// Position of the first row.
    pos: usize,
    n_rows: usize,
    /// Query heads of each row.
    group: usize,
}

impl Chunk<'_> {
    /// `query` `[n_rows * group, head_dim]` to `output` `[n_rows * group, padded_dim]`, by way of
    /// `scores` `[n_rows * group, 64]`.
    fn run(
        &self,
        target: Target,
        query: &[f32],
        scores: &mut [f32],
        softmax: &mut [Softmax],
        output: &mut [f32],
    ) {
        let head_dim = self.kv.shape().head_dim;
        let padded = padded_dim(head_dim);
        let scale = 1.0 / (head_dim as f32).sqrt();
        output.fill(0.0);
        let (scores, _) = scores.as_chunks_mut::<TILE>();
        let last_pos = self.pos + self.n_rows - 1;
        for (i, &block) in self.blocks[..=last_pos / KV_BLOCK].iter().enumerate() {
            let first_key = i * KV_BLOCK;
            // Earlier rows do not see this block.
            let first_row = first_key.saturating_sub(self.pos);
            let first = first_row * self.group;
            let m = self.n_rows * self.group - first;
            let rows = Rows {
                m,
                k: head_dim,
                x: query[first * head_dim..].as_ptr(),
                x_stride: head_dim,
                y: scores[first..].as_mut_ptr().cast(),
                y_stride: TILE,
                n: TILE,
                accumulate: false,
            };
            // SAFETY: query and scores hold m rows from `first` on, of head_dim and 64 elements.
            unsafe { product(target, self.kv.keys(self.layer, block, self.kv_head), rows) };

            // All query heads of a row see the same keys, rows that see the whole block too.
            let n_valid = |row: usize| KV_BLOCK.min(self.pos + row + 1 - first_key);
            for row in first_row..self.n_rows {
                for head in row * self.group..(row + 1) * self.group {
                    let output = &mut output[head * padded..(head + 1) * padded];
                    let (scores, state) = (&mut scores[head], &mut softmax[head]);
                    softmax_block_on(target, scores, n_valid(row), scale, state, output);
                }
            }
            let mut row = first_row;
            while row < self.n_rows {
                let end = if n_valid(row) == KV_BLOCK { self.n_rows } else { row + 1 };
                let heads = row * self.group..end * self.group;
                let (scores, output) =
                    (&scores[heads.clone()], &mut output[heads.start * padded..]);
                self.add_values(target, block, n_valid(row), scores, output);
                row = end;
            }
        }
    }

    /// `output[h] += weights[h, ..n_valid] V` for the query heads h.
    fn add_values(
        &self,
        target: Target,
        block: u32,
        n_valid: usize,
        weights: &[[f32; TILE]],
        output: &mut [f32],
    ) {
        let padded = padded_dim(self.kv.shape().head_dim);
        assert!(output.len() >= weights.len() * padded, "an output for each query head");
        for i in 0..padded / TILE {
            let rows = Rows {
                m: weights.len(),
                k: n_valid,
                x: weights.as_ptr().cast(),
                x_stride: TILE,
                y: output[i * TILE..].as_mut_ptr(),
                y_stride: padded,
                n: TILE,
                accumulate: true,
            };
            let values = self.kv.values(self.layer, block, self.kv_head, i);
            // SAFETY: the weights are [m, 64]; the output [m, padded], of which tile i is used.
            unsafe { product(target, values, rows) };
        }
    }
}

impl Cpu {
    /// Causal attention of all rows of the spans over the positions of their sequences up to
    /// their own: `out[m, q.n * q.dim] = softmax(query . key / sqrt(q.dim)) value`. Query head j
    /// reads kv head `j / (q.n / n_kv_heads)`; `q` addresses the query heads inside `rows`.
    ///
    /// For each query head, blocks of 64 positions are visited in ascending order. Scores are
    /// folds over the channels as in [`Cpu::matmul`]; the block's maximum updates the running
    /// one and rescales sum and output; the weights `exp(score - max)` are summed 16 lanes wide,
    /// and the output is a fold over the positions. Positions after the row's own contribute
    /// nothing, whatever the store holds there.
    ///
    /// # Panics
    /// If sizes do not fit together, or a block table does not hold the positions of its span.
    pub fn attend(
        &self,
        kv: &KvStore,
        layer: usize,
        spans: &[Span<'_>],
        rows: &[f32],
        q: Heads,
        out: &mut [f32],
    ) {
        let shape = *kv.shape();
        let m = rows.len() / q.row;
        q.check(rows.len(), m);
        check_rows(spans, m);
        kv.check(layer, spans);
        assert_eq!(q.dim, shape.head_dim, "query and key heads differ in size");
        assert!(q.n.is_multiple_of(shape.n_kv_heads), "{} heads for {shape:?}", q.n);
        let width = q.n * q.dim;
        assert_eq!(out.len(), m * width, "out is not [{m}, {width}]");

        let group = q.n / shape.n_kv_heads;
        let padded = padded_dim(q.dim);
        let rows_per_task = (HEADS_PER_TASK / group).max(1);
        let chunks: Vec<(&Span<'_>, usize)> = spans
            .iter()
            .flat_map(|span| (0..span.n_rows).step_by(rows_per_task).map(move |row| (span, row)))
            .collect();
        let total: usize = spans.iter().map(|s| s.n_rows * (s.pos + s.n_rows) * 2 * width).sum();
        let n_tasks = chunks.len() * shape.n_kv_heads;
        let out = Disjoint::new(out);
        self.run(n_tasks, total / n_tasks.max(1), &|task| {
            let (kv_head, (span, first_row)) =
                (task % shape.n_kv_heads, chunks[task / shape.n_kv_heads]);
            let n_rows = rows_per_task.min(span.n_rows - first_row);
            let n_heads = n_rows * group;
            with_scratch(n_heads * (q.dim + TILE + padded + 2), |scratch| {
                let (output, rest) = scratch.split_at_mut(n_heads * padded);
                let (scores, rest) = rest.split_at_mut(n_heads * TILE);
                let (query, softmax) = rest.split_at_mut(n_heads * q.dim);
                let softmax: &mut [Softmax] = bytemuck::cast_slice_mut(softmax);
                softmax.fill(Softmax { max: f32::NEG_INFINITY, sum: 0.0 });
                for (i, query) in query.chunks_exact_mut(q.dim).enumerate() {
                    let row = span.row + first_row + i / group;
                    query.copy_from_slice(q.of(rows, row, kv_head * group + i % group));
                }
                let chunk = Chunk {
                    kv,
                    layer,
                    blocks: span.blocks,
                    kv_head,
                    pos: span.pos + first_row,
                    n_rows,
                    group,
                };
                chunk.run(self.target(), query, scores, softmax, output);
                for (i, output) in output.chunks_exact(padded).enumerate() {
                    let row = span.row + first_row + i / group;
                    let start = row * width + (kv_head * group + i % group) * q.dim;
                    // SAFETY: these heads of these rows belong to this task.
                    let out = unsafe { out.part(start..start + q.dim) };
                    scaled_on(self.target(), &output[..q.dim], 1.0 / softmax[i].sum, out);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::kv_store::{KvShape, KvType};
    use crate::testing::{Random, assert_close, bits, isas};

    /// Some sequences with their fused rows `[q heads | k heads | v heads]` for all positions.
    struct Case {
        shape: KvShape,
        n_heads: usize,
        /// Block table and rows of each sequence.
        sequences: Vec<(Vec<u32>, Vec<f32>)>,
    }

    impl Case {
        fn new(n_heads: usize, n_kv_heads: usize, head_dim: usize, lens: &[usize]) -> Case {
            let mut random = Random::new(11);
            let mut free: Vec<u32> = (0..40).collect();
            let width = (n_heads + 2 * n_kv_heads) * head_dim;
            let sequences = lens
                .iter()
                .map(|len| {
                    let blocks = (0..len.div_ceil(KV_BLOCK))
                        .map(|_| free.swap_remove(random.below(free.len())))
                        .collect();
                    (blocks, random.normals(len * width))
                })
                .collect();
            let shape = KvShape { n_layers: 2, n_blocks: 40, n_kv_heads, head_dim };
            Case { shape, n_heads, sequences }
        }

        fn heads(&self) -> [Heads; 3] {
            let KvShape { n_kv_heads, head_dim: dim, .. } = self.shape;
            let row = (self.n_heads + 2 * n_kv_heads) * dim;
            let at = |offset: usize, n| Heads { offset: offset * dim, row, n, step: dim, dim };
            [
                at(0, self.n_heads),
                at(self.n_heads, n_kv_heads),
                at(self.n_heads + n_kv_heads, n_kv_heads),
            ]
        }

        /// A store full of NaN.
        fn store(&self, kv_type: KvType) -> KvStore {
            let cpu = Cpu::new(1, Isa::detect());
            let mut kv = KvStore::new(self.shape, kv_type);
            let [_, k, v] = self.heads();
            let blocks: Vec<u32> = (0..40).collect();
            for layer in 0..2 {
                let rows = vec![f32::NAN; 40 * KV_BLOCK * k.row];
                let span = Span {
                    row: 0,
                    n_rows: 40 * KV_BLOCK,
                    pos: 0,
                    blocks: &blocks,
                    slot: 0,
                    n_replay: 0,
                    n_commit: 0,
                };
                cpu.kv_append(&mut kv, layer, &[span], &rows, k, v);
            }
            kv
        }

        /// Feeds the sequences in passes of at most `chunk` rows each, all sequences at once;
        /// returns the outputs by sequence.
        fn run(&self, cpu: &Cpu, kv_type: KvType, chunk: usize) -> Vec<Vec<f32>> {
            let [q, k, v] = self.heads();
            let width = q.n * q.dim;
            let mut kv = self.store(kv_type);
            let mut outputs = vec![Vec::new(); self.sequences.len()];
            loop {
                let (mut spans, mut rows, mut which) = (Vec::new(), Vec::new(), Vec::new());
                for (i, (blocks, all)) in self.sequences.iter().enumerate() {
                    let (pos, len) = (outputs[i].len() / width, all.len() / q.row);
                    let n_rows = chunk.min(len - pos);
                    if n_rows > 0 {
                        let row = rows.len() / q.row;
                        spans.push(Span {
                            row,
                            n_rows,
                            pos,
                            blocks,
                            slot: 0,
                            n_replay: 0,
                            n_commit: n_rows,
                        });
                        rows.extend_from_slice(&all[pos * q.row..(pos + n_rows) * q.row]);
                        which.push(i);
                    }
                }
                if spans.is_empty() {
                    return outputs;
                }
                let mut out = vec![f32::NAN; rows.len() / q.row * width];
                cpu.kv_append(&mut kv, 1, &spans, &rows, k, v);
                cpu.attend(&kv, 1, &spans, &rows, q, &mut out);
                for (span, i) in spans.iter().zip(which) {
                    let range = span.row * width..(span.row + span.n_rows) * width;
                    outputs[i].extend_from_slice(&out[range]);
                }
            }
        }

        /// Softmax attention in f64.
        fn naive(&self, kv_type: KvType) -> Vec<Vec<f32>> {
            let [q, k, v] = self.heads();
            let stored = |x: f32| match kv_type {
                KvType::F32 => f64::from(x),
                KvType::Bf16 => half::bf16::from_f32(x).to_f64(),
            };
            let attend = |rows: &[f32], row: usize, head: usize| -> Vec<f32> {
                let query = q.of(rows, row, head);
                let kv_head = head / (q.n / k.n);
                let scores: Vec<f64> = (0..=row)
                    .map(|t| {
                        let key = k.of(rows, t, kv_head).iter().map(|&x| stored(x));
                        let dot: f64 = query.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum();
                        (dot / (q.dim as f64).sqrt()).exp()
                    })
                    .collect();
                let sum: f64 = scores.iter().sum();
                (0..q.dim)
                    .map(|d| {
                        let value = |t| stored(v.of(rows, t, kv_head)[d]);
                        let weighted = scores.iter().enumerate().map(|(t, s)| s * value(t));
                        (weighted.sum::<f64>() / sum) as f32
                    })
                    .collect()
            };
            self.sequences
                .iter()
                .map(|(_, rows)| {
                    (0..rows.len() / q.row)
                        .flat_map(|row| (0..q.n).flat_map(move |head| attend(rows, row, head)))
                        .collect()
                })
                .collect()
        }
    }

    #[test]
    fn matches_f64_whatever_the_store_held_before() {
        for (n_heads, n_kv_heads, head_dim) in
            [(1, 1, 2), (4, 2, 16), (6, 2, 32), (8, 2, 64), (6, 1, 256), (2, 1, 80)]
        {
            let case = Case::new(n_heads, n_kv_heads, head_dim, &[1, 70, 129]);
            for kv_type in [KvType::F32, KvType::Bf16] {
                let got = case.run(&Cpu::new(2, Isa::detect()), kv_type, 200);
                for (got, expected) in got.iter().zip(case.naive(kv_type)) {
                    assert_close(got, &expected, &format!("{:?} {kv_type:?}", case.shape));
                }
            }
        }
    }

    #[test]
    fn the_bits_depend_on_the_row_alone() {
        for (n_heads, n_kv_heads, head_dim, lens) in
            [(6, 2, 32, vec![150, 7, 64]), (8, 2, 128, vec![90]), (70, 1, 16, vec![3, 66])]
        {
            let case = Case::new(n_heads, n_kv_heads, head_dim, &lens);
            for kv_type in [KvType::F32, KvType::Bf16] {
                let alone = case.run(&Cpu::new(1, Isa::Scalar), kv_type, 1);
                let alone: Vec<_> = alone.iter().map(|out| bits(out)).collect();
                for isa in isas() {
                    for (n_threads, chunk) in [(1, 200), (2, 64), (3, 5), (2, 33), (1, 2), (3, 200)]
                    {
                        let got = case.run(&Cpu::new(n_threads, isa), kv_type, chunk);
                        let got: Vec<_> = got.iter().map(|out| bits(out)).collect();
                        assert!(got == alone, "{isa} {n_threads} threads, chunks of {chunk}");
                    }
                }
            }
        }
    }

    #[test]
    fn layers_and_blocks_are_apart() {
        let case = Case::new(2, 1, 16, &[3]);
        let [q, k, v] = case.heads();
        let (_, rows) = &case.sequences[0];
        let cpu = Cpu::new(1, Isa::detect());
        let mut kv = KvStore::new(case.shape, KvType::F32);
        let span = |block: &'static [u32]| Span {
            row: 0,
            n_rows: 3,
            pos: 0,
            blocks: block,
            slot: 0,
            n_replay: 0,
            n_commit: 3,
        };
        let mut first = vec![0.0; 3 * 32];
        cpu.kv_append(&mut kv, 0, &[span(&[7])], rows, k, v);
        cpu.attend(&kv, 0, &[span(&[7])], rows, q, &mut first);
        let nan = vec![f32::NAN; rows.len()];
        cpu.kv_append(&mut kv, 1, &[span(&[7])], &nan, k, v);
        cpu.kv_append(&mut kv, 0, &[span(&[6])], &nan, k, v);
        cpu.kv_append(&mut kv, 0, &[span(&[8])], &nan, k, v);
        let mut second = vec![0.0; 3 * 32];
        cpu.attend(&kv, 0, &[span(&[7])], rows, q, &mut second);
        assert_eq!(bits(&first), bits(&second));
        assert!(first.iter().all(|x| x.is_finite()));
    }

    #[test]
    #[should_panic(expected = "the block table is too short")]
    fn a_short_block_table_is_refused() {
        let case = Case::new(1, 1, 16, &[65]);
        let mut short = case;
        short.sequences[0].0.truncate(1);
        short.run(&Cpu::new(1, Isa::Scalar), KvType::F32, 65);
    }

    #[test]
    fn bytes_per_block_counts_all_layers() {
        let shape = KvShape { n_layers: 7, n_blocks: 3, n_kv_heads: 2, head_dim: 256 };
        assert_eq!(KvStore::bytes_per_block(&shape, KvType::Bf16), 64 * 14 * 1024);
        assert_eq!(KvStore::bytes_per_block(&shape, KvType::F32), 64 * 28 * 1024);
    }
}
