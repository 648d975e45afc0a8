//! What the memory can deliver: the limit that decoding is measured against.

use std::time::Instant;

use crate::cpu::Cpu;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::memory::{Arena, Disjoint};
use crate::tile::prefetch;

/// Much more than a last-level cache keeps.
const PROBE_BYTES: usize = 1 << 30;
/// What is timed at once.
const STRETCH_BYTES: usize = 32 << 20;
/// What one task reads.
const PIECE_BYTES: usize = 1 << 20;
const N_PASSES: usize = 3;
/// How far ahead the prefetch runs, in bytes.
const AHEAD: usize = 4 << 10;

#[inline(always)]
fn sum_all<V: Lanes>(x: &[f32], sum: &mut f32) {
    let mut acc = [V::splat(0.0); 4];
    for lines in x.as_chunks::<{ 4 * LANES }>().0 {
        for (line, acc) in lines.as_chunks::<LANES>().0.iter().zip(&mut acc) {
            prefetch(line.as_ptr().cast::<u8>().wrapping_add(AHEAD));
            *acc = V::load(line).add(*acc);
        }
    }
    *sum = acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum();
}

per_isa!(fn sum_all_on(x: &[f32], sum: &mut f32) = sum_all);

/// Measured GB/s (10^9 bytes) that all threads together read from memory, each in one sequential
/// stream, in huge pages. The best of many stretches of 32 MiB out of 1 GiB: other load on the
/// machine is over in some of them.
pub fn read_bandwidth(cpu: &Cpu) -> f64 {
    measure(cpu, PROBE_BYTES, STRETCH_BYTES)
}

fn measure(cpu: &Cpu, bytes: usize, stretch_bytes: usize) -> f64 {
    let mut arena = Arena::new(bytes);
    let (stretch, piece) = (stretch_bytes / size_of::<f32>(), PIECE_BYTES / size_of::<f32>());
    // Written first, by the thread that will read: untouched pages would all be one page.
    for stretch in arena.as_mut_slice::<f32>().chunks_exact_mut(stretch) {
        let n_pieces = stretch.len() / piece;
        let stretch = Disjoint::new(stretch);
        cpu.run(n_pieces, piece, &|i| {
            // SAFETY: each task takes its own piece.
            unsafe { stretch.part(i * piece..(i + 1) * piece) }.fill(1.0);
        });
    }
    let mut best = f64::INFINITY;
    for _ in 0..N_PASSES {
        for stretch in arena.as_slice::<f32>().chunks_exact(stretch) {
            let start = Instant::now();
            cpu.run(stretch.len() / piece, piece, &|i| {
                let mut sum = 0.0;
                sum_all_on(cpu.target(), &stretch[i * piece..(i + 1) * piece], &mut sum);
                assert_eq!(std::hint::black_box(sum), piece as f32);
            });
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    stretch_bytes as f64 / best / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::isas;

    #[test]
    fn a_small_probe_gives_a_plausible_number() {
        for isa in isas() {
            let gb_per_s = measure(&Cpu::new(2, isa), 8 << 20, 4 << 20);
            assert!((0.01..100_000.0).contains(&gb_per_s), "{isa}: {gb_per_s} GB/s");
        }
    }
}
