//! The bytes of a file: mapped into memory, or part of the program.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;

use crate::error::FormatError;
use crate::read::{check_is_content, check_is_file};

/// Advice to the kernel is given in units of the largest page of any supported system, so that no page size has
/// to be asked for: a mapping starts on a page, hence so does every multiple of this in it.
#[cfg(unix)]
const PAGE: usize = 64 * 1024;

/// Read-only bytes that live as long as the value does.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// A file, read by the kernel when touched.
    Mapped(memmap2::Mmap),
    /// Data that the program carries with it.
    Static(&'static [u8]),
}

impl Bytes {
    /// Maps the whole of a file.
    pub(crate) fn map(path: &Path) -> Result<Bytes, FormatError> {
        let at = |error: std::io::Error| FormatError::new(path, error);
        let metadata = std::fs::metadata(path).map_err(at)?;
        check_is_file(&metadata).map_err(at)?;
        if metadata.len() == 0 {
            // Not every system can map an empty file.
            return Ok(Bytes::Static(&[]));
        }
        let file = File::open(path).map_err(at)?;
        // SAFETY: a mapping is sound as long as nobody changes the file meanwhile. Checkpoints are not written in
        // place by this project (they are renamed when complete), and there is no way to rule it out for other
        // programs: this is the accepted price of not reading gigabytes at start. Every bit pattern is a valid
        // `u8`, so a change can give wrong numbers, and a file cut short ends the process, but nothing more.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(at)?;
        check_is_content(&map).map_err(at)?;
        Ok(Bytes::Mapped(map))
    }

    /// Tells the kernel that `range` will be read soon. A hint: failure has no effect.
    #[cfg(unix)]
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        if let Bytes::Mapped(map) = self {
            let start = range.start - range.start % PAGE;
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, range.end.saturating_sub(start));
        }
    }

    /// Tells the kernel that the pages wholly inside `range` can be dropped; touching them reads the file again.
    #[cfg(unix)]
    pub(crate) fn release(&self, range: Range<usize>) {
        if let Bytes::Mapped(map) = self {
            let start = range.start.next_multiple_of(PAGE);
            let end = range.end - range.end % PAGE;
            if start < end {
                // SAFETY: the mapping is private, read-only and backed by the file: dropped pages come back with
                // the same content.
                let _ = unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end.saturating_sub(start))
                };
            }
        }
    }

    /// Other systems manage without the hint.
    #[cfg(not(unix))]
    pub(crate) fn prefetch(&self, _range: Range<usize>) {}

    /// Other systems manage without the hint.
    #[cfg(not(unix))]
    pub(crate) fn release(&self, _range: Range<usize>) {}
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}
