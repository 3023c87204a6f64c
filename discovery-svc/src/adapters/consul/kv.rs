//! Keys and values, written by compare-and-set where more than one replica may write.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::client::{Ask, CallError, Client};

/// What a key keeps in a path.
const KEY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.');

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// In full.
    pub key: String,
    /// As it was written.
    pub value: Bytes,
    /// Of its last change; what compare-and-set compares.
    pub index: u64,
    /// Who has locked it.
    pub session: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Wire {
    key: String,
    value: Option<String>,
    modify_index: u64,
    session: Option<String>,
}

/// A path for a key.
pub fn path(key: &str) -> String {
    format!("/v1/kv/{}", utf8_percent_encode(key, KEY))
}

/// Reads what a recursive or a single read answers; what is no such answer is no pair.
pub fn pairs(body: &[u8]) -> Vec<Pair> {
    let wire: Vec<Wire> = serde_json::from_slice(body).unwrap_or_default();
    let pair = |wire: Wire| {
        let value = BASE64_STANDARD.decode(wire.value.unwrap_or_default()).ok()?;
        Some(Pair { key: wire.key, value: value.into(), index: wire.modify_index, session: wire.session })
    };
    wire.into_iter().filter_map(pair).collect()
}

/// All below a prefix.
pub async fn list(client: &Client, prefix: &str) -> Result<Vec<Pair>, CallError> {
    let answer = client.ask(Ask::get("kv_list", path(prefix)).with("recurse", true)).await?;
    Ok(if answer.found { pairs(&answer.body) } else { Vec::new() })
}

/// One.
pub async fn get(client: &Client, key: &str) -> Result<Option<Pair>, CallError> {
    let answer = client.ask(Ask::get("kv_get", path(key))).await?;
    Ok(if answer.found { pairs(&answer.body).pop() } else { None })
}

/// Writes, if the key has not changed since `index` (0: if there is none); whether it did.
pub async fn put(client: &Client, key: &str, value: Bytes, index: u64) -> Result<bool, CallError> {
    let answer = client.ask(Ask::put("kv_put", path(key), value).with("cas", index)).await?;
    Ok(answer.body.as_ref().trim_ascii() == b"true")
}

/// Writes, whatever is there.
pub async fn set(client: &Client, key: &str, value: Bytes) -> Result<(), CallError> {
    client.ask(Ask::put("kv_put", path(key), value)).await.map(|_| ())
}

/// Deletes, if the key has not changed since `index`; whether it did.
pub async fn delete(client: &Client, key: &str, index: u64) -> Result<bool, CallError> {
    let answer = client.ask(Ask::delete("kv_delete", path(key)).with("cas", index)).await?;
    Ok(answer.body.as_ref().trim_ascii() == b"true")
}

/// Deletes all below a prefix.
pub async fn delete_all(client: &Client, prefix: &str) -> Result<(), CallError> {
    client.ask(Ask::delete("kv_delete", path(prefix)).with("recurse", true)).await.map(|_| ())
}
