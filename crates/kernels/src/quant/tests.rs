//! Products with quantised weights against their definition, written once more and plainly.

use half::{bf16, f16};

use super::{Coding, GROUP};
use crate::dot::DotTarget;
use crate::matrix::{Bits, Matrix, Part, WeightFormat};
use crate::testing::{Random, bits, isas};
use crate::weight_data::WeightData;
use crate::{Cpu, Isa};

/// Every instruction set of this machine with every way to multiply bytes.
fn cpus(n_threads: usize) -> impl Iterator<Item = Cpu> {
    isas().flat_map(move |isa| {
        DotTarget::available(isa).map(move |dot| Cpu::with_dot(n_threads, isa, dot))
    })
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Blocks of GGUF's types with arbitrary contents, extremes included.
fn blocks(random: &mut Random, n_blocks: usize, number_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..n_blocks {
        bytes.extend(f16::from_f32(random.normal() * 0.01).to_le_bytes());
        bytes.extend((0..number_bytes).map(|_| random.next() as u8));
    }
    bytes
}

/// A weight of each format, with its values.
fn weights(cpu: &Cpu, random: &mut Random, n: usize, k: usize) -> Vec<(Matrix, Vec<f32>)> {
    let floats = bytes_of(&random.normals(n * k));
    let mut parts = vec![
        Part { n, data: WeightData::F32(&floats), bits: Bits::Eight },
        Part { n, data: WeightData::F32(&floats), bits: Bits::Four },
    ];
    let (eight, four);
    if k.is_multiple_of(32) {
        eight = blocks(random, n * k / 32, 32);
        four = blocks(random, n * k / 32, 16);
        parts.push(Part { n, data: WeightData::Q8_0(&eight), bits: Bits::AsStored });
        parts.push(Part { n, data: WeightData::Q4_0(&four), bits: Bits::AsStored });
    }
    parts
        .iter()
        .map(|part| Matrix::pack(cpu, k, &[*part]))
        .map(|w| {
            let rows = rows_of(cpu, &w);
            (w, rows)
        })
        .collect()
}

fn rows_of(cpu: &Cpu, w: &Matrix) -> Vec<f32> {
    let ids: Vec<u32> = (0..w.n() as u32).collect();
    let mut rows = vec![f32::NAN; w.n() * w.k()];
    cpu.embed(w, &ids, &mut rows);
    rows
}

/// The definition, for a weight of one section.
fn expected(w: &Matrix, x: &[f32]) -> Vec<f32> {
    let coding = Coding::of(w.format()).unwrap();
    let (n, k) = (w.n(), w.k());
    let mut y = Vec::new();
    for x in x.chunks(k) {
        for output in 0..n {
            let tile = w.tile(output / 64);
            let mut acc = 0.0f32;
            for (g, x) in x.chunks(GROUP).enumerate() {
                let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let mut t = 0.0f32;
                for (p, x) in x.chunks(coding.scaled).enumerate() {
                    let (mut sum, mut scale) = (0i64, 0.0);
                    for (i, x) in x.iter().enumerate() {
                        let column = g * GROUP + p * coding.scaled + i;
                        let weight = coding.element(tile.bytes, k, output % 64, column);
                        let number = (x * (127.0 / most)).round_ties_even() as i64;
                        assert!(number.abs() <= 127);
                        sum += i64::from(weight.0) * number;
                        scale = weight.1;
                    }
                    t = (sum as f32).mul_add(scale, t);
                }
                acc = t.mul_add(most / 127.0, acc);
            }
            y.push(acc);
        }
    }
    y
}

#[test]
fn every_instruction_set_gives_the_definition() {
    let mut random = Random::new(31);
    let packer = Cpu::new(2, Isa::detect());
    for (n, k, m) in
        [(1, 1, 1), (64, 128, 2), (70, 160, 7), (130, 576, 3), (65, 333, 50), (64, 1024, 33)]
    {
        for (w, _) in weights(&packer, &mut random, n, k) {
            let x = random.normals(m * k);
            let expected = bits(&expected(&w, &x));
            for cpu in cpus(2) {
                let mut y = vec![f32::NAN; m * n];
                cpu.matmul(&w, &x, &mut y);
                let what = (w.format(), cpu.isa(), cpu.dot_isa());
                assert!(bits(&y) == expected, "[{m}, {k}] x [{n}, {k}] {what:?}");
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    let mut random = Random::new(32);
    let packer = Cpu::new(2, Isa::detect());
    let (n, k, m) = (150, 416, 110);
    let x = random.normals(m * k);
    for (w, _) in weights(&packer, &mut random, n, k) {
        let mut alone = vec![0.0; m * n];
        for (x, y) in x.chunks(k).zip(alone.chunks_mut(n)) {
            packer.matmul(&w, x, y);
        }
        for n_threads in [1, 3] {
            for cpu in cpus(n_threads).filter(|cpu| cpu.isa() != Isa::Scalar) {
                for rows in (2..=20).chain([31, 32, 33, 48, 49, m]) {
                    let mut y = vec![f32::NAN; rows * n];
                    cpu.matmul(&w, &x[..rows * k], &mut y);
                    let same = bits(&y) == bits(&alone[..rows * n]);
                    assert!(same, "{rows} rows, {}, {}", w.format(), cpu.dot_isa());
                }
            }
        }
    }
}

/// Packing is done with floats, so it has twins to agree with too.
#[test]
fn every_instruction_set_packs_the_same_numbers() {
    let mut random = Random::new(33);
    let (n, k) = (70, 200);
    let mut values = random.normals(n * k);
    values[..130].fill(0.0);
    values[300] = 1e-20;
    values[700] = f32::INFINITY;
    values[1200] = f32::NAN;
    let bytes = bytes_of(&values);
    for depth in [Bits::Eight, Bits::Four] {
        let part = Part { n, data: WeightData::F32(&bytes), bits: depth };
        let scalar = Cpu::new(1, Isa::Scalar);
        let expected = rows_of(&scalar, &Matrix::pack(&scalar, k, &[part]));
        assert!(expected.iter().any(|x| x.is_nan()));
        assert!(expected[..128].iter().all(|&x| x == 0.0));
        for isa in isas() {
            let cpu = Cpu::new(2, isa);
            let got = rows_of(&cpu, &Matrix::pack(&cpu, k, &[part]));
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(got.iter().zip(&expected).all(same), "{depth:?} on {isa}");
        }
    }
}

#[test]
fn numbers_come_as_near_as_their_bits_allow() {
    let mut random = Random::new(34);
    let cpu = Cpu::new(2, Isa::detect());
    let (n, k) = (128, 1024);
    let values: Vec<f32> =
        random.normals(n * k).iter().map(|x| bf16::from_f32(0.02 * x).to_f32()).collect();
    let rms = |x: &mut dyn Iterator<Item = f32>| {
        (x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>() / (n * k) as f64).sqrt()
    };
    let scale = rms(&mut values.iter().copied());
    let bytes = bytes_of(&values);
    // Of normal weights; a scale from the largest magnitude alone leaves 0.0858 in 4 bits.
    for (depth, limit) in [(Bits::Eight, 0.0068), (Bits::Four, 0.0825)] {
        let part = Part { n, data: WeightData::F32(&bytes), bits: depth };
        let w = Matrix::pack(&cpu, k, &[part]);
        let rows = rows_of(&cpu, &w);
        let error = rms(&mut rows.iter().zip(&values).map(|(a, b)| a - b)) / scale;
        println!("{}: relative error {error:.5}, {} bytes", w.format(), w.bytes());
        assert!(error < limit, "{depth:?}: {error}");
    }
}

/// The blocks of a file become the same numbers, whatever stands beside them.
#[test]
fn blocks_of_a_file_are_kept_exactly() {
    let mut random = Random::new(35);
    let cpu = Cpu::new(2, Isa::detect());
    let (n, k) = (70, 192);
    let eight = blocks(&mut random, n * k / 32, 32);
    let four = blocks(&mut random, n * k / 32, 16);
    let mut values = Vec::new();
    for block in eight.chunks(34) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        values.extend(block[2..].iter().map(|&q| f32::from(q as i8) * scale));
    }
    for block in four.chunks(18) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        values.extend(block[2..].iter().map(|&q| (f32::from(q & 15) - 8.0) * scale));
        values.extend(block[2..].iter().map(|&q| (f32::from(q >> 4) - 8.0) * scale));
    }
    let w = Matrix::pack(
        &cpu,
        k,
        &[
            Part { n, data: WeightData::Q8_0(&eight), bits: Bits::Eight },
            Part { n, data: WeightData::Q4_0(&four), bits: Bits::AsStored },
        ],
    );
    assert_eq!(rows_of(&cpu, &w), values);
    assert_eq!(w.bytes(), 2 * (k * 64 + k / 32 * 128) + 2 * (k * 32 + k / 32 * 128));
    // As floats of the same values the blocks of 32 are widened, which is exact as well.
    let part = Part { n, data: WeightData::Q8_0(&eight), bits: Bits::Four };
    assert_eq!(Matrix::pack(&cpu, k, &[part]).format(), WeightFormat::Q4_0);
}

/// Outputs of different formats are each what they would be alone.
#[test]
fn sections_of_a_weight_do_not_touch_each_other() {
    let mut random = Random::new(36);
    let (k, m) = (256, 5);
    let numbers = random.normals(230 * k);
    let bytes = bytes_of(&numbers);
    let halves: Vec<u8> = numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
    let parts = [
        Part { n: 100, data: WeightData::F32(&bytes[..400 * k]), bits: Bits::Eight },
        Part { n: 30, data: WeightData::Bf16(&halves[..60 * k]), bits: Bits::AsStored },
        Part { n: 70, data: WeightData::F32(&bytes[..280 * k]), bits: Bits::Four },
        Part { n: 30, data: WeightData::F32(&bytes[..120 * k]), bits: Bits::AsStored },
    ];
    let x = random.normals(m * k);
    for cpu in cpus(2) {
        let w = Matrix::pack(&cpu, k, &parts);
        let mut y = vec![f32::NAN; m * w.n()];
        cpu.matmul(&w, &x, &mut y);
        let mut first = 0;
        for part in parts {
            let alone = Matrix::pack(&cpu, k, &[part]);
            let mut expected = vec![f32::NAN; m * part.n];
            cpu.matmul(&alone, &x, &mut expected);
            for (y, expected) in y.chunks(w.n()).zip(expected.chunks(part.n)) {
                assert_eq!(bits(&y[first..first + part.n]), bits(expected));
            }
            first += part.n;
        }
        assert_eq!(first, w.n());
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut random = Random::new(37);
    let packer = Cpu::new(2, Isa::detect());
    let (n, k, m) = (64, 256, 40);
    for (w, _) in weights(&packer, &mut random, n, k) {
        for cpu in cpus(2).filter(|cpu| cpu.isa() != Isa::Scalar) {
            let mut x = vec![1.0; m * k];
            x[3 * k + 5] = f32::NAN;
            x[4 * k + 200] = f32::NEG_INFINITY;
            x[5 * k..6 * k].fill(0.0);
            x[6 * k..7 * k].fill(1e-38);
            let mut y = vec![0.0; m * n];
            cpu.matmul(&w, &x, &mut y);
            for (r, y) in y.chunks(n).enumerate() {
                assert!(y.iter().all(|&y| match r {
                    3 | 4 => y.is_nan(),
                    5 | 6 => y == 0.0,
                    _ => y.is_finite() && y != 0.0,
                }));
            }
        }
    }
}

#[test]
#[should_panic(expected = "48 columns are not whole blocks of 32")]
fn half_a_block_is_refused() {
    let cpu = Cpu::new(1, Isa::Scalar);
    let part = Part { n: 1, data: WeightData::Q8_0(&[0; 68]), bits: Bits::AsStored };
    Matrix::pack(&cpu, 48, &[part]);
}
