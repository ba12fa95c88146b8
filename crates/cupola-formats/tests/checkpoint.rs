//! Checkpoints as people have them: files and folders.

mod common;

use std::path::Path;

use common::data;
use cupola_formats::config::RopeKind;
use cupola_formats::{Checkpoint, CheckpointKind, Config, FormatErrorKind};
use cupola_quant::Format;
use safetensors::SafeTensors;

fn copy(from: &str, to: impl AsRef<Path>) {
    std::fs::copy(data(from), to).unwrap();
}

#[test]
fn reference_folders() {
    // Parameters and tensors as counted by torch, in `meta.json`.
    for name in ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"] {
        let folder = data("refs").join(name);
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let meta: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("meta.json")).unwrap()).unwrap();
        assert_eq!(checkpoint.kind(), CheckpointKind::Safetensors);
        assert_eq!((checkpoint.path(), checkpoint.folder()), (&*folder, Some(&*folder)));
        assert_eq!(Some(checkpoint.total_elements()), meta["params"].as_u64(), "{name}");
        assert_eq!(checkpoint.total_bytes(), 2 * checkpoint.total_elements(), "{name}: bf16");
        let Some(Config::Hf(config)) = checkpoint.config() else { panic!("{name}") };
        assert_eq!(config.model_type().unwrap(), meta["model_type"], "{name}");
        assert_eq!(checkpoint.stop_token_ids().unwrap(), [2], "{name}");
        assert!(checkpoint.generation_config().is_none());
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let oracle = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(checkpoint.tensors().len(), oracle.len(), "{name}");
        for (tensor_name, view) in oracle.iter() {
            let tensor = checkpoint.tensor(tensor_name).unwrap();
            assert_eq!((tensor.shape, tensor.bytes), (view.shape(), view.data()), "{name}: {tensor_name}");
            assert_eq!(tensor.format(), Ok(Format::BF16));
        }
        let starts: Vec<_> = checkpoint.tensors().map(|tensor| tensor.bytes.as_ptr()).collect();
        assert!(starts.is_sorted(), "{name}: file order");
    }
}

#[test]
fn a_file_by_itself_has_no_config() {
    let checkpoint = Checkpoint::open(data("refs/llama/expected.safetensors")).unwrap();
    assert!(checkpoint.config().is_none() && checkpoint.folder().is_none());
    assert_eq!(checkpoint.tensor("logits").unwrap().shape, [40, 384]);
    assert_eq!(checkpoint.tensor("input_ids").unwrap().dtype.to_string(), "I32");
    assert_eq!(checkpoint.stop_token_ids().unwrap(), [0u32; 0]);
}

#[test]
fn gguf_files_and_folders() {
    let file = data("gguf-py/types.gguf");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    copy("gguf-py/types.gguf", path.join("model.gguf"));
    // A vision projector is not another model.
    copy("gguf-py/types.gguf", path.join("mmproj-model.gguf"));
    let bytes: &'static [u8] = std::fs::read(&file).unwrap().leak();
    for checkpoint in [
        Checkpoint::open(&file).unwrap(),
        Checkpoint::open(path).unwrap(),
        Checkpoint::from_static(bytes, "embedded").unwrap(),
    ] {
        assert_eq!(checkpoint.kind(), CheckpointKind::Gguf);
        let Some(Config::Gguf(metadata)) = checkpoint.config() else { panic!() };
        assert_eq!(metadata.str("general.architecture"), Ok("llama"));
        assert_eq!(checkpoint.tensor("f32").unwrap().shape, [2, 3]);
        assert!(checkpoint.gguf().is_some() && checkpoint.safetensors().is_none());
    }

    copy("gguf-py/types.gguf", path.join("other.gguf"));
    let message = Checkpoint::open(path).unwrap_err().to_string();
    assert!(message.contains("2 models") && message.contains("model.gguf, other.gguf"), "{message}");

    let split = tempfile::tempdir().unwrap();
    for number in 1..=3 {
        let name = format!("split-{number:05}-of-00003.gguf");
        copy(&format!("gguf-py/{name}"), split.path().join(name));
    }
    assert_eq!(Checkpoint::open(split.path()).unwrap().tensors().len(), 5);
}

#[test]
fn folders_with_both_containers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    copy("gguf-py/types.gguf", path.join("model.gguf"));
    copy("refs/llama/model.safetensors", path.join("model.safetensors"));
    assert_eq!(Checkpoint::open(path).unwrap().kind(), CheckpointKind::Gguf);
    copy("refs/llama/config.json", path.join("config.json"));
    assert_eq!(Checkpoint::open(path).unwrap().kind(), CheckpointKind::Safetensors);
}

#[test]
fn folders_without_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let message = || Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(message().contains("neither a .gguf nor a .safetensors file"));
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    assert!(message().contains("convert them to safetensors"));
    let missing = Checkpoint::open(folder.path().join("nowhere")).unwrap_err();
    assert!(matches!(*missing.kind, FormatErrorKind::Io(_)));
    let text = folder.path().join("README.md");
    std::fs::write(&text, "# Model").unwrap();
    assert!(Checkpoint::open(&text).unwrap_err().to_string().contains("not a GGUF file: it starts with # Mo"));
}

#[test]
fn a_broken_config_is_an_error_not_a_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    copy("refs/llama/model.safetensors", folder.path().join("model.safetensors"));
    assert!(Checkpoint::open(folder.path()).unwrap().config().is_none());
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(error.path.ends_with("config.json") && matches!(*error.kind, FormatErrorKind::Json(_)));
}

/// The union of what the files say: one id each, lists, or nothing.
#[test]
fn every_stop_token_counts() {
    let folder = tempfile::tempdir().unwrap();
    copy("refs/llama/model.safetensors", folder.path().join("model.safetensors"));
    let stop = |config: &str, generation: Option<&str>| {
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let path = folder.path().join("generation_config.json");
        match generation {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => drop(std::fs::remove_file(path)),
        }
        Checkpoint::open(folder.path()).unwrap().stop_token_ids().unwrap()
    };
    let config = r#"{"eos_token_id": 5}"#;
    assert_eq!(stop(config, Some(r#"{"eos_token_id": [5, 6]}"#)), [5, 6]);
    assert_eq!(stop(config, Some(r#"{"eos_token_id": 6}"#)), [5, 6]);
    assert_eq!(stop(config, Some(r#"{"eos_token_id": null}"#)), [5]);
    assert_eq!(stop(config, None), [5]);
    assert_eq!(stop(r#"{"eos_token_id": [7, 5]}"#, Some(r#"{"eos_token_id": 6}"#)), [5, 6, 7]);
    assert_eq!(stop("{}", Some("{}")), [0u32; 0]);

    let path = folder.path().join("stop.gguf");
    let mut writer = cupola_formats::gguf::GgufWriter::new();
    for (name, id) in [("eos", 9), ("eot", 3), ("eom", 9)] {
        writer.set(&format!("tokenizer.ggml.{name}_token_id"), cupola_formats::gguf::Value::U32(id)).unwrap();
    }
    writer.create(&path).unwrap().finish().unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().stop_token_ids().unwrap(), [3, 9]);
}

#[test]
fn hints_to_the_system_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let row: Vec<u8> = (0..=255).cycle().take(4 * 1000).collect();
    let mut writer = cupola_formats::gguf::GgufWriter::new();
    let f32 = Format::F32.into();
    writer.declare("first", &[3], f32).unwrap();
    writer.declare("large", &[300, 1000], f32).unwrap();
    writer.declare("last", &[1], f32).unwrap();
    let mut tensors = writer.create(&path).unwrap();
    tensors.write("first", &[1; 12]).unwrap();
    for _ in 0..300 {
        tensors.write("large", &row).unwrap();
    }
    tensors.write("last", &[2; 4]).unwrap();
    tensors.finish().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let expected = row.repeat(300);
    for _ in 0..2 {
        for tensor in checkpoint.tensors() {
            tensor.prefetch();
            tensor.release();
        }
        assert!(checkpoint.tensor("large").unwrap().bytes == expected);
        assert_eq!(checkpoint.tensor("first").unwrap().bytes, [1; 12]);
        assert_eq!(checkpoint.tensor("last").unwrap().bytes, [2; 4]);
    }
    // Nothing to advise about.
    let file: &'static [u8] = std::fs::read(&path).unwrap().leak();
    Checkpoint::from_static(file, "static").unwrap().tensors().for_each(|tensor| tensor.release());
}

#[test]
fn gemma3_tells_its_layers_apart() {
    let checkpoint = Checkpoint::open(data("refs/gemma3")).unwrap();
    let Some(Config::Hf(config)) = checkpoint.config() else { panic!() };
    let thetas: Vec<f64> = config
        .layer_types()
        .unwrap()
        .unwrap()
        .into_iter()
        .map(|kind| {
            let rope = config.rope(kind, 0.0).unwrap();
            assert_eq!(rope.kind, RopeKind::Default);
            rope.theta
        })
        .collect();
    assert_eq!(thetas, [1e4, 1e4, 1e6, 1e4]);
}
