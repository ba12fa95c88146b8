//! The numbers by which GGUF names the storage type of a tensor.

use cupola_quant::Format;

use crate::tensor::Dtype;

/// Storage type of a tensor, by its number in ggml.
///
/// Numbers and block sizes: `enum ggml_type` and the block structures of ggml's `ggml-common.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(pub u32);

/// ggml numbers its types consecutively (0 to 42 in November 2026). A number in reach may belong to a newer writer,
/// one far beyond it shows that the file is damaged.
const PLAUSIBLE: u32 = 128;

/// A type that ggml defines: number, name, values per block, bytes per block.
type Known = (u32, &'static str, u64, u64);

const KNOWN: [Known; 35] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
];

impl GgmlType {
    fn known(self) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.0 == self.0)
    }

    /// The name that ggml gives to the type, if this version knows it.
    pub fn name(self) -> Option<&'static str> {
        self.known().map(|known| known.1)
    }

    /// Values per block and bytes per block, if this version knows the type.
    pub fn block(self) -> Option<(u64, u64)> {
        self.known().map(|known| (known.2, known.3))
    }

    /// Whether the type existed once and was removed: Q4_2, Q4_3 and the row-interleaved variants of Q4_0 and IQ4_NL.
    pub fn is_removed(self) -> bool {
        matches!(self.0, 4 | 5 | 31 | 32 | 33 | 36 | 37 | 38)
    }

    /// Whether a newer ggml than this version knows may define the type.
    pub(crate) fn is_plausible(self) -> bool {
        self.0 < PLAUSIBLE
    }

    /// The element type as the rest of the crate names it.
    pub fn dtype(self) -> Dtype {
        match self.name() {
            Some("I8") => Dtype::I8,
            Some("I16") => Dtype::I16,
            Some("I32") => Dtype::I32,
            Some("I64") => Dtype::I64,
            Some("F64") => Dtype::F64,
            _ => Format::from_ggml(self.0).map_or(Dtype::Ggml(self), Dtype::Weight),
        }
    }
}

impl From<Format> for GgmlType {
    fn from(format: Format) -> Self {
        GgmlType(format.ggml_type())
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "ggml type {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_the_weight_formats() {
        for format in Format::ALL {
            let kind = GgmlType::from(format);
            assert_eq!(kind.name(), Some(format.name()));
            let layout = format.layout();
            assert_eq!(kind.block(), Some((layout.block as u64, layout.bytes as u64)), "{format}");
            assert_eq!(kind.dtype(), Dtype::Weight(format));
        }
    }

    #[test]
    fn every_number_is_known_or_removed_or_unassigned() {
        let unassigned: Vec<u32> =
            (0..=41).filter(|&number| GgmlType(number).name().is_none() && !GgmlType(number).is_removed()).collect();
        assert_eq!(unassigned, [0u32; 0]);
        assert!(!KNOWN.iter().any(|known| GgmlType(known.0).is_removed()));
    }
}
