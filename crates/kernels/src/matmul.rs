//! Matrix products.

use crate::cpu::Cpu;
use crate::matrix::Matrix;
use crate::memory::Disjoint;
use crate::quant::inputs::Inputs;
use crate::quant::product::{self, CodedTile, Outputs, PASS_ROWS};
use crate::quant::{Coding, GROUP};
use crate::tile::{Rows, TILE, product};

/// Rows that pass together over the tiles: few enough that they stay in the L2 cache.
const CHUNK: usize = 96;
/// The same for quantised rows, in bytes.
const CHUNK_BYTES: usize = 512 << 10;

impl Cpu {
    /// `y[m, n] = x[m, k] W[n, k]^T` for any m >= 1.
    ///
    /// Each output depends on its row and its weights only, to the bit. With float weights it is
    /// `fold over k ascending of fma(x[k], w[n, k], acc)` from 0; with quantised ones what
    /// `quant` defines.
    ///
    /// # Panics
    /// If `x` is not whole rows of k or `y` is not m rows of n.
    pub fn matmul(&self, w: &Matrix, x: &[f32], y: &mut [f32]) {
        let (k, n) = (w.k(), w.n());
        let m = x.len() / k;
        assert_eq!(x.len(), m * k, "x is not [m, {k}]");
        assert_eq!(y.len(), m * n, "y is not [{m}, {n}]");
        if w.is_quantised() {
            self.with_quantised(x, k, |inputs| self.product(w, x, Some(inputs), y));
        } else {
            self.product(w, x, None, y);
        }
    }

    /// The product, of the inputs as they are for tiles of floats and quantised for the others.
    fn product(&self, w: &Matrix, x: &[f32], inputs: Option<&Inputs<'_>>, y: &mut [f32]) {
        let (k, n) = (w.k(), w.n());
        let m = x.len() / k;
        let chunk = match inputs {
            None => CHUNK,
            Some(_) => (CHUNK_BYTES / k.next_multiple_of(GROUP)).max(PASS_ROWS),
        };
        let n_chunks = m.div_ceil(chunk);
        let y = Disjoint::new(y);
        self.run(n_chunks * w.n_tiles(), TILE * k * m / n_chunks.max(1), &|i| {
            let (chunk, tile) = (i / w.n_tiles(), w.tile(i % w.n_tiles()));
            let (first, end) = (chunk * m / n_chunks, (chunk + 1) * m / n_chunks);
            let outputs = y.as_ptr().wrapping_add(first * n + tile.outputs.start);
            let n_outputs = tile.outputs.len();
            match (tile.floats(), inputs) {
                (Some(floats), _) => {
                    let rows = Rows {
                        m: end - first,
                        k,
                        x: x[first * k..].as_ptr(),
                        x_stride: k,
                        y: outputs,
                        y_stride: n,
                        n: n_outputs,
                        accumulate: false,
                    };
                    // SAFETY: x is [m, k] and y [m, n]; each task writes the columns of its own
                    // tile in the rows of its own chunk.
                    unsafe { product(self.target(), floats, rows) };
                }
                (None, Some(inputs)) => {
                    let coding = Coding::of(tile.format).expect("numbers with scales");
                    let coded = CodedTile { coding, k, bytes: tile.bytes };
                    let outputs = Outputs { y: outputs, y_stride: n, n: n_outputs };
                    // SAFETY: as above.
                    unsafe {
                        product::product(self.dot(), coded, inputs, first..end, outputs);
                    }
                }
                (None, None) => unreachable!("inputs are quantised where weights are"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Bits, Part};
    use crate::testing::{Random, bits, isas};
    use crate::weight_data::WeightData;

    fn pack(cpu: &Cpu, n: usize, k: usize, w: &[f32], as_bf16: bool) -> Matrix {
        let bytes: Vec<u8> = if as_bf16 {
            w.iter().flat_map(|&w| half::bf16::from_f32(w).to_le_bytes()).collect()
        } else {
            w.iter().flat_map(|w| w.to_le_bytes()).collect()
        };
        let data = if as_bf16 { WeightData::Bf16(&bytes) } else { WeightData::F32(&bytes) };
        Matrix::pack(cpu, k, &[Part { n, data, bits: Bits::AsStored }])
    }

    /// The definition.
    fn fold(n: usize, k: usize, w: &[f32], x: &[f32], as_bf16: bool) -> Vec<f32> {
        let widened = |w: f32| if as_bf16 { half::bf16::from_f32(w).to_f32() } else { w };
        x.chunks(k)
            .flat_map(|x| {
                (0..n).map(|n| {
                    let row = &w[n * k..(n + 1) * k];
                    x.iter().zip(row).fold(0.0, |acc, (x, &w)| x.mul_add(widened(w), acc))
                })
            })
            .collect()
    }

    #[test]
    fn every_instruction_set_and_thread_count_gives_the_definition() {
        let mut random = Random::new(5);
        let shapes =
            [(1, 1, 1), (64, 64, 1), (65, 7, 3), (200, 130, 6), (64, 300, 7), (70, 33, 29)];
        for (n, k, m) in shapes {
            let w = random.normals(n * k);
            let x = random.normals(m * k);
            for as_bf16 in [false, true] {
                let expected = bits(&fold(n, k, &w, &x, as_bf16));
                for isa in isas() {
                    for n_threads in 1..=3 {
                        let cpu = Cpu::new(n_threads, isa);
                        let packed = pack(&cpu, n, k, &w, as_bf16);
                        let mut y = vec![f32::NAN; m * n];
                        cpu.matmul(&packed, &x, &mut y);
                        assert_eq!(bits(&y), expected, "[{m}, {k}] x [{n}, {k}] {isa} {as_bf16}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_batch() {
        let mut random = Random::new(6);
        let (n, k, m) = (160, 290, 2 * CHUNK + 5);
        let w = random.normals(n * k);
        let x = random.normals(m * k);
        for isa in isas() {
            let cpu = Cpu::new(2, isa);
            for as_bf16 in [false, true] {
                let packed = pack(&cpu, n, k, &w, as_bf16);
                let alone: Vec<f32> = x
                    .chunks(k)
                    .flat_map(|x| {
                        let mut y = vec![0.0; n];
                        cpu.matmul(&packed, x, &mut y);
                        y
                    })
                    .collect();
                for rows in (2..=64).chain([CHUNK, CHUNK + 1, m]) {
                    let mut y = vec![f32::NAN; rows * n];
                    cpu.matmul(&packed, &x[..rows * k], &mut y);
                    assert_eq!(bits(&y), bits(&alone[..rows * n]), "{rows} rows, {isa}");
                }
            }
        }
    }

    #[test]
    fn nan_and_infinity_stay_in_their_row() {
        let cpu = Cpu::new(2, crate::Isa::detect());
        let (n, k) = (128, 40);
        let w = vec![1.0; n * k];
        let packed = pack(&cpu, n, k, &w, true);
        let mut x = vec![1.0; 8 * k];
        x[3 * k + 5] = f32::NAN;
        x[4 * k] = f32::INFINITY;
        let mut y = vec![0.0; 8 * n];
        cpu.matmul(&packed, &x, &mut y);
        for (r, y) in y.chunks(n).enumerate() {
            assert!(y.iter().all(|&y| match r {
                3 => y.is_nan(),
                4 => y == f32::INFINITY,
                _ => y == k as f32,
            }));
        }
    }

    #[test]
    #[should_panic(expected = "y is not [2, 3]")]
    fn shapes_are_checked() {
        let cpu = Cpu::new(1, crate::Isa::Scalar);
        let packed = pack(&cpu, 3, 2, &[0.0; 6], false);
        cpu.matmul(&packed, &[0.0; 4], &mut [0.0; 5]);
    }
}
