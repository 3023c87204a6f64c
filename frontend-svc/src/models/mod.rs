//! The models that can be named: their cards, tokenizers and templates, fetched by digest and verified.

pub mod card;
pub mod catalogue;
pub mod loader;
pub mod template;
pub mod template_json;
pub mod tokenizer;
