//! What tensors are called.

/// Names of a model's tensors, without the final `.weight` or `.bias`.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub embed: String,
    pub final_norm: String,
    pub head: String,
    /// What comes before a layer's number.
    pub layers: String,
    pub layer: LayerNames,
}

/// Names within a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNames {
    pub attention_norm: &'static str,
    pub q: &'static str,
    pub k: &'static str,
    pub v: &'static str,
    /// Queries, keys and values, one above the other.
    pub qkv: &'static str,
    pub q_norm: &'static str,
    pub k_norm: &'static str,
    pub out: &'static str,
    pub post_attention_norm: &'static str,
    pub mlp_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    /// Gate and up, one above the other.
    pub gate_up: &'static str,
    pub down: &'static str,
    pub post_mlp_norm: &'static str,
    pub sinks: &'static str,
    pub latent: LatentNames,
    pub experts: ExpertNames,
}

/// Names within a layer with latent attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatentNames {
    pub q: &'static str,
    pub q_a: &'static str,
    pub q_a_norm: &'static str,
    pub q_b: &'static str,
    pub kv_a: &'static str,
    pub kv_a_norm: &'static str,
    pub kv_b: &'static str,
}

/// Names within a layer with experts. `{e}` is an expert's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNames {
    pub router: &'static str,
    /// The whole name.
    pub choice_bias: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    /// Those of all experts, with or without a final `.weight`.
    pub gate_bank: &'static str,
    pub up_bank: &'static str,
    pub gate_up_bank: &'static str,
    pub down_bank: &'static str,
    pub shared_gate: &'static str,
    /// Gate and up, one above the other.
    pub shared_gate_up: &'static str,
    pub shared_up: &'static str,
    pub shared_down: &'static str,
    pub shared_router: &'static str,
}

impl Names {
    /// The names that transformers gives a Llama model, which most families follow. `outer` comes before the names of
    /// the whole model, `inner` before those of all but the logits' matrix.
    pub fn hugging_face(outer: &str, inner: &str) -> Names {
        Names {
            embed: format!("{inner}embed_tokens"),
            final_norm: format!("{inner}norm"),
            head: format!("{outer}lm_head"),
            layers: format!("{inner}layers."),
            layer: LayerNames {
                attention_norm: "input_layernorm",
                q: "self_attn.q_proj",
                k: "self_attn.k_proj",
                v: "self_attn.v_proj",
                qkv: "self_attn.qkv_proj",
                q_norm: "self_attn.q_norm",
                k_norm: "self_attn.k_norm",
                out: "self_attn.o_proj",
                post_attention_norm: "post_attention_layernorm",
                // After attention is before the feed-forward; families with norms in both places name this one otherwise.
                mlp_norm: "post_attention_layernorm",
                gate: "mlp.gate_proj",
                up: "mlp.up_proj",
                gate_up: "mlp.gate_up_proj",
                down: "mlp.down_proj",
                post_mlp_norm: "post_feedforward_layernorm",
                sinks: "self_attn.sinks",
                latent: LatentNames {
                    q: "self_attn.q_proj",
                    q_a: "self_attn.q_a_proj",
                    q_a_norm: "self_attn.q_a_layernorm",
                    q_b: "self_attn.q_b_proj",
                    kv_a: "self_attn.kv_a_proj_with_mqa",
                    kv_a_norm: "self_attn.kv_a_layernorm",
                    kv_b: "self_attn.kv_b_proj",
                },
                experts: ExpertNames {
                    router: "mlp.gate",
                    choice_bias: "mlp.gate.e_score_correction_bias",
                    gate: "mlp.experts.{e}.gate_proj",
                    up: "mlp.experts.{e}.up_proj",
                    down: "mlp.experts.{e}.down_proj",
                    gate_bank: "mlp.experts.gate_proj",
                    up_bank: "mlp.experts.up_proj",
                    gate_up_bank: "mlp.experts.gate_up_proj",
                    down_bank: "mlp.experts.down_proj",
                    shared_gate: "mlp.shared_expert.gate_proj",
                    shared_gate_up: "mlp.shared_expert.gate_up_proj",
                    shared_up: "mlp.shared_expert.up_proj",
                    shared_down: "mlp.shared_expert.down_proj",
                    shared_router: "mlp.shared_expert_gate",
                },
            },
        }
    }

    /// The names of GGUF files.
    pub fn gguf() -> Names {
        Names {
            embed: "token_embd".into(),
            final_norm: "output_norm".into(),
            head: "output".into(),
            layers: "blk.".into(),
            layer: LayerNames {
                attention_norm: "attn_norm",
                q: "attn_q",
                k: "attn_k",
                v: "attn_v",
                qkv: "attn_qkv",
                q_norm: "attn_q_norm",
                k_norm: "attn_k_norm",
                out: "attn_output",
                post_attention_norm: "post_attention_norm",
                mlp_norm: "ffn_norm",
                gate: "ffn_gate",
                up: "ffn_up",
                // The first half of the rows is the gate.
                gate_up: "ffn_up",
                down: "ffn_down",
                post_mlp_norm: "post_ffw_norm",
                sinks: "attn_sinks.weight",
                latent: LatentNames {
                    q: "attn_q",
                    q_a: "attn_q_a",
                    q_a_norm: "attn_q_a_norm",
                    q_b: "attn_q_b",
                    kv_a: "attn_kv_a_mqa",
                    kv_a_norm: "attn_kv_a_norm",
                    kv_b: "attn_kv_b",
                },
                experts: ExpertNames {
                    router: "ffn_gate_inp",
                    choice_bias: "exp_probs_b.bias",
                    // Files from before the banks.
                    gate: "ffn_gate.{e}",
                    up: "ffn_up.{e}",
                    down: "ffn_down.{e}",
                    gate_bank: "ffn_gate_exps",
                    up_bank: "ffn_up_exps",
                    gate_up_bank: "ffn_gate_up_exps",
                    down_bank: "ffn_down_exps",
                    shared_gate: "ffn_gate_shexp",
                    shared_gate_up: "ffn_gate_up_shexp",
                    shared_up: "ffn_up_shexp",
                    shared_down: "ffn_down_shexp",
                    shared_router: "ffn_gate_inp_shexp",
                },
            },
        }
    }
}

/// Ends of the names of tensors that hold nothing that a model needs: tables that can be computed.
pub(crate) const IGNORED: [&str; 3] = ["rotary_emb.inv_freq", "masked_bias", "attn_rot_embd.weight"];
