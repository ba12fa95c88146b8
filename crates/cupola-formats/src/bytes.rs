//! The bytes of a file: mapped into memory, or part of the program.

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::FormatError;
use crate::read::{check_is_content, check_is_file};

/// Advice to the kernel is given in units of the largest page of any supported system, so that no page size has
/// to be asked for: a mapping starts on a page, hence so does every multiple of this in it.
#[cfg(unix)]
const PAGE: usize = 64 * 1024;

/// Read-only bytes that live as long as the value does.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// A file, read by the kernel when touched, and what tells it from others.
    Mapped(memmap2::Mmap, FileIdentity),
    /// Data that the program carries with it.
    Static(&'static [u8]),
}

/// What tells a file, and one state of it, from others.
#[derive(Clone, Debug)]
pub(crate) struct FileIdentity {
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl std::fmt::Display for FileIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = self.modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        let nanoseconds = since.map_or(0, |since| since.as_nanos());
        write!(f, "{:?}, {} bytes, modified at {nanoseconds}", self.path, self.bytes)
    }
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
        let path = path.canonicalize().map_err(at)?;
        Ok(Bytes::Mapped(map, FileIdentity { path, bytes: metadata.len(), modified: metadata.modified().ok() }))
    }

    /// What tells the file from others, unless it is part of the program.
    pub(crate) fn identity(&self) -> Option<&FileIdentity> {
        match self {
            Bytes::Mapped(_, identity) => Some(identity),
            Bytes::Static(_) => None,
        }
    }

    /// Tells the kernel that `range` will be read soon. A hint: failure has no effect.
    #[cfg(unix)]
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        if let Bytes::Mapped(map, _) = self {
            let start = range.start - range.start % PAGE;
            let _ = map.advise_range(memmap2::Advice::WillNeed, start, range.end.saturating_sub(start));
        }
    }

    /// Tells the kernel that the pages wholly inside `range` can be dropped; touching them reads the file again.
    #[cfg(unix)]
    pub(crate) fn release(&self, range: Range<usize>) {
        if let Bytes::Mapped(map, _) = self {
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
            Bytes::Mapped(map, _) => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}
