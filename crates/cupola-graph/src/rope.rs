//! Frequencies of rotary position embeddings.

/// The rotation that a [`Rope`](crate::Rope) op applies: one frequency per pair, one magnitude for all.
///
/// Pair `i` at position `p` turns by the angle `p * inv_freq[i]`, the product rounded to f32; cosine and sine of that
/// angle are computed in f64, rounded to f32, and multiplied by `magnitude`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position of each pair, `[rotary_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// Factor on cosine and sine (YaRN's and LongRoPE's attention factor), otherwise 1.
    pub magnitude: f32,
    /// Frequencies for sequences longer than a limit (LongRoPE).
    pub long: Option<LongRope>,
}

/// The second set of frequencies of a LongRoPE model.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Sequences of more tokens than this use `inv_freq` of this struct.
    pub above: usize,
    /// Radians per position of each pair, `[rotary_dim / 2]`.
    pub inv_freq: Vec<f32>,
}

impl RopeTable {
    /// Plain RoPE (Su et al. 2021, arXiv:2104.09864): pair `i` of `dim / 2` turns by `theta^(-2i / dim)` a position.
    pub fn plain(theta: f64, dim: usize) -> RopeTable {
        let inv_freq = (0..dim / 2).map(|i| libm::pow(theta, -((2 * i) as f64) / dim as f64) as f32).collect();
        RopeTable { inv_freq, magnitude: 1.0, long: None }
    }

    /// Number of values of a head that are rotated.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// The frequencies for a sequence of `rope_length` tokens (see [`Span::rope_length`](crate::Span::rope_length)).
    pub fn frequencies(&self, rope_length: usize) -> &[f32] {
        match &self.long {
            Some(long) if rope_length > long.above => &long.inv_freq,
            _ => &self.inv_freq,
        }
    }

    /// Writes cosines and sines, `[rotary_dim / 2]` each, for one position.
    pub fn cos_sin(&self, position: usize, rope_length: usize, cos: &mut [f32], sin: &mut [f32]) {
        for ((f, c), s) in self.frequencies(rope_length).iter().zip(cos).zip(sin) {
            let (sine, cosine) = libm::sincos(f64::from(position as f32 * f));
            (*c, *s) = (cosine as f32 * self.magnitude, sine as f32 * self.magnitude);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_frequencies_are_powers_of_theta() {
        let t = RopeTable::plain(10000.0, 4);
        assert_eq!(t.inv_freq, [1.0, 0.01]);
        let (mut c, mut s) = ([0.0; 2], [0.0; 2]);
        t.cos_sin(100, 101, &mut c, &mut s);
        // cos and sin of 100 and of 1 radian.
        assert_eq!(c.map(|v| (v * 1e6).round()), [862319.0, 540302.0]);
        assert_eq!(s.map(|v| (v * 1e6).round()), [-506366.0, 841471.0]);
    }

    #[test]
    fn long_frequencies_apply_above_the_limit_only() {
        let long = Some(LongRope { above: 8, inv_freq: vec![0.5] });
        let t = RopeTable { inv_freq: vec![1.0], magnitude: 2.0, long };
        assert_eq!((t.frequencies(8), t.frequencies(9)), (&[1.0f32][..], &[0.5f32][..]));
        let (mut c, mut s) = ([0.0; 1], [0.0; 1]);
        t.cos_sin(0, 1, &mut c, &mut s);
        assert_eq!((c[0], s[0]), (2.0, 0.0));
    }
}
