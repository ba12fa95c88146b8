//! safetensors files: every type, broken headers, shards. The `safetensors` crate is the oracle.

mod common;

use std::path::Path;

use common::{bytes_of, data, error_of_safetensors};
use cupola_formats::safetensors::{Header, Safetensors, SafetensorsError as Error};
use cupola_formats::{Dtype, FormatErrorKind};
use cupola_quant::Format;
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as Stored, TensorView};

/// A file with this header and this many bytes of data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|byte| byte as u8));
    bytes
}

/// A header with tensors: name, type, shape, start, end.
fn header(tensors: &[(&str, &str, &[u64], u64, u64)]) -> String {
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, shape, start, end)| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    format!("{{{}}}", entries.join(","))
}

#[test]
fn every_type() {
    let types = [
        (Stored::BOOL, Dtype::Bool, 8),
        (Stored::F4, Dtype::F4, 4),
        (Stored::F6_E2M3, Dtype::F6_E2M3, 6),
        (Stored::F6_E3M2, Dtype::F6_E3M2, 6),
        (Stored::U8, Dtype::U8, 8),
        (Stored::I8, Dtype::I8, 8),
        (Stored::F8_E5M2, Dtype::F8_E5M2, 8),
        (Stored::F8_E4M3, Dtype::F8_E4M3, 8),
        (Stored::F8_E8M0, Dtype::F8_E8M0, 8),
        (Stored::F8_E4M3FNUZ, Dtype::F8_E4M3FNUZ, 8),
        (Stored::F8_E5M2FNUZ, Dtype::F8_E5M2FNUZ, 8),
        (Stored::I16, Dtype::I16, 16),
        (Stored::U16, Dtype::U16, 16),
        (Stored::F16, Dtype::Weight(Format::F16), 16),
        (Stored::BF16, Dtype::Weight(Format::BF16), 16),
        (Stored::I32, Dtype::I32, 32),
        (Stored::U32, Dtype::U32, 32),
        (Stored::F32, Dtype::Weight(Format::F32), 32),
        (Stored::C64, Dtype::C64, 64),
        (Stored::F64, Dtype::F64, 64),
        (Stored::I64, Dtype::I64, 64),
        (Stored::U64, Dtype::U64, 64),
    ];
    let content: Vec<u8> = (0..96).collect();
    let views = types.map(|(stored, _, bits)| {
        (format!("{stored:?}"), TensorView::new(stored, vec![3, 4], &content[..12 * bits / 8]).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let files = Safetensors::open(&path).unwrap();
    assert_eq!(files.tensors().len(), types.len());
    for (stored, dtype, bits) in types {
        let tensor = files.tensor(&format!("{stored:?}")).unwrap();
        assert_eq!((tensor.dtype, tensor.shape), (dtype, &[3, 4][..]));
        assert_eq!(tensor.bytes, &content[..12 * bits / 8]);
        let expected = if let Dtype::Weight(format) = dtype { format.to_string() } else { stored.to_string() };
        assert_eq!(tensor.dtype.to_string(), expected);
    }
}

#[test]
fn scalars_and_empty_tensors() {
    let header = header(&[("scalar", "F32", &[], 0, 4), ("none", "F32", &[0, 1 << 40], 4, 4)]);
    let parsed = Header::parse(&file(&header, 4)).unwrap();
    let tensors: Vec<_> = parsed.tensors.iter().map(|t| (t.name.as_str(), t.shape.clone(), t.range.len())).collect();
    assert_eq!(tensors, [("scalar", vec![], 4), ("none", vec![0, 1 << 40], 0)]);
    assert!(Header::parse(&file("{}", 0)).unwrap().tensors.is_empty());
    let metadata = Header::parse(&file(r#"{"__metadata__":{"format":"pt","a":"b"}}   "#, 0)).unwrap().metadata;
    assert_eq!(metadata, [("a".into(), "b".into()), ("format".into(), "pt".into())].into());
}

fn t() -> String {
    "t".into()
}

#[test]
fn broken_headers() {
    let parse = |bytes: &[u8]| Header::parse(bytes).unwrap_err();
    assert_eq!(parse(&[]), Error::TooShort { length: 0 });
    assert_eq!(parse(&[0; 7]), Error::TooShort { length: 7 });
    assert_eq!(parse(&u64::MAX.to_le_bytes()), Error::HeaderTooLong { length: u64::MAX });
    assert_eq!(parse(&100_000_001u64.to_le_bytes()), Error::HeaderTooLong { length: 100_000_001 });
    assert_eq!(parse(&100_000_000u64.to_le_bytes()), Error::HeaderTruncated { length: 100_000_000, left: 0 });
    for (json, part) in [
        ("", "EOF"),
        ("[]", "an object with an entry for each tensor"),
        ("{\"t\":1}", "`t`: invalid type: integer `1`"),
        (r#"{"t":{"dtype":"F33","shape":[],"data_offsets":[0,0]}}"#, "F33"),
        (r#"{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}"#, "-1"),
        (r#"{"t":{"dtype":"F32","shape":[1.5],"data_offsets":[0,0]}}"#, "1.5"),
        (r#"{"t":{"dtype":"F32","shape":[],"data_offsets":[0]}}"#, "length"),
        (r#"{"t":{"dtype":"F32","shape":[]}}"#, "data_offsets"),
        (r#"{"__metadata__":{"a":1}}"#, "expected a string"),
        (&header(&[("t", "F32", &[1], 0, 4), ("t", "F32", &[1], 4, 8)]), "`t` occurs twice"),
        ("{} {}", "trailing"),
    ] {
        let Error::Header { message } = parse(&file(json, 8)) else { panic!("{json}") };
        assert!(message.contains(part), "{json}: {message}");
    }
    let mut bytes = file("{\"t\":1}", 0);
    bytes[10] = 0xff;
    assert!(matches!(parse(&bytes), Error::Header { .. }));
    let deep = "[".repeat(100_000);
    assert!(matches!(parse(&file(&deep, 0)), Error::Header { .. }));
}

#[test]
fn broken_offsets() {
    let parse = |tensors: &[_], data| Header::parse(&file(&header(tensors), data)).unwrap_err();
    let size = |shape: &[usize], expected, start, end| Error::Size {
        tensor: t(),
        dtype: "F32".into(),
        shape: shape.to_vec(),
        expected,
        start,
        end,
    };
    let too_large = |shape: &[usize]| Error::TooLarge { tensor: t(), shape: shape.to_vec() };
    assert_eq!(
        parse(&[("s", "F32", &[2], 0, 8), ("t", "F32", &[2], 4, 12)], 12),
        Error::Overlap { tensor: t(), start: 4, end: 8 }
    );
    assert_eq!(
        parse(&[("s", "F32", &[2], 0, 8), ("t", "F32", &[2], 0, 8)], 8),
        Error::Overlap { tensor: t(), start: 0, end: 8 }
    );
    assert_eq!(parse(&[("t", "F32", &[2], 4, 12)], 12), Error::Hole { tensor: t(), start: 4, end: 0 });
    assert_eq!(
        parse(&[("t", "F32", &[1], 8, 12), ("s", "F32", &[1], 0, 4)], 12),
        Error::Hole { tensor: t(), start: 8, end: 4 }
    );
    assert_eq!(parse(&[("t", "F32", &[2], 0, 12)], 12), size(&[2], 8, 0, 12));
    assert_eq!(parse(&[("t", "F32", &[2], 0, 4)], 4), size(&[2], 8, 0, 4));
    assert_eq!(parse(&[("t", "F32", &[2], 0, 8)], 4), Error::DataLength { expected: 8, found: 4 });
    assert_eq!(parse(&[("t", "F32", &[2], 0, 8)], 9), Error::DataLength { expected: 8, found: 9 });
    assert_eq!(parse(&[], 1), Error::DataLength { expected: 0, found: 1 });
    assert_eq!(parse(&[("t", "F32", &[1 << 32, 1 << 32], 0, 0)], 0), too_large(&[1 << 32, 1 << 32]));
    assert_eq!(parse(&[("t", "F32", &[1 << 62], 0, 0)], 0), too_large(&[1 << 62]));
    // The largest number of bytes whose bits can be counted.
    let largest = u64::MAX / 8;
    let error = Error::DataLength { expected: largest as usize, found: 8 };
    assert_eq!(parse(&[("t", "U8", &[u64::MAX / 8], 0, largest)], 8), error);
    assert_eq!(parse(&[("t", "U8", &[u64::MAX / 8 + 1], 0, largest + 1)], 8), too_large(&[largest as usize + 1]));
    let odd = Error::PartialByte { tensor: t(), dtype: "F4".into(), shape: vec![3] };
    assert_eq!(parse(&[("t", "F4", &[3], 0, 2)], 2), odd);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Small tensors, offsets off by a little: accepted exactly if the crate accepts them.
    #[test]
    fn accepts_what_the_crate_accepts(
        sizes in proptest::collection::vec((0u64..4, 0u64..3), 0..4),
        nudges in proptest::collection::vec(prop_oneof![6 => Just(0i64), 1 => -4i64..5], 8),
        trailing in prop_oneof![4 => Just(0i64), 1 => -2i64..3],
        reverse in any::<bool>(),
    ) {
        let mut tensors = Vec::new();
        let mut at = 0u64;
        let names = ["a", "b", "c", "d"];
        for (number, &(rows, columns)) in sizes.iter().enumerate() {
            let end = at + 2 * rows * columns;
            let nudged = |value: u64, nudge: i64| value.saturating_add_signed(nudge);
            tensors.push((names[number], [rows, columns], nudged(at, nudges[2 * number]), nudged(end, nudges[2 * number + 1])));
            at = end;
        }
        if reverse {
            tensors.reverse();
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, shape, s, e)| (*name, "BF16", shape.as_slice(), *s, *e)).collect();
        let bytes = file(&header(&tensors), at.saturating_add_signed(trailing) as usize);
        let oracle = SafeTensors::deserialize(&bytes);
        let parsed = Header::parse(&bytes);
        prop_assert_eq!(parsed.is_ok(), oracle.is_ok(), "{:?}, {:?}", parsed, oracle.err());
        if let (Ok(parsed), Ok(oracle)) = (parsed, oracle) {
            for tensor in parsed.tensors {
                let view = oracle.tensor(&tensor.name).unwrap();
                prop_assert_eq!(&bytes[tensor.range], view.data());
                prop_assert_eq!(&tensor.shape, view.shape());
            }
        }
    }

    #[test]
    fn changed_files_do_not_panic(changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
        let tensors = [("s", "F16", &[2, 3][..], 0, 12), ("t", "F32", &[2][..], 12, 20)];
        let mut bytes = file(&header(&tensors), 20);
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.tensors.iter().all(|tensor| tensor.range.end <= bytes.len()));
        }
    }
}

/// Writes a shard with F32 tensors of one element.
fn write_shard(folder: &Path, name: &str, tensors: &[(&str, f32)]) {
    let bytes: Vec<_> = tensors.iter().map(|(_, value)| bytes_of(&[*value])).collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, _), bytes)| (*name, TensorView::new(Stored::F32, vec![1], bytes).unwrap()));
    std::fs::write(folder.join(name), safetensors::serialize(views, None).unwrap()).unwrap();
}

fn write_index(folder: &Path, map: &[(&str, &str)]) {
    let map: serde_json::Map<_, _> =
        map.iter().map(|(tensor, shard)| ((*tensor).to_owned(), (*shard).into())).collect();
    let index = serde_json::json!({ "metadata": { "total_size": 12 }, "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn sharded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_shard(folder.path(), "model-00001-of-00002.safetensors", &[("a", 1.0), ("b", 2.0)]);
    write_shard(folder.path(), "model-00002-of-00002.safetensors", &[("c", 3.0)]);
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    write_index(folder.path(), &[("c", second), ("a", first), ("b", first)]);
    folder
}

fn names_and_values(files: &Safetensors) -> Vec<(String, Vec<u8>)> {
    files.tensors().map(|tensor| (tensor.name.to_owned(), tensor.bytes.to_vec())).collect()
}

fn all() -> Vec<(String, Vec<u8>)> {
    [("a", 1.0), ("b", 2.0), ("c", 3.0)].map(|(name, value)| (name.into(), bytes_of(&[value]))).to_vec()
}

#[test]
fn shards_by_index_and_by_name() {
    let folder = sharded();
    assert_eq!(names_and_values(&Safetensors::open_folder(folder.path()).unwrap()), all());
    // A file that no index knows does not disturb.
    write_shard(folder.path(), "adapter.safetensors", &[("z", 1.0)]);
    assert_eq!(names_and_values(&Safetensors::open_folder(folder.path()).unwrap()), all());
    std::fs::remove_file(folder.path().join("adapter.safetensors")).unwrap();
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    assert_eq!(names_and_values(&Safetensors::open_folder(folder.path()).unwrap()), all());
    // The single file goes before everything else.
    write_shard(folder.path(), "model.safetensors", &[("only", 4.0)]);
    let files = Safetensors::open_folder(folder.path()).unwrap();
    assert_eq!(names_and_values(&files), [("only".into(), bytes_of(&[4.0]))]);
}

fn folder_error(folder: &Path) -> Error {
    error_of_safetensors(Safetensors::open_folder(folder).unwrap_err())
}

#[test]
fn shards_stay_in_their_folder() {
    let outside = tempfile::tempdir().unwrap();
    write_shard(outside.path(), "x.safetensors", &[("a", 1.0)]);
    let absolute = outside.path().join("x.safetensors").to_str().unwrap().to_owned();
    let folder = sharded();
    for shard in
        ["../x.safetensors", "..", ".", "", "/etc/passwd", "sub/x.safetensors", "..\\x", "C:x", "a\0b", &absolute]
    {
        write_index(folder.path(), &[("a", shard)]);
        let expected = Error::ShardOutside { tensor: "a".into(), shard: shard.into() };
        assert_eq!(folder_error(folder.path()), expected);
    }
}

#[cfg(unix)]
#[test]
fn shards_can_be_links_as_in_the_cache_of_the_hub() {
    let folder = sharded();
    let blobs = tempfile::tempdir().unwrap();
    let shard = folder.path().join("model-00002-of-00002.safetensors");
    std::fs::rename(&shard, blobs.path().join("0123abcd")).unwrap();
    std::os::unix::fs::symlink(blobs.path().join("0123abcd"), &shard).unwrap();
    assert_eq!(names_and_values(&Safetensors::open_folder(folder.path()).unwrap()), all());
}

#[test]
fn shards_must_be_complete_and_agree_with_the_index() {
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let missing = Error::MissingShard { shard: second.into(), count: 2 };

    let folder = sharded();
    std::fs::remove_file(folder.path().join(second)).unwrap();
    assert_eq!(folder_error(folder.path()), missing);

    let folder = sharded();
    write_index(folder.path(), &[("a", first), ("b", second), ("c", second)]);
    let expected = Error::NotInShard { tensor: "b".into(), shard: second.into() };
    assert_eq!(folder_error(folder.path()), expected);

    let folder = sharded();
    write_shard(folder.path(), second, &[("c", 3.0), ("a", 9.0)]);
    let expected = Error::DuplicateTensor { tensor: "a".into(), first: folder.path().join(first) };
    assert_eq!(folder_error(folder.path()), expected);

    let folder = sharded();
    for index in ["{}", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        assert_eq!(folder_error(folder.path()), Error::IndexWithoutMap);
    }
    std::fs::write(folder.path().join("model.safetensors.index.json"), "{").unwrap();
    let error = Safetensors::open_folder(folder.path()).unwrap_err();
    assert!(matches!(*error.kind, FormatErrorKind::Json(_)), "{error}");

    // Without an index: a gap in the numbers, and files that are no set.
    let folder = tempfile::tempdir().unwrap();
    write_shard(folder.path(), "model-00001-of-00003.safetensors", &[("a", 1.0)]);
    write_shard(folder.path(), "model-00003-of-00003.safetensors", &[("b", 1.0)]);
    let missing = Error::MissingShard { shard: "model-00002-of-00003.safetensors".into(), count: 3 };
    assert_eq!(folder_error(folder.path()), missing);
    write_shard(folder.path(), "other.safetensors", &[("c", 1.0)]);
    let message = Safetensors::open_folder(folder.path()).unwrap_err().to_string();
    assert!(message.contains("there are 3 .safetensors files in this folder"), "{message}");
}

#[test]
fn a_reference_checkpoint_agrees_with_the_crate() {
    let path = data("refs/qwen3/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let oracle = SafeTensors::deserialize(&bytes).unwrap();
    let files = Safetensors::open(&path).unwrap();
    assert_eq!(files.tensors().len(), oracle.len());
    for tensor in files.tensors() {
        let view = oracle.tensor(tensor.name).unwrap();
        assert_eq!((tensor.bytes, tensor.shape), (view.data(), view.shape()), "{}", tensor.name);
        assert_eq!(tensor.format(), Ok(Format::BF16));
    }
    assert_eq!(files.metadata(), &[("format".into(), "pt".into())].into());
}
