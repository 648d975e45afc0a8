//! What the tests of several files share.

use crate::Isa;
use crate::isa::Target;

/// Every instruction set of this machine, scalar first.
pub(crate) fn targets() -> impl Iterator<Item = Target> {
    isas().map(Target::new)
}

/// Every instruction set of this machine, scalar first.
pub(crate) fn isas() -> impl Iterator<Item = Isa> {
    [Isa::Scalar, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_available())
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A small random generator (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, n).
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In [0, 1).
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// About normal: a sum of uniform numbers.
    pub(crate) fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    pub(crate) fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Shape and elements of a tensor of `golden/units.safetensors`.
fn golden_tensor<T>(name: &str, element: impl Fn(&[u8]) -> T, size: usize) -> (Vec<usize>, Vec<T>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/units.safetensors");
    let bytes = std::fs::read(path).expect("golden file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("golden file");
    let tensor = file.tensor(name).expect(name);
    let values: Vec<T> = tensor.data().chunks_exact(size).map(element).collect();
    assert_eq!(values.len(), tensor.shape().iter().product::<usize>(), "element size of {name}");
    (tensor.shape().to_vec(), values)
}

/// Shape and elements of an f32 tensor.
pub(crate) fn golden(name: &str) -> (Vec<usize>, Vec<f32>) {
    golden_tensor(name, |b| f32::from_le_bytes(b.try_into().unwrap()), 4)
}

/// Elements of an i64 tensor.
pub(crate) fn golden_positions(name: &str) -> Vec<u32> {
    golden_tensor(name, |b| i64::from_le_bytes(b.try_into().unwrap()) as u32, 8).1
}

/// Asserts that `got` is within the project's f32 tolerances of `expected`.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let mean = |sum: f64| (sum / expected.len() as f64).sqrt();
    let rms = mean(expected.iter().map(|&e| f64::from(e).powi(2)).sum());
    let differences = || got.iter().zip(expected).map(|(&g, &e)| f64::from(g) - f64::from(e));
    let peak =
        differences().fold(0.0f64, |worst, d| if d.abs() <= worst { worst } else { d.abs() });
    let rms_difference = mean(differences().map(|d| d * d).sum());
    assert!(peak <= 2e-4 * rms, "{what}: peak {}", peak / rms);
    assert!(rms_difference <= 2e-5 * rms, "{what}: rms {}", rms_difference / rms);
}
