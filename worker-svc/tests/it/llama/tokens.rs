//! The tokenizer and template artifacts, read by the library that a frontend reads them with.

use armature_tiny_gguf::Spec;
use armature_worker::engine::llama::{GgufError, LlamaEngine, LoadError};
use armature_worker::ports::Engine;
use tokenizers::Tokenizer;

use super::{load_bytes, load_smollm2, smollm2, tiny};

fn tokenizer(engine: &LlamaEngine) -> Tokenizer {
    Tokenizer::from_bytes(engine.tokenizer_json()).expect("the library reads it")
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).expect("encodes").get_ids().to_vec()
}

#[test]
fn a_tiny_vocabulary_spells_any_text_and_back() {
    for pre in ["smollm", "gpt-2", "default", "llama-bpe"] {
        let engine = tiny(&Spec { pre: pre.to_owned(), ..Spec::default() }, 1, 16);
        let tokenizer = tokenizer(&engine);
        for text in ["hello world", "a\tb\n\n  c", "2024 was 1/2", "naïve café", "日本語 🙂"] {
            let ids = ids(&tokenizer, text);
            assert!(ids.iter().all(|id| (*id as usize) < engine.spec().vocab_size));
            assert_eq!(tokenizer.decode(&ids, false).expect("decodes"), text, "{pre}");
        }
        assert_eq!(ids(&tokenizer, "<|im_start|>hello<|im_end|>")[0], 1);
        let hello = ids(&tokenizer, "hello");
        assert_eq!(hello.len(), 1, "the merges are applied: {hello:?}");
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name() {
    let file = armature_tiny_gguf::bytes(&Spec { pre: "qwen2".to_owned(), ..Spec::default() });
    let error = load_bytes(&file, 1, 16).expect_err("refused");
    assert!(matches!(&error, LoadError::Model(GgufError::Unsupported(_))));
    assert!(error.to_string().contains("\"qwen2\"") && error.to_string().contains("smollm"), "{error}");
}

#[test]
fn the_template_artifact_names_the_tokens() {
    let engine = tiny(&Spec::default(), 1, 16);
    let template: serde_json::Value = serde_json::from_slice(engine.template_json()).expect("JSON");
    assert_eq!(template["chat_template"], armature_tiny_gguf::CHAT_TEMPLATE);
    assert_eq!(
        (&template["bos_token"], &template["eos_token"]),
        (&"<|im_start|>".into(), &"<|im_end|>".into())
    );
    assert_eq!(template["add_bos"], false);
    assert_eq!((engine.spec().bos_token_id, engine.spec().eos_token_ids.as_slice()), (Some(1), &[2][..]));
}

/// Expected ids are what llama.cpp answers for the same file.
#[test]
fn smollm2_has_the_token_ids_of_llama_cpp() {
    let Some(path) = smollm2() else { return };
    let engine = load_smollm2(&path, 1);
    let tokenizer = tokenizer(&engine);
    for (text, expected) in super::recorded::TOKEN_IDS {
        assert_eq!(ids(&tokenizer, text), *expected, "{text:?}");
        assert_eq!(tokenizer.decode(expected, false).expect("decodes"), *text);
    }
}
