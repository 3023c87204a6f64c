//! The bytes of fully populated messages, frozen: a field that changes its number, type or packing breaks peers that are not
//! rebuilt, and breaks this. `ARMATURE_BOOTSTRAP=write cargo test -p armature-contracts --test golden` adds messages to
//! vectors.txt; lines that are there are never rewritten, for released peers speak them: a message with a new field gets another name
//! behind its #.
#![allow(clippy::unwrap_used)]

mod discovery;
mod inference;
mod kv;
mod router;
mod worker;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use armature_contracts::inference::v1::{GenerateRequest, TokenIds, generate_request::Input};
use armature_contracts::kv::v1::{BlockHashes, Tier, TierBlocks, WorkerRank};
use armature_contracts::{FILE_DESCRIPTOR_SET, MAX_MESSAGE_BYTES, worker::v1 as worker_v1};
use prost::Message;
use prost_types::Duration;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _, Value};

/// A message, its full name and what its bytes decode to, encoded again.
struct Golden {
    name: String,
    bytes: Vec<u8>,
    /// Decodes to the message that it was made of.
    decodes_to_itself: fn(&[u8], &[u8]) -> bool,
}

/// `name` is the full name of the message; what follows a # tells messages of one type apart.
fn golden<M: Message + PartialEq + Default + 'static>(name: &str, message: M) -> Golden {
    let decodes_to_itself = |frozen: &[u8], fresh: &[u8]| {
        let decoded = M::decode(frozen).unwrap();
        decoded == M::decode(fresh).unwrap() && decoded.encode_to_vec() == frozen
    };
    Golden { name: name.to_owned(), bytes: message.encode_to_vec(), decodes_to_itself }
}

fn messages() -> Vec<Golden> {
    [kv::all(), inference::all(), discovery::all(), router::all(), worker::all()]
        .into_iter()
        .flatten()
        .collect()
}

fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 250_000_000 })
}

fn digest(byte: u8) -> bytes::Bytes {
    vec![byte; 32].into()
}

fn one<V>(key: &str, value: V) -> HashMap<String, V> {
    HashMap::from([(key.to_owned(), value)])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn messages_have_the_bytes_they_always_had() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/vectors.txt");
    let mut vectors = fs::read_to_string(&path).unwrap_or_default();
    let add = std::env::var_os("ARMATURE_BOOTSTRAP").is_some_and(|value| value == "write");
    for golden in messages() {
        let frozen = vectors.lines().find_map(|line| line.strip_prefix(&golden.name)?.strip_prefix(' '));
        match frozen {
            Some(frozen) => {
                assert_eq!(hex(&golden.bytes), frozen, "{} has other bytes than it had", golden.name);
                assert!((golden.decodes_to_itself)(&unhex(frozen), &golden.bytes), "{}", golden.name);
            }
            None if add => writeln!(vectors, "{} {}", golden.name, hex(&golden.bytes)).unwrap(),
            None => panic!("{} is not in vectors.txt: see the head of this test", golden.name),
        }
    }
    if add {
        fs::write(&path, vectors).unwrap();
    }
}

/// Also those of messages that have more fields now: what was frozen before is what older peers send.
#[test]
fn frozen_bytes_of_any_age_are_read_and_written_as_they_were() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    for line in include_str!("vectors.txt").lines() {
        let (name, frozen) = line.split_once(' ').unwrap();
        let descriptor = pool.get_message_by_name(name.split('#').next().unwrap()).unwrap();
        let message = DynamicMessage::decode(descriptor, &unhex(frozen)[..]).unwrap();
        assert!(message.unknown_fields().next().is_none(), "{name} lost a field");
        assert_eq!(hex(&message.encode_to_vec()), frozen, "{name}");
    }
}

/// Every field of `message` and of what it holds is set; of a oneof, one.
fn unset_fields(message: &DynamicMessage, path: &str, unset: &mut Vec<String>) {
    for field in message.descriptor().fields() {
        let name = format!("{path}.{}", field.name());
        if !message.has_field(&field) {
            let in_a_choice = field.containing_oneof().is_some_and(|oneof| oneof.fields().len() > 1);
            if !in_a_choice {
                unset.push(name);
            }
            continue;
        }
        match message.get_field(&field).as_ref() {
            Value::Message(inner) => unset_fields(inner, &name, unset),
            Value::List(items) => {
                items.iter().filter_map(Value::as_message).for_each(|inner| unset_fields(inner, &name, unset))
            }
            Value::Map(entries) => assert_eq!(entries.len(), 1, "{name}: the order of more has no bound"),
            _ => {}
        }
    }
}

#[test]
fn golden_messages_leave_no_field_out() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut unset = Vec::new();
    for golden in messages() {
        let full_name = golden.name.split('#').next().unwrap();
        let descriptor = pool.get_message_by_name(full_name).unwrap();
        let message = DynamicMessage::decode(descriptor, &golden.bytes[..]).unwrap();
        unset_fields(&message, &golden.name, &mut unset);
    }
    assert!(unset.is_empty(), "not set: {unset:#?}");
}

/// What a newer peer added is skipped, and lost on the way through: prost keeps no unknown fields. It matters where a service
/// passes on what it decoded: a new field of `Instance` reaches nobody before discovery knows it (cards pass as bytes).
#[test]
fn unknown_fields_are_skipped_and_not_kept() {
    let known = WorkerRank { instance_id: 7, dp_rank: 1 };
    let mut bytes = known.encode_to_vec();
    // Field 1000, a varint; field 1001, two bytes.
    bytes.extend([0xc0, 0x3e, 0x05, 0xca, 0x3e, 0x02, 0xaa, 0xbb]);
    let decoded = WorkerRank::decode(&bytes[..]).unwrap();
    assert_eq!(decoded, known);
    assert_eq!(decoded.encode_to_vec(), known.encode_to_vec());
}

#[test]
fn unknown_enum_values_read_as_unspecified() {
    let blocks = TierBlocks { tier: 99, sequence_hashes: vec![1] };
    let decoded = TierBlocks::decode(&blocks.encode_to_vec()[..]).unwrap();
    assert_eq!(decoded.tier(), Tier::Unspecified);
}

/// Packed fixed64: a tag, a length, 8 bytes a hash, whatever their values.
#[test]
fn block_hashes_take_eight_bytes_each() {
    for hashes in [vec![0; 3125], (0..3125).map(|i: u64| u64::MAX - i).collect()] {
        let blocks =
            BlockHashes { hash_scheme: "armature-xxh3-v1".into(), block_size: 64, sequence_hashes: hashes };
        let scheme = 2 + 16;
        let block_size = 2;
        let tag_and_length = 1 + 3;
        assert_eq!(blocks.encoded_len(), scheme + block_size + tag_and_length + 3125 * 8);
    }
}

#[test]
fn a_prompt_of_200_000_tokens_fits_far_below_the_largest_message() {
    // Token ids of up to 21 bits, the largest vocabularies there are, take 3 bytes; any id takes at most 5.
    let prompt = |id: u32| (0..200_000).map(|i| id - i % 1000).collect::<Vec<u32>>();
    let worker_request =
        |id| worker_v1::GenerateRequest { prompt_token_ids: prompt(id), ..worker::worker_generate() };
    let client_request = |id| GenerateRequest {
        input: Some(Input::TokenIds(TokenIds { token_ids: prompt(id) })),
        ..inference::generate()
    };
    for id in [262_143, u32::MAX] {
        for length in [worker_request(id).encoded_len(), client_request(id).encoded_len()] {
            assert!(length < MAX_MESSAGE_BYTES / 32, "{length} bytes");
        }
    }
}
