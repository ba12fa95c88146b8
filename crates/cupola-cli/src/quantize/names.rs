//! Tensor names: from Hugging Face's to llama.cpp's, and what else changes on the way.

/// An architecture that can be written as GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture`.
    pub gguf: &'static str,
    /// Whether llama.cpp rotates neighbouring pairs, so that rows of `attn_q` and `attn_k` change places: Hugging Face
    /// has the first elements of all pairs before the second ones.
    pub interleaved: bool,
    /// Whether a norm's weight is stored as its difference from 1.
    pub norm_plus_one: bool,
    /// Whether norms follow attention and feed-forward too, four in a layer.
    pub four_norms: bool,
}

/// `model_type` of each architecture with a mapping.
const FAMILIES: [(&str, Family); 8] = [
    ("llama", Family { interleaved: true, ..PLAIN }),
    // llama.cpp knows Mistral as llama.
    ("mistral", Family { interleaved: true, ..PLAIN }),
    ("smollm3", Family { gguf: "smollm3", interleaved: true, ..PLAIN }),
    ("qwen2", Family { gguf: "qwen2", ..PLAIN }),
    ("qwen3", Family { gguf: "qwen3", ..PLAIN }),
    ("phi3", Family { gguf: "phi3", ..PLAIN }),
    ("gemma2", Family { gguf: "gemma2", norm_plus_one: true, four_norms: true, ..PLAIN }),
    ("gemma3_text", Family { gguf: "gemma3", norm_plus_one: true, four_norms: true, ..PLAIN }),
];

const PLAIN: Family = Family { gguf: "llama", interleaved: false, norm_plus_one: false, four_norms: false };

impl Family {
    /// The family of a `model_type`.
    pub fn of(model_type: &str) -> Result<Family, String> {
        let found = FAMILIES.iter().find(|(name, _)| *name == model_type).map(|(_, family)| *family);
        let known = || FAMILIES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| {
            format!("cannot write architecture \"{model_type}\" as GGUF; those with a mapping are {}", known())
        })
    }

    /// llama.cpp's name for a tensor; `None` for one that GGUF does not store.
    pub fn tensor(self, name: &str) -> Result<Option<String>, String> {
        // Buffers that old checkpoints hold, computed anew at load.
        if name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias") {
            return Ok(None);
        }
        let unknown = || format!("tensor \"{name}\" has no counterpart in GGUF's {} architecture", self.gguf);
        let (stem, part) = name.rsplit_once('.').ok_or_else(unknown)?;
        if !matches!(part, "weight" | "bias") {
            return Err(unknown());
        }
        let stem = stem.strip_prefix("model.").unwrap_or(stem);
        let stem = match stem {
            "embed_tokens" => "token_embd".to_string(),
            "norm" => "output_norm".to_string(),
            "lm_head" => "output".to_string(),
            _ => {
                let (layer, role) = stem.strip_prefix("layers.").and_then(|s| s.split_once('.')).ok_or_else(unknown)?;
                let layer: u32 = layer.parse().map_err(|_| unknown())?;
                format!("blk.{layer}.{}", self.role(role).ok_or_else(unknown)?)
            }
        };
        Ok(Some(format!("{stem}.{part}")))
    }

    fn role(self, role: &str) -> Option<&'static str> {
        Some(match role {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" => "attn_qkv",
            "self_attn.o_proj" => "attn_output",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "post_attention_layernorm" if self.four_norms => "post_attention_norm",
            "post_attention_layernorm" => "ffn_norm",
            "pre_feedforward_layernorm" if self.four_norms => "ffn_norm",
            "post_feedforward_layernorm" if self.four_norms => "post_ffw_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            // Gate and up in one, the gate first: llama.cpp's phi3 reads it so.
            "mlp.gate_up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            _ => return None,
        })
    }
}

/// Where row `row` of a written query or key matrix comes from, for heads of `head_dim`: from the halves of a head to
/// neighbouring pairs.
pub fn interleaved_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    head * head_dim + within / 2 + (within % 2) * (head_dim / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_llama() {
        let llama = Family::of("llama").unwrap();
        let cases = [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
            ("model.layers.11.self_attn.q_proj.weight", "blk.11.attn_q.weight"),
            ("model.layers.0.self_attn.o_proj.bias", "blk.0.attn_output.bias"),
            ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
        ];
        for (theirs, ours) in cases {
            assert_eq!(llama.tensor(theirs), Ok(Some(ours.to_string())));
        }
        assert_eq!(llama.tensor("model.layers.0.self_attn.rotary_emb.inv_freq"), Ok(None));
        for odd in ["", "weight", "model.layers.x.mlp.up_proj.weight", "model.layers.0.mlp.experts.0.w1.weight"] {
            assert!(llama.tensor(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn gemma_has_four_norms() {
        let gemma = Family::of("gemma3_text").unwrap();
        let name = |n: &str| gemma.tensor(&format!("model.layers.2.{n}.weight")).unwrap().unwrap();
        assert_eq!(name("post_attention_layernorm"), "blk.2.post_attention_norm.weight");
        assert_eq!(name("pre_feedforward_layernorm"), "blk.2.ffn_norm.weight");
        assert_eq!(name("post_feedforward_layernorm"), "blk.2.post_ffw_norm.weight");
    }

    #[test]
    fn an_unknown_family_is_named() {
        let message = Family::of("mamba").unwrap_err();
        assert!(message.contains("\"mamba\"") && message.contains("qwen3"), "{message}");
    }

    /// The two halves of each head of 6, [a0 a1 a2 | b0 b1 b2], become pairs [a0 b0 a1 b1 a2 b2].
    #[test]
    fn rows_of_two_heads() {
        let rows: Vec<usize> = (0..12).map(|r| interleaved_row(r, 6)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }
}
