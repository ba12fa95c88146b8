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
    pub const ALL: [Format; 13] = [
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
            Format::BF16 => 30,
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
    /// Scales and minima of blocks are f16 numbers, at most 65504. Up to this magnitude no scale or minimum can
    /// overflow, whatever the other values of the block are.
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
        }
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
            ("BF16", 30),
        ];
        assert_eq!(expected.len(), Format::ALL.len());
        for (name, number) in expected {
            let format = Format::from_ggml(number).unwrap();
            assert_eq!((format.name(), format.ggml_type()), (name, number));
        }
        for number in [4, 5, 9, 15, 16, 29, 31, 39, u32::MAX] {
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
