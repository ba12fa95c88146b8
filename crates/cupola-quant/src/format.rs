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

    /// Bytes of a row of `n` values; `None` if `n` is not a whole number of blocks or the size overflows.
    pub const fn row_bytes(self, n: usize) -> Option<usize> {
        let Layout { block, bytes } = self.layout();
        if n % block != 0 { None } else { (n / block).checked_mul(bytes) }
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
