//! Random numbers that are the same on every platform.

/// SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"): number `n` of a stream is
/// a mix of `seed + (n + 1) * 0x9e3779b97f4a7c15`. Not for secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number in `[0, 1)`, a multiple of 2^-53.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A seed that nobody chose: different each time.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds its hash tables from the system's randomness.
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_stream_of_seed_1234567() {
        // The test vector that goes with Vigna's public-domain splitmix64.c.
        let mut rng = Rng::new(1234567);
        let expected =
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
    }

    #[test]
    fn floats_stay_under_one() {
        let mut rng = Rng::new(7);
        assert!((0..10_000).map(|_| rng.next_f64()).all(|u| (0.0..1.0).contains(&u)));
    }
}
