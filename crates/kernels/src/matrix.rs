//! Packed weights.

use half::f16;

use crate::cpu::Cpu;
use crate::memory::{Arena, Disjoint};
use crate::tile::{TILE, Tile, prefetch};

/// How a [`Matrix`] stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// The upper halves of 32-bit floats.
    Bf16,
}

/// Rows of a weight as they lie in a file: little-endian, row-major `[n, k]`, any alignment.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// IEEE single precision.
    F32(&'a [u8]),
    /// bfloat16.
    Bf16(&'a [u8]),
    /// IEEE half precision.
    F16(&'a [u8]),
}

impl<'a> WeightData<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            WeightData::F32(bytes) | WeightData::Bf16(bytes) | WeightData::F16(bytes) => bytes,
        }
    }

    fn element_bytes(self) -> usize {
        match self {
            WeightData::F32(_) => 4,
            WeightData::Bf16(_) | WeightData::F16(_) => 2,
        }
    }
}

/// Some rows of a [`Matrix`]: fused projections are packed from several tensors.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Number of rows (outputs).
    pub n: usize,
    /// Their elements, `[n, k]`.
    pub data: WeightData<'a>,
}

/// A weight `[n, k]` packed for [`Cpu::matmul`].
///
/// Tiles of 64 outputs: f32 as `[n/64][k][64]`, bf16 as `[n/64][k/2][64][2]`, so that one
/// sequential stream passes all the weights of a tile in the order of k. Missing outputs of the
/// last tile, and the second half of the last pair where k is odd, are zero.
pub struct Matrix {
    n: usize,
    k: usize,
    format: WeightFormat,
    tiles: Arena,
}

impl Matrix {
    /// Packs the parts one below the other. bf16 parts stay bf16 if all are; otherwise everything
    /// is widened to f32.
    ///
    /// # Panics
    /// If k is 0 or a part does not have `n * k` elements.
    pub fn pack(cpu: &Cpu, k: usize, parts: &[Part<'_>]) -> Matrix {
        assert!(k > 0, "a weight without inputs");
        for part in parts {
            let bytes = part.n * k * part.data.element_bytes();
            assert_eq!(part.data.bytes().len(), bytes, "a part is not [{}, {k}]", part.n);
        }
        let all_bf16 = parts.iter().all(|part| matches!(part.data, WeightData::Bf16(_)));
        let format = if all_bf16 { WeightFormat::Bf16 } else { WeightFormat::F32 };
        let n = parts.iter().map(|part| part.n).sum::<usize>();
        let n_tiles = n.div_ceil(TILE);
        let words = tile_words(format, k);
        let mut tiles = Arena::of::<u32>(n_tiles * words);
        let all = Disjoint::new(tiles.as_mut_slice::<u32>());
        // The thread that packs a tile is the one that will read it (see the pool).
        cpu.run(n_tiles, TILE * k, &|tile| {
            // SAFETY: each task takes its own tile.
            let words = unsafe { all.part(tile * words..(tile + 1) * words) };
            let rows = row_sources(k, parts, tile * TILE);
            match format {
                WeightFormat::Bf16 => pack_bf16(words, k, &rows),
                WeightFormat::F32 => pack_f32(words, k, &rows),
            }
        });
        Matrix { n, k, format, tiles }
    }

    /// Number of rows (outputs).
    pub fn n(&self) -> usize {
        self.n
    }

    /// Number of columns (inputs).
    pub fn k(&self) -> usize {
        self.k
    }

    /// Size of the packed weight.
    pub fn bytes(&self) -> usize {
        self.tiles.len()
    }

    /// How the elements are stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    pub(crate) fn n_tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    pub(crate) fn tile(&self, tile: usize) -> Tile<'_> {
        let words = tile_words(self.format, self.k);
        let range = tile * words..(tile + 1) * words;
        match self.format {
            WeightFormat::F32 => Tile::F32(&self.tiles.as_slice()[range]),
            WeightFormat::Bf16 => Tile::Bf16(&self.tiles.as_slice()[range]),
        }
    }

    /// Copies one row of the weight, widened.
    fn row(&self, n: usize, out: &mut [f32]) {
        let lane = n % TILE;
        match self.tile(n / TILE) {
            Tile::F32(elements) => {
                for (k, out) in out.iter_mut().enumerate() {
                    *out = elements[k * TILE + lane];
                }
            }
            Tile::Bf16(pairs) => {
                for (pair, out) in out.chunks_mut(2).enumerate() {
                    let word = pairs[pair * TILE + lane];
                    out[0] = f32::from_bits(word << 16);
                    if let Some(odd) = out.get_mut(1) {
                        *odd = f32::from_bits(word & 0xffff_0000);
                    }
                }
            }
        }
    }
}

impl Cpu {
    /// `y[i] = W[ids[i]]`: rows of a weight, `y` `[ids.len(), k]`.
    ///
    /// # Panics
    /// If an id is not below n, or `y` has another size.
    pub fn embed(&self, w: &Matrix, ids: &[u32], y: &mut [f32]) {
        assert_eq!(y.len(), ids.len() * w.k, "y is not [ids, k]");
        assert!(ids.iter().all(|&id| (id as usize) < w.n), "an id is not a row of the weight");
        let y = Disjoint::new(y);
        // Every element is in a cache line of its own.
        self.run_rows(ids.len(), 16 * w.k, &|rows| {
            for i in rows {
                // SAFETY: each row belongs to one task.
                w.row(ids[i] as usize, unsafe { y.part(i * w.k..(i + 1) * w.k) });
            }
        });
    }
}

/// 32-bit words of one tile.
fn tile_words(format: WeightFormat, k: usize) -> usize {
    match format {
        WeightFormat::F32 => k * TILE,
        WeightFormat::Bf16 => k.div_ceil(2) * TILE,
    }
}

/// The bytes of the 64 rows from `first` on; `None` past the last row.
fn row_sources<'a>(k: usize, parts: &[Part<'a>], first: usize) -> [Option<WeightData<'a>>; TILE] {
    let row = |mut n: usize| {
        for part in parts {
            if n < part.n {
                let bytes = k * part.data.element_bytes();
                let row = &part.data.bytes()[n * bytes..(n + 1) * bytes];
                return Some(match part.data {
                    WeightData::F32(_) => WeightData::F32(row),
                    WeightData::Bf16(_) => WeightData::Bf16(row),
                    WeightData::F16(_) => WeightData::F16(row),
                });
            }
            n -= part.n;
        }
        None
    };
    std::array::from_fn(|lane| row(first + lane))
}

/// Words of each row that are packed at a time: two cache lines of the source.
const BLOCK: usize = 32;

/// Transposes 64 rows of bf16 into pairs along k.
fn pack_bf16(words: &mut [u32], k: usize, rows: &[Option<WeightData<'_>>; TILE]) {
    for (block, words) in words.chunks_mut(BLOCK * TILE).enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let bytes = |block: usize| (block * BLOCK * 4).min(2 * k);
            // 64 rows are more streams than the hardware follows.
            let next = &row.bytes()[bytes(block + 1)..bytes(block + 2)];
            next.chunks(64).for_each(|line| prefetch(line.as_ptr()));
            let row = &row.bytes()[bytes(block)..bytes(block + 1)];
            let (pairs, odd) = row.as_chunks::<4>();
            for (i, pair) in pairs.iter().enumerate() {
                words[i * TILE + lane] = u32::from_le_bytes(*pair);
            }
            if let [low, high] = odd {
                words[pairs.len() * TILE + lane] = u32::from_le_bytes([*low, *high, 0, 0]);
            }
        }
    }
}

/// Transposes 64 rows of any type into f32.
fn pack_f32(words: &mut [u32], k: usize, rows: &[Option<WeightData<'_>>; TILE]) {
    for (block, words) in words.chunks_mut(BLOCK * TILE).enumerate() {
        let columns = block * BLOCK..k.min((block + 1) * BLOCK);
        for (lane, row) in rows.iter().enumerate() {
            let Some(row) = row else { continue };
            for (i, column) in columns.clone().enumerate() {
                words[i * TILE + lane] = element(*row, column).to_bits();
            }
        }
    }
}

/// One element of a row, widened.
fn element(row: WeightData<'_>, column: usize) -> f32 {
    match row {
        WeightData::F32(bytes) => f32::from_le_bytes(bytes.as_chunks().0[column]),
        WeightData::Bf16(bytes) => {
            f32::from_bits(u32::from(u16::from_le_bytes(bytes.as_chunks().0[column])) << 16)
        }
        WeightData::F16(bytes) => f16::from_le_bytes(bytes.as_chunks().0[column]).to_f32(),
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::Isa;
    use crate::testing::{Random, bits};

    fn f32_bytes(x: &[f32]) -> Vec<u8> {
        x.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn rows_of(cpu: &Cpu, w: &Matrix) -> Vec<f32> {
        let ids: Vec<u32> = (0..w.n() as u32).collect();
        let mut rows = vec![f32::NAN; w.n() * w.k()];
        cpu.embed(w, &ids, &mut rows);
        rows
    }

    #[test]
    fn rows_come_back_as_they_were_packed() {
        let cpu = Cpu::new(2, Isa::detect());
        let mut random = Random::new(4);
        for (k, ns) in [(1, vec![1]), (7, vec![3, 64, 70]), (64, vec![128]), (130, vec![1, 65])] {
            let n: usize = ns.iter().sum();
            let values: Vec<bf16> = (0..n * k).map(|_| bf16::from_f32(random.normal())).collect();
            let wide: Vec<f32> = values.iter().map(|x| x.to_f32()).collect();
            // One byte in front: nothing may depend on alignment.
            let mut bytes = vec![0u8];
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            let mut start = 1;
            let parts: Vec<Part> = ns
                .iter()
                .map(|&n| {
                    let data = WeightData::Bf16(&bytes[start..start + n * k * 2]);
                    start += n * k * 2;
                    Part { n, data }
                })
                .collect();
            let w = Matrix::pack(&cpu, k, &parts);
            assert_eq!((w.n(), w.k(), w.format()), (n, k, WeightFormat::Bf16));
            assert_eq!(w.bytes(), n.div_ceil(64) * k.div_ceil(2) * 256);
            assert_eq!(bits(&rows_of(&cpu, &w)), bits(&wide));
        }
    }

    #[test]
    fn mixed_parts_are_widened_to_f32() {
        let cpu = Cpu::new(2, Isa::detect());
        let x = [1.5f32, -2.25, 3.0e-3, 4.0, 65504.0, 6.0];
        let single = f32_bytes(&x[..2]);
        let brain: Vec<u8> =
            x[2..4].iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let half: Vec<u8> = x[4..].iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        let parts = [
            Part { n: 1, data: WeightData::F32(&single) },
            Part { n: 1, data: WeightData::Bf16(&brain) },
            Part { n: 1, data: WeightData::F16(&half) },
        ];
        let w = Matrix::pack(&cpu, 2, &parts);
        assert_eq!(w.format(), WeightFormat::F32);
        let third = bf16::from_f32(x[2]).to_f32();
        assert_eq!(rows_of(&cpu, &w), [1.5, -2.25, third, 4.0, 65504.0, 6.0]);
    }

    #[test]
    #[should_panic(expected = "a part is not [2, 3]")]
    fn a_part_of_the_wrong_size_is_refused() {
        let cpu = Cpu::new(1, Isa::Scalar);
        Matrix::pack(&cpu, 3, &[Part { n: 2, data: WeightData::F32(&[0; 20]) }]);
    }

    #[test]
    #[should_panic(expected = "an id is not a row of the weight")]
    fn an_id_past_the_last_row_is_refused() {
        let cpu = Cpu::new(1, Isa::Scalar);
        let w = Matrix::pack(&cpu, 1, &[Part { n: 2, data: WeightData::F32(&[0; 8]) }]);
        cpu.embed(&w, &[2], &mut [0.0]);
    }
}
