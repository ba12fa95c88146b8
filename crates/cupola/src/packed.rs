//! A folder of packed copies: weights in the form that a device computes with, which are mapped at the next start.

use crate::EngineError;
use cupola_backend::{PackedCopy, PackedCopyError};
use cupola_formats::Checkpoint;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Extension of a copy.
const EXTENSION: &str = "packed";
/// Extension of a copy that is being written.
const PART: &str = "part";
/// A copy must leave this many times its size of the disk free.
const LEFT_FREE: u64 = 3;

/// Where packed copies are kept, and how many.
///
/// A copy takes about as much room as its checkpoint. It is used as long as the checkpoint's files keep path, size and time
/// of modification. Those used longest ago make room for new ones, and none is made where the disk gets full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFolder {
    /// The folder; made when needed.
    pub path: PathBuf,
    /// Bytes that all copies may take together.
    pub limit: u64,
    /// Bytes of weights from which on a copy is worth the trouble.
    pub smallest: u64,
}

impl PackedFolder {
    /// A folder with copies of 64 GiB at most, made of models of 32 MiB or more.
    pub fn new(path: impl Into<PathBuf>) -> PackedFolder {
        PackedFolder { path: path.into(), limit: 64 << 30, smallest: 32 << 20 }
    }

    /// The copy of a checkpoint; absent for one that is part of the program.
    pub(crate) fn copy(&self, checkpoint: &Checkpoint) -> Option<PackedCopy> {
        let identity = checkpoint.identity()?;
        // FNV-1a, 64 bits. Should two checkpoints share a name, they replace each other's copies: the whole identity is inside.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let name = format!("{:016x}.{EXTENSION}", identity.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        Some(PackedCopy { path: self.path.join(name), identity })
    }

    /// Notes that a copy is in use, so that others are removed before it. A folder that cannot be written keeps its order.
    pub(crate) fn touch(&self, copy: &PackedCopy) {
        if let Ok(file) = File::options().append(true).open(&copy.path) {
            let _ = file.set_modified(SystemTime::now());
        }
    }

    /// Removes copies until one of so many bytes may be added. Whether it may.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<bool, EngineError> {
        if bytes < self.smallest || bytes > self.limit {
            return Ok(false);
        }
        let failed = |error: io::Error| PackedCopyError { path: self.path.clone(), reason: error.to_string() };
        fs::create_dir_all(&self.path).map_err(failed)?;
        let mut copies = self.copies().map_err(failed)?;
        copies.sort_by_key(|copy| copy.used);
        let mut total: u64 = copies.iter().map(|copy| copy.bytes).sum();
        for copy in copies {
            if total <= self.limit - bytes {
                break;
            }
            fs::remove_file(&copy.path).map_err(failed)?;
            total -= copy.bytes;
        }
        Ok(free(&self.path).is_none_or(|free| free / (1 + LEFT_FREE) >= bytes))
    }

    /// The copies there are. Those that were never finished count as well: a process that was ended leaves them.
    fn copies(&self) -> io::Result<Vec<Copy>> {
        let mut copies = vec![];
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == EXTENSION || e == PART) {
                // Gone meanwhile is as good as not there.
                let Ok(metadata) = path.symlink_metadata() else { continue };
                copies.push(Copy { path, bytes: metadata.len(), used: metadata.modified()? });
            }
        }
        Ok(copies)
    }
}

struct Copy {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Bytes that are free on the disk of a folder, where the system says it.
#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(unix))]
fn free(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn write(folder: &Path, name: &str, bytes: u64, age: u64) {
        let file = File::create(folder.join(name)).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_oldest_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let packed = PackedFolder { path: folder.path().join("new"), limit: 100, smallest: 10 };
        assert!(packed.make_room(100).unwrap(), "the folder is made");
        for (name, bytes, age) in
            [("a.packed", 30, 50), ("b.packed", 30, 90), ("c.7.part", 20, 70), ("other.txt", 1000, 99)]
        {
            write(&packed.path, name, bytes, age);
        }
        for bytes in [0, 9, 101, u64::MAX] {
            assert!(!packed.make_room(bytes).unwrap(), "{bytes}");
        }
        assert!(packed.make_room(20).unwrap());
        assert_eq!(names(&packed.path), ["a.packed", "b.packed", "c.7.part", "other.txt"]);
        assert!(packed.make_room(21).unwrap());
        assert_eq!(names(&packed.path), ["a.packed", "c.7.part", "other.txt"]);
        assert!(packed.make_room(71).unwrap());
        assert_eq!(names(&packed.path), ["other.txt"]);
    }

    #[test]
    fn a_disk_is_not_filled() {
        let folder = tempfile::tempdir().unwrap();
        let packed = PackedFolder { limit: u64::MAX, ..PackedFolder::new(folder.path()) };
        if let Some(free) = free(folder.path()) {
            assert!(!packed.make_room(free).unwrap());
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "file", 1, 0);
        let error = PackedFolder::new(folder.path().join("file")).make_room(1 << 30).unwrap_err().to_string();
        assert!(error.contains("cannot keep packed weights") && error.contains("file"), "{error}");
    }
}
