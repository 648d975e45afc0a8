//! How close matrix products come to the memory's bandwidth and to the arithmetic of the cores:
//! `cargo run --release -p kernels --example roofline [threads]`.

use std::time::Instant;

use kernels::{Cpu, Isa, Matrix, Part, WeightData, read_bandwidth};

/// Weights of the 0.8B model: name, outputs, inputs.
const SHAPES: [(&str, usize, usize); 4] = [
    ("linear in_proj", 8224, 1024),
    ("mlp gate_up", 7168, 1024),
    ("mlp down", 1024, 3584),
    ("lm_head", 248_320, 1024),
];

fn main() {
    let n_threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a thread count"));
    let cpu = Cpu::new(n_threads, Isa::detect());
    println!("{} x {n_threads} threads", cpu.isa());
    for (name, n, k) in SHAPES {
        // Enough copies that none is still in a cache when its turn comes again.
        let bytes: Vec<u8> = (0..n * k).flat_map(|i| [(i % 251) as u8, 0x3c]).collect();
        let part = Part { n, data: WeightData::Bf16(&bytes) };
        let copies = (1usize << 30).div_ceil(2 * n * k);
        let weights: Vec<Matrix> = (0..copies).map(|_| Matrix::pack(&cpu, k, &[part])).collect();
        let gb_per_s = read_bandwidth(&cpu);
        println!("{name} [{n}, {k}] bf16; memory reads {gb_per_s:.1} GB/s");
        let mut one_row = f64::NAN;
        for m in [1, 2, 4, 6, 8, 12, 16, 64, 512] {
            let x: Vec<f32> = (0..m * k).map(|i| (i % 17) as f32 - 8.0).collect();
            let mut y = vec![0.0; m * n];
            let some = &weights[..copies.min(if m > 16 { 1 } else { copies })];
            let mut best = f64::INFINITY;
            for _ in 0..if m > 16 { 3 } else { 5 } {
                let start = Instant::now();
                some.iter().for_each(|w| cpu.matmul(w, &x, &mut y));
                best = best.min(start.elapsed().as_secs_f64() / some.len() as f64);
            }
            if m == 1 {
                one_row = best;
            }
            let bytes = weights[0].bytes() as f64;
            println!(
                "  {m:>3} rows: {:>8.3} ms, {:>6.2} x one row, {:>5.1} GB/s = {:>3.0} %, {:>6.1} GFLOP/s",
                best * 1e3,
                best / one_row,
                bytes / best / 1e9,
                bytes / best / 1e7 / gb_per_s,
                2.0 * (m * n * k) as f64 / best / 1e9,
            );
        }
    }
}
