//! The noise behind sampling: a counter-based generator, so that a draw depends on nothing but its key.

/// Weyl increments of the key and multipliers of the rounds (Salmon et al., "Parallel random numbers:
/// as easy as 1, 2, 3", 2011).
const KEY_STEP: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const ROUNDS: usize = 10;

/// Philox4x32-10: four words for each counter, the same for the same key and counter.
pub(crate) fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(KEY_STEP[0]), key[1].wrapping_add(KEY_STEP[1])];
    }
    counter
}

/// Gumbel noise for every token at one position of one seed.
#[derive(Clone, Copy)]
pub(crate) struct Noise {
    key: [u32; 2],
    position: u64,
}

impl Noise {
    pub(crate) fn new(seed: u64, position: usize) -> Noise {
        Noise { key: [seed as u32, (seed >> 32) as u32], position: position as u64 }
    }

    /// Random words of the tokens `4 * group ..`.
    pub(crate) fn words(&self, group: u32) -> [u32; 4] {
        let position = [self.position as u32, (self.position >> 32) as u32];
        philox4x32([group, position[0], position[1], 0], self.key)
    }

    /// The noise of one token.
    pub(crate) fn of(&self, token: u32) -> f64 {
        gumbel(self.words(token / 4)[token as usize % 4])
    }
}

/// No word gives more noise than this (33 ln 2 = 22.87).
pub(crate) const GUMBEL_MAX: f64 = 23.0;

/// `-ln(-ln u)` for the uniform `u = (word + 1/2) / 2^32`, which is never 0 or 1.
pub(crate) fn gumbel(word: u32) -> f64 {
    let u = (f64::from(word) + 0.5) * (1.0 / 4_294_967_296.0);
    -libm::log(-libm::log(u))
}

/// An upper bound of [`gumbel`] without a logarithm: `-ln u > 1 - u`, and `1 - u` is at least a power
/// of two that the leading ones of the word name. Half of all words are bounded by ln 2 + 0.1.
pub(crate) fn gumbel_bound(word: u32) -> f64 {
    f64::from((!word).leading_zeros() + 1) * std::f64::consts::LN_2 + 0.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_vectors() {
        // The known answers of the authors' library for philox4x32 with ten rounds.
        let check = |counter, key, expected: [u32; 4]| {
            assert_eq!(philox4x32(counter, key), expected);
        };
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn the_bound_holds_at_the_edges_of_every_power_of_two() {
        for bit in 0..32 {
            for word in [!(1_u32 << bit), !(1_u32 << bit).wrapping_sub(1), u32::MAX, 0] {
                assert!(gumbel(word) <= gumbel_bound(word), "{word:#x}");
                assert!(gumbel(word) < GUMBEL_MAX);
            }
        }
    }

    #[test]
    fn noise_has_the_moments_of_a_gumbel() {
        // Mean: Euler's constant; variance: pi^2 / 6. Four standard errors of 40 000 draws.
        let noise = Noise::new(7, 3);
        let draws: Vec<f64> = (0..40_000).map(|token| noise.of(token)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 0.5772).abs() < 0.026, "{mean}");
        assert!((variance - 1.6449).abs() < 0.07, "{variance}");
    }
}
