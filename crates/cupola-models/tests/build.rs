//! Programs of the reference checkpoints, and what is wrong with broken ones.

#[allow(dead_code)]
#[path = "common/references.rs"]
mod references;
#[path = "common/scratch.rs"]
mod scratch;

use cupola_backend::WeightSource;
use cupola_formats::Checkpoint;
use cupola_formats::gguf::Value;
use cupola_graph::{Activation, Op, Program, RopeStyle, VectorId, WeightId, fuse};
use cupola_models::{ModelInfo, build};
use references::{NAMES, Reference};
use scratch::{Scratch, Tensor};
use serde_json::{Value as Json, json};
use std::path::Path;

fn program(path: &Path) -> Program {
    build(&Checkpoint::open(path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display())).program
}

fn reference(name: &str) -> Program {
    program(&Reference::open(name).folder)
}

fn error(path: &Path) -> String {
    build(&Checkpoint::open(path).unwrap()).map_or_else(|e| e.to_string(), |_| "no error".into())
}

/// What a change of a reference leads to.
fn broken(name: &str, change: impl FnOnce(&mut Scratch)) -> String {
    let mut scratch = Scratch::of(name, "config.json");
    change(&mut scratch);
    error(&scratch.save())
}

fn windows(program: &Program) -> Vec<Option<usize>> {
    let window = |op: &Op| match op {
        Op::Attention(a) => Some(a.window),
        _ => None,
    };
    program.ops.iter().filter_map(window).collect()
}

fn ops(program: &Program) -> Vec<&'static str> {
    program.ops.iter().map(Op::name).collect()
}

#[test]
fn configs_of_transformers_4_and_5_give_the_same_program() {
    let mut compared = 0;
    for name in NAMES {
        if Reference::open(name).folder.join("config.v4.json").exists() {
            assert_eq!(program(&Scratch::of(name, "config.v4.json").save()), reference(name), "{name}");
            compared += 1;
        }
    }
    assert_eq!(compared, 14);
}

#[test]
fn ops_of_a_layer() {
    let qwen3 = reference("qwen3");
    let layer = [
        "norm",
        "linears",
        "norm",
        "norm",
        "rope",
        "rope",
        "attention",
        "linears",
        "add",
        "norm",
        "linears",
        "glu",
        "linears",
        "add",
    ];
    assert_eq!(ops(&qwen3)[..15], [&["embed"], &layer[..]].concat());
    // The last layer goes on with the wanted rows only.
    let last = [&layer[..7], &["take_wanted", "take_wanted"], &layer[7..], &["norm", "linears"]].concat();
    assert_eq!(ops(&qwen3)[1 + 3 * 14..], last);

    let gemma2 = reference("gemma2");
    let layer = [
        "norm",
        "linears",
        "rope",
        "rope",
        "attention",
        "linears",
        "norm",
        "add",
        "norm",
        "linears",
        "glu",
        "linears",
        "norm",
        "add",
    ];
    assert_eq!(ops(&gemma2)[1..15], layer);
    assert_eq!(ops(&gemma2).last(), Some(&"softcap"));

    let fused = fuse(reference("llama"));
    let layer = ["linears", "rope", "rope", "attention", "linears", "gated_linear", "linears"];
    assert_eq!(ops(&fused)[1..8], layer);
}

#[test]
fn windows_of_layers() {
    let windows = |name| windows(&reference(name));
    assert_eq!(windows("llama"), [None; 4]);
    assert_eq!(windows("mistral"), [Some(12); 4]);
    assert_eq!(windows("qwen2"), [None; 4]);
    assert_eq!(windows("qwen2_window"), [None, None, Some(8), Some(8)]);
    assert_eq!(windows("gemma2"), [Some(8), None, Some(8)]);
    assert_eq!(windows("gemma3"), [Some(8), Some(8), None, Some(8)]);
    assert_eq!(windows("phi3"), [Some(24); 2]);
}

/// Without `layer_types`, each family has its own rule.
#[test]
fn windows_of_layers_by_rule() {
    let of = |name, change: &dyn Fn(&mut Scratch)| {
        let mut scratch = Scratch::of(name, "config.json");
        change(&mut scratch);
        windows(&program(&scratch.save()))
    };
    assert_eq!(of("gemma2", &|s| s.remove("layer_types")), [Some(8), None, Some(8)]);
    assert_eq!(of("gemma3", &|s| s.remove("layer_types")), [Some(8); 4]);
    let pattern = |s: &mut Scratch| {
        s.remove("layer_types");
        s.set("sliding_window_pattern", json!(2));
    };
    assert_eq!(of("gemma3", &pattern), [Some(8), None, Some(8), None]);
    assert_eq!(of("qwen2_window", &|s| s.remove("layer_types")), [None, None, Some(8), Some(8)]);
    let off = |s: &mut Scratch| {
        s.remove("layer_types");
        s.set("use_sliding_window", json!(false));
    };
    assert_eq!(of("qwen2_window", &off), [None; 4]);
    assert_eq!(of("mistral", &|s| s.set("sliding_window", Json::Null)), [None; 4]);
    assert_eq!(of("mistral", &|s| s.remove("sliding_window")), [Some(4096); 4]);
    let rotating = |s: &mut Scratch| {
        s.remove("layer_types");
        s.set("use_sliding_window", json!(true));
        s.set("sliding_window", json!(5));
    };
    assert_eq!(of("smollm3", &rotating), [None, None, None, Some(5), None]);
}

#[test]
fn rotation_of_layers() {
    let tables = |program: &Program| -> Vec<usize> {
        let table = |op: &Op| match op {
            Op::Rope(r) => Some(r.table),
            _ => None,
        };
        program.ops.iter().filter_map(table).collect()
    };
    let gemma3 = reference("gemma3");
    assert_eq!(tables(&gemma3), [0, 0, 0, 0, 1, 1, 0, 0]);
    // Pair 8 of 16: the square root of theta.
    assert!((gemma3.ropes[0].inv_freq[8] * 1e2 - 1.0).abs() < 1e-5);
    assert!((gemma3.ropes[1].inv_freq[8] * 1e3 - 1.0).abs() < 1e-5);

    // Four of five layers rotate, queries and keys.
    assert_eq!(tables(&reference("smollm3")), [0; 8]);
    let mut scratch = Scratch::of("smollm3", "config.json");
    scratch.remove("no_rope_layers");
    scratch.set("no_rope_layer_interval", json!(2));
    assert_eq!(tables(&program(&scratch.save())), [0; 6]);

    let phi3 = reference("phi3");
    assert_eq!(phi3.ropes[0].rotary_dim(), 12);
    assert_eq!(phi3.ropes[0].long.as_ref().map(|l| l.above), Some(32));
    // sqrt(1 + ln(256 / 32) / ln(32)).
    assert!((phi3.ropes[0].magnitude - 1.264911).abs() < 1e-6);
}

#[test]
fn head_size_is_explicit_or_divided() {
    let of = |head_dim: Json| {
        let mut scratch = Scratch::of("llama_bias", "config.json");
        scratch.set("head_dim", head_dim);
        program(&scratch.save()).kv[0].key_dim
    };
    assert_eq!((of(json!(16)), of(Json::Null)), (16, 16));
    assert_eq!(reference("llama_head_dim").kv[0].key_dim, 8);
    let message = broken("llama_head_dim", |s| s.set("head_dim", Json::Null));
    assert!(message.contains("q_proj") && message.contains("[16, 12]") && message.contains("[12, 12]"), "{message}");
}

#[test]
fn facts() {
    let open = |name| Checkpoint::open(Reference::open(name).folder).unwrap();
    for name in NAMES {
        let folder = Reference::open(name).folder;
        let meta: Json = serde_json::from_slice(&std::fs::read(folder.join("meta.json")).unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        // Quantised ones do not say it: they are others, stored anew.
        let expected = meta["params"].as_u64().unwrap_or_else(|| build(&open("gpt_oss")).unwrap().info.parameters);
        assert_eq!(build(&checkpoint).unwrap().info.parameters, expected, "{name}");
    }
    let checkpoint = Checkpoint::open(Reference::open("llama3").folder).unwrap();
    let expected = ModelInfo {
        architecture: "llama",
        name: Some("llama3".into()),
        context_length: 256,
        vocab: 384,
        layers: 4,
        hidden: 96,
        heads: 6,
        kv_heads: 2,
        head_dim: 16,
        parameters: 283488,
    };
    assert_eq!(build(&checkpoint).unwrap().info, expected);
}

/// GGUF and Hugging Face checkpoints of one model differ in names, in how Llama forms pairs, and in roundings of the
/// frequencies.
#[test]
fn gguf_programs_have_the_same_ops() {
    let twin = |name: &str| Reference::open(name).folder.join("model.gguf");
    for name in NAMES.into_iter().filter(|name| twin(name).exists()) {
        let (a, b) = (reference(name), program(&twin(name)));
        assert_eq!((ops(&a), windows(&a), &a.kv), (ops(&b), windows(&b), &b.kv), "{name}");
        let style = |op: &Op| match op {
            Op::Rope(r) => Some(r.style),
            _ => None,
        };
        let paper = ["llama", "mixtral", "smollm3", "granite"].iter().any(|family| name.starts_with(family));
        let expected = |s| if paper { RopeStyle::Interleaved } else { s };
        let expected = a.ops.iter().filter_map(style).map(expected);
        assert!(b.ops.iter().filter_map(style).eq(expected), "{name}");
    }
}

/// No StarCoder2 file states its window.
#[test]
fn a_window_that_gguf_files_do_not_state() {
    let (_folder, path) = scratch::gguf("starcoder2", &[("starcoder2.attention.sliding_window", None)], &[], &[]);
    assert_eq!(windows(&program(&path)), [Some(4096); 2]);
}

/// Multimodal checkpoints nest the config, and name the language model's tensors in one of two ways.
#[test]
fn the_language_model_of_a_multimodal_checkpoint() {
    let expected = reference("gemma3");
    for (prefix, config) in [("language_model.model.", "config.v4.json"), ("model.language_model.", "config.json")] {
        let mut scratch = Scratch::of("gemma3", config);
        let text = std::mem::take(&mut scratch.config);
        scratch.set("model_type", json!("gemma3"));
        scratch.set("text_config", Json::Object(text));
        scratch.tensors.iter_mut().for_each(|t| t.name = t.name.replace("model.", prefix));
        scratch.tensors.push(Tensor::zeros("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", &[4, 4]));
        let mut found = program(&scratch.save());
        found.weights.iter_mut().for_each(|w| w.name = w.name.replace(prefix, "model."));
        found.vectors.iter_mut().for_each(|v| v.name = v.name.replace(prefix, "model."));
        assert_eq!(found, expected_names(&expected, &found));
    }
}

/// Values are named after weights, so their names are not compared.
fn expected_names(expected: &Program, found: &Program) -> Program {
    Program { values: found.values.clone(), ..expected.clone() }
}

#[test]
fn gemma_configs_leave_out_what_is_usual() {
    let expected = reference("gemma3");
    let mut scratch = Scratch::of("gemma3", "config.v4.json");
    for key in [
        "hidden_activation",
        "rms_norm_eps",
        "rope_theta",
        "rope_local_base_freq",
        "max_position_embeddings",
        "tie_word_embeddings",
        "attention_bias",
        "vocab_size",
    ] {
        scratch.remove(key);
    }
    assert_eq!(program(&scratch.save()), expected);
    scratch.remove("query_pre_attn_scalar");
    let scale = program(&scratch.save()).ops.into_iter().find_map(|op| match op {
        Op::Attention(a) => Some(a.scale),
        _ => None,
    });
    assert_eq!(scale, Some(1.0 / 16.0));
    let activations = expected.ops.iter().filter_map(|op| match op {
        Op::Glu { activation, .. } => Some(*activation),
        _ => None,
    });
    assert!(activations.eq([Activation::GeluTanh; 4]));
}

#[test]
fn parameters_are_views_of_the_tensors() {
    let checkpoint = Checkpoint::open(Reference::open("phi3").folder).unwrap();
    let model = build(&checkpoint).unwrap();
    let weight = |end: &str| {
        let at = model.program.weights.iter().position(|w| w.name.ends_with(end));
        WeightId(at.unwrap_or_else(|| panic!("no weight ends with {end}")) as u32)
    };
    // Queries 64 rows, keys 32, values 32, of 64 bf16 each.
    let fused = checkpoint.tensor("model.layers.1.self_attn.qkv_proj.weight").unwrap().bytes;
    let (k, v) =
        (weight("layers.1.self_attn.qkv_proj.weight[64..96]"), weight("layers.1.self_attn.qkv_proj.weight[96..128]"));
    assert_eq!(model.parameters.rows(k, 0..32).unwrap(), &fused[64 * 128..96 * 128]);
    assert_eq!(model.parameters.rows(v, 30..32).unwrap(), &fused[126 * 128..128 * 128]);
    assert!(model.parameters.rows(k, 5..5).unwrap().is_empty());
    model.parameters.release(k, 0..32);
    assert_eq!(model.parameters.rows(k, 0..32).unwrap(), &fused[64 * 128..96 * 128]);
    // Not even its neighbour's.
    let message = model.parameters.rows(k, 31..33).unwrap_err().to_string();
    assert!(message.contains("model.layers.1.self_attn.qkv_proj.weight: rows 31..33"), "{message}");
    assert!(model.parameters.rows(k, 0..usize::MAX).is_err());
    assert!(model.parameters.rows(WeightId(99), 0..1).is_err());
    assert!(model.parameters.vector(VectorId(99)).is_err());

    // Gemma stores norm weights as their distance from 1, in bf16.
    let checkpoint = Checkpoint::open(Reference::open("gemma3").folder).unwrap();
    let model = build(&checkpoint).unwrap();
    let stored = checkpoint.tensor(&model.program.vectors[0].name).unwrap().bytes;
    let expected =
        stored.as_chunks::<2>().0.iter().map(|b| 1.0 + f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16));
    assert!(model.parameters.vector(VectorId(0)).unwrap().into_iter().eq(expected));
}

#[test]
fn architectures_that_are_not_supported() {
    let message = broken("llama", |s| s.set("model_type", json!("mamba")));
    assert!(message.contains("\"mamba\"") && message.contains("llama, mistral, qwen2"), "{message}");
    let message = broken("llama", |s| s.remove("model_type"));
    assert!(message.contains("model_type"), "{message}");
    let (_folder, path) =
        scratch::gguf("qwen2", &[("general.architecture", Some(Value::String("rwkv".into())))], &[], &[]);
    assert!(error(&path).contains("\"rwkv\""));
    // A file by itself.
    let message = error(&Reference::open("llama").folder.join("model.safetensors"));
    assert!(message.contains("config.json"), "{message}");
}

#[test]
fn weights_that_are_not_supported() {
    let message = broken("llama", |s| s.set("quantization_config", json!({"quant_method": "gptq", "bits": 4})));
    assert!(message.contains("\"gptq\"") && message.contains("not supported yet"), "{message}");
    let message = broken("llama", |s| s.set("quantization", json!({"group_size": 32, "bits": 4})));
    assert!(message.contains("\"quantization\""), "{message}");
    let name = "model.layers.1.mlp.up_proj.weight";
    let message = broken("llama", |s| {
        let t = s.tensor(name);
        (t.dtype, t.bytes) = ("F8_E4M3".into(), vec![0; 96 * 64]);
    });
    assert!(
        message.contains(name) && message.contains("F8_E4M3") && message.contains("not supported yet"),
        "{message}"
    );
}

#[test]
fn tensors_that_are_missing_or_do_not_fit() {
    for name in ["model.layers.2.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"] {
        let message = broken("llama", |s| s.tensors.retain(|t| t.name != name));
        assert!(message.contains(&format!("tensor `{name}` is missing")) && message.contains("llama"), "{message}");
    }
    let message = broken("llama3", |s| s.tensors.retain(|t| t.name != "lm_head.weight"));
    assert!(message.contains("lm_head.weight"), "{message}");
    let message = broken("qwen2", |s| s.tensors.retain(|t| t.name != "model.layers.3.self_attn.k_proj.bias"));
    assert!(message.contains("k_proj.bias") && message.contains("qwen2"), "{message}");

    let message = broken("llama", |s| s.set("intermediate_size", json!(97)));
    assert!(message.contains("gate_proj.weight` has shape [96, 64]") && message.contains("[97, 64]"), "{message}");
    let message = broken("llama", |s| s.tensor("model.norm.weight").shape = vec![1, 64]);
    assert!(message.contains("model.norm.weight` has shape [1, 64]") && message.contains("[64]"), "{message}");
    let message = broken("llama", |s| s.tensor("model.embed_tokens.weight").shape = vec![384 * 64]);
    assert!(message.contains("embed_tokens"), "{message}");
}

#[test]
fn tensors_that_would_be_left_out() {
    for (model, name) in [
        ("llama", "model.layers.1.self_attn.q_proj.bias"),
        ("llama", "model.layers.0.self_attn.q_norm.weight"),
        ("llama", "model.layers.4.input_layernorm.weight"),
        ("llama", "model.layers.0.mlp.up_proj.weight_scale"),
        ("llama3", "lm_head.bias"),
        ("mistral", "model.norm.bias"),
        ("gemma3", "model.embed_tokens.weight_scale_inv"),
    ] {
        let message = broken(model, |s| s.tensors.push(Tensor::zeros(name, &[64])));
        assert!(message.contains(&format!("`{name}` has no place")), "{message}");
    }
    // Tables that can be computed, a copy of the embedding, other models.
    for name in ["model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight", "vision_tower.layers.0.weight"] {
        assert_eq!(broken("llama", |s| s.tensors.push(Tensor::zeros(name, &[8]))), "no error", "{name}");
    }
    let (_folder, path) = scratch::gguf("qwen3", &[], &[], &[("blk.1.attn_q.bias", 128)]);
    assert!(error(&path).contains("`blk.1.attn_q.bias` has no place"));
}

#[test]
fn hyperparameters_that_cannot_be() {
    for (model, key, value, expected) in [
        ("llama", "num_attention_heads", json!(0), "the number of attention heads should be above 0"),
        ("llama", "num_attention_heads", json!(3), "divisor of the number of attention heads, 3"),
        ("llama", "num_attention_heads", json!(-4), "num_attention_heads"),
        ("llama", "num_attention_heads", json!("four"), "num_attention_heads"),
        ("llama", "num_key_value_heads", json!(0), "the number of key-value heads should be above 0"),
        ("llama", "num_key_value_heads", json!(8), "divisor of the number of attention heads, 4"),
        ("llama", "num_hidden_layers", json!(0), "num_hidden_layers"),
        ("llama", "num_hidden_layers", json!(4294967295u32), "the number of tensors"),
        ("llama", "num_hidden_layers", json!(5), "model.layers.4.input_layernorm.weight` is missing"),
        ("llama", "num_hidden_layers", json!(3), "`model.layers.3."),
        ("llama", "head_dim", json!(0), "even number from 2"),
        ("llama", "head_dim", json!(15), "even number from 2"),
        ("llama", "head_dim", json!(4294967295u32), "even number from 2"),
        ("llama", "hidden_size", json!(0), "the hidden size should be above 0"),
        ("llama", "hidden_size", json!(1u64 << 60), "embed_tokens"),
        ("llama", "intermediate_size", json!(0), "the size of the feed-forward should be above 0"),
        ("llama", "intermediate_size", json!(1u64 << 62), "gate_proj"),
        ("llama", "max_position_embeddings", json!(0), "the context length should be above 0"),
        ("llama", "rms_norm_eps", json!(-1.0), "the epsilon of the norms should be a positive number"),
        ("llama", "hidden_act", json!("prelu"), "hidden_act"),
        ("llama", "rope_parameters", json!({"rope_theta": -1.0}), "rope_theta"),
        ("llama", "rope_parameters", json!({"rope_type": "linear", "factor": 0.0}), "factor"),
        ("llama", "rope_parameters", json!({"rope_type": "spiral"}), "spiral"),
        ("llama", "rope_parameters", json!({"partial_rotary_factor": 0.01}), "even number from 2"),
        ("mistral", "sliding_window", json!(0), "sliding_window"),
        ("qwen2_window", "layer_types", json!(["full_attention"]), "layer_types"),
        ("qwen2_window", "layer_types", json!(vec!["chunked_attention"; 4]), "layer_types"),
        ("qwen2_window", "sliding_window", Json::Null, "sliding_window"),
        ("gemma2", "query_pre_attn_scalar", json!(0), "the scale of the attention scores"),
        ("gemma2", "attn_logit_softcapping", json!(-5.0), "the bound on the attention scores"),
        ("gemma2", "final_logit_softcapping", json!(0), "the bound on the logits"),
        ("gemma3", "use_bidirectional_attention", json!(true), "encoders are not supported yet"),
        ("smollm3", "no_rope_layers", json!([1, 0]), "a list of 5 numbers"),
        ("phi3", "num_attention_heads", json!(5), "divisor of hidden_size"),
    ] {
        let message = broken(model, |s| s.set(key, value.clone()));
        assert!(message.contains(expected), "{model}, {key} {value}: {message}");
    }
}

#[test]
fn gguf_metadata_that_cannot_be() {
    for (key, value, expected) in [
        ("llama.block_count", Some(Value::U32(0)), "block_count"),
        ("llama.block_count", Some(Value::U32(u32::MAX)), "the number of tensors"),
        ("llama.block_count", None, "llama.block_count"),
        ("llama.attention.head_count", Some(Value::U32(0)), "the number of attention heads should be above 0"),
        ("llama.attention.head_count_kv", Some(Value::U32(4)), "divisor of the number of attention heads, 6"),
        ("llama.attention.key_length", Some(Value::U32(u32::MAX)), "blk.0.attn_q.weight"),
        ("llama.attention.value_length", Some(Value::U32(0)), "the size of a value head should be above 0"),
        ("llama.attention.layer_norm_rms_epsilon", Some(Value::F32(f32::NAN)), "the epsilon of the norms"),
        ("llama.expert_count", Some(Value::U32(8)), "no layer has a router"),
        ("llama.rope.freq_base", Some(Value::F32(0.0)), "theta should be positive"),
        ("llama.rope.scaling.type", Some(Value::String("spiral".into())), "llama.rope.scaling.type"),
        ("llama.rope.dimension_count", Some(Value::U32(8)), "4 numbers"),
        ("llama.feed_forward_length", Some(Value::U32(u32::MAX)), "blk.0.ffn_gate.weight"),
    ] {
        let (_folder, path) = scratch::gguf("llama3", &[(key, value.clone())], &[], &[]);
        let message = error(&path);
        assert!(message.contains(expected), "{key} {value:?}: {message}");
    }
    let (_folder, path) = scratch::gguf("llama3", &[], &["blk.1.ffn_up.weight"], &[]);
    assert!(error(&path).contains("`blk.1.ffn_up.weight` is missing"));
    let drafts = ("glm4moe.nextn_predict_layers", Some(Value::U32(4)));
    let (_folder, path) = scratch::gguf("glm4_moe", &[drafts], &[], &[]);
    assert!(error(&path).contains("glm4moe.block_count"));
}
