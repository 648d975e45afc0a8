//! Weights as stored types, by the plainest method.

use checkpoint::DType;

/// The format's number of a type, and `weights` in it.
///
/// # Panics
/// For the types that nothing here writes.
pub fn quantised(weights: &[f32], dtype: DType) -> (u32, Vec<u8>) {
    match dtype {
        DType::F32 => (0, weights.iter().flat_map(|x| x.to_le_bytes()).collect()),
        DType::F16 => (1, weights.iter().flat_map(|x| half(*x)).collect()),
        DType::Bf16 => {
            let upper = |x: &f32| half::bf16::from_f32(*x).to_le_bytes();
            (30, weights.iter().flat_map(upper).collect())
        }
        DType::Q8_0 => (8, weights.chunks_exact(32).flat_map(q8_0).collect()),
        DType::Q4_0 => (2, weights.chunks_exact(32).flat_map(q4_0).collect()),
        other => panic!("nothing here writes {other}"),
    }
}

fn half(x: f32) -> [u8; 2] {
    half::f16::from_f32(x).to_le_bytes()
}

fn q8_0(block: &[f32]) -> Vec<u8> {
    let d = block.iter().fold(0f32, |m, x| m.max(x.abs())) / 127.0;
    let q = |x: &f32| if d == 0.0 { 0 } else { (x / d).round() as i8 as u8 };
    half(d).into_iter().chain(block.iter().map(q)).collect()
}

fn q4_0(block: &[f32]) -> Vec<u8> {
    let extreme = block.iter().fold(0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    let d = extreme / -8.0;
    let q = |x: f32| if d == 0.0 { 8 } else { (x / d + 8.5).clamp(0.0, 15.0) as u8 };
    let (low, high) = block.split_at(16);
    half(d).into_iter().chain(low.iter().zip(high).map(|(a, b)| q(*a) | q(*b) << 4)).collect()
}
