//! How close matrix products come to the memory's bandwidth and to the arithmetic of the cores:
//! `cargo run --release -p kernels --example roofline [threads [bf16|int8|int4 [shape]]]`, where the
//! shape is a part of a name.
//!
//! All row counts and the bandwidth probe take turns, and the best turn of each counts, so that
//! other load on the machine hits all of them alike.

use std::time::Instant;

use kernels::{Bits, Cpu, Isa, Matrix, Part, WeightData, read_bandwidth};

/// Weights of the 0.8B model: name, outputs, inputs.
const SHAPES: [(&str, usize, usize); 4] = [
    ("linear attention in", 8224, 1024),
    ("mlp gate and up", 7168, 1024),
    ("mlp down", 1024, 3584),
    ("lm_head", 248_320, 1024),
];
const ROWS: [usize; 9] = [1, 2, 4, 6, 8, 12, 16, 64, 512];
const MAX_OUTPUTS: usize = 8 << 20;
const N_ROUNDS: usize = 12;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let n_threads = arguments.next().map_or(2, |n| n.parse().expect("a thread count"));
    let bits = match arguments.next().as_deref() {
        None | Some("bf16") => Bits::AsStored,
        Some("int8") => Bits::Eight,
        Some("int4") => Bits::Four,
        Some(other) => panic!("{other} is not bf16, int8 or int4"),
    };
    let wanted = arguments.next().unwrap_or_default();
    let cpu = Cpu::new(n_threads, Isa::detect());
    println!("{}, {} for integers, {n_threads} threads", cpu.isa(), cpu.dot_isa());
    for (name, n, k) in SHAPES.into_iter().filter(|(name, ..)| name.contains(&wanted)) {
        // Enough copies that none is still in a cache when its turn comes again.
        let bytes: Vec<u8> = (0..n * k).flat_map(|i| [(i % 251) as u8, 0x3c]).collect();
        let part = Part { n, data: WeightData::Bf16(&bytes), bits };
        let first = Matrix::pack(&cpu, k, &[part]);
        let n_copies = (1usize << 30).div_ceil(first.bytes());
        let rest = (1..n_copies).map(|_| Matrix::pack(&cpu, k, &[part]));
        let weights: Vec<Matrix> = std::iter::once(first).chain(rest).collect();
        let mut turn = weights.iter().cycle();
        let mut gb_per_s = 0.0f64;
        let mut best = [f64::INFINITY; ROWS.len()];
        for _ in 0..N_ROUNDS {
            gb_per_s = gb_per_s.max(read_bandwidth(&cpu));
            // Nobody wants the logits of hundreds of rows.
            for (best, m) in best.iter_mut().zip(ROWS).filter(|(_, m)| m * n < MAX_OUTPUTS) {
                let x: Vec<f32> = (0..m * k).map(|i| (i % 17) as f32 - 8.0).collect();
                let mut y = vec![0.0; m * n];
                let n_turns = if m >= 64 { 1 } else { n_copies.min(16) };
                for w in turn.by_ref().take(n_turns) {
                    let start = Instant::now();
                    cpu.matmul(w, &x, &mut y);
                    *best = best.min(start.elapsed().as_secs_f64());
                }
            }
        }
        println!("{name} [{n}, {k}] {}; memory reads {gb_per_s:.1} GB/s", weights[0].format());
        for (m, seconds) in ROWS.into_iter().zip(best).filter(|(_, seconds)| seconds.is_finite()) {
            let achieved = weights[0].bytes() as f64 / seconds / 1e9;
            println!(
                "{m:>5} rows {:>9.3} ms {:>6.2} x one row {achieved:>6.1} GB/s {:>4.0} % {:>6.1} GFLOP/s",
                seconds * 1e3,
                seconds / best[0],
                achieved / gb_per_s * 100.0,
                2.0 * (m * n * k) as f64 / seconds / 1e9,
            );
        }
    }
}
