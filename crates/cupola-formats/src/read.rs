//! Small files, read whole.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The most that a text file of a model may have. The largest are tokenizers and the indices of shards: tens of megabytes.
pub(crate) const MAX_TEXT: u64 = 256 << 20;

/// How the small file begins that git leaves in place of a large one where Git LFS is not installed.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Fails for what is not a file. To be asked before opening: opening a pipe would wait for its other end, and a device can
/// be read without end.
pub(crate) fn check_is_file(metadata: &std::fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let kind = if metadata.is_dir() { "a folder" } else { "a device or pipe" };
    Err(Error::new(ErrorKind::InvalidInput, format!("{kind}, not a file")))
}

/// Fails if the bytes are a stand-in for the file that was meant.
pub(crate) fn check_is_content(bytes: &[u8]) -> Result<()> {
    if !bytes.starts_with(LFS_POINTER) {
        return Ok(());
    }
    let message = "a Git LFS pointer in place of the file itself; `git lfs pull` in its folder fetches it";
    Err(Error::new(ErrorKind::InvalidData, message))
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_long = || {
        let message = format!("more than {limit} bytes long, which is too much for such a file of a model");
        Error::new(ErrorKind::InvalidData, message)
    };
    let metadata = std::fs::metadata(path)?;
    check_is_file(&metadata)?;
    if metadata.len() > limit {
        return Err(too_long());
    }
    let mut content = Vec::new();
    // The file may have grown since, or be one of those that do not tell their size.
    let read = File::open(path)?.take(limit + 1).read_to_end(&mut content)?;
    if read as u64 > limit {
        return Err(too_long());
    }
    check_is_content(&content)?;
    Ok(content)
}

/// Reads a file of at most `limit` bytes, if there is one.
pub(crate) fn read_if_there(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match read_limited(path, limit) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_up_to_the_limit_is_read_and_a_longer_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_limited(&path, 5).unwrap(), b"12345");
        assert!(read_limited(&path, 4).unwrap_err().to_string().starts_with("more than 4 bytes"));
        // Nothing of it is read: a terabyte of zeros would not fit.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read_limited(&path, MAX_TEXT).unwrap_err().to_string().starts_with("more than "));
    }

    #[test]
    fn what_is_no_file_is_refused_without_opening_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_limited(folder.path(), 9).unwrap_err().to_string(), "a folder, not a file");
        assert!(read_if_there(&folder.path().join("missing"), 9).unwrap().is_none());
        assert_eq!(read_limited(&folder.path().join("missing"), 9).unwrap_err().kind(), ErrorKind::NotFound);
        #[cfg(unix)]
        assert_eq!(read_limited(Path::new("/dev/zero"), 9).unwrap_err().to_string(), "a device or pipe, not a file");
    }

    #[test]
    fn a_pointer_of_git_lfs_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n").unwrap();
        assert!(read_limited(&path, 999).unwrap_err().to_string().contains("git lfs pull"));
    }
}
