//! Reference checkpoints and what they should compute.

use cupola_formats::safetensors::Safetensors;
use std::path::PathBuf;

/// Every reference that has a program.
pub const NAMES: [&str; 47] = [
    "llama",
    "llama3",
    "llama_head_dim",
    "llama_bias",
    "llama_linear",
    "llama_yarn",
    "llama_dynamic",
    "mistral",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "gemma2",
    "gemma3",
    "smollm3",
    "phi3",
    "phi3_short",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "gemma",
    "olmo2",
    "olmo3",
    "olmoe",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "seed_oss",
    "glm",
    "glm4",
    "glm4_moe",
    "dots1",
    "deepseek_v2",
    "deepseek_v3",
    "cohere",
    "cohere2",
    "nemotron",
    "stablelm",
    "starcoder2",
    "phi",
    "gpt_neox",
    "gpt_neox_serial",
    "ernie4_5",
    "exaone4",
    "minimax_m2",
    "ernie4_5_moe",
    "qwen2_moe",
];

/// The folder of a reference.
pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/refs")).join(name)
}

/// A reference checkpoint.
pub struct Reference {
    pub folder: PathBuf,
    pub tokens: Vec<u32>,
    /// `[tokens, vocab]`.
    pub logits: Vec<f32>,
    /// The tokens that follow greedily.
    pub greedy: Vec<u32>,
    /// Distance of the best two logits at each of them.
    pub gaps: Vec<f32>,
}

impl Reference {
    pub fn open(name: &str) -> Reference {
        let folder = folder(name);
        let file = Safetensors::open(folder.join("expected.safetensors")).unwrap();
        let words = |name: &str| -> Vec<[u8; 4]> {
            let tensor = file.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
            tensor.bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
        };
        let floats = |name: &str| words(name).into_iter().map(f32::from_le_bytes).collect();
        let ids = |name: &str| words(name).into_iter().map(u32::from_le_bytes).collect();
        let (tokens, greedy) = (ids("input_ids"), ids("greedy"));
        Reference { folder, tokens, logits: floats("logits"), greedy, gaps: floats("greedy_gap") }
    }

    /// The folder, and the GGUF file in it if there is one.
    pub fn checkpoints(&self) -> Vec<PathBuf> {
        let gguf = self.folder.join("model.gguf");
        let both = [self.folder.clone(), gguf];
        both.into_iter().filter(|path| path.exists()).collect()
    }

    /// How far logits are off: the largest difference of any, and the root mean square of all, both in standard
    /// deviations of the expected ones.
    pub fn error(&self, found: impl IntoIterator<Item = f64>) -> (f64, f64) {
        let found: Vec<f64> = found.into_iter().collect();
        assert_eq!(found.len(), self.logits.len());
        let n = self.logits.len() as f64;
        let mean = self.logits.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let spread = (self.logits.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n).sqrt();
        let differences = self.logits.iter().zip(found).map(|(a, b)| (f64::from(*a) - b).abs() / spread);
        let (largest, squares) = differences.fold((0.0, 0.0), |(largest, squares), d| {
            // A NaN must not vanish in the maximum.
            (if d > largest || d.is_nan() { d } else { largest }, squares + d * d)
        });
        (largest, (squares / n).sqrt())
    }
}
