//! Tests of the delta rule and the convolution together: any way through a sequence gives the
//! bits of one plain pass.

use crate::testing::{Random, assert_close, bits, golden, isas};
use crate::{ConvWeight, Cpu, DeltaInput, DeltaParams, DeltaShape, Fused, Isa, Span, StateStore};

fn span(slot: u32, row: usize, pos: usize, n_rows: usize) -> Span<'static> {
    Span { row, n_rows, pos, blocks: &[], slot, n_replay: 0, n_commit: n_rows }
}

/// The golden file gives g and beta; these are the a and b that lead to them.
fn gates_to_inputs(g: &[f32], beta: &[f32], n_heads: usize) -> Vec<f32> {
    let a = |g: f32| (-f64::from(g)).exp_m1().ln() as f32;
    let b = |beta: f32| (f64::from(beta) / (1.0 - f64::from(beta))).ln() as f32;
    g.chunks(n_heads)
        .zip(beta.chunks(n_heads))
        .flat_map(|(g, beta)| beta.iter().map(|&x| b(x)).chain(g.iter().map(|&x| a(x))))
        .collect()
}

#[test]
fn matches_the_golden_file() {
    let ((shape, q), (_, k), (value_shape, v)) =
        (golden("gdn.q"), golden("gdn.k"), golden("gdn.v"));
    let shape = DeltaShape {
        n_layers: 1,
        n_key_heads: shape[1],
        n_value_heads: value_shape[1],
        key_dim: shape[2],
        value_dim: value_shape[2],
        conv_kernel: 4,
    };
    let n_rows = value_shape[0];
    let u: Vec<f32> = (0..n_rows)
        .flat_map(|t| {
            let row = |x: &[f32]| x[t * x.len() / n_rows..(t + 1) * x.len() / n_rows].to_vec();
            [row(&q), row(&k), row(&v)].concat()
        })
        .collect();
    let n_heads = shape.n_value_heads;
    let rows = gates_to_inputs(&golden("gdn.g").1, &golden("gdn.beta").1, n_heads);
    let params = DeltaParams {
        b: 0,
        a: n_heads,
        neg_exp_a_log: vec![-1.0; n_heads],
        dt_bias: vec![0.0; n_heads],
    };
    let cpu = Cpu::new(2, Isa::detect());
    let mut st = StateStore::new(shape, 1, 0);
    let mut out = vec![0.0; v.len()];
    let input = |from: usize, to: usize| DeltaInput {
        u: &u[from * shape.channels()..to * shape.channels()],
        rows: Fused { data: &rows[from * 2 * n_heads..to * 2 * n_heads], width: 2 * n_heads },
    };
    // A first row makes the slot one that has begun; then it gets the start state of the file.
    let width = v.len() / n_rows;
    cpu.delta_rule(&mut st, 0, &[span(0, 0, 0, 1)], input(0, 1), &params, &mut out[..width]);
    st.set_delta_state(0, 0, &golden("gdn.state0").1);
    cpu.delta_rule(&mut st, 0, &[span(0, 0, 1, n_rows)], input(0, n_rows), &params, &mut out);
    assert_close(&out, &golden("gdn.out").1, "out");
    assert_close(&out, &golden("gdn.out_chunk").1, "out of the chunked form");
    assert_close(&st.delta_state(0, 0), &golden("gdn.state").1, "state");
}

/// The inputs of one sequence and what one pass over them gives.
struct Sequence {
    rows: Vec<f32>,
    out: Vec<f32>,
    /// States of conv and delta rule after each row.
    states: Vec<[Vec<u32>; 2]>,
}

/// A layer with random weights.
struct Layer {
    shape: DeltaShape,
    row_width: usize,
    conv: ConvWeight,
    params: DeltaParams,
}

impl Layer {
    fn new(shape: DeltaShape, random: &mut Random) -> Layer {
        let n_heads = shape.n_value_heads;
        let b = shape.channels() + 3;
        Layer {
            shape,
            row_width: b + 2 * n_heads,
            conv: ConvWeight::new(
                shape.conv_kernel,
                &random.normals(shape.channels() * shape.conv_kernel),
            ),
            params: DeltaParams {
                b,
                a: b + n_heads,
                neg_exp_a_log: random.normals(n_heads).iter().map(|x| -x.exp()).collect(),
                dt_bias: random.normals(n_heads),
            },
        }
    }

    fn run(&self, cpu: &Cpu, st: &mut StateStore, spans: &[Span<'_>], rows: &[f32]) -> Vec<f32> {
        let m = rows.len() / self.row_width;
        let mut u = vec![f32::NAN; m * self.shape.channels()];
        let mut out = vec![f32::NAN; m * self.width()];
        let fused = Fused { data: rows, width: self.row_width };
        for layer in 0..self.shape.n_layers {
            cpu.conv_silu(st, layer, spans, fused, &self.conv, &mut u);
            let input = DeltaInput { u: &u, rows: fused };
            cpu.delta_rule(st, layer, spans, input, &self.params, &mut out);
        }
        out
    }

    fn width(&self) -> usize {
        self.shape.n_value_heads * self.shape.value_dim
    }

    /// Row by row on one thread with the scalar operations.
    fn sequence(&self, len: usize, random: &mut Random) -> Sequence {
        let cpu = Cpu::new(1, Isa::Scalar);
        let mut st = StateStore::new(self.shape, 1, 0);
        let rows = random.normals(len * self.row_width);
        let (mut out, mut states) = (Vec::new(), Vec::new());
        for (pos, row) in rows.chunks(self.row_width).enumerate() {
            out.extend(self.run(&cpu, &mut st, &[span(0, 0, pos, 1)], row));
            states.push([bits(&st.conv_state(0, 0)), bits(&st.delta_state(0, 0))]);
        }
        Sequence { rows, out, states }
    }

    /// The definition in f64, for the last layer.
    fn naive(&self, rows: &[f32]) -> Vec<f32> {
        let DeltaShape { n_key_heads, n_value_heads, key_dim, value_dim, conv_kernel, .. } =
            self.shape;
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut states = vec![vec![0.0f64; key_dim * value_dim]; n_value_heads];
        let mut out = Vec::new();
        let all: Vec<&[f32]> = rows.chunks(self.row_width).collect();
        for (t, row) in all.iter().enumerate() {
            let u: Vec<f64> = (0..self.shape.channels())
                .map(|c| {
                    let tap = |j: usize| f64::from(self.conv.tap(j, &(c..c + 1))[0]);
                    let sum: f64 = (0..conv_kernel)
                        .filter(|j| t + j + 1 >= conv_kernel)
                        .map(|j| tap(j) * f64::from(all[t + j + 1 - conv_kernel][c]))
                        .sum();
                    sum * sigmoid(sum)
                })
                .collect();
            let l2 = |x: &[f64], scale: f64| -> Vec<f64> {
                let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                x.iter().map(|x| x / norm * scale).collect()
            };
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (n_value_heads / n_key_heads) * key_dim;
                let keys = n_key_heads * key_dim;
                let q = l2(&u[key_head..key_head + key_dim], (key_dim as f64).powf(-0.5));
                let k = l2(&u[keys + key_head..keys + key_head + key_dim], 1.0);
                let v = &u[2 * keys + head * value_dim..2 * keys + (head + 1) * value_dim];
                let beta = sigmoid(f64::from(row[self.params.b + head]));
                let dt = f64::from(row[self.params.a + head] + self.params.dt_bias[head]);
                let g = f64::from(self.params.neg_exp_a_log[head]) * dt.exp().ln_1p();
                state.iter_mut().for_each(|s| *s *= g.exp());
                for c in 0..value_dim {
                    let p: f64 = (0..key_dim).map(|i| state[i * value_dim + c] * k[i]).sum();
                    let d = beta * (v[c] - p);
                    (0..key_dim).for_each(|i| state[i * value_dim + c] += k[i] * d);
                    let o: f64 = (0..key_dim).map(|i| state[i * value_dim + c] * q[i]).sum();
                    out.push(o as f32);
                }
            }
        }
        out
    }
}

const SHAPES: [DeltaShape; 4] = [
    DeltaShape {
        n_layers: 2,
        n_key_heads: 2,
        n_value_heads: 4,
        key_dim: 8,
        value_dim: 16,
        conv_kernel: 4,
    },
    DeltaShape {
        n_layers: 1,
        n_key_heads: 1,
        n_value_heads: 3,
        key_dim: 20,
        value_dim: 24,
        conv_kernel: 4,
    },
    DeltaShape {
        n_layers: 1,
        n_key_heads: 2,
        n_value_heads: 2,
        key_dim: 32,
        value_dim: 32,
        conv_kernel: 2,
    },
    DeltaShape {
        n_layers: 1,
        n_key_heads: 1,
        n_value_heads: 2,
        key_dim: 128,
        value_dim: 128,
        conv_kernel: 4,
    },
];

#[test]
fn matches_f64() {
    let mut random = Random::new(12);
    for shape in SHAPES {
        let layer = Layer::new(shape, &mut random);
        let sequence = layer.sequence(40, &mut random);
        assert_close(&sequence.out, &layer.naive(&sequence.rows), &format!("{shape:?}"));
    }
}

#[test]
fn one_pass_gives_the_bits_of_row_by_row() {
    let mut random = Random::new(13);
    for shape in SHAPES {
        let layer = Layer::new(shape, &mut random);
        let sequence = layer.sequence(30, &mut random);
        for isa in isas() {
            for n_threads in 1..=3 {
                let cpu = Cpu::new(n_threads, isa);
                let mut st = StateStore::new(shape, 3, 0);
                let out = layer.run(&cpu, &mut st, &[span(1, 0, 0, 30)], &sequence.rows);
                assert!(bits(&out) == bits(&sequence.out), "{isa} {n_threads} {shape:?}");
                let last = shape.n_layers - 1;
                let state = [bits(&st.conv_state(1, last)), bits(&st.delta_state(1, last))];
                assert!(state == sequence.states[29], "{isa} {n_threads} {shape:?}");
            }
        }
    }
}

/// A sequence on its way: prefill chunks, decodes and verifies with some drafts accepted.
struct Walk<'a> {
    sequence: &'a Sequence,
    slot: u32,
    /// Rows whose outputs are final.
    n_done: usize,
    n_replay: usize,
}

impl Walk<'_> {
    /// Appends the rows of the next pass; returns the span and how many rows are right.
    fn next(
        &self,
        layer: &Layer,
        random: &mut Random,
        rows: &mut Vec<f32>,
    ) -> (Span<'static>, usize) {
        let left = self.sequence.rows.len() / layer.row_width - self.n_done;
        let n = 1 + random.below(left.min(6));
        let n_commit = if random.below(2) == 0 { n } else { 1 };
        let n_right = n_commit + random.below(n - n_commit + 1);
        let row = rows.len() / layer.row_width;
        let right = &self.sequence.rows[self.n_done * layer.row_width..];
        rows.extend_from_slice(&right[..n_right * layer.row_width]);
        // Drafts that will be rejected.
        rows.extend(random.normals((n - n_right) * layer.row_width));
        let n_replay = self.n_replay;
        (Span { n_replay, n_commit, ..span(self.slot, row, self.n_done, n) }, n_right)
    }
}

#[test]
fn any_way_through_a_sequence_gives_the_same_bits() {
    let mut random = Random::new(14);
    for shape in SHAPES {
        let layer = Layer::new(shape, &mut random);
        let sequences: Vec<_> =
            [25, 3, 14].iter().map(|&len| layer.sequence(len, &mut random)).collect();
        for round in 0..12 {
            let isa = isas().nth(round % isas().count()).expect("an instruction set");
            let cpu = Cpu::new(1 + round % 3, isa);
            let mut st = StateStore::new(shape, 4, 15);
            let mut walks: Vec<Walk> = sequences
                .iter()
                .zip([2, 0, 3])
                .map(|(sequence, slot)| Walk { sequence, slot, n_done: 0, n_replay: 0 })
                .collect();
            let len = |walk: &Walk| walk.sequence.rows.len() / layer.row_width;
            // A moved slot goes on as if nothing had happened, where nothing is to be replayed.
            let mut free = 1;
            while walks.iter().any(|walk| walk.n_done < len(walk)) {
                let (mut rows, mut spans, mut rights) = (Vec::new(), Vec::new(), Vec::new());
                for walk in walks.iter_mut().filter(|walk| walk.n_done < len(walk)) {
                    if walk.n_replay == 0 && random.below(2) == 0 {
                        st.copy_slot(walk.slot, free);
                        std::mem::swap(&mut walk.slot, &mut free);
                    }
                    let (span, n_right) = walk.next(&layer, &mut random, &mut rows);
                    spans.push(span);
                    rights.push(n_right);
                }
                let out = layer.run(&cpu, &mut st, &spans, &rows);
                for (span, n_right) in spans.iter().zip(rights) {
                    let walk =
                        walks.iter_mut().find(|walk| walk.slot == span.slot).expect("its walk");
                    let width = layer.width();
                    let got = &out[span.row * width..(span.row + n_right) * width];
                    let expected = &walk.sequence.out[span.pos * width..];
                    assert!(bits(got) == bits(&expected[..got.len()]), "{isa} {span:?}");
                    let last = shape.n_layers - 1;
                    let state = [st.conv_state(span.slot, last), st.delta_state(span.slot, last)];
                    let state = state.map(|x| bits(&x));
                    assert!(state == walk.sequence.states[span.pos + span.n_commit - 1]);
                    walk.n_done += n_right;
                    walk.n_replay = n_right - span.n_commit;
                }
            }
        }
    }
}

#[test]
fn nan_stays_in_its_sequence() {
    let mut random = Random::new(15);
    let layer = Layer::new(SHAPES[0], &mut random);
    let sequence = layer.sequence(5, &mut random);
    let cpu = Cpu::new(2, Isa::detect());
    let mut st = StateStore::new(SHAPES[0], 2, 0);
    let bad = vec![f32::NAN; 5 * layer.row_width];
    let rows = [bad, sequence.rows.clone()].concat();
    let out = layer.run(&cpu, &mut st, &[span(0, 0, 0, 5), span(1, 5, 0, 5)], &rows);
    assert!(out[..5 * layer.width()].iter().all(|x| x.is_nan()));
    assert_eq!(bits(&out[5 * layer.width()..]), bits(&sequence.out));
    // The slot is as good as new for the next sequence.
    let out = layer.run(&cpu, &mut st, &[span(0, 0, 0, 5)], &sequence.rows);
    assert_eq!(bits(&out), bits(&sequence.out));
}
