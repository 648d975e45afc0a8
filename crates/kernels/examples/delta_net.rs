//! What the convolution and the gated delta rule cost in prefill and in decode:
//! `cargo run --release -p kernels --example delta_net [threads]`.

use std::time::Instant;

use kernels::{ConvWeight, Cpu, DeltaInput, DeltaParams, DeltaShape, Fused, Isa, Span, StateStore};

/// A Gated DeltaNet layer of the 0.8B model.
const SHAPE: DeltaShape = DeltaShape {
    n_layers: 18,
    n_key_heads: 16,
    n_value_heads: 16,
    key_dim: 128,
    value_dim: 128,
    conv_kernel: 4,
};
/// Sequences and rows of each.
const PASSES: [(usize, usize); 7] = [(1, 1), (1, 4), (8, 1), (16, 1), (1, 64), (1, 512), (8, 64)];
const N_ROUNDS: usize = 40;

fn main() {
    let n_threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a thread count"));
    let cpu = Cpu::new(n_threads, Isa::detect());
    println!("{}, {n_threads} threads; best of {} layers", cpu.isa(), N_ROUNDS * SHAPE.n_layers);
    let channels = SHAPE.channels();
    let width = channels + 2048 + 2 * SHAPE.n_value_heads;
    let taps: Vec<f32> = (0..channels * 4).map(|i| (i % 7) as f32 / 7.0).collect();
    let conv = ConvWeight::new(SHAPE.conv_kernel, &taps);
    let params = DeltaParams {
        b: channels + 2048,
        a: channels + 2048 + SHAPE.n_value_heads,
        neg_exp_a_log: vec![-1.0; SHAPE.n_value_heads],
        dt_bias: vec![0.0; SHAPE.n_value_heads],
    };
    for (n_sequences, n_rows) in PASSES {
        let m = n_sequences * n_rows;
        let mut state = StateStore::new(SHAPE, n_sequences, 0);
        let rows: Vec<f32> = (0..m * width).map(|i| (i % 13) as f32 / 6.5 - 1.0).collect();
        let rows = Fused { data: &rows, width };
        let mut u = vec![0.0; m * channels];
        let mut out = vec![0.0; m * SHAPE.n_value_heads * SHAPE.value_dim];
        let (mut conv_s, mut delta_s) = (f64::INFINITY, f64::INFINITY);
        let n_rounds = if m >= 64 { 4 } else { N_ROUNDS };
        for round in 0..n_rounds {
            let spans: Vec<Span<'_>> = (0..n_sequences)
                .map(|i| Span {
                    row: i * n_rows,
                    n_rows,
                    pos: round * n_rows,
                    blocks: &[],
                    slot: i as u32,
                    n_replay: 0,
                    n_commit: n_rows,
                })
                .collect();
            for layer in 0..SHAPE.n_layers {
                let start = Instant::now();
                cpu.conv_silu(&mut state, layer, &spans, rows, &conv, &mut u);
                let middle = Instant::now();
                let input = DeltaInput { u: &u, rows };
                cpu.delta_rule(&mut state, layer, &spans, input, &params, &mut out);
                delta_s = delta_s.min(middle.elapsed().as_secs_f64());
                conv_s = conv_s.min((middle - start).as_secs_f64());
            }
        }
        let per_row = 1e6 / m as f64;
        let multiply_adds = 3 * SHAPE.n_value_heads * SHAPE.key_dim * SHAPE.value_dim * m;
        println!(
            "{n_sequences:>3} x {n_rows:>3} rows: convolution {:>6.2} us a row, delta rule {:>6.2} us a row, {:>5.1} GFLOP/s",
            conv_s * per_row,
            delta_s * per_row,
            2.0 * multiply_adds as f64 / delta_s / 1e9,
        );
    }
}
