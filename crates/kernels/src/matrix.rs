//! Packed weights.

use std::fmt;
use std::ops::Range;

use crate::cpu::Cpu;
use crate::memory::{Arena, Disjoint};
use crate::quant::pack::{quantise_group, repack_row};
use crate::quant::{Coding, GROUP};
use crate::tile::{TILE, Tile, prefetch};
use crate::weight_data::{WeightData, element, widen};

/// How a [`Matrix`] stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// 32-bit floats.
    F32,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// 8 bits, a half-precision scale for 128 columns.
    Int8,
    /// 8 bits, a half-precision scale for 32 columns: the numbers of GGUF's type of that name.
    Q8_0,
    /// 4 bits, a half-precision scale for 32 columns: the numbers of GGUF's type of that name.
    Q4_0,
}

impl WeightFormat {
    /// Bytes of a tile of 64 outputs and k columns.
    fn tile_bytes(self, k: usize) -> usize {
        match self {
            WeightFormat::F32 => 4 * k * TILE,
            WeightFormat::Bf16 => 4 * k.div_ceil(2) * TILE,
            _ => Coding::of(self).expect("numbers with scales").tile_bytes(k),
        }
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WeightFormat::F32 => "f32",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Int8 => "int8",
            WeightFormat::Q8_0 => "q8_0",
            WeightFormat::Q4_0 => "q4_0",
        })
    }
}

/// How many bits a [`Part`] may be packed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bits {
    /// As it is stored.
    #[default]
    AsStored,
    /// 8; what is stored in fewer stays as it is.
    Eight,
    /// 4.
    Four,
}

/// Some rows of a [`Matrix`]: fused projections are packed from several tensors.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Number of rows (outputs).
    pub n: usize,
    /// Their elements, `[n, k]`.
    pub data: WeightData<'a>,
    /// How they are packed.
    pub bits: Bits,
}

impl Part<'_> {
    /// None for floats, which are packed as their neighbours allow.
    fn format(&self) -> Option<WeightFormat> {
        match (self.data, self.bits) {
            (WeightData::Q4_0(_), _) | (_, Bits::Four) => Some(WeightFormat::Q4_0),
            (WeightData::Q8_0(_), _) => Some(WeightFormat::Q8_0),
            (_, Bits::Eight) => Some(WeightFormat::Int8),
            (_, Bits::AsStored) => None,
        }
    }
}

/// A weight `[n, k]` packed for [`Cpu::matmul`].
///
/// Tiles of 64 outputs: f32 as `[n/64][k][64]`, bf16 as `[n/64][k/2][64][2]`, the others as
/// `Coding` says, so that one sequential stream passes all the weights of a tile in the order
/// of k. Missing outputs of the last tile, and the second half of the last pair where k is odd,
/// are zero. Parts of different formats are sections of their own tiles.
pub struct Matrix {
    n: usize,
    k: usize,
    sections: Vec<Section>,
    tiles: Arena,
}

/// Consecutive outputs in one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) format: WeightFormat,
    /// First output.
    first: usize,
    n: usize,
    /// First tile, and where its bytes start.
    first_tile: usize,
    start: usize,
}

/// One tile of a matrix.
pub(crate) struct TileAt<'a> {
    pub(crate) format: WeightFormat,
    pub(crate) bytes: &'a [u8],
    /// Its outputs.
    pub(crate) outputs: Range<usize>,
}

impl Matrix {
    /// Packs the parts one below the other. Floats that follow one another stay bf16 if all are,
    /// and are widened to f32 otherwise.
    ///
    /// # Panics
    /// If k is 0, or not whole blocks of a part, or a part does not have `n * k` elements.
    pub fn pack(cpu: &Cpu, k: usize, parts: &[Part<'_>]) -> Matrix {
        assert!(k > 0, "a weight without inputs");
        for part in parts {
            assert!(part.data.divides(k), "{k} columns are not whole blocks of 32");
            let bytes = part.n * part.data.row_bytes(k);
            assert_eq!(part.data.bytes().len(), bytes, "a part is not [{}, {k}]", part.n);
        }
        let mut sections: Vec<Section> = Vec::new();
        let (mut first, mut first_tile, mut start) = (0, 0, 0);
        for run in parts.chunk_by(|a, b| a.format() == b.format()) {
            let all_bf16 = run.iter().all(|part| matches!(part.data, WeightData::Bf16(_)));
            let floats = if all_bf16 { WeightFormat::Bf16 } else { WeightFormat::F32 };
            let format = run[0].format().unwrap_or(floats);
            let n = run.iter().map(|part| part.n).sum();
            sections.push(Section { format, first, n, first_tile, start });
            first += n;
            first_tile += n.div_ceil(TILE);
            start += n.div_ceil(TILE) * format.tile_bytes(k);
        }
        let mut matrix = Matrix { n: first, k, sections, tiles: Arena::new(start) };
        let mut tiles = std::mem::replace(&mut matrix.tiles, Arena::new(0));
        let all = Disjoint::new(tiles.as_mut_slice::<u8>());
        // The thread that packs a tile is the one that will read it (see the pool).
        cpu.run(first_tile, TILE * k, &|tile| {
            let (section, range) = matrix.locate(tile);
            // SAFETY: each task takes its own tile.
            let bytes = unsafe { all.part(range) };
            let output = section.first + (tile - section.first_tile) * TILE;
            let rows = row_sources(k, parts, output..section.first + section.n);
            match section.format {
                WeightFormat::Bf16 => pack_bf16(bytemuck::cast_slice_mut(bytes), k, &rows),
                WeightFormat::F32 => pack_f32(bytemuck::cast_slice_mut(bytes), k, &rows),
                format => {
                    let coding = Coding::of(format).expect("numbers with scales");
                    pack_numbers(cpu, coding, bytes, k, &rows);
                }
            }
        });
        matrix.tiles = tiles;
        matrix
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

    /// How most of the elements are stored.
    pub fn format(&self) -> WeightFormat {
        let largest = self.sections.iter().max_by_key(|section| section.n);
        largest.expect("a weight has outputs").format
    }

    /// Whether some of it has scales.
    pub(crate) fn is_quantised(&self) -> bool {
        self.sections.iter().any(|section| Coding::of(section.format).is_some())
    }

    pub(crate) fn n_tiles(&self) -> usize {
        self.sections.iter().map(|section| section.n.div_ceil(TILE)).sum()
    }

    /// The section of a tile and the bytes of it.
    fn locate(&self, tile: usize) -> (Section, Range<usize>) {
        let i = self.sections.partition_point(|section| section.first_tile <= tile) - 1;
        let section = self.sections[i];
        let bytes = section.format.tile_bytes(self.k);
        let start = section.start + (tile - section.first_tile) * bytes;
        (section, start..start + bytes)
    }

    pub(crate) fn tile(&self, tile: usize) -> TileAt<'_> {
        let (section, range) = self.locate(tile);
        let first = section.first + (tile - section.first_tile) * TILE;
        let outputs = first..(first + TILE).min(section.first + section.n);
        TileAt { format: section.format, bytes: &self.tiles.as_slice()[range], outputs }
    }

    /// Copies one row of the weight, widened.
    fn row(&self, n: usize, out: &mut [f32]) {
        let i = self.sections.partition_point(|section| section.first <= n) - 1;
        let section = self.sections[i];
        let lane = (n - section.first) % TILE;
        let tile = self.tile(section.first_tile + (n - section.first) / TILE);
        match tile.floats() {
            Some(Tile::F32(elements)) => {
                for (k, out) in out.iter_mut().enumerate() {
                    *out = elements[k * TILE + lane];
                }
            }
            Some(Tile::Bf16(pairs)) => {
                for (pair, out) in out.chunks_mut(2).enumerate() {
                    let word = pairs[pair * TILE + lane];
                    out[0] = f32::from_bits(word << 16);
                    if let Some(odd) = out.get_mut(1) {
                        *odd = f32::from_bits(word & 0xffff_0000);
                    }
                }
            }
            None => {
                let coding = Coding::of(tile.format).expect("numbers with scales");
                for (column, out) in out.iter_mut().enumerate() {
                    let (number, scale) = coding.element(tile.bytes, self.k, lane, column);
                    *out = number as f32 * scale;
                }
            }
        }
    }
}

impl<'a> TileAt<'a> {
    /// The tile as floats, if it is.
    pub(crate) fn floats(&self) -> Option<Tile<'a>> {
        match self.format {
            WeightFormat::F32 => Some(Tile::F32(bytemuck::cast_slice(self.bytes))),
            WeightFormat::Bf16 => Some(Tile::Bf16(bytemuck::cast_slice(self.bytes))),
            _ => None,
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

/// Up to 64 rows; `None` past the last row.
type RowSources<'a> = [Option<WeightData<'a>>; TILE];

/// The first 64 rows of these outputs.
fn row_sources<'a>(k: usize, parts: &[Part<'a>], outputs: Range<usize>) -> RowSources<'a> {
    let row = |mut n: usize| {
        for part in parts {
            if n < part.n {
                return Some(part.data.row(n, k));
            }
            n -= part.n;
        }
        None
    };
    std::array::from_fn(|lane| outputs.clone().nth(lane).and_then(row))
}

/// Words of each row that are packed at a time: two cache lines of the source.
const BLOCK: usize = 32;

/// Transposes 64 rows of bf16 into pairs along k.
fn pack_bf16(words: &mut [u32], k: usize, rows: &RowSources<'_>) {
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
fn pack_f32(words: &mut [u32], k: usize, rows: &RowSources<'_>) {
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

/// Quantises 64 rows, or copies them if they are in this coding already.
fn pack_numbers(cpu: &Cpu, coding: Coding, tile: &mut [u8], k: usize, rows: &RowSources<'_>) {
    let as_is = |row: &Option<WeightData<'_>>| match row {
        Some(WeightData::Q8_0(_)) => coding.bits == 8,
        Some(WeightData::Q4_0(_)) => coding.bits == 4,
        _ => false,
    };
    let mut columns = [[0.0; TILE]; GROUP];
    let mut rest = &mut *tile;
    for g in 0..k.div_ceil(GROUP) {
        let n = coding.columns(k, g);
        let (group, next) = rest.split_at_mut(coding.group_bytes(n));
        rest = next;
        if rows.iter().all(as_is) {
            continue;
        }
        for (lane, row) in rows.iter().enumerate().filter(|(_, row)| !as_is(row)) {
            let mut wide = [0.0; GROUP];
            if let Some(row) = row {
                let first = g * GROUP;
                widen(*row, first, &mut wide[..n.min(k - first)]);
            }
            for (column, wide) in columns.iter_mut().zip(wide) {
                column[lane] = wide;
            }
        }
        quantise_group(cpu.target(), coding, &columns[..n], group);
    }
    for (lane, row) in rows.iter().enumerate().filter(|(_, row)| as_is(row)) {
        let row = row.expect("a row that is as it is");
        repack_row(coding, row.bytes(), k, lane, tile);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

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
                    Part { n, data, bits: Bits::AsStored }
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
            Part { n: 1, data: WeightData::F32(&single), bits: Bits::AsStored },
            Part { n: 1, data: WeightData::Bf16(&brain), bits: Bits::AsStored },
            Part { n: 1, data: WeightData::F16(&half), bits: Bits::AsStored },
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
        Matrix::pack(
            &cpu,
            3,
            &[Part { n: 2, data: WeightData::F32(&[0; 20]), bits: Bits::AsStored }],
        );
    }

    #[test]
    #[should_panic(expected = "an id is not a row of the weight")]
    fn an_id_past_the_last_row_is_refused() {
        let cpu = Cpu::new(1, Isa::Scalar);
        let w = Matrix::pack(
            &cpu,
            1,
            &[Part { n: 2, data: WeightData::F32(&[0; 8]), bits: Bits::AsStored }],
        );
        cpu.embed(&w, &[2], &mut [0.0]);
    }
}
