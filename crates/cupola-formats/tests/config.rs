//! Hugging Face configs of transformers 4 and 5.

mod common;

use common::data;
use cupola_formats::KeyError;
use cupola_formats::config::{GenerationConfig, HfConfig, LongRope, RopeKind, RopeParameters, Yarn};
use serde_json::{Value, json};

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

fn config(json: Value) -> HfConfig {
    HfConfig::from_json("config.json", json).unwrap()
}

fn default(theta: f64) -> RopeParameters {
    RopeParameters { theta, partial_rotary_factor: None, kind: RopeKind::Default }
}

/// Both forms of a reference config.
fn both(name: &str) -> [HfConfig; 2] {
    ["config.json", "config.v4.json"].map(|file| HfConfig::read(data(&format!("refs/{name}/{file}"))).unwrap())
}

#[test]
fn both_forms_of_the_references_are_alike() {
    let llama3 = RopeParameters {
        theta: 500_000.0,
        partial_rotary_factor: None,
        kind: RopeKind::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 32 },
    };
    for (name, head_dim, full, sliding) in [
        ("llama3", 16, llama3.clone(), llama3),
        ("qwen3", 32, default(1e4), default(1e4)),
        ("gemma3", 32, default(1e6), default(1e4)),
    ] {
        for config in both(name) {
            let file = config.path().display();
            assert_eq!(config.head_dim(), Ok(head_dim), "{file}");
            assert_eq!(config.dtype(), Ok(Some("bfloat16")), "{file}");
            assert_eq!(config.rope(FULL, 1.0), Ok(full.clone()), "{file}");
            assert_eq!(config.rope(SLIDING, 1.0), Ok(sliding.clone()), "{file}");
            assert_eq!(config.token_ids("eos_token_id"), Ok(vec![2]), "{file}");
        }
        // Whatever else is in them is the same.
        let [five, four] = both(name);
        let rope = ["rope_parameters", "rope_theta", "rope_scaling", "rope_local_base_freq"];
        let own = ["dtype", "torch_dtype", "transformers_version"];
        for config in [&five, &four] {
            for key in
                config.values().keys().filter(|key| !rope.contains(&key.as_str()) && !own.contains(&key.as_str()))
            {
                assert_eq!(five.get(key), four.get(key), "{name}: {key}");
            }
        }
    }
    let types = [SLIDING, SLIDING, FULL, SLIDING];
    assert!(both("gemma3").iter().all(|config| config.layer_types() == Ok(Some(types.to_vec()))));
}

#[test]
fn both_forms_of_every_reference_are_alike() {
    let mut compared = 0;
    for folder in std::fs::read_dir(data("refs")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        if !data(&format!("refs/{name}/config.v4.json")).is_file() {
            continue;
        }
        let [five, four] = both(&name);
        for layer_type in [FULL, SLIDING] {
            assert!(five.rope(layer_type, 1.0).is_ok(), "{name}");
            assert_eq!(five.rope(layer_type, 1.0), four.rope(layer_type, 1.0), "{name}: {layer_type}");
        }
        assert_eq!(five.head_dim(), four.head_dim(), "{name}");
        assert_eq!(five.dtype(), four.dtype(), "{name}");
        // Older configs can leave the list to the architecture.
        if let Some(types) = four.layer_types().unwrap() {
            assert_eq!(five.layer_types().unwrap(), Some(types), "{name}");
        }
        compared += 1;
    }
    assert!(compared >= 3, "{compared}");
}

#[test]
fn getters() {
    let config = config(json!({
        "a": 7, "b": -1, "c": 7.0, "d": 7.5, "e": null, "f": true, "g": "text", "h": [1, 2], "i": ["x", "y"],
        "j": 4294967296u64, "k": {"l": {"m": 1}}, "n": [0.5, 1]
    }));
    let error = |key: &str, expected: &str, found: &str| KeyError {
        file: "config.json".into(),
        key: key.into(),
        expected: expected.into(),
        found: found.into(),
    };
    let whole = "a whole number from 0 to 4294967295";
    assert_eq!(config.u32("a"), Ok(7));
    assert_eq!(config.u32("c"), Ok(7));
    assert_eq!(config.usize("j"), Ok(1 << 32));
    assert_eq!(config.u32("j"), Err(error("j", whole, "4294967296")));
    assert_eq!(config.u32("b"), Err(error("b", whole, "-1")));
    assert_eq!(config.u32("d"), Err(error("d", whole, "7.5")));
    assert_eq!(config.u32("e"), Err(error("e", whole, "nothing")));
    assert_eq!(config.u32("z"), Err(error("z", whole, "nothing")));
    assert_eq!(config.optional_u32("e"), Ok(None));
    assert_eq!(config.optional_u32("z"), Ok(None));
    assert_eq!(config.optional_u32("g"), Err(error("g", whole, "\"text\"")));
    assert_eq!(config.f32("a"), Ok(7.0));
    assert_eq!(config.f64("d"), Ok(7.5));
    assert_eq!(config.bool("f"), Ok(true));
    assert_eq!(config.bool("a"), Err(error("a", "true or false", "7")));
    assert_eq!(config.str("g"), Ok("text"));
    assert_eq!(config.u32s("h"), Ok(vec![1, 2]));
    assert_eq!(config.f64s("n"), Ok(vec![0.5, 1.0]));
    assert_eq!(config.strings("i"), Ok(vec!["x", "y"]));
    assert_eq!(config.strings("h"), Err(error("h", "an array of strings", "[1,2]")));
    let section = config.optional_section("k").unwrap().unwrap().optional_section("l").unwrap().unwrap();
    assert_eq!(section.u32("m"), Ok(1));
    assert_eq!(section.u32("n"), Err(error("k.l.n", whole, "nothing")));
    assert_eq!(config.optional_section("a").unwrap_err(), error("a", "an object", "7"));
    assert!(config.optional_section("z").unwrap().is_none());
    let message = config.u32("z").unwrap_err().to_string();
    assert_eq!(message, "config.json: `z` should be a whole number from 0 to 4294967295, found nothing");
}

#[test]
fn head_size_is_explicit_or_the_quotient() {
    let with =
        |head_dim: Value| config(json!({"hidden_size": 12, "num_attention_heads": 2, "head_dim": head_dim})).head_dim();
    assert_eq!(with(json!(8)), Ok(8));
    assert_eq!(with(Value::Null), Ok(6));
    assert_eq!(config(json!({"hidden_size": 12, "num_attention_heads": 2})).head_dim(), Ok(6));
    for heads in [0, 5] {
        let error = config(json!({"hidden_size": 12, "num_attention_heads": heads})).head_dim().unwrap_err();
        assert_eq!(error.expected, "a divisor of hidden_size, 12");
    }
}

#[test]
fn the_language_model_of_a_multimodal_config() {
    let config = config(json!({
        "model_type": "gemma3", "eos_token_id": [1, 106], "torch_dtype": "bfloat16", "tie_word_embeddings": false,
        "hidden_size": 1, "vision_config": {"hidden_size": 1152},
        "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling":
            {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    }));
    assert_eq!(config.model_type(), Ok("gemma3_text"));
    assert_eq!(config.u32("num_hidden_layers"), Ok(34));
    assert_eq!(config.token_ids("eos_token_id"), Ok(vec![1, 106]));
    assert_eq!(config.dtype(), Ok(Some("bfloat16")));
    assert_eq!(config.bool("tie_word_embeddings"), Ok(false));
    // What belongs to the whole is no stand-in for what the language model lacks.
    let error = config.u32("hidden_size").unwrap_err();
    assert_eq!((error.key.as_str(), error.found.as_str()), ("text_config.hidden_size", "nothing"));
    // Published like this: the stretch is for the layers without a window, whose base is left to the default.
    let linear = RopeParameters { kind: RopeKind::Linear { factor: 8.0 }, ..default(1e6) };
    assert_eq!(config.rope(FULL, 1e6), Ok(linear));
    assert_eq!(config.rope(SLIDING, 1e4), Ok(default(1e4)));
}

#[test]
fn kinds_of_rope() {
    let four = |scaling: Value| {
        config(json!({"rope_theta": 1e4, "max_position_embeddings": 4096, "rope_scaling": scaling})).rope(FULL, 1.0)
    };
    let five = |mut parameters: Value| {
        parameters["rope_theta"] = json!(1e4);
        config(json!({"max_position_embeddings": 4096, "rope_parameters": parameters})).rope(FULL, 1.0)
    };
    let yarn = |yarn: Yarn| RopeKind::Yarn(yarn);
    let plain = Yarn {
        factor: 4.0,
        original_context: 1024,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
    };
    for (scaling, kind) in [
        (json!({"rope_type": "default"}), RopeKind::Default),
        (json!({"type": "mrope", "mrope_section": [16, 24, 24]}), RopeKind::Default),
        (json!({"type": "mrope", "rope_type": "default", "mrope_section": [16, 24, 24]}), RopeKind::Default),
        (json!({"type": "linear", "factor": 2}), RopeKind::Linear { factor: 2.0 }),
        (json!({"rope_type": "dynamic", "factor": 2.0}), RopeKind::Dynamic { factor: 2.0, original_context: 4096 }),
        (json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}), yarn(plain.clone())),
        // Without a factor, the ratio of the contexts.
        (json!({"type": "yarn", "original_max_position_embeddings": 1024}), yarn(plain.clone())),
        // A factor is taken as stated, whatever the contexts say.
        (
            json!({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 16,
                "beta_slow": 2, "mscale": 0.707, "mscale_all_dim": 0.707, "attention_factor": 1.5,
                "truncate": false}),
            yarn(Yarn {
                factor: 40.0,
                original_context: 4096,
                beta_fast: 16.0,
                beta_slow: 2.0,
                truncate: false,
                attention_factor: Some(1.5),
                mscale: Some(0.707),
                mscale_all_dim: Some(0.707),
            }),
        ),
        (
            json!({"type": "longrope", "short_factor": [1, 1.5], "long_factor": [2.5, 8],
                "original_max_position_embeddings": 1024}),
            RopeKind::LongRope(LongRope {
                short: vec![1.0, 1.5],
                long: vec![2.5, 8.0],
                original_context: 1024,
                factor: 4.0,
                attention_factor: None,
            }),
        ),
    ] {
        let expected = RopeParameters { theta: 1e4, partial_rotary_factor: None, kind };
        assert_eq!(four(scaling.clone()), Ok(expected.clone()), "{scaling}");
        assert_eq!(five(scaling.clone()), Ok(expected), "{scaling}");
    }
    assert_eq!(four(Value::Null), Ok(default(1e4)));
}

#[test]
fn phi3_keeps_the_original_context_outside() {
    let rope = |kind: &str| {
        config(json!({
            "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "rope_scaling": {"type": kind, "short_factor": [1.0], "long_factor": [2.0]}
        }))
        .rope(FULL, 1.0)
        .unwrap()
    };
    let rope_5 = config(json!({
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0],
            "long_factor": [2.0], "partial_rotary_factor": 0.75, "original_max_position_embeddings": 4096}
    }));
    assert_eq!(rope("longrope"), rope("su"));
    assert_eq!(rope_5.rope(FULL, 1.0), Ok(rope("longrope")));
    assert_eq!(rope("longrope").partial_rotary_factor, Some(0.75));
    let RopeKind::LongRope(long) = rope("longrope").kind else { panic!() };
    assert_eq!((long.factor, long.original_context), (32.0, 4096));
}

#[track_caller]
fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 5e-7, "{value} instead of {expected}");
}

/// The figures are arithmetic: 0.1 ln(32) + 1, (0.0707 ln(40) + 1)^2, sqrt(1 + ln(32) / ln(4096)).
#[test]
fn magnitudes() {
    let yarn = |factor: f64, attention: Option<f64>, mscale: Option<f64>, all: Option<f64>| Yarn {
        factor,
        original_context: 4096,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: attention,
        mscale,
        mscale_all_dim: all,
    };
    close(yarn(32.0, None, None, None).attention_factor(), 1.346_574);
    close(yarn(32.0, Some(1.0), None, None).attention_factor(), 1.0);
    close(yarn(32.0, None, None, None).score_factor(), 1.0);
    close(yarn(40.0, None, Some(0.707), Some(0.707)).attention_factor(), 1.0);
    close(yarn(40.0, None, Some(0.707), Some(0.707)).score_factor(), 1.589_626);
    close(yarn(40.0, None, Some(1.0), Some(1.0)).score_factor(), 1.873_854);
    close(yarn(1.0, None, None, None).attention_factor(), 1.0);
    let long = |factor: f64, attention: Option<f64>| LongRope {
        short: vec![],
        long: vec![],
        original_context: 4096,
        factor,
        attention_factor: attention,
    };
    close(long(32.0, None).attention_factor(), 1.190_238);
    close(long(1.0, None).attention_factor(), 1.0);
    close(long(32.0, Some(1.25)).attention_factor(), 1.25);
    let rope = |kind| RopeParameters { kind, ..default(1e4) };
    close(rope(RopeKind::LongRope(long(32.0, None))).attention_factor(), 1.190_238);
    close(rope(RopeKind::Linear { factor: 8.0 }).attention_factor(), 1.0);
}

#[test]
fn bases_and_shares_of_older_configs() {
    let neox = config(json!({"rotary_emb_base": 20000, "rotary_pct": 0.25}));
    let expected = RopeParameters { partial_rotary_factor: Some(0.25), ..default(2e4) };
    assert_eq!(neox.rope(FULL, 1e4), Ok(expected));
    let modern = config(json!({"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}));
    assert_eq!(modern.rope(FULL, 1.0), Ok(default(16e4)));
    assert_eq!(modern.rope(SLIDING, 1.0), Ok(default(1e4)));
    assert_eq!(config(json!({})).rope(FULL, 1e4), Ok(default(1e4)));
    // A base outside the new object still counts.
    let mixed = config(json!({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}));
    assert_eq!(mixed.rope(FULL, 1e4), Ok(default(5e5)));
}

#[test]
fn senseless_rope_is_refused() {
    let message = |json: Value| config(json).rope(FULL, 1e4).unwrap_err().to_string();
    let kinds = "one of default, linear, dynamic, yarn, llama3, longrope";
    assert_eq!(
        message(json!({"rope_scaling": {"type": "spiral", "factor": 2}})),
        format!("config.json: `rope_scaling.type` should be {kinds}, found \"spiral\"")
    );
    assert_eq!(
        message(json!({"rope_scaling": {"factor": 2}})),
        format!("config.json: `rope_scaling.rope_type` should be {kinds}, found nothing")
    );
    assert_eq!(
        message(json!({"rope_scaling": {"type": "linear"}})),
        "config.json: `rope_scaling.factor` should be a number above 0, found nothing"
    );
    assert_eq!(
        message(json!({"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}})),
        "config.json: `rope_parameters.full_attention` should be an object with the RoPE parameters of this type of \
         layers, found nothing"
    );
    assert!(message(json!({"rope_theta": 0})).contains("`rope_theta` should be a number above 0, found 0"));
    assert!(message(json!({"rope_theta": "1e4"})).contains("should be a number, found \"1e4\""));
    assert!(message(json!({"partial_rotary_factor": 1.5})).contains("a number from 0 to 1"));
    assert!(message(json!({"rope_scaling": 3})).contains("an object"));
    let longrope = json!({"type": "longrope", "factor": 2, "short_factor": ["x"], "long_factor": []});
    assert!(message(json!({"rope_scaling": longrope})).contains("rope_scaling.short_factor"));
    let error = config(json!({"num_hidden_layers": 3, "layer_types": ["full_attention"]})).layer_types().unwrap_err();
    assert!(error.to_string().contains("an array of 3 strings, one for each layer"));
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn json_as_python_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        "\u{feff}{\"a\": [0.0, Infinity], \"b\": -Infinity, \"c\": NaN, \"d\": \"NaN \\\" Infinity\", \"e\": -1}";
    let config = HfConfig::read(write(&folder, "config.json", text)).unwrap();
    assert_eq!(
        Value::from(config.values().clone()),
        json!({"a": [0.0, null], "b": null, "c": null,
        "d": "NaN \" Infinity", "e": -1})
    );
    for (text, part) in [
        ("", "not valid JSON: EOF"),
        ("{\"a\": }", "not valid JSON: expected value at line 1 column 7"),
        ("{\"a\": NaN", "not valid JSON"),
        ("[1]", "should hold a JSON object, found [1]"),
        (&"[".repeat(100_000), "recursion limit"),
    ] {
        let message = HfConfig::read(write(&folder, "config.json", text)).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("config.json: "), "{message}");
    }
}

#[test]
fn generation_configs() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str| GenerationConfig::read(write(&folder, "generation_config.json", text));
    let eos = |text: &str| read(&format!("{{\"eos_token_id\": {text}}}")).unwrap().eos_token_ids;
    assert_eq!(eos("5"), [5]);
    assert_eq!(eos("[5, 6]"), [5, 6]);
    assert_eq!(eos("null"), [0u32; 0]);
    assert_eq!(eos("-1"), [0u32; 0]);
    assert_eq!(eos("[]"), [0u32; 0]);
    assert_eq!(read("{}").unwrap(), GenerationConfig::default());
    let all = r#"{"bos_token_id": 1, "do_sample": true, "eos_token_id": [2, 3], "temperature": 0.6, "top_k": 20,
        "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1, "max_new_tokens": 64, "transformers_version": "5"}"#;
    let expected = GenerationConfig {
        eos_token_ids: vec![2, 3],
        bos_token_id: Some(1),
        do_sample: Some(true),
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        min_p: Some(0.05),
        repetition_penalty: Some(1.1),
        max_new_tokens: Some(64),
    };
    assert_eq!(read(all).unwrap(), expected);
    for (text, key) in [
        (r#"{"eos_token_id": "</s>"}"#, "eos_token_id"),
        (r#"{"eos_token_id": [1, 4294967296]}"#, "eos_token_id"),
        (r#"{"temperature": "hot"}"#, "temperature"),
        (r#"{"top_k": -1}"#, "top_k"),
    ] {
        let message = read(text).unwrap_err().to_string();
        let path = folder.path().join("generation_config.json");
        assert!(message.starts_with(&format!("{}: `{key}` should be", path.display())), "{message}");
    }
}
