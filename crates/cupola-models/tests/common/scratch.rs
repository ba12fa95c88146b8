//! Variations of a reference checkpoint, in a temporary folder.

use crate::references::Reference;
use cupola_formats::gguf::{GgmlType, Gguf, GgufWriter, Value};
use cupola_formats::safetensors::Safetensors;
use serde_json::{Map, json};
use std::path::PathBuf;

pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of zeros in bf16.
    pub fn zeros(name: &str, shape: &[usize]) -> Tensor {
        let bytes = vec![0; 2 * shape.iter().product::<usize>()];
        Tensor { name: name.into(), dtype: "BF16".into(), shape: shape.into(), bytes }
    }
}

/// A Hugging Face checkpoint to be changed and saved.
pub struct Scratch {
    folder: tempfile::TempDir,
    pub config: Map<String, serde_json::Value>,
    pub tensors: Vec<Tensor>,
}

impl Scratch {
    /// A reference, with one of its configs.
    pub fn of(name: &str, config: &str) -> Scratch {
        let folder = Reference::open(name).folder;
        let config = serde_json::from_slice(&std::fs::read(folder.join(config)).unwrap()).unwrap();
        let file = Safetensors::open(folder.join("model.safetensors")).unwrap();
        let tensors = file.tensors().map(|t| Tensor {
            name: t.name.into(),
            dtype: t.dtype.to_string(),
            shape: t.shape.into(),
            bytes: t.bytes.into(),
        });
        Scratch { folder: tempfile::tempdir().unwrap(), config, tensors: tensors.collect() }
    }

    pub fn set(&mut self, key: &str, value: serde_json::Value) {
        self.config.insert(key.into(), value);
    }

    pub fn remove(&mut self, key: &str) {
        self.config.remove(key).unwrap_or_else(|| panic!("the config has no {key}"));
    }

    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    /// Writes the files and gives their folder.
    pub fn save(&self) -> PathBuf {
        let (mut header, mut body) = (Map::new(), vec![]);
        for t in &self.tensors {
            let start = body.len();
            body.extend(&t.bytes);
            let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, body.len()]});
            header.insert(t.name.clone(), entry);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &body].concat();
        std::fs::write(self.folder.path().join("model.safetensors"), file).unwrap();
        std::fs::write(self.folder.path().join("config.json"), serde_json::to_vec(&self.config).unwrap()).unwrap();
        self.folder.path().into()
    }
}

/// A GGUF reference with other metadata (a value of `None` leaves the key out) and further tensors of zeros in F32.
pub fn gguf(
    name: &str,
    changes: &[(&str, Option<Value>)],
    without: &[&str],
    with: &[(&str, usize)],
) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let from = Gguf::open(Reference::open(name).folder.join("model.gguf")).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in changes {
        if let Some(value) = value {
            writer.set(key, value.clone()).unwrap();
        }
    }
    for (key, _) in from.metadata().iter().filter(|(key, _)| changes.iter().all(|(changed, _)| changed != key)) {
        writer.copy(from.metadata(), key).unwrap();
    }
    let kept: Vec<_> = from.infos().iter().filter(|info| !without.contains(&info.name.as_str())).collect();
    for info in &kept {
        writer.declare(&info.name, &info.shape(), info.kind).unwrap();
    }
    for (name, len) in with {
        writer.declare(name, &[*len], GgmlType(0)).unwrap();
    }
    let mut tensors = writer.create(&path).unwrap();
    for info in &kept {
        tensors.write(&info.name, from.tensor(&info.name).unwrap().bytes).unwrap();
    }
    for (name, len) in with {
        tensors.write(name, &vec![0; 4 * len]).unwrap();
    }
    tensors.finish().unwrap();
    (folder, path)
}
