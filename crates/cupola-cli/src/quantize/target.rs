//! What a user can ask for, and the format that each tensor then gets.

use cupola_quant::Format;
use std::fmt;
use std::str::FromStr;

/// A format for all matrices, or one of llama.cpp's mixtures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Every matrix in one format, but the output in at least Q6_K: every logit passes through it.
    Plain(Format),
    /// Most matrices in one K format, the most sensitive ones in a larger one.
    Mix(Mix),
}

/// Mixtures by llama.cpp's names. S, M and L stand for how much goes to the larger formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Mix {
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
}

const MIXES: [(&str, Mix); 7] = [
    ("Q3_K_S", Mix::Q3_K_S),
    ("Q3_K_M", Mix::Q3_K_M),
    ("Q3_K_L", Mix::Q3_K_L),
    ("Q4_K_S", Mix::Q4_K_S),
    ("Q4_K_M", Mix::Q4_K_M),
    ("Q5_K_S", Mix::Q5_K_S),
    ("Q5_K_M", Mix::Q5_K_M),
];

impl Target {
    /// Every name, for messages.
    pub fn names() -> String {
        let plain = Format::ALL.iter().filter(|f| f.has_encoder()).map(|f| f.name());
        plain.chain(MIXES.iter().map(|(name, _)| *name)).collect::<Vec<_>>().join(", ")
    }

    /// The number of `general.file_type`, from llama.cpp's `enum llama_ftype`.
    pub fn file_type(self) -> u32 {
        match self {
            Target::Plain(format) => match format {
                Format::F32 => 0,
                Format::F16 => 1,
                Format::Q4_0 => 2,
                Format::Q4_1 => 3,
                Format::Q8_0 => 7,
                Format::Q5_0 => 8,
                Format::Q5_1 => 9,
                Format::Q2_K => 10,
                Format::Q3_K => 11,
                Format::Q4_K => 14,
                Format::Q5_K => 16,
                Format::Q6_K => 18,
                Format::IQ2_XXS => 19,
                Format::IQ2_XS => 20,
                Format::IQ3_XXS => 23,
                Format::IQ1_S => 24,
                Format::IQ4_NL => 25,
                Format::IQ3_S => 26,
                Format::IQ2_S => 28,
                Format::IQ4_XS => 30,
                Format::IQ1_M => 31,
                Format::BF16 => 32,
                Format::TQ1_0 => 36,
                Format::TQ2_0 => 37,
                Format::MXFP4 => 38,
                Format::NVFP4 => 39,
                Format::Q1_0 => 40,
                // It has no number yet; this one says so.
                Format::Q2_0 => 1024,
            },
            Target::Mix(mix) => match mix {
                Mix::Q3_K_S => 11,
                Mix::Q3_K_M => 12,
                Mix::Q3_K_L => 13,
                Mix::Q4_K_S => 14,
                Mix::Q4_K_M => 15,
                Mix::Q5_K_S => 16,
                Mix::Q5_K_M => 17,
            },
        }
    }

    /// The format for a matrix, by its GGUF name. `layers` is the model's number of layers, `tied` whether the
    /// embedding matrix is the output matrix too.
    pub fn format(self, name: &str, layers: usize, tied: bool) -> Format {
        let is_output = name == "output.weight" || (tied && name == "token_embd.weight");
        match self {
            // Blocks of every format divide 256.
            Target::Plain(f) if is_output && f.row_bytes(256) < Format::Q6_K.row_bytes(256) => Format::Q6_K,
            Target::Plain(format) => format,
            Target::Mix(_) if is_output => Format::Q6_K,
            Target::Mix(mix) => mix.format(name, layers),
        }
    }
}

impl Mix {
    fn format(self, name: &str, layers: usize) -> Format {
        use Format::{Q3_K, Q4_K, Q5_K, Q6_K};
        let (layer, role) = layer_and_role(name).unwrap_or((0, ""));
        let role = role.strip_suffix("_exps").unwrap_or(role);
        let more = || more_bits(layer, layers);
        match (self, role) {
            (Mix::Q3_K_M, "attn_v") if layer < 2 => Q5_K,
            (Mix::Q3_K_M, "ffn_down") if layer < layers / 16 => Q5_K,
            (Mix::Q3_K_M, "attn_v" | "attn_output" | "ffn_down") => Q4_K,
            (Mix::Q3_K_L, "attn_v" | "attn_output" | "ffn_down") => Q5_K,
            (Mix::Q3_K_S | Mix::Q3_K_M | Mix::Q3_K_L, _) => Q3_K,
            (Mix::Q4_K_S, "attn_v") if layer < 4 => Q5_K,
            (Mix::Q4_K_S, "ffn_down") if layer < layers / 8 => Q5_K,
            (Mix::Q4_K_M, "attn_v" | "ffn_down") if more() => Q6_K,
            (Mix::Q4_K_S | Mix::Q4_K_M, _) => Q4_K,
            (Mix::Q5_K_M, "attn_v" | "ffn_down") if more() => Q6_K,
            (Mix::Q5_K_S | Mix::Q5_K_M, _) => Q5_K,
        }
    }
}

/// `blk.3.attn_v.weight` is layer 3, `attn_v`.
fn layer_and_role(name: &str) -> Option<(usize, &str)> {
    let (layer, role) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, role.strip_suffix(".weight")?))
}

/// Layers that llama.cpp's M mixtures give more bits: the first and last eighth, and every third between.
fn more_bits(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The format in which rows of `n_in` values can be stored, nearest to the one wished for: formats with large
/// blocks have one with blocks of 32 that takes their place.
pub fn storable(wish: Format, n_in: usize) -> Format {
    let fits = |f: Format| n_in.is_multiple_of(f.layout().block);
    let smaller_blocks = match wish {
        Format::Q2_K | Format::Q3_K => Format::Q4_0,
        Format::Q4_K => Format::Q5_0,
        Format::Q5_K => Format::Q5_1,
        Format::Q6_K => Format::Q8_0,
        Format::IQ4_XS => Format::IQ4_NL,
        Format::NVFP4 | Format::TQ1_0 | Format::TQ2_0 | Format::Q1_0 | Format::Q2_0 => Format::Q4_0,
        other => other,
    };
    [wish, smaller_blocks].into_iter().find(|f| fits(*f)).unwrap_or(Format::F16)
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let mix = MIXES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, mix)| Target::Mix(*mix));
        mix.or_else(|| Format::from_name(text).filter(|f| f.has_encoder()).map(Target::Plain))
            .ok_or_else(|| format!("unknown type; known are {}", Target::names()))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Plain(format) => format.fmt(f),
            Target::Mix(mix) => write!(f, "{mix:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_in_any_case_and_prints_as_written() {
        for name in Target::names().split(", ") {
            assert_eq!(name.to_lowercase().parse::<Target>().map(|t| t.to_string()), Ok(name.to_string()));
        }
        for bad in ["", "Q4", "Q4_K_L", "IQ2_XS"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    /// The rule worked out by hand: an eighth of 32 is 4, so 0-3, 28-31, and 6, 9, ... between.
    #[test]
    fn the_layers_with_more_bits() {
        let layers: Vec<usize> = (0..32).filter(|l| more_bits(*l, 32)).collect();
        assert_eq!(layers, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        // Models of fewer than eight layers.
        assert!((0..4).all(|l| more_bits(l, 4) == (l >= 2)));
    }

    #[test]
    fn mixtures_by_tensor() {
        let f = |mix, name, tied| Target::Mix(mix).format(name, 32, tied);
        assert_eq!(f(Mix::Q4_K_M, "blk.0.attn_v.weight", false), Format::Q6_K);
        assert_eq!(f(Mix::Q4_K_M, "blk.4.attn_v.weight", false), Format::Q4_K);
        assert_eq!(f(Mix::Q4_K_M, "blk.4.attn_q.weight", false), Format::Q4_K);
        assert_eq!(f(Mix::Q4_K_M, "output.weight", false), Format::Q6_K);
        assert_eq!(f(Mix::Q4_K_M, "token_embd.weight", false), Format::Q4_K);
        assert_eq!(f(Mix::Q4_K_M, "token_embd.weight", true), Format::Q6_K);
        assert_eq!(f(Mix::Q4_K_S, "blk.3.ffn_down.weight", false), Format::Q5_K);
        assert_eq!(f(Mix::Q4_K_S, "blk.4.ffn_down.weight", false), Format::Q4_K);
        assert_eq!(f(Mix::Q4_K_S, "blk.3.ffn_down_exps.weight", false), Format::Q5_K);
        assert_eq!(f(Mix::Q3_K_M, "blk.1.ffn_down.weight", false), Format::Q5_K);
        assert_eq!(f(Mix::Q3_K_M, "blk.2.attn_output.weight", false), Format::Q4_K);
    }

    #[test]
    fn the_output_keeps_at_least_six_bits() {
        let f = |format, name, tied| Target::Plain(format).format(name, 32, tied);
        for format in [Format::Q4_0, Format::Q5_1, Format::Q2_K, Format::MXFP4, Format::TQ1_0] {
            assert_eq!(f(format, "output.weight", false), Format::Q6_K);
            assert_eq!(f(format, "token_embd.weight", true), Format::Q6_K);
            assert_eq!(f(format, "token_embd.weight", false), format);
            assert_eq!(f(format, "blk.0.ffn_up.weight", true), format);
        }
        for format in [Format::Q6_K, Format::Q8_0, Format::BF16, Format::F32] {
            assert_eq!(f(format, "output.weight", false), format);
        }
    }

    #[test]
    fn rows_that_do_not_divide_fall_back() {
        assert_eq!(storable(Format::Q4_K, 512), Format::Q4_K);
        assert_eq!(storable(Format::Q4_K, 576), Format::Q5_0);
        assert_eq!(storable(Format::Q5_K, 32), Format::Q5_1);
        assert_eq!(storable(Format::Q6_K, 96), Format::Q8_0);
        assert_eq!(storable(Format::Q2_K, 96), Format::Q4_0);
        assert_eq!(storable(Format::IQ4_XS, 96), Format::IQ4_NL);
        assert_eq!(storable(Format::NVFP4, 96), Format::Q4_0);
        assert_eq!(storable(Format::Q3_K, 80), Format::F16);
        assert_eq!(storable(Format::Q8_0, 33), Format::F16);
        assert_eq!(storable(Format::BF16, 1), Format::BF16);
    }
}
