//! Memory for weights and scratch in cache lines: zeroed, on huge pages when large; or a file's, mapped.

use memmap2::Mmap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A cache line, and one 64-byte vector: the unit in which packed weights are laid out.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

impl Line {
    /// A line of zeros.
    pub const ZERO: Line = Line([0; 64]);

    /// Loads from the line, here: the compiler keeps the order of touches.
    #[inline(always)]
    pub(crate) fn touch(&self) {
        // SAFETY: four bytes of a line that is there, at its alignment.
        let _ = unsafe { (&raw const *self).cast::<u32>().read_volatile() };
    }

    /// The line as 16 floats.
    #[inline(always)]
    pub fn floats(&self) -> &[f32; 16] {
        // SAFETY: 64 bytes at 64-byte alignment, and any bits are a float.
        unsafe { &*self.0.as_ptr().cast() }
    }

    /// The line as 16 floats.
    #[inline(always)]
    pub fn floats_mut(&mut self) -> &mut [f32; 16] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { &mut *self.0.as_mut_ptr().cast() }
    }
}

/// The lines as bytes.
pub(crate) fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: lines are nothing but bytes.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
}

/// Lines of a mapped file.
#[derive(Debug)]
pub(crate) struct MappedLines {
    map: Arc<Mmap>,
    lines: Range<usize>,
}

impl MappedLines {
    /// These lines of a file; absent if they are not all within it.
    pub fn new(map: Arc<Mmap>, lines: Range<usize>) -> Option<MappedLines> {
        // Mappings begin on pages; were one not to, its lines could not be had.
        let aligned = map.as_ptr().addr().is_multiple_of(align_of::<Line>());
        (aligned && lines.start <= lines.end && lines.end <= map.len() / size_of::<Line>())
            .then_some(MappedLines { map, lines })
    }
}

impl std::ops::Deref for MappedLines {
    type Target = [Line];
    #[inline(always)]
    fn deref(&self) -> &[Line] {
        // SAFETY: `new` has checked range and alignment; any bits are a line; the map lives as long as self.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<Line>().add(self.lines.start), self.lines.len()) }
    }
}

/// Memory could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: the system refused {bytes} bytes; close other programs, or use a smaller model or format")]
pub struct OutOfMemory {
    /// How many bytes were asked for.
    pub bytes: usize,
}

/// From this size on, memory comes straight from the system, on huge pages where there are such.
const LARGE: usize = 1 << 20;

/// A fixed number of zeroed [`Line`]s. Large ones are not touched before they are written, so that threads which fill
/// them in parallel also share the cost of the page faults.
pub struct Buffer {
    lines: std::ptr::NonNull<Line>,
    len: usize,
}

// SAFETY: a Buffer owns its memory, like a Box<[Line]>.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zeroed lines.
    pub fn new(len: usize) -> Result<Self, OutOfMemory> {
        let bytes = len.checked_mul(size_of::<Line>()).filter(|&b| b <= isize::MAX as usize - (4 << 20));
        let bytes = bytes.ok_or(OutOfMemory { bytes: usize::MAX })?;
        if bytes == 0 {
            return Ok(Buffer { lines: std::ptr::NonNull::dangling(), len: 0 });
        }
        let lines = source::zeroed(bytes).ok_or(OutOfMemory { bytes })?;
        Ok(Buffer { lines, len })
    }

    /// Makes sure there are at least `len` lines; contents are lost when it grows.
    pub fn reserve(&mut self, len: usize) -> Result<(), OutOfMemory> {
        if self.len < len {
            *self = Buffer::new(len)?;
        }
        Ok(())
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer { lines: std::ptr::NonNull::dangling(), len: 0 }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [Line];
    fn deref(&self) -> &[Line] {
        // SAFETY: `len` initialised (zeroed) lines that this Buffer owns.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the same size as at allocation.
            unsafe { source::free(self.lines, self.len * size_of::<Line>()) }
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len * size_of::<Line>())
    }
}

/// Small blocks, and everything on systems without mmap: the global allocator.
mod heap {
    use super::Line;
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, align_of::<Line>()).ok()
    }

    pub fn zeroed(bytes: usize) -> Option<std::ptr::NonNull<Line>> {
        // SAFETY: callers never ask for zero bytes.
        std::ptr::NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) }.cast())
    }

    pub unsafe fn free(lines: std::ptr::NonNull<Line>, bytes: usize) {
        if let Some(layout) = layout(bytes) {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(lines.as_ptr().cast(), layout) }
        }
    }
}

#[cfg(not(unix))]
mod source {
    pub use super::heap::{free, zeroed};
}

/// mmap gives zero pages on first touch, where the allocator would write zeros at once and from one thread.
#[cfg(unix)]
mod source {
    use super::{LARGE, Line, heap};
    use std::ptr::NonNull;

    /// Size of a huge page on x86-64 and most arm64 Linux. A wrong guess costs speed only.
    const HUGE: usize = 2 << 20;

    /// Bytes mapped for a large block: a whole number of huge pages, so that both ends stay aligned to every page size.
    fn mapped(bytes: usize) -> usize {
        bytes.next_multiple_of(HUGE)
    }

    pub fn zeroed(bytes: usize) -> Option<NonNull<Line>> {
        if bytes < LARGE {
            return heap::zeroed(bytes);
        }
        let (size, whole) = (mapped(bytes), mapped(bytes) + HUGE);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), whole, access, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        let head = base.addr().next_multiple_of(HUGE) - base.addr();
        let lines = base.wrapping_add(head);
        // SAFETY: what is unmapped is the part of the new mapping outside `lines..lines + size`; head and tail are
        // whole pages because HUGE is a multiple of the page size.
        unsafe {
            if head > 0 {
                libc::munmap(base.cast(), head);
            }
            if head < HUGE {
                libc::munmap(lines.add(size).cast(), HUGE - head);
            }
            // Whole huge pages only: what is left over would take one to itself, 1 MiB too much on average for each matrix.
            #[cfg(target_os = "linux")]
            libc::madvise(lines.cast(), bytes - bytes % HUGE, libc::MADV_HUGEPAGE);
        }
        NonNull::new(lines.cast())
    }

    pub unsafe fn free(lines: NonNull<Line>, bytes: usize) {
        if bytes < LARGE {
            // SAFETY: small blocks come from the heap.
            return unsafe { heap::free(lines, bytes) };
        }
        // SAFETY: the mapping that `zeroed` kept.
        unsafe {
            libc::munmap(lines.as_ptr().cast(), mapped(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_aligned_and_writable_at_every_size() {
        for len in [0, 1, 3, LARGE / 64 - 1, LARGE / 64, LARGE / 64 + 1, (5 << 20) / 64 + 7] {
            let mut b = Buffer::new(len).unwrap();
            assert_eq!(b.len(), len);
            assert_eq!(b.as_ptr().addr() % 64, 0);
            assert!(b.iter().all(|l| l.0 == [0; 64]));
            if let Some(last) = b.last_mut() {
                last.0[63] = 7;
                assert_eq!(b[len - 1].0[63], 7);
            }
        }
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(Buffer::new(usize::MAX).is_err());
        assert!(Buffer::new(usize::MAX / 128).is_err());
    }
}
