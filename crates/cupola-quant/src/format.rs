//! The list of formats and their block geometry.

/// How the values of a weight row are stored.
///
/// Floats are formats whose block is one value. Names are those of the GGUF specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

/// Block geometry of a format: `block` consecutive values of a row take `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Values per block.
    pub block: usize,
    /// Bytes per block.
    pub bytes: usize,
}

impl Format {
    /// Every format, in the order of the enumeration.
    pub const ALL: [Format; 28] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2_K,
        Format::Q3_K,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::IQ1_S,
        Format::IQ1_M,
        Format::IQ2_XXS,
        Format::IQ2_XS,
        Format::IQ2_S,
        Format::IQ3_XXS,
        Format::IQ3_S,
        Format::IQ4_NL,
        Format::IQ4_XS,
        Format::TQ1_0,
        Format::TQ2_0,
        Format::MXFP4,
        Format::NVFP4,
        Format::Q1_0,
        Format::Q2_0,
    ];

    /// Block geometry.
    pub const fn layout(self) -> Layout {
        let (block, bytes) = match self {
            Format::F32 => (1, 4),
            Format::F16 | Format::BF16 => (1, 2),
            Format::Q4_0 => (32, 18),
            Format::Q4_1 => (32, 20),
            Format::Q5_0 => (32, 22),
            Format::Q5_1 => (32, 24),
            Format::Q8_0 => (32, 34),
            Format::Q2_K => (256, 84),
            Format::Q3_K => (256, 110),
            Format::Q4_K => (256, 144),
            Format::Q5_K => (256, 176),
            Format::Q6_K => (256, 210),
            Format::IQ1_S => (256, 50),
            Format::IQ1_M => (256, 56),
            Format::IQ2_XXS => (256, 66),
            Format::IQ2_XS => (256, 74),
            Format::IQ2_S => (256, 82),
            Format::IQ3_XXS => (256, 98),
            Format::IQ3_S => (256, 110),
            Format::IQ4_NL => (32, 18),
            Format::IQ4_XS => (256, 136),
            Format::TQ1_0 => (256, 54),
            Format::TQ2_0 => (256, 66),
            Format::MXFP4 => (32, 17),
            Format::NVFP4 => (64, 36),
            Format::Q1_0 => (128, 18),
            Format::Q2_0 => (64, 18),
        };
        Layout { block, bytes }
    }

    /// The name as GGUF writes it (`Q4_K`).
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::BF16 => "BF16",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Q8_0 => "Q8_0",
            Format::Q2_K => "Q2_K",
            Format::Q3_K => "Q3_K",
            Format::Q4_K => "Q4_K",
            Format::Q5_K => "Q5_K",
            Format::Q6_K => "Q6_K",
            Format::IQ1_S => "IQ1_S",
            Format::IQ1_M => "IQ1_M",
            Format::IQ2_XXS => "IQ2_XXS",
            Format::IQ2_XS => "IQ2_XS",
            Format::IQ2_S => "IQ2_S",
            Format::IQ3_XXS => "IQ3_XXS",
            Format::IQ3_S => "IQ3_S",
            Format::IQ4_NL => "IQ4_NL",
            Format::IQ4_XS => "IQ4_XS",
            Format::TQ1_0 => "TQ1_0",
            Format::TQ2_0 => "TQ2_0",
            Format::MXFP4 => "MXFP4",
            Format::NVFP4 => "NVFP4",
            Format::Q1_0 => "Q1_0",
            Format::Q2_0 => "Q2_0",
        }
    }

    /// The number of this format in ggml's list of tensor types, which GGUF files store.
    pub const fn ggml_type(self) -> u32 {
        match self {
            Format::F32 => 0,
            Format::F16 => 1,
            Format::Q4_0 => 2,
            Format::Q4_1 => 3,
            Format::Q5_0 => 6,
            Format::Q5_1 => 7,
            Format::Q8_0 => 8,
            Format::Q2_K => 10,
            Format::Q3_K => 11,
            Format::Q4_K => 12,
            Format::Q5_K => 13,
            Format::Q6_K => 14,
            Format::IQ2_XXS => 16,
            Format::IQ2_XS => 17,
            Format::IQ3_XXS => 18,
            Format::IQ1_S => 19,
            Format::IQ4_NL => 20,
            Format::IQ3_S => 21,
            Format::IQ2_S => 22,
            Format::IQ4_XS => 23,
            Format::IQ1_M => 29,
            Format::BF16 => 30,
            Format::TQ1_0 => 34,
            Format::TQ2_0 => 35,
            Format::MXFP4 => 39,
            Format::NVFP4 => 40,
            Format::Q1_0 => 41,
            Format::Q2_0 => 42,
        }
    }

    /// The format with this ggml type number; `None` for numbers that are unassigned, retired or not supported.
    pub fn from_ggml(number: u32) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.ggml_type() == number)
    }

    /// The format with this name, in any case (`Q4_K`, `q4_k`).
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(name))
    }

    /// The largest magnitude that [`encode`](crate::encode) accepts.
    ///
    /// Scales and minima of most blocks are f16 numbers, at most 65504. Up to this magnitude no scale or minimum can
    /// overflow, whatever the other values of the block are. 0 for formats without an encoder.
    pub const fn largest(self) -> f32 {
        const HALF: f32 = 65504.0;
        match self {
            Format::F32 => f32::MAX,
            Format::F16 => HALF,
            // The pattern of f32::MAX with the low 16 bits cut off.
            Format::BF16 => f32::from_bits(0x7f7f_0000),
            Format::Q4_0 => 8.0 * HALF,
            Format::Q5_0 => 16.0 * HALF,
            Format::Q8_0 => 127.0 * HALF,
            Format::Q4_1 | Format::Q5_1 => HALF,
            // The minimum: f16 times the largest 4-bit or 6-bit level.
            Format::Q2_K => 15.0 * HALF,
            Format::Q4_K | Format::Q5_K => 63.0 * HALF,
            // f16 times the largest positive level times the largest positive code.
            Format::Q3_K => 31.0 * 3.0 * HALF,
            Format::Q6_K => 127.0 * 31.0 * HALF,
            Format::Q1_0 | Format::Q2_0 | Format::TQ1_0 | Format::TQ2_0 => HALF,
            Format::IQ4_NL => 113.0 * HALF,
            Format::IQ4_XS => 31.0 * 113.0 * HALF,
            // 6 * 2^125. Larger numbers could be rounded up to 2^128, an infinity.
            Format::MXFP4 => f32::from_bits(0x7f40_0000),
            // The largest E2M1 times the largest E4M3 number.
            Format::NVFP4 => 6.0 * 448.0,
            Format::IQ1_S | Format::IQ1_M => 0.0,
            Format::IQ2_XXS | Format::IQ2_XS | Format::IQ2_S | Format::IQ3_XXS | Format::IQ3_S => 0.0,
        }
    }

    /// Whether [`encode`](crate::encode) can write the format. The codebook formats (`IQ1_*`, `IQ2_*`, `IQ3_*`) can
    /// only be decoded: encoding them to any use takes statistics of a model's activations.
    pub const fn has_encoder(self) -> bool {
        self.largest() > 0.0
    }

    /// Bytes of a row of `n` values; `None` if `n` is not a whole number of blocks or the size overflows.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        let Layout { block, bytes } = self.layout();
        if n.is_multiple_of(block) { (n / block).checked_mul(bytes) } else { None }
    }

    /// Whether values are plain floating-point numbers, not blocks.
    pub const fn is_float(self) -> bool {
        matches!(self, Format::F32 | Format::F16 | Format::BF16)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Format;

    /// The numbers of `enum ggml_type`.
    #[test]
    fn ggml_numbers() {
        let expected = [
            ("F32", 0),
            ("F16", 1),
            ("Q4_0", 2),
            ("Q4_1", 3),
            ("Q5_0", 6),
            ("Q5_1", 7),
            ("Q8_0", 8),
            ("Q2_K", 10),
            ("Q3_K", 11),
            ("Q4_K", 12),
            ("Q5_K", 13),
            ("Q6_K", 14),
            ("IQ2_XXS", 16),
            ("IQ2_XS", 17),
            ("IQ3_XXS", 18),
            ("IQ1_S", 19),
            ("IQ4_NL", 20),
            ("IQ3_S", 21),
            ("IQ2_S", 22),
            ("IQ4_XS", 23),
            ("IQ1_M", 29),
            ("BF16", 30),
            ("TQ1_0", 34),
            ("TQ2_0", 35),
            ("MXFP4", 39),
            ("NVFP4", 40),
            ("Q1_0", 41),
            ("Q2_0", 42),
        ];
        assert_eq!(expected.len(), Format::ALL.len());
        for (name, number) in expected {
            let format = Format::from_ggml(number).unwrap();
            assert_eq!((format.name(), format.ggml_type()), (name, number));
        }
        for number in [4, 5, 9, 15, 24, 28, 31, 33, 36, 38, 43, u32::MAX] {
            assert_eq!(Format::from_ggml(number), None, "{number}");
        }
    }

    #[test]
    fn names_in_any_case() {
        assert_eq!(Format::from_name("q4_k"), Some(Format::Q4_K));
        assert_eq!(Format::from_name("Bf16"), Some(Format::BF16));
        assert_eq!(Format::from_name("q4"), None);
        assert_eq!(Format::from_name(""), None);
    }

    #[test]
    fn rows_are_whole_blocks_and_do_not_overflow() {
        assert_eq!(Format::Q6_K.row_bytes(512), Some(420));
        assert_eq!(Format::Q6_K.row_bytes(511), None);
        assert_eq!(Format::F32.row_bytes(usize::MAX), None);
        assert_eq!(Format::Q8_0.row_bytes(0), Some(0));
    }
}
