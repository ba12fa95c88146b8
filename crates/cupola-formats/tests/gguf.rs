//! GGUF files written by the `gguf` package: read, and written alike.

mod common;

use std::path::Path;

use common::{bytes_of, data, error_of_gguf};
use cupola_formats::gguf::{GgmlType, Gguf, GgufError, GgufWriter, Metadata, MetadataValue, Value, WriteError};
use cupola_formats::{Dtype, FormatErrorKind, KeyError};
use cupola_quant::Format;

fn types() -> Gguf {
    Gguf::open(data("gguf-py/types.gguf")).unwrap()
}

/// The values are those of `scripts/gguf_vectors.py`.
#[test]
fn metadata_of_every_type() {
    let gguf = types();
    assert_eq!((gguf.version(), gguf.alignment()), (3, 32));
    let metadata = gguf.metadata();
    let get = |key: &str| metadata.get(key).unwrap();
    assert_eq!(get("x.u8"), MetadataValue::U8(200));
    assert_eq!(get("x.i8"), MetadataValue::I8(-100));
    assert_eq!(get("x.u16"), MetadataValue::U16(60000));
    assert_eq!(get("x.i16"), MetadataValue::I16(-30000));
    assert_eq!(get("x.u32"), MetadataValue::U32(4_000_000_000));
    assert_eq!(get("x.i32"), MetadataValue::I32(-2_000_000_000));
    assert_eq!(get("x.f32"), MetadataValue::F32(0.1));
    assert_eq!(get("x.u64"), MetadataValue::U64((1 << 63) + 1));
    assert_eq!(get("x.i64"), MetadataValue::I64(-(1 << 62)));
    assert_eq!(get("x.f64"), MetadataValue::F64(0.1));
    assert_eq!(get("x.yes"), MetadataValue::Bool(true));
    assert_eq!(get("x.no"), MetadataValue::Bool(false));
    assert_eq!(get("x.string"), MetadataValue::String("é🦙 \n\"quoted\"".as_bytes()));
    assert_eq!(metadata.strings("x.strings").unwrap(), ["a", "", "漢"]);
    assert_eq!(metadata.byte_strings("x.strings").unwrap()[2], "漢".as_bytes());
    assert_eq!(metadata.f32s("x.floats").unwrap(), [0.5, -1.25]);
    assert_eq!(metadata.i32s("x.ints").unwrap(), [1, -2, 3]);
    assert_eq!(metadata.u32s("x.u32s").unwrap(), [1, u32::MAX]);
    assert_eq!(metadata.bools("x.bools").unwrap(), [true, false, true]);
    let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
    assert_eq!((keys.len(), metadata.len()), (19, 19));
    assert_eq!(keys[..3], ["general.architecture", "x.u8", "x.i8"], "file order");
}

#[test]
fn getters_convert_where_nothing_is_lost() {
    let gguf = types();
    let metadata = gguf.metadata();
    assert_eq!(metadata.u32("x.u8"), Ok(200));
    assert_eq!(metadata.u64("x.u32"), Ok(4_000_000_000));
    assert_eq!(metadata.f32("x.i8"), Ok(-100.0));
    assert_eq!(metadata.f64("x.f32"), Ok(f64::from(0.1f32)));
    assert_eq!(metadata.bool("x.yes"), Ok(true));
    assert_eq!(metadata.str("general.architecture"), Ok("llama"));
    assert_eq!(metadata.optional_u32("x.nothing"), Ok(None));
    assert_eq!(metadata.optional_u32("x.u16"), Ok(Some(60000)));
}

#[test]
fn errors_name_file_key_expectation_and_find() {
    let gguf = types();
    let metadata = gguf.metadata();
    let file = data("gguf-py/types.gguf");
    let error = |key: &str, expected: &str, found: &str| KeyError {
        file: file.clone(),
        key: key.into(),
        expected: expected.into(),
        found: found.into(),
    };
    let u32 = "a whole number from 0 to 4294967295";
    assert_eq!(metadata.u32("x.nothing"), Err(error("x.nothing", u32, "nothing")));
    assert_eq!(metadata.u32("x.i8"), Err(error("x.i8", u32, "-100 (i8)")));
    assert_eq!(metadata.optional_u32("x.u64"), Err(error("x.u64", u32, "9223372036854775809 (u64)")));
    assert_eq!(metadata.u32("x.f32"), Err(error("x.f32", u32, "0.1 (f32)")));
    assert_eq!(metadata.str("x.u8"), Err(error("x.u8", "a string in UTF-8", "200 (u8)")));
    assert_eq!(metadata.bool("x.u8"), Err(error("x.u8", "true or false", "200 (u8)")));
    let found = "[1, -2, 3] (3 x i32)";
    assert_eq!(metadata.u32s("x.ints"), Err(error("x.ints", "an array of whole numbers from 0 to 4294967295", found)));
    let message = metadata.u32("general.architecture").unwrap_err().to_string();
    assert!(message.ends_with(
        "types.gguf: `general.architecture` should be a whole number from 0 to 4294967295, found \"llama\""
    ));
}

#[test]
fn strings_that_are_not_text_are_kept_but_not_as_text() {
    let mut bytes = std::fs::read(data("gguf/ok.gguf")).unwrap();
    let at = bytes.windows(5).position(|window| window == b"llama").unwrap();
    bytes[at] = 0xff;
    let gguf = Gguf::from_static(bytes.leak(), "bytes.gguf").unwrap();
    let key = "general.architecture";
    assert_eq!(gguf.metadata().get(key), Some(MetadataValue::String(b"\xfflama")));
    let error = gguf.metadata().str(key).unwrap_err();
    assert_eq!(error.found, "a string that is not UTF-8");
}

#[test]
fn tensors_have_row_major_shapes_and_their_bytes() {
    let gguf = types();
    let tensors: Vec<_> = gguf.tensors().map(|t| (t.name, t.dtype, t.shape.to_vec(), t.bytes.to_vec())).collect();
    let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
    let expected = [
        ("f32", Dtype::Weight(Format::F32), vec![2, 3], bytes_of(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])),
        ("f16", Dtype::Weight(Format::F16), vec![3], [half(1.5), half(-2.0), half(65504.0)].concat()),
        ("q8", Dtype::Weight(Format::Q8_0), vec![2, 32], (0..68).collect()),
        ("i32", Dtype::I32, vec![2, 1, 2], [1i32, -2, 3, 4].map(i32::to_le_bytes).concat()),
    ];
    assert_eq!(tensors, expected);
    assert_eq!(gguf.infos()[0].dims, [3, 2], "as GGUF lists them");
    assert_eq!(gguf.tensor("q8").unwrap().elements(), 64);
    assert_eq!(gguf.tensor("q8").unwrap().format(), Ok(Format::Q8_0));
    let message = gguf.tensor("i32").unwrap().format().unwrap_err().to_string();
    assert_eq!(message, "tensor `i32` is stored as I32, which this version cannot use as a weight");
    assert!(gguf.tensor("nothing").is_none());
}

/// Versions 2 and 3 differ in byte order alone, which version 3 allowed to vary.
#[test]
fn version_2_reads_alike() {
    let mut bytes = std::fs::read(data("gguf-py/types.gguf")).unwrap();
    bytes[4] = 2;
    let gguf = Gguf::from_static(bytes.leak(), "v2.gguf").unwrap();
    assert_eq!((gguf.version(), gguf.metadata().len(), gguf.tensors().len()), (2, 19, 4));
}

#[test]
fn metadata_prints_short() {
    let gguf = types();
    let print = |key: &str| gguf.metadata().get(key).unwrap().to_string();
    assert_eq!(print("x.string"), r#""é🦙 \n\"quoted\"""#);
    assert_eq!(print("x.strings"), r#"["a", "", "漢"] (3 x string)"#);
    assert_eq!(print("x.f64"), "0.1");
}

const FIRST: &str = "split-00001-of-00003.gguf";
const SECOND: &str = "split-00002-of-00003.gguf";
const THIRD: &str = "split-00003-of-00003.gguf";

/// A folder with the split checkpoint, to be damaged.
fn split() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in [FIRST, SECOND, THIRD] {
        std::fs::copy(data("gguf-py").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

/// Replaces the value of a 16-bit key.
fn set_u16(file: &Path, key: &str, value: u16) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len() + 4;
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    std::fs::write(file, bytes).unwrap();
}

fn split_error(folder: &Path) -> GgufError {
    error_of_gguf(Gguf::open(folder.join(FIRST)).unwrap_err())
}

#[test]
fn a_split_checkpoint_is_one() {
    let gguf = Gguf::open(data("gguf-py").join(FIRST)).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture"), Ok("llama"));
    assert_eq!(gguf.tensors().len(), 5);
    for (number, tensor) in gguf.tensors().enumerate() {
        assert_eq!(tensor.name, format!("t{number}"));
        assert_eq!(tensor.shape, [number + 1, 4]);
        assert_eq!(tensor.bytes, bytes_of(&vec![number as f32; 4 * (number + 1)]));
    }
}

#[test]
fn split_checkpoints_must_be_complete_and_agree() {
    let error = error_of_gguf(Gguf::open(data("gguf-py").join(SECOND)).unwrap_err());
    assert_eq!(error, GgufError::NotFirstPart { number: 2, count: 3 });
    assert!(error.to_string().contains("00001-of-00003"), "{error}");

    let folder = split();
    let path = folder.path();
    std::fs::remove_file(path.join(THIRD)).unwrap();
    assert_eq!(split_error(path), GgufError::MissingPart { number: 3, count: 3, name: THIRD.into() });

    let folder = split();
    let path = folder.path();
    set_u16(&path.join(SECOND), "split.no", 2);
    let mismatch = |key, expected, found: &str| GgufError::PartMismatch { key, expected, found: found.into() };
    assert_eq!(split_error(path), mismatch("split.no", 1, "2"));
    set_u16(&path.join(SECOND), "split.no", 1);
    set_u16(&path.join(THIRD), "split.count", 4);
    assert_eq!(split_error(path), mismatch("split.count", 3, "4"));
    set_u16(&path.join(THIRD), "split.count", 3);
    set_u16(&path.join(THIRD), "split.tensors.count", 6);
    assert_eq!(split_error(path), mismatch("split.tensors.count", 5, "6"));
    for name in [FIRST, SECOND, THIRD] {
        set_u16(&path.join(name), "split.tensors.count", 6);
    }
    assert_eq!(split_error(path), GgufError::PartTensors { expected: 6, found: 5 });

    // A part in the place of another, of the right number but with tensors that are there already.
    let folder = split();
    let path = folder.path();
    std::fs::copy(path.join(SECOND), path.join(THIRD)).unwrap();
    set_u16(&path.join(THIRD), "split.no", 2);
    assert_eq!(split_error(path), GgufError::DuplicateTensor { tensor: "t2".into() });

    let folder = split();
    let path = folder.path();
    std::fs::rename(path.join(FIRST), path.join("model.gguf")).unwrap();
    let error = error_of_gguf(Gguf::open(path.join("model.gguf")).unwrap_err());
    assert_eq!(error, GgufError::PartName { count: 3 });

    let bytes = std::fs::read(data("gguf-py").join(FIRST)).unwrap();
    let error = error_of_gguf(Gguf::from_static(bytes.leak(), "part.gguf").unwrap_err());
    assert_eq!(error, GgufError::PartInMemory);
}

#[test]
fn a_missing_file_says_so() {
    let error = Gguf::open("nowhere.gguf").unwrap_err();
    assert!(matches!(&*error.kind, FormatErrorKind::Io(e) if e.kind() == std::io::ErrorKind::NotFound));
    assert!(error.to_string().starts_with("nowhere.gguf: "));
}

/// What `scripts/gguf_vectors.py` writes to `types.gguf`.
fn writer_of_types() -> GgufWriter {
    let mut writer = GgufWriter::new();
    let text = |values: &[&str]| Value::Strings(values.iter().map(|&value| value.into()).collect());
    let values = [
        ("general.architecture", Value::String("llama".into())),
        ("x.u8", Value::U8(200)),
        ("x.i8", Value::I8(-100)),
        ("x.u16", Value::U16(60000)),
        ("x.i16", Value::I16(-30000)),
        ("x.u32", Value::U32(4_000_000_000)),
        ("x.i32", Value::I32(-2_000_000_000)),
        ("x.f32", Value::F32(0.1)),
        ("x.u64", Value::U64((1 << 63) + 1)),
        ("x.i64", Value::I64(-(1 << 62))),
        ("x.f64", Value::F64(0.1)),
        ("x.yes", Value::Bool(true)),
        ("x.no", Value::Bool(false)),
        ("x.string", Value::String("é🦙 \n\"quoted\"".into())),
        ("x.strings", text(&["a", "", "漢"])),
        ("x.floats", Value::F32s(vec![0.5, -1.25])),
        ("x.ints", Value::I32s(vec![1, -2, 3])),
        ("x.u32s", Value::U32s(vec![1, u32::MAX])),
        ("x.bools", Value::Bools(vec![true, false, true])),
    ];
    for (key, value) in values {
        writer.set(key, value).unwrap();
    }
    declare_types(&mut writer);
    writer
}

fn declare_types(writer: &mut GgufWriter) {
    writer.declare("f32", &[2, 3], Format::F32.into()).unwrap();
    writer.declare("f16", &[3], Format::F16.into()).unwrap();
    writer.declare("q8", &[2, 32], Format::Q8_0.into()).unwrap();
    writer.declare("i32", &[2, 1, 2], GgmlType(26)).unwrap();
}

fn write_tensors(writer: GgufWriter, from: &Gguf, path: &Path) {
    let mut tensors = writer.create(path).unwrap();
    for tensor in from.tensors() {
        for piece in tensor.bytes.chunks(5) {
            tensors.write(tensor.name, piece).unwrap();
        }
    }
    tensors.finish().unwrap();
}

#[test]
fn written_files_are_those_of_the_gguf_package() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("types.gguf");
    write_tensors(writer_of_types(), &types(), &path);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(data("gguf-py/types.gguf")).unwrap());
}

#[test]
fn copied_metadata_is_bit_for_bit_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("copy.gguf");
    let from = types();
    let metadata: &Metadata = from.metadata();
    let mut writer = GgufWriter::new();
    for (key, _) in metadata.iter() {
        writer.copy(metadata, key).unwrap();
    }
    writer.copy(metadata, "x.nothing").unwrap();
    declare_types(&mut writer);
    // An older file of that name is replaced.
    std::fs::write(&path, "old").unwrap();
    write_tensors(writer, &from, &path);
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(data("gguf-py/types.gguf")).unwrap());
}

#[test]
fn an_unfinished_file_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "old").unwrap();
    let mut tensors = writer_of_types().create(&path).unwrap();
    tensors.write("f32", &[0; 24]).unwrap();
    drop(tensors);
    let mut tensors = writer_of_types().create(&path).unwrap();
    tensors.write("f32", &[0; 20]).unwrap();
    let error = tensors.finish().unwrap_err().to_string();
    assert_eq!(error, "tensor `f32` takes 24 bytes, 20 were written");
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["model.gguf"]);
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
}

#[test]
fn the_writer_refuses_what_the_format_forbids() {
    let mut writer = writer_of_types();
    let is = |result: Result<(), WriteError>, message: &str| assert_eq!(result.unwrap_err().to_string(), message);
    is(writer.set("x.u8", Value::U8(1)), "metadata key `x.u8` is set twice");
    is(writer.set("general.alignment", Value::U32(64)), "metadata key `general.alignment` is set by the writer itself");
    is(writer.set("", Value::U8(1)), "metadata key `` is empty or longer than 65535 bytes");
    is(writer.declare("f32", &[1], Format::F32.into()), "tensor `f32` is declared twice");
    is(
        writer.declare("t", &[3, 0], Format::F32.into()),
        "tensor `t` cannot have shape [3, 0]: 1 to 4 dimensions, none of them 0, are allowed",
    );
    assert!(writer.declare("t", &[], Format::F32.into()).is_err());
    assert!(writer.declare("t", &[1; 5], Format::F32.into()).is_err());
    assert!(writer.declare("t", &[usize::MAX, 2], Format::F32.into()).is_err());
    assert!(writer.declare(&"n".repeat(65), &[1], Format::F32.into()).is_err());
    is(
        writer.declare("t", &[2, 128], Format::Q4_K.into()),
        "tensor `t` cannot be stored as Q4_K: its rows have 128 values, not a multiple of 256",
    );
    is(
        writer.declare("t", &[1], GgmlType(60)),
        "tensor `t` is to be stored as ggml type 60, whose block size is not known",
    );
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = writer.create(folder.path().join("model.gguf")).unwrap();
    is(tensors.write("f16", &[0; 2]), "tensor `f16` is written, but `f32` was declared next");
    is(tensors.write("f32", &[0; 25]), "tensor `f32` takes 24 bytes, 25 were written");
    let nowhere = writer_of_types().create(folder.path().join("no/such/folder.gguf")).unwrap_err();
    assert!(nowhere.to_string().contains("folder.gguf"), "{nowhere}");
}
