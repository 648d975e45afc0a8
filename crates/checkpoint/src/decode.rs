//! Stored elements as f32: the definition of every type.
//!
//! The order of the operations is that of the formats' reference code, so the values are the same
//! bits; nothing is fused.

use half::{bf16, f16};

use crate::DType;

/// Decodes `bytes`, a whole number of blocks, into `out`.
///
/// # Panics
/// When the two do not have the same number of elements.
pub(crate) fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let (elements, block_bytes) = dtype.block();
    assert_eq!(bytes.len() / block_bytes * elements, out.len(), "{dtype} of another length");
    let block: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => |b, out| out[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        DType::Bf16 => |b, out| out[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::F16 => |b, out| out[0] = half(b),
        DType::F8E4m3 => |b, out| out[0] = f8_e4m3(b[0]),
        DType::Q8_0 => q8_0,
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::Q4K => q4_k,
        DType::Q5K => q5_k,
        DType::Q6K => q6_k,
    };
    for (bytes, out) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(elements)) {
        block(bytes, out);
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Sign, 4 bits of exponent (bias 7), 3 of mantissa; all ones is NaN and nothing is infinite.
fn f8_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 64.0,
        _ => (1.0 + mantissa) * f32::from_bits((exponent + 127 - 7) << 23),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    for (q, out) in block[2..].iter().zip(out) {
        *out = f32::from(*q as i8) * d;
    }
}

/// Calls `put(i, q)` with the 4-bit integers of a block of 32: low halves first, then high ones.
fn nibbles(packed: &[u8], mut put: impl FnMut(usize, u8)) {
    for (i, byte) in packed.iter().enumerate() {
        put(i, byte & 15);
        put(i + packed.len(), byte >> 4);
    }
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    nibbles(&block[2..], |i, q| out[i] = d * (f32::from(q) - 8.0));
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block), half(&block[2..]));
    nibbles(&block[4..], |i, q| out[i] = d * f32::from(q) + m);
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half(block);
    let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
    nibbles(&block[6..], |i, q| out[i] = d * (f32::from(fifth(high, i, q)) - 16.0));
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block), half(&block[2..]));
    let high = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    nibbles(&block[8..], |i, q| out[i] = d * f32::from(fifth(high, i, q)) + m);
}

/// The fifth bits of all 32 elements lie together.
fn fifth(high: u32, i: usize, q: u8) -> u8 {
    q | ((high >> i & 1) << 4) as u8
}

/// Scale and minimum of group `i` of 8, 6 bits each, packed in 12 bytes: the first four groups
/// whole, the upper two bits of the other four in the spare bits of those.
fn group(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, min) = match i {
        0..4 => (packed[i] & 63, packed[i + 4] & 63),
        _ => {
            (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
        }
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block), half(&block[2..]));
    let (scales, packed) = block[4..].split_at(12);
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = group(scales, i);
        let (d, m) = (d * scale, dmin * min);
        // Two groups share 32 bytes: low halves, then high halves.
        let (bytes, shift) = (&packed[i / 2 * 32..], i % 2 * 4);
        for (byte, out) in bytes.iter().zip(out) {
            *out = d * f32::from(byte >> shift & 15) - m;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block), half(&block[2..]));
    let (scales, rest) = block[4..].split_at(12);
    let (high, packed) = rest.split_at(32);
    for (i, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = group(scales, i);
        let (d, m) = (d * scale, dmin * min);
        let (bytes, shift) = (&packed[i / 2 * 32..], i % 2 * 4);
        for ((byte, high), out) in bytes.iter().zip(high).zip(out) {
            let q = byte >> shift & 15 | (high >> i & 1) << 4;
            *out = d * f32::from(q) - m;
        }
    }
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let d = half(d);
    for (i, out) in out.iter_mut().enumerate() {
        // Halves of 128 elements; in each, four runs of 32.
        let (part, run, at) = (i / 128, i / 32 % 4, i % 32);
        let low = low[part * 64 + run % 2 * 32 + at] >> (run / 2 * 4) & 15;
        let high = high[part * 32 + at] >> (run * 2) & 3;
        let q = f32::from(low | high << 4) - 32.0;
        *out = d * f32::from(scales[i / 16] as i8) * q;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;

    fn fixture(name: &str) -> Vec<u8> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/gguf/");
        std::fs::read(format!("{folder}{name}")).unwrap()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    fn assert_same_bits(what: &str, ours: &[f32], theirs: &[f32]) {
        assert_eq!(ours.len(), theirs.len(), "{what}");
        for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
            let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same, "{what}: element {i} is {a}, not {b}");
        }
    }

    #[test]
    fn every_type_has_the_values_of_an_independent_reader() {
        let file = fixture("blocks.safetensors");
        let file = SafeTensors::deserialize(&file).unwrap();
        let mut n_compared = 0;
        for dtype in [
            DType::F16,
            DType::Bf16,
            DType::Q8_0,
            DType::Q4_0,
            DType::Q4_1,
            DType::Q5_0,
            DType::Q5_1,
            DType::Q4K,
            DType::Q5K,
            DType::Q6K,
        ] {
            for (packed, values) in [("blocks", "values"), ("rows", "row_values")] {
                let Ok(packed) = file.tensor(&format!("{dtype}.{packed}")) else { continue };
                let theirs = floats(file.tensor(&format!("{dtype}.{values}")).unwrap().data());
                let mut ours = vec![0.0; theirs.len()];
                decode(dtype, packed.data(), &mut ours);
                assert_same_bits(dtype.name(), &ours, &theirs);
                n_compared += 1;
            }
        }
        // Rows are quantised by the package too, where it can: all but the three K types.
        assert_eq!(n_compared, 10 + 7);
    }

    #[test]
    fn all_codes_of_fp8_are_torchs() {
        let file = fixture("fp8.safetensors");
        let file = SafeTensors::deserialize(&file).unwrap();
        let mut ours = vec![0.0; 256];
        decode(DType::F8E4m3, file.tensor("codes").unwrap().data(), &mut ours);
        assert_same_bits("codes", &ours, &floats(file.tensor("code_values").unwrap().data()));
    }
}
