//! Any bytes as a safetensors file: an error, or tensors that fill the file without gaps.

#![no_main]

use cupola_formats::safetensors::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok(header) = Header::parse(file) {
        let mut end = None;
        for tensor in header.tensors {
            assert!(end.is_none_or(|end| end == tensor.range.start));
            assert!(file.get(tensor.range.clone()).is_some());
            end = Some(tensor.range.end);
        }
        assert!(end.is_none_or(|end| end == file.len()));
    }
});
