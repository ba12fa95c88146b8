//! A folder, a pipe or a device where a file should be: an error that names it, at once and without reading.

use cupola_formats::Checkpoint;
use cupola_formats::gguf::GgufWriter;
use cupola_formats::template::TemplateSources;
use cupola_formats::tokenizer::{Tokenizer, TokenizerConfig};
use std::path::Path;

/// Everything that is read of a folder; the first error.
fn open(folder: &Path) -> Result<(), String> {
    Checkpoint::open(folder).map_err(|e| e.to_string())?;
    let config = TokenizerConfig::from_dir(folder).map_err(|e| e.to_string())?;
    TemplateSources::from_dir(folder, config.chat_template()).map_err(|e| e.to_string())?;
    match Tokenizer::from_dir(folder) {
        Err(e) if folder.join("tokenizer.json").symlink_metadata().is_ok() => Err(e.to_string()),
        _ => Ok(()),
    }
}

const FILES: [&str; 8] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer.json",
];

/// Puts something in the place of each file in turn, and checks what the error says about it.
fn each(put: impl Fn(&Path), expected: &str) {
    for name in FILES {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        if !name.starts_with("model.safetensors") {
            // The smallest there is: a header without tensors.
            std::fs::write(at.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        } else if name.ends_with(".json") {
            // Looked at only where there are shards.
            std::fs::write(at.join("model-00001-of-00001.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        }
        if name != "config.json" {
            std::fs::write(at.join("config.json"), "{}").unwrap();
        }
        put(&at.join(name));
        let error = open(at).expect_err(name);
        assert!(error.contains(name) && error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn folders() {
    each(|path| std::fs::create_dir(path).unwrap(), "a folder, not a file");
}

#[test]
fn files_of_git_lfs() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    each(|path| std::fs::write(path, pointer).unwrap(), "git lfs pull");
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{FileTypeExt, symlink};

    fn pipe(path: &Path) {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is a string that ends with a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    }

    #[test]
    fn pipes() {
        each(pipe, "a device or pipe, not a file");
    }

    #[test]
    fn endless_devices() {
        each(|path| symlink("/dev/zero", path).unwrap(), "a device or pipe, not a file");
    }

    /// Renaming the finished file over the pipe would put a file in its place.
    #[test]
    fn a_pipe_is_not_replaced_by_what_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.gguf");
        pipe(&path);
        let error = GgufWriter::new().create(&path).unwrap_err().to_string();
        assert!(error.contains("a device or pipe, not a file"), "{error}");
        assert!(path.metadata().unwrap().file_type().is_fifo());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
