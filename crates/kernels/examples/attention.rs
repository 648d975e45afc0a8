//! How close attention comes to the memory's bandwidth in decode and to the arithmetic of the
//! cores in prefill: `cargo run --release -p kernels --example attention [threads]`.
//!
//! The formats and the bandwidth probe take turns, and the best turn of each counts, so that
//! other load on the machine hits all of them alike.

use std::time::Instant;

use kernels::{Cpu, Heads, Isa, KV_BLOCK, KvShape, KvStore, KvType, Span, read_bandwidth};

/// Heads of an attention layer of the 0.8B model.
const N_HEADS: usize = 8;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = 256;
const WIDTH: usize = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM;

const FORMATS: [KvType; 3] = [KvType::F32, KvType::Bf16, KvType::Int8];
const CONTEXTS: [usize; 2] = [4096, 32_768];
/// Rows of one sequence in a pass: a decode, verifies.
const ROWS: [usize; 3] = [1, 2, 4];
const PREFILL: usize = 2048;
/// As many layers as this holds, so that none is still in a cache when its turn comes again.
const STORE_BYTES: usize = 640 << 20;
const N_ROUNDS: usize = 6;

fn heads(offset: usize, n: usize) -> Heads {
    Heads { offset: offset * HEAD_DIM, row: WIDTH, n, step: HEAD_DIM, dim: HEAD_DIM }
}

/// Numbers from -1 to 1 without a pattern.
fn noise(n: usize) -> Vec<f32> {
    let mut word = 1_u32;
    let mut draw = || {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (word >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| draw()).collect()
}

/// A sequence of so many positions in every layer of a store.
struct Context {
    kv: KvStore,
    blocks: Vec<u32>,
    n_positions: usize,
    next_layer: usize,
}

impl Context {
    fn new(cpu: &Cpu, kv_type: KvType, n_positions: usize, n_layers: Option<usize>) -> Context {
        let n_blocks = n_positions.div_ceil(KV_BLOCK);
        let shape =
            |n_layers| KvShape { n_layers, n_blocks, n_kv_heads: N_KV_HEADS, head_dim: HEAD_DIM };
        let layer_bytes = n_blocks * KvStore::bytes_per_block(&shape(1), kv_type);
        let shape = shape(n_layers.unwrap_or(STORE_BYTES.div_ceil(layer_bytes)));
        let mut kv = KvStore::new(shape, kv_type);
        let blocks: Vec<u32> = (0..n_blocks as u32).rev().collect();
        let rows = noise(512 * WIDTH);
        for layer in 0..shape.n_layers {
            for pos in (0..n_positions).step_by(512) {
                let n_rows = 512.min(n_positions - pos);
                let span = span(&blocks, pos, n_rows);
                let rows = &rows[..n_rows * WIDTH];
                let (k, v) = (heads(N_HEADS, N_KV_HEADS), heads(N_HEADS + N_KV_HEADS, N_KV_HEADS));
                cpu.kv_append(&mut kv, layer, &[span], rows, k, v);
            }
        }
        Context { kv, blocks, n_positions, next_layer: 0 }
    }

    fn layer_bytes(&self) -> usize {
        self.blocks.len() * KvStore::bytes_per_block(self.kv.shape(), self.kv.kv_type())
            / self.kv.shape().n_layers
    }

    /// Seconds that the last `n_rows` positions take to attend to all, in the next layer.
    fn attend(&mut self, cpu: &Cpu, n_rows: usize) -> f64 {
        let rows = noise(n_rows * WIDTH);
        let mut out = vec![0.0; n_rows * N_HEADS * HEAD_DIM];
        self.next_layer = (self.next_layer + 1) % self.kv.shape().n_layers;
        let span = span(&self.blocks, self.n_positions - n_rows, n_rows);
        let start = Instant::now();
        cpu.attend(&mut self.kv, self.next_layer, &[span], &rows, heads(0, N_HEADS), &mut out);
        start.elapsed().as_secs_f64()
    }
}

fn span(blocks: &[u32], pos: usize, n_rows: usize) -> Span<'_> {
    Span { row: 0, n_rows, pos, blocks, slot: 0, n_replay: 0, n_commit: n_rows }
}

/// Seconds that the threads of this process have run, which other load does not add to.
fn cpu_time() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a Linux machine");
    let nanoseconds = |task: std::io::Result<std::fs::DirEntry>| -> f64 {
        let path = task.expect("a thread").path().join("schedstat");
        let text = std::fs::read_to_string(path).expect("a thread's times");
        text.split(' ').next().and_then(|n| n.parse().ok()).expect("nanoseconds")
    };
    tasks.map(nanoseconds).sum::<f64>() / 1e9
}

fn main() {
    let n_threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("a thread count"));
    let cpu = Cpu::new(n_threads, Isa::detect());
    println!("{}, {n_threads} threads, {N_HEADS} heads on {N_KV_HEADS} x {HEAD_DIM}", cpu.isa());
    for n_positions in CONTEXTS {
        let mut contexts = FORMATS.map(|kv_type| Context::new(&cpu, kv_type, n_positions, None));
        let mut best = [[f64::INFINITY; ROWS.len()]; FORMATS.len()];
        let mut gb_per_s = 0.0_f64;
        for _ in 0..N_ROUNDS {
            gb_per_s = gb_per_s.max(read_bandwidth(&cpu));
            for (context, best) in contexts.iter_mut().zip(&mut best) {
                for (n_rows, best) in ROWS.into_iter().zip(best) {
                    for _ in 0..context.kv.shape().n_layers.min(16) {
                        *best = best.min(context.attend(&cpu, n_rows));
                    }
                }
            }
        }
        println!("decode after {n_positions} tokens; memory reads {gb_per_s:.1} GB/s");
        for (context, best) in contexts.iter().zip(best) {
            for (n_rows, seconds) in ROWS.into_iter().zip(best) {
                let achieved = context.layer_bytes() as f64 / seconds / 1e9;
                println!(
                    "{:>5?} {n_rows} rows {:>8.1} us/layer {:>5.2} x one row {achieved:>6.1} GB/s {:>4.0} %",
                    context.kv.kv_type(),
                    seconds * 1e6,
                    seconds / best[0],
                    achieved / gb_per_s * 100.0,
                );
            }
        }
    }
    for kv_type in FORMATS {
        let mut context = Context::new(&cpu, kv_type, PREFILL, Some(1));
        let (mut seconds, mut cpu_seconds) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..N_ROUNDS {
            let before = cpu_time();
            seconds = seconds.min(context.attend(&cpu, PREFILL));
            cpu_seconds = cpu_seconds.min(cpu_time() - before);
        }
        // Each row multiplies with the keys and the values up to its own.
        let multiply_adds = PREFILL * (PREFILL + 1) / 2 * N_HEADS * HEAD_DIM * 2;
        println!(
            "{kv_type:>5?} prefill of {PREFILL} rows {:>7.2} ms/layer {:>6.1} GFLOP/s, {:>6.1} in a second of a core",
            seconds * 1e3,
            2.0 * multiply_adds as f64 / seconds / 1e9,
            2.0 * multiply_adds as f64 / cpu_seconds / 1e9,
        );
    }
}
