//! Typed metadata values, as views of the file.

use super::GgufError;
use super::reader::Reader;

/// Arrays of arrays are legal. Nobody writes them; this is deep enough for whoever might.
const MAX_NESTING: u32 = 4;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The number that stands for the type in a file.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The type of this number, if there is one.
    pub fn from_number(number: u32) -> Option<ValueType> {
        ValueType::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Size of a value in the file; `None` if it differs from value to value.
    fn size(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// Smallest size of a value in the file.
    fn min_size(self) -> u64 {
        match self {
            ValueType::String => 8,
            ValueType::Array => 12,
            _ => self.size().unwrap_or(1),
        }
    }
}

impl std::fmt::Display for ValueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        })
    }
}

/// A metadata value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum MetadataValue<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// UTF-8 by the specification, but not by every writer: tokens in particular can be arbitrary bytes.
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> MetadataValue<'a> {
    /// The type.
    pub fn kind(&self) -> ValueType {
        match self {
            MetadataValue::U8(_) => ValueType::U8,
            MetadataValue::I8(_) => ValueType::I8,
            MetadataValue::U16(_) => ValueType::U16,
            MetadataValue::I16(_) => ValueType::I16,
            MetadataValue::U32(_) => ValueType::U32,
            MetadataValue::I32(_) => ValueType::I32,
            MetadataValue::F32(_) => ValueType::F32,
            MetadataValue::Bool(_) => ValueType::Bool,
            MetadataValue::String(_) => ValueType::String,
            MetadataValue::Array(_) => ValueType::Array,
            MetadataValue::U64(_) => ValueType::U64,
            MetadataValue::I64(_) => ValueType::I64,
            MetadataValue::F64(_) => ValueType::F64,
        }
    }

    /// The value, if it is an integer of any width.
    pub fn as_integer(&self) -> Option<i128> {
        match *self {
            MetadataValue::U8(value) => Some(value.into()),
            MetadataValue::I8(value) => Some(value.into()),
            MetadataValue::U16(value) => Some(value.into()),
            MetadataValue::I16(value) => Some(value.into()),
            MetadataValue::U32(value) => Some(value.into()),
            MetadataValue::I32(value) => Some(value.into()),
            MetadataValue::U64(value) => Some(value.into()),
            MetadataValue::I64(value) => Some(value.into()),
            _ => None,
        }
    }

    /// The value, if it is a number of any kind.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            MetadataValue::F32(value) => Some(value.into()),
            MetadataValue::F64(value) => Some(value),
            _ => self.as_integer().map(|value| value as f64),
        }
    }

    /// The value, if it is a string and valid UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            MetadataValue::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value, if it is a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            MetadataValue::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The value, if it is an array.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            MetadataValue::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// For people: strings in quotes, long ones and long arrays cut short.
impl std::fmt::Display for MetadataValue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const LONGEST: usize = 60;
        match self {
            MetadataValue::U8(value) => value.fmt(f),
            MetadataValue::I8(value) => value.fmt(f),
            MetadataValue::U16(value) => value.fmt(f),
            MetadataValue::I16(value) => value.fmt(f),
            MetadataValue::U32(value) => value.fmt(f),
            MetadataValue::I32(value) => value.fmt(f),
            MetadataValue::F32(value) => value.fmt(f),
            MetadataValue::Bool(value) => value.fmt(f),
            MetadataValue::U64(value) => value.fmt(f),
            MetadataValue::I64(value) => value.fmt(f),
            MetadataValue::F64(value) => value.fmt(f),
            MetadataValue::String(bytes) => {
                // A character takes at most four bytes: no need to look at all of a long chat template.
                let start = &bytes[..bytes.len().min(4 * LONGEST)];
                let text = String::from_utf8_lossy(start);
                let short: String = text.chars().take(LONGEST).collect();
                let more = if short.len() < bytes.len() { "..." } else { "" };
                write!(f, "{short:?}{more}")
            }
            MetadataValue::Array(array) => {
                write!(f, "[")?;
                for (number, element) in array.elements().take(4).enumerate() {
                    write!(f, "{}{element}", if number == 0 { "" } else { ", " })?;
                }
                write!(f, "{}] ({} x {})", if array.len() > 4 { ", ..." } else { "" }, array.len(), array.kind())
            }
        }
    }
}

/// An array of metadata values of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: ValueType,
    count: usize,
    /// The elements as stored, checked to hold `count` of them.
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Type of the elements.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn elements(&self) -> impl Iterator<Item = MetadataValue<'a>> + use<'a> {
        let kind = self.kind;
        let mut reader = Reader::new(self.bytes, 0);
        // The array was walked when the file was opened: reading it again cannot fail.
        (0..self.count).map_while(move |_| read_value(&mut reader, kind, "", 0).ok())
    }
}

/// Reads and checks a value of a known type. `nesting` counts the arrays around it.
pub(super) fn read_value<'a>(
    reader: &mut Reader<'a>,
    kind: ValueType,
    key: &str,
    nesting: u32,
) -> Result<MetadataValue<'a>, GgufError> {
    let what = || format!("the value of `{key}`");
    let mut fixed = [0; 8];
    if let Some(size) = kind.size() {
        let bytes = reader.take(size, what)?;
        fixed[..bytes.len()].copy_from_slice(bytes);
    }
    let number = u64::from_le_bytes(fixed);
    // The casts below cut the number to the bytes that were read.
    Ok(match kind {
        ValueType::U8 => MetadataValue::U8(number as u8),
        ValueType::I8 => MetadataValue::I8(number as i8),
        ValueType::U16 => MetadataValue::U16(number as u16),
        ValueType::I16 => MetadataValue::I16(number as i16),
        ValueType::U32 => MetadataValue::U32(number as u32),
        ValueType::I32 => MetadataValue::I32(number as i32),
        ValueType::F32 => MetadataValue::F32(f32::from_bits(number as u32)),
        ValueType::U64 => MetadataValue::U64(number),
        ValueType::I64 => MetadataValue::I64(number as i64),
        ValueType::F64 => MetadataValue::F64(f64::from_bits(number)),
        ValueType::Bool => match number as u8 {
            0 => MetadataValue::Bool(false),
            1 => MetadataValue::Bool(true),
            value => return Err(GgufError::Bool { key: key.to_owned(), value }),
        },
        ValueType::String => {
            let length = reader.u64(|| format!("the length of the string `{key}`"))?;
            MetadataValue::String(reader.take(length, || format!("the string `{key}`"))?)
        }
        ValueType::Array => MetadataValue::Array(read_array(reader, key, nesting)?),
    })
}

/// Reads the type, the count and the elements of an array.
fn read_array<'a>(reader: &mut Reader<'a>, key: &str, nesting: u32) -> Result<Array<'a>, GgufError> {
    if nesting >= MAX_NESTING {
        return Err(GgufError::Nesting { key: key.to_owned(), limit: MAX_NESTING });
    }
    let number = reader.u32(|| format!("the element type of the array `{key}`"))?;
    let kind = ValueType::from_number(number).ok_or_else(|| GgufError::ValueType { key: key.to_owned(), number })?;
    let count = reader.u64(|| format!("the length of the array `{key}`"))?;
    let too_long = |left| GgufError::ArrayTooLong { key: key.to_owned(), count, left };
    if count > reader.left() / kind.min_size() {
        return Err(too_long(reader.left()));
    }
    let len = usize::try_from(count).map_err(|_| too_long(reader.left()))?;
    let mut elements = reader.clone();
    match kind.size() {
        // Numbers need no look. `count` times their size was just checked against the rest of the file.
        Some(size) if kind != ValueType::Bool => {
            reader.take(count * size, || format!("the array `{key}`"))?;
        }
        _ => {
            for _ in 0..count {
                read_value(reader, kind, key, nesting + 1)?;
            }
        }
    }
    let bytes = elements.take((reader.position() - elements.position()) as u64, || format!("the array `{key}`"))?;
    Ok(Array { kind, count: len, bytes })
}
