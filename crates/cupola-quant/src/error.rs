//! What can be wrong with the arguments of `decode` and `encode`.

use crate::Format;

/// Why values could not be decoded or encoded. Nothing has been written when one of these is returned.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// Values were to be encoded in a format that can only be decoded.
    #[error(
        "values cannot be encoded as {format}, which can only be read; formats that can be written: {}",
        encodable()
    )]
    NoEncoder {
        /// The target format.
        format: Format,
    },
    /// The number of values is not a whole number of blocks.
    #[error(
        "{values} values are not a whole number of {format} blocks, which hold {block} values each; \
         store rows of such a length as F16 or BF16, or in a format with shorter blocks",
        block = format.layout().block
    )]
    PartialBlock {
        /// The format of the blocks.
        format: Format,
        /// How many values there are.
        values: usize,
    },
    /// The number of bytes does not fit the number of values.
    #[error("{values} values take {expected} bytes in {format}, but the byte slice has {bytes}")]
    ByteLength {
        /// The format of the blocks.
        format: Format,
        /// How many values there are.
        values: usize,
        /// How many bytes these values take.
        expected: usize,
        /// How many bytes there are.
        bytes: usize,
    },
    /// More values than any slice of bytes can hold.
    #[error("{values} values in {format} take more bytes than this machine can address")]
    Overflow {
        /// The format of the blocks.
        format: Format,
        /// How many values there are.
        values: usize,
    },
    /// An infinite value or a NaN was to be encoded.
    #[error("value {index} is {value}, which cannot be encoded as {format}: the tensor is probably damaged")]
    NotFinite {
        /// The target format.
        format: Format,
        /// Index of the first such value in the slice.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A value was larger than the format can represent.
    #[error(
        "value {index} is {value:e}, larger than {largest:e}, the most that {format} can hold; \
         use BF16 or F32 for this tensor",
        largest = format.largest()
    )]
    TooLarge {
        /// The target format.
        format: Format,
        /// Index of the first such value in the slice.
        index: usize,
        /// The value.
        value: f32,
    },
}

/// The names of all formats that have an encoder.
fn encodable() -> String {
    let names = Format::ALL.into_iter().filter(|format| format.has_encoder()).map(Format::name);
    names.collect::<Vec<_>>().join(", ")
}
