//! A Hugging Face `tokenizer.json` from a file's metadata, for byte-level BPE vocabularies.
//!
//! | `tokenizer.ggml.pre` | text is first cut by |
//! |---|---|
//! | `smollm` | single digits, then GPT-2's pattern |
//! | `gpt-2`, `default`, absent | GPT-2's pattern |
//! | `llama-bpe` | Llama 3's pattern; whole words of the vocabulary skip the merges |
//!
//! Tokens of type 3 (control) become special, those of type 4 (user-defined) added tokens.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::gguf::{Gguf, GgufError};

/// Llama 3's pattern.
const LLAMA3: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\
\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// How text is cut before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pre {
    Smollm,
    Gpt2,
    LlamaBpe,
}

impl Pre {
    /// The file's kind of pre-tokenizer.
    ///
    /// # Errors
    /// The vocabulary is not byte-level BPE, or is cut in a way that is not known here: another cut
    /// would give other tokens than those the model was trained on.
    pub(super) fn read(file: &Gguf<'_>) -> Result<Self, GgufError> {
        let key = "tokenizer.ggml.model";
        let model = file.text(key)?.ok_or_else(|| GgufError::MissingKey(key.to_owned()))?;
        if model != "gpt2" {
            return Err(GgufError::Unsupported(format!("tokenizer model {model:?}; supported: \"gpt2\"")));
        }
        match file.text("tokenizer.ggml.pre")? {
            Some("smollm") => Ok(Pre::Smollm),
            None | Some("gpt-2" | "default") => Ok(Pre::Gpt2),
            Some("llama-bpe") => Ok(Pre::LlamaBpe),
            Some(other) => Err(GgufError::Unsupported(format!(
                "pre-tokenizer {other:?}; supported: \"smollm\", \"gpt-2\", \"default\", \"llama-bpe\""
            ))),
        }
    }

    /// Whether models with this cut want a begin-of-sequence token when their file does not say.
    pub(super) fn adds_bos(self) -> bool {
        self == Pre::LlamaBpe
    }

    fn json(self) -> Value {
        let byte_level = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        match self {
            Pre::Smollm => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": true},
                byte_level(true),
            ]}),
            Pre::Gpt2 => byte_level(true),
            Pre::LlamaBpe => json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": false},
                byte_level(false),
            ]}),
        }
    }
}

/// Builds `tokenizer.json` for a model of `vocab` tokens.
///
/// # Errors
/// A key is missing, the vocabulary is not of a supported kind, or it contradicts itself.
pub(super) fn tokenizer_json(file: &Gguf<'_>, pre: Pre, vocab: usize) -> Result<Vec<u8>, GgufError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    const TYPES: &str = "tokenizer.ggml.token_type";
    const MERGES: &str = "tokenizer.ggml.merges";
    let tokens = file.texts(TOKENS)?.ok_or_else(|| GgufError::MissingKey(TOKENS.to_owned()))?;
    let merges = file.texts(MERGES)?.ok_or_else(|| GgufError::MissingKey(MERGES.to_owned()))?;
    let types = file.integers(TYPES)?.unwrap_or_else(|| vec![1; tokens.len()]);
    if tokens.len() > vocab {
        return Err(invalid(TOKENS, format!("at most {vocab} tokens, the model's vocabulary")));
    }
    if types.len() != tokens.len() {
        return Err(invalid(TYPES, format!("{} types, one per token", tokens.len())));
    }
    let ids: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    if ids.len() != tokens.len() {
        return Err(invalid(TOKENS, "distinct tokens".to_owned()));
    }
    let pair = |merge: &&str| {
        let (left, right) = merge.split_once(' ')?;
        let known = [left, right, &format!("{left}{right}")].iter().all(|piece| ids.contains_key(piece));
        known.then(|| json!([left, right]))
    };
    let merges: Vec<Value> = merges
        .iter()
        .map(|merge| pair(merge).ok_or_else(|| invalid(MERGES, format!("pairs of tokens, not {merge:?}"))))
        .collect::<Result<_, _>>()?;
    let added: Vec<Value> = types
        .iter()
        .enumerate()
        .filter(|(_, kind)| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(id, kind)| {
            json!({
                "id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind == CONTROL,
            })
        })
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": pre.json(),
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre == Pre::LlamaBpe,
            "vocab": ids,
            "merges": merges,
        },
    });
    Ok(tokenizer.to_string().into_bytes())
}

fn invalid(key: &str, expected: String) -> GgufError {
    GgufError::Value { key: key.to_owned(), expected }
}
