//! The header of a safetensors file.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use cupola_quant::Format;
use safetensors::Dtype as Stored;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::SafetensorsError;
use crate::tensor::Dtype;

/// Bytes of the number that gives the length of the header.
const PREFIX: usize = 8;
/// The limit that the format sets.
const MAX_HEADER: u64 = 100_000_000;
/// The key that is not a tensor.
const METADATA: &str = "__metadata__";

/// The header of one file, checked against its size.
#[derive(Debug)]
pub struct Header {
    /// Strings that the writer attached.
    pub metadata: BTreeMap<String, String>,
    /// The tensors in the order of their data.
    pub tensors: Vec<HeaderTensor>,
}

/// A tensor of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Name, unique in the file.
    pub name: String,
    /// How the elements are stored.
    pub dtype: Dtype,
    /// Row-major shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// The bytes of the tensor in its file.
    pub range: Range<usize>,
}

impl Header {
    /// Reads and checks the header at the start of `file`, which is the whole file.
    ///
    /// # Errors
    /// The first rule of the format that is broken. Time and memory are in proportion to the header.
    pub fn parse(file: &[u8]) -> Result<Header, SafetensorsError> {
        let (prefix, rest) =
            file.split_first_chunk::<PREFIX>().ok_or(SafetensorsError::TooShort { length: file.len() })?;
        let length = u64::from_le_bytes(*prefix);
        if length > MAX_HEADER {
            return Err(SafetensorsError::HeaderTooLong { length });
        }
        let left = rest.len() as u64;
        if length > left {
            return Err(SafetensorsError::HeaderTruncated { length, left });
        }
        // At most the length of a slice.
        let (json, data) = rest.split_at(length as usize);
        let RawHeader { metadata, mut tensors } =
            serde_json::from_slice(json).map_err(|error| SafetensorsError::Header { message: error.to_string() })?;
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let data_start = PREFIX + json.len();
        let mut end = 0;
        let mut placed = Vec::with_capacity(tensors.len());
        for (name, info) in tensors {
            end = check(&name, &info, end, data.len())?;
            let (from, to) = info.data_offsets;
            let Some(dtype) = dtype(info.dtype) else {
                return Err(SafetensorsError::UnknownDtype { tensor: name, dtype: info.dtype.to_string() });
            };
            placed.push(HeaderTensor { name, dtype, shape: info.shape, range: data_start + from..data_start + to });
        }
        if end != data.len() {
            return Err(SafetensorsError::DataLength { expected: end, found: data.len() });
        }
        Ok(Header { metadata, tensors: placed })
    }
}

/// Checks a tensor whose predecessor ends at `previous`; gives its own end, which lies within `available`.
fn check(name: &str, info: &TensorInfo, previous: usize, available: usize) -> Result<usize, SafetensorsError> {
    let tensor = || name.to_owned();
    let shape = || info.shape.clone();
    let (start, end) = info.data_offsets;
    if start < previous {
        return Err(SafetensorsError::Overlap { tensor: tensor(), start, end: previous });
    }
    if start > previous {
        return Err(SafetensorsError::Hole { tensor: tensor(), start, end: previous });
    }
    let too_large = || SafetensorsError::TooLarge { tensor: tensor(), shape: shape() };
    let elements = info.shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
    let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize())).ok_or_else(too_large)?;
    let dtype = || info.dtype.to_string();
    if !bits.is_multiple_of(8) {
        return Err(SafetensorsError::PartialByte { tensor: tensor(), dtype: dtype(), shape: shape() });
    }
    let expected = bits / 8;
    if start.checked_add(expected) != Some(end) {
        return Err(SafetensorsError::Size { tensor: tensor(), dtype: dtype(), shape: shape(), expected, start, end });
    }
    if end > available {
        return Err(SafetensorsError::DataLength { expected: end, found: available });
    }
    Ok(end)
}

/// `None` for types of a later version of the format.
fn dtype(stored: Stored) -> Option<Dtype> {
    Some(match stored {
        Stored::F32 => Dtype::Weight(Format::F32),
        Stored::F16 => Dtype::Weight(Format::F16),
        Stored::BF16 => Dtype::Weight(Format::BF16),
        Stored::BOOL => Dtype::Bool,
        Stored::U8 => Dtype::U8,
        Stored::I8 => Dtype::I8,
        Stored::U16 => Dtype::U16,
        Stored::I16 => Dtype::I16,
        Stored::U32 => Dtype::U32,
        Stored::I32 => Dtype::I32,
        Stored::U64 => Dtype::U64,
        Stored::I64 => Dtype::I64,
        Stored::F64 => Dtype::F64,
        Stored::C64 => Dtype::C64,
        Stored::F4 => Dtype::F4,
        Stored::F6_E2M3 => Dtype::F6_E2M3,
        Stored::F6_E3M2 => Dtype::F6_E3M2,
        Stored::F8_E5M2 => Dtype::F8_E5M2,
        Stored::F8_E4M3 => Dtype::F8_E4M3,
        Stored::F8_E8M0 => Dtype::F8_E8M0,
        Stored::F8_E4M3FNUZ => Dtype::F8_E4M3FNUZ,
        Stored::F8_E5M2FNUZ => Dtype::F8_E5M2FNUZ,
        _ => return None,
    })
}

/// The JSON as it stands. Unlike a map, it sees a name that occurs twice.
#[derive(Default)]
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object with an entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` occurs twice")));
                    }
                    if name == METADATA {
                        header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                    } else {
                        let info = map.next_value().map_err(|error| A::Error::custom(format!("`{name}`: {error}")))?;
                        header.tensors.push((name, info));
                    }
                }
                Ok(header)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}
