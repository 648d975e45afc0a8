//! Attention against f64, and against itself.

use crate::Isa;
use crate::attention::PART;
use crate::cpu::Cpu;
use crate::heads::Heads;
use crate::kv_store::{KV_BLOCK, KvShape, KvStore, KvType};
use crate::span::Span;
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
            cpu.attend(&mut kv, 1, &spans, &rows, q, &mut out);
            for (span, i) in spans.iter().zip(which) {
                let range = span.row * width..(span.row + span.n_rows) * width;
                outputs[i].extend_from_slice(&out[range]);
            }
        }
    }

    /// Appends all but the last `n_tail` rows of the sequences and attends from the last ones, in
    /// passes of at most `chunk` rows; returns their outputs by sequence.
    fn tail(&self, cpu: &Cpu, kv_type: KvType, n_tail: usize, chunk: usize) -> Vec<Vec<f32>> {
        let [q, k, v] = self.heads();
        let mut kv = self.store(kv_type);
        let mut outputs = vec![Vec::new(); self.sequences.len()];
        let span = |i: usize, row: usize, pos: usize, n_rows: usize| Span {
            row,
            n_rows,
            pos,
            blocks: &self.sequences[i].0,
            slot: 0,
            n_replay: 0,
            n_commit: n_rows,
        };
        for (i, (_, all)) in self.sequences.iter().enumerate() {
            let len = all.len() / q.row;
            cpu.kv_append(&mut kv, 1, &[span(i, 0, 0, len)], all, k, v);
        }
        for first in (0..n_tail).step_by(chunk) {
            let n_rows = chunk.min(n_tail - first);
            let (mut rows, mut spans) = (Vec::new(), Vec::new());
            for (i, (_, all)) in self.sequences.iter().enumerate() {
                let pos = all.len() / q.row - n_tail + first;
                spans.push(span(i, rows.len() / q.row, pos, n_rows));
                rows.extend_from_slice(&all[pos * q.row..(pos + n_rows) * q.row]);
            }
            let width = q.n * q.dim;
            let mut out = vec![f32::NAN; rows.len() / q.row * width];
            cpu.attend(&mut kv, 1, &spans, &rows, q, &mut out);
            for (output, part) in outputs.iter_mut().zip(out.chunks_exact(n_rows * width)) {
                output.extend_from_slice(part);
            }
        }
        outputs
    }

    /// Softmax attention of the last `n_tail` rows in f64, over elements as they are stored.
    fn naive(&self, kv_type: KvType, n_tail: usize) -> Vec<Vec<f32>> {
        let [q, k, v] = self.heads();
        let attend = |keys: &[Vec<f64>], values: &[Vec<f64>], query: &[f32]| -> Vec<f32> {
            let scores: Vec<f64> = keys
                .iter()
                .map(|key| {
                    let dot: f64 = query.iter().zip(key).map(|(&q, k)| f64::from(q) * k).sum();
                    (dot / (q.dim as f64).sqrt()).exp()
                })
                .collect();
            let sum: f64 = scores.iter().sum();
            (0..q.dim)
                .map(|d| {
                    let weighted = scores.iter().zip(values).map(|(s, value)| s * value[d]);
                    (weighted.sum::<f64>() / sum) as f32
                })
                .collect()
        };
        self.sequences
            .iter()
            .map(|(_, rows)| {
                let len = rows.len() / q.row;
                let stored = |heads: Heads| -> Vec<Vec<Vec<f64>>> {
                    (0..heads.n)
                        .map(|h| (0..len).map(|t| stored(kv_type, heads.of(rows, t, h))).collect())
                        .collect()
                };
                let (keys, values) = (stored(k), stored(v));
                (len - n_tail.min(len)..len)
                    .flat_map(|row| (0..q.n).map(move |head| (row, head)))
                    .flat_map(|(row, head)| {
                        let kv_head = head / (q.n / k.n);
                        let query = q.of(rows, row, head);
                        attend(&keys[kv_head][..=row], &values[kv_head][..=row], query)
                    })
                    .collect()
            })
            .collect()
    }
}

/// A head as a store keeps it.
fn stored(kv_type: KvType, head: &[f32]) -> Vec<f64> {
    let largest = head.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let element = |&x: &f32| match kv_type {
        KvType::F32 => f64::from(x),
        KvType::Bf16 => half::bf16::from_f32(x).to_f64(),
        KvType::Int8 => {
            f64::from((x * (127.0 / largest)).round_ties_even()) * f64::from(largest / 127.0)
        }
    };
    head.iter().map(element).collect()
}

/// Within the project's f32 limits; within five times as much where queries and weights are
/// rounded to 16 bits.
#[track_caller]
fn check(kv_type: KvType, got: &[f32], expected: &[f32], what: &str) {
    let what = format!("{what} {kv_type:?}");
    match kv_type {
        KvType::F32 | KvType::Bf16 => assert_close(got, expected, &what),
        KvType::Int8 => {
            let near =
                got.iter().zip(expected).map(|(got, expected)| expected + (got - expected) / 5.0);
            assert_close(&near.collect::<Vec<_>>(), expected, &what);
        }
    }
}

const KV_TYPES: [KvType; 3] = [KvType::F32, KvType::Bf16, KvType::Int8];

#[test]
fn matches_f64_whatever_the_store_held_before() {
    for (n_heads, n_kv_heads, head_dim) in
        [(1, 1, 2), (4, 2, 16), (6, 2, 32), (8, 2, 64), (6, 1, 256), (2, 1, 80)]
    {
        let case = Case::new(n_heads, n_kv_heads, head_dim, &[1, 70, 129]);
        for kv_type in KV_TYPES {
            let got = case.run(&Cpu::new(2, Isa::detect()), kv_type, 200);
            for (got, expected) in got.iter().zip(case.naive(kv_type, usize::MAX)) {
                check(kv_type, got, &expected, &format!("{:?}", case.shape));
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
        for kv_type in KV_TYPES {
            let alone = case.run(&Cpu::new(1, Isa::Scalar), kv_type, 1);
            let alone: Vec<_> = alone.iter().map(|out| bits(out)).collect();
            for isa in isas() {
                for (n_threads, chunk) in [(1, 200), (2, 64), (3, 5), (2, 33), (1, 2), (3, 200)] {
                    let got = case.run(&Cpu::new(n_threads, isa), kv_type, chunk);
                    let got: Vec<_> = got.iter().map(|out| bits(out)).collect();
                    assert!(got == alone, "{isa} {n_threads} threads, chunks of {chunk}");
                }
            }
        }
    }
}

/// Contexts that end around the borders of blocks and parts.
fn long_contexts() -> [Case; 4] {
    let around = [PART, PART + 1, PART + 2, PART + KV_BLOCK + 1];
    around.map(|len| Case::new(4, 2, 16, &[len, 70]))
}

#[test]
fn long_contexts_match_f64() {
    let two_parts = Case::new(6, 2, 80, &[2 * PART + 3]);
    for case in long_contexts().iter().chain([&two_parts]) {
        for kv_type in KV_TYPES {
            let got = case.tail(&Cpu::new(2, Isa::detect()), kv_type, 5, 5);
            for (got, expected) in got.iter().zip(case.naive(kv_type, 5)) {
                check(kv_type, got, &expected, &format!("{:?}", case.shape));
            }
        }
    }
}

#[test]
fn how_a_long_context_is_shared_out_changes_no_bit() {
    for case in long_contexts() {
        for kv_type in KV_TYPES {
            let alone = case.tail(&Cpu::new(1, Isa::Scalar), kv_type, 6, 1);
            let alone: Vec<_> = alone.iter().map(|out| bits(out)).collect();
            for isa in isas() {
                for (n_threads, chunk) in [(1, 6), (2, 1), (2, 6), (3, 4), (4, 1), (4, 3)] {
                    let got = case.tail(&Cpu::new(n_threads, isa), kv_type, 6, chunk);
                    let got: Vec<_> = got.iter().map(|out| bits(out)).collect();
                    assert!(got == alone, "{isa} {n_threads} threads, chunks of {chunk}");
                }
            }
        }
    }
}

/// What int8 costs: values and scores are off by what the rounding of their elements adds up to.
#[test]
fn int8_attention_is_within_two_percent_of_exact() {
    for (head_dim, len) in [(16, 300), (64, 300), (256, 1100)] {
        let case = Case::new(4, 2, head_dim, &[len]);
        let got = case.tail(&Cpu::new(2, Isa::detect()), KvType::Int8, 20, 20);
        let exact = case.naive(KvType::F32, 20);
        let rms = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
        let error = rms(&mut got[0].iter().zip(&exact[0]).map(|(got, exact)| got - exact));
        let share = error / rms(&mut exact[0].iter().copied());
        assert!((1e-4..0.02).contains(&share), "{head_dim}: {share}");
    }
}

#[test]
fn int8_keeps_what_is_not_a_number() {
    for bad in [f32::NAN, f32::INFINITY] {
        for of_value in [false, true] {
            let mut case = Case::new(1, 1, 16, &[3]);
            let [q, k, v] = case.heads();
            let heads = if of_value { v } else { k };
            case.sequences[0].1[heads.start(1, 0) + 3] = bad;
            let out = case.run(&Cpu::new(1, Isa::detect()), KvType::Int8, 3);
            let (before, after) = out[0].split_at(q.dim);
            assert!(before.iter().all(|x| x.is_finite()), "{bad} {of_value}");
            assert!(after.iter().all(|x| x.is_nan()), "{bad} {of_value}: {after:?}");
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
    cpu.attend(&mut kv, 0, &[span(&[7])], rows, q, &mut first);
    let nan = vec![f32::NAN; rows.len()];
    cpu.kv_append(&mut kv, 1, &[span(&[7])], &nan, k, v);
    cpu.kv_append(&mut kv, 0, &[span(&[6])], &nan, k, v);
    cpu.kv_append(&mut kv, 0, &[span(&[8])], &nan, k, v);
    let mut second = vec![0.0; 3 * 32];
    cpu.attend(&mut kv, 0, &[span(&[7])], rows, q, &mut second);
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
    let scales = 7 * 2 * 2 * 64 * 4;
    assert_eq!(KvStore::bytes_per_block(&shape, KvType::Int8), 64 * 7 * 1024 + scales);
}
