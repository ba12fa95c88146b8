//! The architectures, one file each: what a family's configs and tensor names mean.

mod cohere;
mod deepseek;
mod dots1;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4_moe;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod llama;
mod minimax_m2;
mod mistral;
mod mixtral;
mod nemotron;
mod olmo2;
mod olmoe;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use crate::ModelError;
use crate::decoder::Decoder;
use crate::gguf::GgufModel;
use crate::hugging_face::HuggingFace;

type ReadHuggingFace = fn(&HuggingFace) -> Result<Decoder, ModelError>;
type ReadGguf = fn(&GgufModel) -> Result<Decoder, ModelError>;

/// An architecture.
pub(crate) struct Family {
    /// What this project calls it.
    pub name: &'static str,
    /// Every `model_type` of Hugging Face configs that means it.
    pub model_types: &'static [&'static str],
    /// Reads such a config.
    pub hugging_face: ReadHuggingFace,
    /// Every `general.architecture` of GGUF files that means it, and who reads them.
    pub gguf: Option<(&'static [&'static str], ReadGguf)>,
}

/// Every architecture.
pub(crate) const FAMILIES: [Family; 30] = [
    llama::FAMILY,
    mistral::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    smollm3::FAMILY,
    phi3::FAMILY,
    mixtral::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    gpt_oss::FAMILY,
    gemma::FAMILY,
    olmo2::FAMILY,
    olmoe::FAMILY,
    granite::FAMILY,
    seed_oss::FAMILY,
    glm::FAMILY,
    glm4_moe::FAMILY,
    dots1::FAMILY,
    deepseek::FAMILY,
    minimax_m2::FAMILY,
    cohere::FAMILY,
    nemotron::FAMILY,
    stablelm::FAMILY,
    starcoder2::FAMILY,
    phi::FAMILY,
    gpt_neox::FAMILY,
    ernie4_5::FAMILY,
    exaone4::FAMILY,
];
