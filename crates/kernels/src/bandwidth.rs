//! What the memory can deliver: the limit that decoding is measured against.

use std::time::Instant;

use crate::cpu::Cpu;
use crate::isa::per_isa;
use crate::lanes::{LANES, Lanes};
use crate::memory::{Arena, Disjoint};
use crate::tile::prefetch;

/// Much more than a last-level cache keeps.
const PROBE_BYTES: usize = 1 << 30;
/// Bytes of one task, many enough that a busy core does not decide the result alone.
const PIECE_BYTES: usize = 8 << 20;
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
/// stream through its part of 1 GiB in huge pages. The best of five passes.
pub fn read_bandwidth(cpu: &Cpu) -> f64 {
    measure(cpu, PROBE_BYTES, PIECE_BYTES, 5)
}

fn measure(cpu: &Cpu, bytes: usize, piece_bytes: usize, n_passes: usize) -> f64 {
    let mut arena = Arena::new(bytes);
    let (n, piece) = (bytes / size_of::<f32>(), piece_bytes / size_of::<f32>());
    let n_pieces = n / piece;
    let all = Disjoint::new(arena.as_mut_slice::<f32>());
    // Written first, by the thread that will read: untouched pages would all be one page.
    cpu.run(n_pieces, piece, &|i| {
        // SAFETY: each task takes its own piece.
        unsafe { all.part(i * piece..(i + 1) * piece) }.fill(1.0);
    });
    let x: &[f32] = arena.as_slice();
    let pass = |_| {
        let start = Instant::now();
        cpu.run(n_pieces, piece, &|i| {
            let mut sum = 0.0;
            sum_all_on(cpu.target(), &x[i * piece..(i + 1) * piece], &mut sum);
            assert_eq!(std::hint::black_box(sum), piece as f32);
        });
        start.elapsed().as_secs_f64()
    };
    let best = (0..n_passes).map(pass).fold(f64::INFINITY, f64::min);
    (n_pieces * piece_bytes) as f64 / best / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::isas;

    #[test]
    fn a_small_probe_gives_a_plausible_number() {
        for isa in isas() {
            let gb_per_s = measure(&Cpu::new(2, isa), 4 << 20, 1 << 20, 2);
            assert!((0.01..100_000.0).contains(&gb_per_s), "{isa}: {gb_per_s} GB/s");
        }
    }
}
