//! Tokenizer and chat template of the simulated model, as files that any client can read.

use serde_json::{Map, Value, json};

use super::text::{FIRST_RESERVED, SPECIAL};

/// ChatML.
const CHAT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// A Hugging Face `tokenizer.json`: byte-level BPE without merges, so that token `b` is byte `b`.
pub(super) fn tokenizer_json(vocab_size: usize) -> Vec<u8> {
    let bytes: Map<String, Value> =
        byte_alphabet().zip(0u32..).map(|(letter, id)| (letter.to_string(), json!(id))).collect();
    let reserved = (0..vocab_size as u32 - FIRST_RESERVED).map(|n| format!("<|reserved_{n}|>"));
    let special = SPECIAL.iter().map(|name| (*name).to_owned()).chain(reserved);
    let added: Vec<Value> = special
        .zip(256u32..)
        .map(|(content, id)| {
            json!({
                "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": bytes, "merges": [],
        },
    });
    tokenizer.to_string().into_bytes()
}

/// The chat template with its tokens.
pub(super) fn template_json() -> Vec<u8> {
    let template = json!({
        "chat_template": CHAT_TEMPLATE,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "add_bos": false,
    });
    template.to_string().into_bytes()
}

/// GPT-2's letters for the bytes 0 to 255: printable ones stand for themselves, the others for
/// U+0100 and up.
fn byte_alphabet() -> impl Iterator<Item = char> {
    let mut others = '\u{100}'..;
    (0u8..=255).map(move |byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => others.next().unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}
