//! Causal attention over the KV blocks of each sequence.
//!
//! A context is visited in blocks of 64 positions and in parts of 1024, at fixed positions. Within
//! a part, a running softmax goes from block to block; the results of the parts are combined in
//! ascending order. One task may do all of that, or one task each part, with the same bits.

use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::isa::{Target, per_isa};
use crate::kv_int8::{Weights, quantise_query, quantise_weights};
use crate::kv_store::{KV_BLOCK, KvStore, KvType, padded_dim};
use crate::memory::{Disjoint, with_scratch};
use crate::norm::scaled;
use crate::softmax::{Softmax, merge_on, softmax_block_on};
use crate::span::{Span, check_rows};
use crate::tile::{Rows, TILE, prefetch_l2, product};

/// Positions of a part.
pub(crate) const PART: usize = 1024;
/// Query heads (of all rows) that one task carries through the blocks.
const HEADS_PER_TASK: usize = 64;
/// Results of parts, of one query head each, that are kept until they are combined. What would
/// need more is not split.
pub(crate) const SPLIT_HEADS: usize = 8192;
/// Tasks for each thread that splitting aims at, so that one that is delayed delays little.
const TASKS_PER_THREAD: usize = 4;

/// Bytes of the next block that are fetched while the softmax is computed.
const AHEAD: usize = 4 << 10;

/// Floats of the result of a part for a query head: output, maximum and sum.
pub(crate) fn part_len(head_dim: usize) -> usize {
    padded_dim(head_dim) + 2
}

per_isa!(fn scaled_on(x: &[f32], scale: f32, y: &mut [f32]) = scaled);

/// Consecutive rows of one span, for the query heads of one kv head.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    kv: &'a KvStore,
    layer: usize,
    /// Block table of the sequence.
    blocks: &'a [u32],
    kv_head: usize,
    /// First row in the batch, and its position.
    row: usize,
    pos: usize,
    n_rows: usize,
    /// Query heads of each row.
    group: usize,
}

/// What a task needs for its query heads.
struct Work<'a> {
    /// `[heads, head_dim]`; with int8 KV, half as many pairs of integers.
    query: &'a mut [f32],
    /// What the products of the queries with the keys are multiplied with, `[heads]`.
    scale: &'a mut [f32],
    /// `[heads, 64]`: scores of a block, then softmax weights.
    scores: &'a mut [f32],
    /// The weights as integers, and their scales, with int8 KV.
    weights: &'a mut [[u32; TILE / 2]],
    weight_scales: &'a mut [f32],
    /// Of the part: softmax `[heads]` and output `[heads, padded_dim]`.
    softmax: &'a mut [Softmax],
    output: &'a mut [f32],
    /// Of all parts so far.
    total_softmax: &'a mut [Softmax],
    total: &'a mut [f32],
}

impl<'a> Work<'a> {
    fn len(n_heads: usize, head_dim: usize) -> usize {
        n_heads * (2 * padded_dim(head_dim) + head_dim + TILE + TILE / 2 + 6)
    }

    fn new(scratch: &'a mut [f32], n_heads: usize, head_dim: usize) -> Self {
        let padded = padded_dim(head_dim);
        let (output, rest) = scratch.split_at_mut(n_heads * padded);
        let (total, rest) = rest.split_at_mut(n_heads * padded);
        let (scores, rest) = rest.split_at_mut(n_heads * TILE);
        let (weights, rest) = rest.split_at_mut(n_heads * TILE / 2);
        let (query, rest) = rest.split_at_mut(n_heads * head_dim);
        let (softmax, rest) = rest.split_at_mut(2 * n_heads);
        let (total_softmax, rest) = rest.split_at_mut(2 * n_heads);
        let (scale, weight_scales) = rest.split_at_mut(n_heads);
        Work {
            query,
            scale,
            scores,
            weights: bytemuck::cast_slice_mut(weights),
            weight_scales,
            softmax: bytemuck::cast_slice_mut(softmax),
            output,
            total_softmax: bytemuck::cast_slice_mut(total_softmax),
            total,
        }
    }
}

impl Chunk<'_> {
    fn n_heads(&self) -> usize {
        self.n_rows * self.group
    }

    fn n_parts(&self) -> usize {
        (self.pos + self.n_rows).div_ceil(PART)
    }

    /// Multiply-adds, up to a factor.
    fn cost(&self) -> usize {
        self.n_heads() * (self.pos + self.n_rows)
    }

    /// The first row that sees a position.
    fn first_row(&self, pos: usize) -> usize {
        pos.saturating_sub(self.pos)
    }

    /// The first query head that sees a part.
    fn first_head(&self, part: usize) -> usize {
        self.first_row(part * PART) * self.group
    }

    /// Positions of a block that a row sees.
    fn n_valid(&self, block: usize, row: usize) -> usize {
        KV_BLOCK.min(self.pos + row + 1 - block * KV_BLOCK)
    }

    /// Row and query head of head `i` of the chunk.
    fn place(&self, i: usize) -> (usize, usize) {
        (self.row + i / self.group, self.kv_head * self.group + i % self.group)
    }

    fn take_queries(&self, target: Target, rows: &[f32], q: Heads, work: &mut Work<'_>) {
        let to_scores = 1.0 / (q.dim as f32).sqrt();
        let heads = work.query.chunks_exact_mut(q.dim).zip(&mut *work.scale);
        for (i, (query, scale)) in heads.enumerate() {
            let (row, head) = self.place(i);
            let from = q.of(rows, row, head);
            *scale = match self.kv.kv_type() {
                KvType::F32 | KvType::Bf16 => {
                    query.copy_from_slice(from);
                    to_scores
                }
                KvType::Int8 => {
                    let pairs = bytemuck::cast_slice_mut(&mut query[..q.dim / 2]);
                    quantise_query(target, from, pairs) * to_scores
                }
            };
        }
    }

    /// Attends to one part: softmax and output of the rows that see it.
    fn attend_part(&self, target: Target, part: usize, work: &mut Work<'_>) {
        work.output.fill(0.0);
        work.softmax.fill(Softmax::EMPTY);
        let last = (self.pos + self.n_rows - 1) / KV_BLOCK;
        let first = part * (PART / KV_BLOCK);
        for block in first..=last.min(first + PART / KV_BLOCK - 1) {
            self.scores(target, block, work);
            self.softmax(target, block, work);
            self.add_values(target, block, work);
        }
    }

    fn scores(&self, target: Target, block: usize, work: &mut Work<'_>) {
        let dim = self.kv.shape().head_dim;
        // Earlier rows do not see this block.
        let first = self.first_row(block * KV_BLOCK) * self.group;
        let (scores, _) = work.scores.as_chunks_mut::<TILE>();
        let scores = &mut scores[first..];
        let (queries, block) = (&work.query[first * dim..], self.blocks[block]);
        if self.kv.kv_type() == KvType::Int8 {
            let keys = self.kv.int8(self.layer, block, self.kv_head);
            return keys.scores(target, bytemuck::cast_slice(queries), dim, scores);
        }
        let rows = Rows {
            m: scores.len(),
            k: dim,
            x: queries.as_ptr(),
            x_stride: dim,
            y: scores.as_mut_ptr().cast(),
            y_stride: TILE,
            n: TILE,
            accumulate: false,
        };
        // SAFETY: queries and scores hold m rows of head_dim and 64 elements.
        unsafe { product(target, self.kv.keys(self.layer, block, self.kv_head), rows) };
    }

    /// Scores to weights. The memory would be idle meanwhile, so what is read next is fetched.
    fn softmax(&self, target: Target, block: usize, work: &mut Work<'_>) {
        let padded = padded_dim(self.kv.shape().head_dim);
        let (scores, _) = work.scores.as_chunks_mut::<TILE>();
        let first = self.first_row(block * KV_BLOCK) * self.group;
        let n_lines = (AHEAD / 64).div_ceil(self.n_heads() - first);
        for head in first..self.n_heads() {
            for line in (head - first) * n_lines..(head - first + 1) * n_lines {
                prefetch_l2(self.next_block(block).wrapping_add(line * 64));
            }
            let n_valid = self.n_valid(block, head / self.group);
            let output = &mut work.output[head * padded..(head + 1) * padded];
            let (scores, state) = (&mut scores[head], &mut work.softmax[head]);
            softmax_block_on(target, scores, n_valid, work.scale[head], state, output);
            if self.kv.kv_type() == KvType::Int8 {
                let values = self.kv.int8(self.layer, self.blocks[block], self.kv_head);
                let scales = &values.value_scales()[..n_valid];
                work.weight_scales[head] =
                    quantise_weights(target, scores, scales, &mut work.weights[head]);
            }
        }
    }

    /// `output[h] += weights[h, ..n_valid] V` for the query heads h that see the block.
    fn add_values(&self, target: Target, block: usize, work: &mut Work<'_>) {
        let padded = padded_dim(self.kv.shape().head_dim);
        let mut row = self.first_row(block * KV_BLOCK);
        while row < self.n_rows {
            // All query heads of a row see the same keys, rows that see the whole block too.
            let n_valid = self.n_valid(block, row);
            let end = if n_valid == KV_BLOCK { self.n_rows } else { row + 1 };
            let heads = row * self.group..end * self.group;
            let output = &mut work.output[heads.start * padded..heads.end * padded];
            match self.kv.kv_type() {
                KvType::F32 | KvType::Bf16 => {
                    let (weights, _) = work.scores.as_chunks::<TILE>();
                    self.add_float_values(target, block, n_valid, &weights[heads], output);
                }
                KvType::Int8 => {
                    let weights = Weights {
                        rows: &work.weights[heads.clone()],
                        scales: &work.weight_scales[heads],
                    };
                    let values = self.kv.int8(self.layer, self.blocks[block], self.kv_head);
                    let next = self.next_block(block).wrapping_add(AHEAD);
                    values.add(target, weights, n_valid, output, next);
                }
            }
            row = end;
        }
    }

    fn add_float_values(
        &self,
        target: Target,
        block: usize,
        n_valid: usize,
        weights: &[[f32; TILE]],
        output: &mut [f32],
    ) {
        let padded = padded_dim(self.kv.shape().head_dim);
        assert_eq!(output.len(), weights.len() * padded, "an output for each query head");
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
            let values = self.kv.values(self.layer, self.blocks[block], self.kv_head, i);
            // SAFETY: the weights are [m, 64]; the output [m, padded], of which tile i is used.
            unsafe { product(target, values, rows) };
        }
    }

    /// Where the block after this one begins, for prefetches.
    fn next_block(&self, block: usize) -> *const u8 {
        let next = self.blocks.get(block + 1).unwrap_or(&self.blocks[block]);
        self.kv.head_start(self.layer, *next, self.kv_head)
    }

    /// Attends to all parts: their combined softmax and output in `work.total`.
    fn attend(&self, target: Target, work: &mut Work<'_>) {
        for part in 0..self.n_parts() {
            self.attend_part(target, part, work);
            let first = self.first_head(part);
            let heads = first..self.n_heads();
            let padded = padded_dim(self.kv.shape().head_dim);
            let output = &work.output[first * padded..];
            let total = &mut work.total[first * padded..];
            let (softmax, total_softmax) =
                (&work.softmax[heads.clone()], &mut work.total_softmax[heads]);
            let parts = softmax.iter().zip(output.chunks_exact(padded));
            let totals = total_softmax.iter_mut().zip(total.chunks_exact_mut(padded));
            for ((&softmax, output), (total_softmax, total)) in parts.zip(totals) {
                combine(target, part, (total_softmax, total), (softmax, output));
            }
        }
    }
}

/// The first part of a context is taken as it is, the others are added.
fn combine(
    target: Target,
    part: usize,
    (total_softmax, total): (&mut Softmax, &mut [f32]),
    (softmax, output): (Softmax, &[f32]),
) {
    if part == 0 {
        *total_softmax = softmax;
        total.copy_from_slice(output);
    } else {
        merge_on(target, total_softmax, total, softmax, output);
    }
}

/// What one task does: a chunk, all of it or one part, whose results go to `parts` from head
/// `kept` on.
struct Unit {
    chunk: usize,
    part: Option<usize>,
    kept: usize,
}

/// A chunk whose parts are tasks of their own, and where the results of the first begin.
struct Split {
    chunk: usize,
    kept: usize,
}

/// Makes tasks of about the same size: chunks that are more than their share are split.
fn schedule(chunks: &[Chunk<'_>], n_threads: usize) -> (Vec<Unit>, Vec<Split>) {
    let total: usize = chunks.iter().map(Chunk::cost).sum();
    let share = match n_threads {
        1 => usize::MAX,
        n => total / (n * TASKS_PER_THREAD),
    };
    let (mut units, mut splits, mut kept) = (Vec::new(), Vec::new(), 0);
    for (i, chunk) in chunks.iter().enumerate() {
        let (n_heads, n_parts) = (chunk.n_heads(), chunk.n_parts());
        if n_parts > 1 && chunk.cost() > share && kept + n_parts * n_heads <= SPLIT_HEADS {
            units.extend((0..n_parts).map(|part| Unit {
                chunk: i,
                part: Some(part),
                kept: kept + part * n_heads,
            }));
            splits.push(Split { chunk: i, kept });
            kept += n_parts * n_heads;
        } else {
            units.push(Unit { chunk: i, part: None, kept: 0 });
        }
    }
    (units, splits)
}

impl Cpu {
    /// Causal attention of all rows of the spans over the positions of their sequences up to
    /// their own: `out[m, q.n * q.dim] = softmax(query . key / sqrt(q.dim)) value`. Query head j
    /// reads kv head `j / (q.n / n_kv_heads)`; `q` addresses the query heads inside `rows`.
    ///
    /// For each query head, blocks of 64 positions are visited in ascending order. Scores are
    /// folds over the channels as in [`Cpu::matmul`]; the block's maximum updates the running
    /// one and rescales sum and output; the weights `exp(score - max)` are summed 16 lanes wide,
    /// and the output is a fold over the positions. After every 1024 positions this begins anew,
    /// and what it gave is added to the result of the positions before. Positions after the row's
    /// own contribute nothing, whatever the store holds there.
    ///
    /// With int8 KV, the query and, for each block, the weights times the scales of the values are
    /// rounded to 16 bits, and the products are exact sums of integers.
    ///
    /// # Panics
    /// If sizes do not fit together, or a block table does not hold the positions of its span.
    pub fn attend(
        &self,
        kv: &mut KvStore,
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

        let mut parts = kv.take_parts();
        let kv_read = &*kv;
        let group = q.n / shape.n_kv_heads;
        let rows_per_task = (HEADS_PER_TASK / group).max(1);
        let chunks: Vec<Chunk<'_>> = spans
            .iter()
            .flat_map(|span| (0..span.n_rows).step_by(rows_per_task).map(move |row| (span, row)))
            .flat_map(|(span, row)| {
                (0..shape.n_kv_heads).map(move |kv_head| Chunk {
                    kv: kv_read,
                    layer,
                    blocks: span.blocks,
                    kv_head,
                    row: span.row + row,
                    pos: span.pos + row,
                    n_rows: rows_per_task.min(span.n_rows - row),
                    group,
                })
            })
            .collect();
        let (units, splits) = schedule(&chunks, self.n_threads());
        let job =
            Job { cpu: self, q, rows, out: Disjoint::new(out), parts: Disjoint::new(&mut parts) };
        let cost = chunks.iter().map(Chunk::cost).sum::<usize>() * 2 * q.dim;
        self.run(units.len(), cost / units.len().max(1), &|i| {
            job.attend(&chunks[units[i].chunk], &units[i]);
        });
        let cost = SPLIT_HEADS.min(m * q.n * PART) * padded_dim(q.dim) / splits.len().max(1);
        self.run(splits.len(), cost, &|i| job.combine(&chunks[splits[i].chunk], splits[i].kept));
        kv.return_parts(parts);
    }
}

/// What the tasks of one call share.
struct Job<'a> {
    cpu: &'a Cpu,
    q: Heads,
    rows: &'a [f32],
    out: Disjoint<'a, f32>,
    /// Results of parts, `[query head][padded_dim + 2]`.
    parts: Disjoint<'a, f32>,
}

impl Job<'_> {
    fn attend(&self, chunk: &Chunk<'_>, unit: &Unit) {
        let (target, dim, n_heads) = (self.cpu.target(), self.q.dim, chunk.n_heads());
        let padded = padded_dim(dim);
        with_scratch(Work::len(n_heads, dim), |scratch| {
            let mut work = Work::new(scratch, n_heads, dim);
            chunk.take_queries(target, self.rows, self.q, &mut work);
            let Some(part) = unit.part else {
                chunk.attend(target, &mut work);
                for (i, total) in work.total.chunks_exact(padded).enumerate() {
                    self.finish(chunk, i, work.total_softmax[i], total);
                }
                return;
            };
            chunk.attend_part(target, part, &mut work);
            for (i, output) in work.output.chunks_exact(padded).enumerate() {
                let start = (unit.kept + i) * part_len(dim);
                // SAFETY: the results of this part belong to this task.
                let kept = unsafe { self.parts.part(start..start + part_len(dim)) };
                kept[..padded].copy_from_slice(output);
                kept[padded..].copy_from_slice(&[work.softmax[i].max, work.softmax[i].sum]);
            }
        });
    }

    /// Combines the parts of a chunk, the results of the first being those from head `kept` on.
    fn combine(&self, chunk: &Chunk<'_>, kept: usize) {
        let (target, padded, n_heads) =
            (self.cpu.target(), padded_dim(self.q.dim), chunk.n_heads());
        with_scratch(padded, |total| {
            for head in 0..n_heads {
                let mut softmax = Softmax::EMPTY;
                let n_parts = (chunk.pos + head / chunk.group) / PART + 1;
                for part in 0..n_parts {
                    let start = (kept + part * n_heads + head) * part_len(self.q.dim);
                    // SAFETY: the tasks that wrote results are over.
                    let result = unsafe { self.parts.read(start..start + padded + 2) };
                    let (output, state) = result.split_at(padded);
                    let state = Softmax { max: state[0], sum: state[1] };
                    combine(target, part, (&mut softmax, total), (state, output));
                }
                self.finish(chunk, head, softmax, total);
            }
        });
    }

    /// Writes the result of head `i` of a chunk.
    fn finish(&self, chunk: &Chunk<'_>, i: usize, softmax: Softmax, output: &[f32]) {
        let (row, head) = chunk.place(i);
        let start = (row * self.q.n + head) * self.q.dim;
        // SAFETY: this head of this row belongs to this task.
        let out = unsafe { self.out.part(start..start + self.q.dim) };
        scaled_on(self.cpu.target(), &output[..self.q.dim], 1.0 / softmax.sum, out);
    }
}
