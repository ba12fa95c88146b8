//! Which instruction set the kernels use: found at run time, never assumed at build time.

#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::simd::Simd;
#[cfg(all(test, target_arch = "x86_64"))]
use crate::simd::Vnni512;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Madd, Vnni};
use crate::simd::{Kernel, Scalar};
#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::fmt;

/// An instruction set that this processor has. Holding one is the proof: there is no way to make a `Tier` of instructions
/// which are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tier(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(all(test, target_arch = "x86_64"))]
    Avx512Vl,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot,
}

/// All levels of this architecture, slowest first.
const LEVELS: &[Level] = &[
    Level::Scalar,
    #[cfg(target_arch = "x86_64")]
    Level::Avx2,
    #[cfg(target_arch = "x86_64")]
    Level::AvxVnni,
    #[cfg(all(test, target_arch = "x86_64"))]
    Level::Avx512Vl,
    #[cfg(target_arch = "x86_64")]
    Level::Avx512,
    #[cfg(target_arch = "x86_64")]
    Level::Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Level::Neon,
    #[cfg(target_arch = "aarch64")]
    Level::NeonDot,
];

impl Level {
    fn present(self) -> bool {
        match self {
            Level::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => Level::Avx2.present() && is_x86_feature_detected!("avxvnni"),
            #[cfg(all(test, target_arch = "x86_64"))]
            Level::Avx512Vl => Level::Avx512.present(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => {
                Level::Avx2.present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => Level::Avx512.present() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => Level::Neon.present() && is_aarch64_feature_detected!("dotprod"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avxvnni",
            #[cfg(all(test, target_arch = "x86_64"))]
            Level::Avx512Vl => "avx512vl",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => "neon-dotprod",
        }
    }
}

impl Tier {
    /// Plain Rust, the reference for all others. Every machine has it.
    pub const SCALAR: Tier = Tier(Level::Scalar);

    /// The best tier of this processor.
    pub fn detect() -> Tier {
        Tier::available().last().copied().unwrap_or(Tier::SCALAR)
    }

    /// Every tier of this processor, slowest first; the first is [`Tier::SCALAR`].
    pub fn available() -> Vec<Tier> {
        LEVELS.iter().filter(|level| level.present()).map(|&level| Tier(level)).collect()
    }

    /// `scalar`; `avx2` (with FMA and F16C), `avxvnni`, `avx512` (F, BW, VL, DQ, VNNI), `avx512bf16`; `neon`, `neon-dotprod`.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Whether products of BF16 weights with 8-bit activations round the latter to BF16.
    pub(crate) fn has_bf16_dot(self) -> bool {
        match self.0 {
            Level::Scalar => false,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::AvxVnni | Level::Avx512 => false,
            #[cfg(all(test, target_arch = "x86_64"))]
            Level::Avx512Vl => false,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => true,
            #[cfg(target_arch = "aarch64")]
            Level::Neon | Level::NeonDot => false,
        }
    }

    /// Runs a kernel with this tier's instructions.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Level::Scalar => kernel.run(Scalar),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a Tier exists only if its instructions do.
            Level::AvxVnni if K::INTEGER_DOT => unsafe { Avx2::<Vnni>::new() }.run(kernel),
            #[cfg(all(test, target_arch = "x86_64"))]
            // SAFETY: as above.
            Level::Avx512Vl if K::INTEGER_DOT => unsafe { Avx2::<Vnni512>::new() }.run(kernel),
            #[cfg(all(test, target_arch = "x86_64"))]
            // SAFETY: as above.
            Level::Avx512Vl => unsafe { Avx2::<Madd>::new() }.run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx2 | Level::AvxVnni => unsafe { Avx2::<Madd>::new() }.run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512 => unsafe { Avx512::<false>::new() }.run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512Bf16 if K::BF16_DOT => unsafe { Avx512::<true>::new() }.run(kernel),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512Bf16 => unsafe { Avx512::<false>::new() }.run(kernel),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::Neon => unsafe { Neon::<false>::new() }.run(kernel),
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Level::NeonDot => unsafe { Neon::<true>::new() }.run(kernel),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tier was asked for by name that does not exist, or not on this processor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction set {asked:?} is not available here; this processor has {available}")]
pub struct UnknownTier {
    /// The name that was asked for.
    pub asked: String,
    /// The names that would do, separated by commas.
    pub available: String,
}

impl std::str::FromStr for Tier {
    type Err = UnknownTier;
    fn from_str(name: &str) -> Result<Tier, UnknownTier> {
        let tiers = Tier::available();
        tiers.iter().find(|t| t.name().eq_ignore_ascii_case(name)).copied().ok_or_else(|| UnknownTier {
            asked: name.to_string(),
            available: tiers.iter().map(|t| t.name()).collect::<Vec<_>>().join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_have_unique_names_that_parse_back() {
        let tiers = Tier::available();
        assert_eq!(tiers[0], Tier::SCALAR);
        assert!(tiers.is_sorted() && tiers.contains(&Tier::detect()));
        for &tier in &tiers {
            assert_eq!(tier.to_string().parse::<Tier>(), Ok(tier));
        }
        #[cfg(target_arch = "aarch64")]
        assert!("neon".parse::<Tier>().is_ok(), "every 64-bit ARM processor has NEON");
        let error = "riscv".parse::<Tier>().unwrap_err().to_string();
        assert!(error.contains("riscv") && error.contains("scalar"), "{error}");
    }
}
