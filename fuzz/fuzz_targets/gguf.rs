//! Any bytes as a GGUF file: an error, or tensors that lie apart and inside the file.

#![no_main]

use cupola_formats::gguf::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok(header) = Header::parse(file) {
        let mut ranges: Vec<_> = header.tensors.into_iter().map(|tensor| tensor.range).collect();
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.iter().all(|range| file.get(range.clone()).is_some()));
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }
});
