//! A cursor over the header of a GGUF file.

use super::GgufError;

/// Reads little-endian values and refuses to pass the end.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8], position: usize) -> Self {
        Reader { bytes, position }
    }

    /// Bytes from the start of the file.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Bytes until the end of the file.
    pub(super) fn left(&self) -> u64 {
        (self.bytes.len() - self.position) as u64
    }

    /// The next `count` bytes. `what` names them in the error.
    pub(super) fn take(&mut self, count: u64, what: impl FnOnce() -> String) -> Result<&'a [u8], GgufError> {
        if count > self.left() {
            return Err(GgufError::Truncated {
                what: what(),
                offset: self.position as u64,
                needed: count,
                left: self.left(),
            });
        }
        let start = self.position;
        // `count` is at most the length of a slice, so it fits.
        self.position += count as usize;
        Ok(&self.bytes[start..self.position])
    }

    fn array<const N: usize>(&mut self, what: impl FnOnce() -> String) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }
}
