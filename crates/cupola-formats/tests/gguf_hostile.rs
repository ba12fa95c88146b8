//! Broken and hostile GGUF files: a typed error, quickly, in little memory, never a panic.

mod common;

use common::{data, error_of_gguf};
use cupola_formats::Dtype;
use cupola_formats::gguf::{GgmlType, Gguf, GgufError, Header};
use proptest::prelude::*;

/// Every file of `tests/data/gguf` with what is wrong with it; `None` for the one that is right.
fn expected() -> Vec<(&'static str, Option<GgufError>)> {
    let t = || "t".to_owned();
    let key = |key: &str| key.to_owned();
    let too_large = |dims: &[u64]| GgufError::TooLarge { tensor: t(), dims: dims.to_vec() };
    let cases = [
        ("align0", GgufError::Alignment { alignment: 0 }),
        ("align24", GgufError::Alignment { alignment: 24 }),
        ("align_2p31", GgufError::DataTruncated { tensor: t(), start: 1 << 31, end: (1 << 31) + 16, length: 192 }),
        ("align_u64", GgufError::AlignmentType { found: "32 (u64)".into() }),
        ("arr_len0_str", GgufError::EmptyVocabulary),
        ("arr_len_2p63_u8", GgufError::ArrayTooLong { key: key("a.b"), count: 1 << 63, left: 13 }),
        ("big_endian", GgufError::BigEndian { version: 0x0300_0000 }),
        ("bool_2", GgufError::Bool { key: key("x.b"), value: 2 }),
        ("dim_zero", GgufError::NoElements { tensor: t(), dims: vec![4, 0] }),
        ("dims_wrap_bytes_2p62_f32", too_large(&[1 << 62])),
        ("dims_wrap_u64", too_large(&[1 << 63, 2, 1, 1])),
        ("dup_key", GgufError::DuplicateKey { key: key("x.y") }),
        ("dup_tensor", GgufError::DuplicateTensor { tensor: t() }),
        ("empty", GgufError::Empty),
        ("key_len_huge", GgufError::TooMany { what: "metadata entries", count: 1, left: 8 }),
        ("magic_only", GgufError::Truncated { what: "the version".into(), offset: 4, needed: 4, left: 0 }),
        ("misaligned_off", GgufError::Misaligned { tensor: t(), offset: 4, alignment: 32 }),
        ("ndims0", GgufError::Dimensions { tensor: t(), count: 0 }),
        ("ndims5", GgufError::Dimensions { tensor: t(), count: 5 }),
        ("nested_5000", GgufError::Nesting { key: key("a.b"), limit: 4 }),
        ("nonutf8_key", GgufError::NameNotUtf8 { what: "key", offset: 32 }),
        ("overlap", GgufError::Overlap { first: "a".into(), second: "b".into() }),
        ("pad_wrap_2p64m16", too_large(&[4, (1 << 30) - 1, (1 << 30) + 1, 1])),
        ("q4k_row_128", GgufError::PartialBlock { tensor: t(), kind: GgmlType(12), row: 128, block: 256 }),
        (
            "str_len_2p63",
            GgufError::Truncated { what: "the string `general.name`".into(), offset: 56, needed: 1 << 63, left: 8 },
        ),
        ("tensor_count_2p60", GgufError::TooMany { what: "tensors", count: 1 << 60, left: 27 }),
        ("trunc", GgufError::DataTruncated { tensor: t(), start: 128, end: 128 + 4096, length: 228 }),
        ("type_31_removed", GgufError::RemovedType { tensor: t(), number: 31 }),
        ("type_4_removed", GgufError::RemovedType { tensor: t(), number: 4 }),
        ("type_9999", GgufError::UnknownType { tensor: t(), number: 9999 }),
        ("v1", GgufError::Version1),
        ("valtype_13", GgufError::ValueType { key: key("x.b"), number: 13 }),
    ];
    cases.into_iter().map(|(name, error)| (name, Some(error))).chain([("ok", None)]).collect()
}

#[test]
fn each_broken_file_gets_its_error() {
    let cases = expected();
    for (name, error) in &cases {
        let opened = Gguf::open(data(&format!("gguf/{name}.gguf")));
        assert_eq!(opened.map_err(error_of_gguf).err(), *error, "{name}");
    }
    let files = std::fs::read_dir(data("gguf")).unwrap();
    let count = files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "gguf")).count();
    assert_eq!(count, cases.len(), "files without an expectation");
}

#[test]
fn messages_name_file_and_advice() {
    let message = |name: &str| Gguf::open(data(name)).unwrap_err().to_string();
    let big_endian = message("gguf/big_endian.gguf");
    assert!(big_endian.contains("big_endian.gguf: a big-endian GGUF file"), "{big_endian}");
    assert!(big_endian.contains("convert"), "{big_endian}");
    let version1 = message("gguf/v1.gguf");
    assert!(version1.contains("version 1") && version1.contains("convert"), "{version1}");
    let short = message("gguf/trunc.gguf");
    assert!(short.contains("`t`") && short.contains("4224") && short.contains("download"), "{short}");
    let other = message("refs/llama/model.safetensors");
    assert!(other.contains("not a GGUF file"), "{other}");
    assert!(message("gguf").contains("gguf: a folder, not a file"));
}

#[cfg(unix)]
#[test]
fn devices_are_not_read() {
    let message = Gguf::open("/dev/zero").unwrap_err().to_string();
    assert_eq!(message, "/dev/zero: a device or pipe, not a file");
}

#[test]
fn a_key_of_2_to_the_48_bytes_in_a_long_file() {
    let mut bytes = std::fs::read(data("gguf/key_len_huge.gguf")).unwrap();
    bytes.resize(4096, 0);
    let error = Header::parse(&bytes).unwrap_err();
    assert_eq!(error, GgufError::KeyTooLong { offset: 32, length: (1 << 48) - 1 });
}

#[test]
fn cut_at_every_byte() {
    let bytes = std::fs::read(data("gguf/ok.gguf")).unwrap();
    // 16 bytes of data at offset 128; what follows is padding.
    for end in 0..bytes.len() {
        assert_eq!(Header::parse(&bytes[..end]).is_ok(), end >= 144, "{end}");
    }
    let bytes = std::fs::read(data("gguf-py/types.gguf")).unwrap();
    // The last tensor has 16 bytes and is padded to 32.
    for end in 0..bytes.len() {
        assert_eq!(Header::parse(&bytes[..end]).is_ok(), end >= bytes.len() - 16, "{end}");
    }
}

/// `ok.gguf` with another number for the type of its tensor.
fn with_type(number: u32) -> Vec<u8> {
    let mut bytes = std::fs::read(data("gguf/ok.gguf")).unwrap();
    bytes[0x5a..0x5e].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[test]
fn a_type_of_a_newer_ggml_can_be_looked_at_but_not_used() {
    let gguf = Gguf::from_static(with_type(60).leak(), "new.gguf").unwrap();
    let tensor = gguf.tensor("t").unwrap();
    assert_eq!(tensor.dtype, Dtype::Ggml(GgmlType(60)));
    assert_eq!((tensor.shape, tensor.bytes.len()), (&[4][..], 32), "up to the end of the file");
    let message = tensor.format().unwrap_err().to_string();
    assert!(message.contains("`t`") && message.contains("60"), "{message}");
}

#[test]
fn every_removed_type_is_refused() {
    for number in [4, 5, 31, 32, 33, 36, 37, 38] {
        let error = Header::parse(&with_type(number)).unwrap_err();
        assert_eq!(error, GgufError::RemovedType { tensor: "t".into(), number });
    }
}

#[test]
fn arrays_may_nest_four_deep() {
    // An array of one array of one array of one array of two u8.
    let nested = |depth: u32| {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(b"k");
        bytes.extend(9u32.to_le_bytes());
        for _ in 1..depth {
            bytes.extend(9u32.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
        }
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend([7, 8]);
        bytes
    };
    let gguf = Gguf::from_static(nested(4).leak(), "nested.gguf").unwrap();
    let mut array = gguf.metadata().get("k").unwrap().as_array().unwrap();
    for _ in 1..4 {
        assert_eq!(array.len(), 1);
        array = array.elements().next().unwrap().as_array().unwrap();
    }
    let numbers: Vec<_> = array.elements().map(|element| element.as_integer().unwrap()).collect();
    assert_eq!(numbers, [7, 8]);
    assert_eq!(Header::parse(&nested(5)).unwrap_err(), GgufError::Nesting { key: "k".into(), limit: 4 });
}

/// Opens all files in a process that may use 16 MiB more than it starts with.
#[cfg(target_os = "linux")]
#[test]
fn little_memory_and_time() {
    let test = std::env::current_exe().unwrap();
    let output = std::process::Command::new(test)
        .args(["--exact", "child_with_little_memory", "--ignored", "--nocapture", "--test-threads=1"])
        // Without this, glibc reserves 64 MiB for each thread beforehand, which the limit would not see being used.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "the child ran nothing: {text}");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "limits the memory of its process: started by little_memory_and_time"]
fn child_with_little_memory() {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: plain calls with valid arguments.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as u64;
        let limit = pages * page + (16 << 20);
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
    }
    // The limit is real. (An allocation that nobody looks at is optimised away.)
    let mut large = Vec::<u8>::new();
    let reserved = large.try_reserve_exact(32 << 20);
    assert!(reserved.is_err(), "{:?}", std::hint::black_box(large).capacity());
    for (name, error) in expected() {
        let path = data(&format!("gguf/{name}.gguf"));
        let start = std::time::Instant::now();
        let opened = Gguf::open(&path);
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(opened.map_err(error_of_gguf).err(), error, "{name}");
        // Far more than a busy machine takes, far less than reading what the headers claim.
        assert!(seconds < 5.0, "{name}: {seconds} s");
    }
}

/// Numbers that break sums and products.
const EXTREME: [u64; 12] =
    [0, 1, 9, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, u64::MAX];

#[derive(Clone, Debug)]
enum Change {
    Byte(usize, u8),
    Word(usize, u32),
    Long(usize, u64),
    Cut(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let extreme = || proptest::sample::select(&EXTREME[..]);
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        2 => (any::<usize>(), extreme()).prop_map(|(at, value)| Change::Word(at, value as u32)),
        3 => (any::<usize>(), extreme()).prop_map(|(at, value)| Change::Long(at, value)),
        1 => any::<usize>().prop_map(Change::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: Change) {
    let mut put = |at: usize, value: &[u8]| {
        if !bytes.is_empty() {
            let at = at % bytes.len();
            let count = value.len().min(bytes.len() - at);
            bytes[at..at + count].copy_from_slice(&value[..count]);
        }
    };
    match change {
        Change::Byte(at, value) => put(at, &[value]),
        Change::Word(at, value) => put(at, &value.to_le_bytes()),
        Change::Long(at, value) => put(at, &value.to_le_bytes()),
        Change::Cut(at) => bytes.truncate(at % (bytes.len() + 1)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn changed_files_give_an_error_or_sound_tensors(
        file in proptest::sample::select(&["gguf/ok.gguf", "gguf/align_u64.gguf", "gguf-py/types.gguf"][..]),
        changes in proptest::collection::vec(change(), 1..4),
    ) {
        let mut bytes = std::fs::read(data(file)).unwrap();
        changes.into_iter().for_each(|change| apply(&mut bytes, change));
        let length = bytes.len();
        // A few hundred bytes for each case.
        if let Ok(gguf) = Gguf::from_static(bytes.leak(), "changed.gguf") {
            for (_, value) in gguf.metadata().iter() {
                prop_assert!(value.to_string().len() < 2000);
                if let Some(array) = value.as_array() {
                    prop_assert_eq!(array.elements().count(), array.len());
                }
            }
            let mut ranges: Vec<_> = gguf.infos().iter().map(|info| info.range.clone()).collect();
            ranges.sort_by_key(|range| range.start);
            prop_assert!(ranges.iter().all(|range| range.start <= range.end && range.end <= length));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
            for tensor in gguf.tensors() {
                prop_assert!(tensor.elements() > 0);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_after_the_magic_number(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let file = [b"GGUF\x03\0\0\0".as_slice(), &bytes].concat();
        let _ = Header::parse(&file);
    }
}
