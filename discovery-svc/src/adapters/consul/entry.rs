//! An instance as a service of Consul: what its users see, and the record that other replicas read.
//!
//! The record is JSON in the service's `Meta`, in pieces, because a value there has at most 512 bytes and there are at most 64 of them.
//! Beside it stands what people look for: namespace, status, epoch, card; and as tags `namespace-...`, `model-...`, `role-...`.

use std::collections::BTreeMap;
use std::time::Duration;

use armature_svc_kit::address::Address;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::names::{Names, lease_check};
use crate::domain::instance::{
    BlockSize, CardFacts, Component, Instance, InstanceId, KvIdentity, LeaseEpoch, Namespace, ReplicaId,
    Status,
};
use crate::domain::store::elsewhere::{Entry, Own};

/// Longest value in a service's `Meta`.
const PIECE_BYTES: usize = 512;
/// Values that a record may take; the others are for people.
const PIECES: usize = 56;
/// Largest record.
pub const MAX_RECORD_BYTES: usize = (PIECE_BYTES - 4) * PIECES;
/// Consul itself forgets dead machines after this long.
const FORGOTTEN_AFTER: &str = "72h";

/// What one replica tells the others.
#[derive(Serialize, Deserialize)]
struct Record {
    id: String,
    namespace: String,
    component: String,
    addresses: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    card: Option<Facts>,
    status: String,
    epoch: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    boot_id: String,
    holder: String,
}

#[derive(Serialize, Deserialize)]
struct Facts {
    digest: String,
    kv_identity: String,
    block_size: u32,
    artifacts: Vec<String>,
    tags: Vec<String>,
}

/// The record of an instance.
pub fn record(own: &Own) -> String {
    let it = &*own.instance;
    let card = own.facts.as_ref().map(|facts| Facts {
        digest: facts.digest.to_string(),
        kv_identity: facts.kv_identity.0.iter().map(|byte| format!("{byte:02x}")).collect(),
        block_size: facts.block_size.0,
        artifacts: facts.artifacts.iter().map(ToString::to_string).collect(),
        tags: facts.tags.clone(),
    });
    let record = Record {
        id: it.id.to_string(),
        namespace: it.namespace.0.clone(),
        component: it.component.as_str().to_owned(),
        addresses: it.addresses.clone(),
        card,
        status: it.status.as_str().to_owned(),
        epoch: it.epoch.0,
        labels: it.labels.clone(),
        boot_id: it.boot_id.clone(),
        holder: format!("{:016x}", own.holder.0),
    };
    serde_json::to_string(&record).unwrap_or_default()
}

/// The instance of a record, unleased; none when it is no record.
fn parse(record: &str) -> Option<Entry> {
    let record: Record = serde_json::from_str(record).ok()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let component = Component::ALL.into_iter().find(|it| it.as_str() == record.component)?;
    let status = Status::ALL.into_iter().find(|it| it.as_str() == record.status)?;
    let facts = match record.card {
        None => None,
        Some(card) => Some(CardFacts {
            digest: card.digest.parse().ok()?,
            kv_identity: KvIdentity(bytes(&card.kv_identity)?),
            block_size: BlockSize(card.block_size),
            artifacts: card.artifacts.iter().map(|it| it.parse().ok()).collect::<Option<_>>()?,
            tags: card.tags,
        }),
    };
    let instance = Instance {
        id: InstanceId(hex(&record.id)?),
        namespace: Namespace(record.namespace),
        component,
        addresses: record.addresses,
        card: facts.as_ref().map(|facts| facts.digest),
        status,
        epoch: LeaseEpoch(record.epoch),
        labels: record.labels,
        boot_id: record.boot_id,
    };
    Some(Entry { instance, facts, holder: ReplicaId(hex(&record.holder)?), leased: false })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let pairs = (0..hex.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()).collect()
}

/// What is asked of the agent to register an instance, with the check that its lease is renewed by.
pub fn registration(names: &Names, own: &Own, record: &str, ttl: Duration) -> Vec<u8> {
    let it = &*own.instance;
    let service_id = names.service_id(it.component, it.id);
    let mut tags = vec![label("namespace", &it.namespace.0)];
    let of_card = own.facts.iter().flat_map(|facts| &facts.tags).filter_map(|tag| tag.split_once('-'));
    tags.extend(of_card.map(|(kind, name)| label(kind, name)));
    let mut meta: BTreeMap<String, String> = BTreeMap::from([
        ("instance-id".to_owned(), it.id.to_string()),
        ("lease-epoch".to_owned(), it.epoch.0.to_string()),
        ("status".to_owned(), it.status.as_str().to_owned()),
        ("namespace".to_owned(), it.namespace.0.clone()),
    ]);
    meta.extend(it.card.map(|card| ("card".to_owned(), card.to_string())));
    meta.extend(
        pieces(record).enumerate().map(|(turn, piece)| (format!("record-{turn:02}"), piece.to_owned())),
    );
    let mut service = json!({
        "ID": service_id,
        "Name": names.service(it.component),
        "Tags": tags,
        "Meta": meta,
        "Check": {
            "CheckID": lease_check(&service_id),
            "Name": "lease, renewed by discovery",
            "TTL": format!("{}ms", ttl.as_millis()),
            "Status": if own.leased { "passing" } else { "critical" },
            "DeregisterCriticalServiceAfter": FORGOTTEN_AFTER,
        },
    });
    if let Some(Ok(Address::Tcp { host, port })) = it.addresses.get("grpc").map(|address| address.parse()) {
        service["Address"] = host.into();
        service["Port"] = port.into();
    }
    service.to_string().into_bytes()
}

/// `kind-name` as DNS can ask for it.
fn label(kind: &str, name: &str) -> String {
    let letter = |it: char| if it.is_ascii_alphanumeric() { it.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(letter).take(48).collect();
    format!("{kind}-{}", name.trim_matches('-'))
}

fn pieces(record: &str) -> impl Iterator<Item = &str> {
    let mut rest = record;
    std::iter::from_fn(move || {
        let (piece, left) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HealthWire {
    service: ServiceWire,
    checks: Vec<CheckWire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ServiceWire {
    #[serde(rename = "ID")]
    id: String,
    meta: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CheckWire {
    #[serde(rename = "CheckID")]
    check_id: String,
    #[serde(rename = "ServiceID", default)]
    service_id: String,
    status: String,
}

fn written(service: &ServiceWire) -> Option<(String, Entry)> {
    let meta = service.meta.as_ref()?;
    let record: String =
        meta.range("record-".to_owned().."record.".to_owned()).map(|(_, piece)| piece.as_str()).collect();
    let entry = parse(&record)?;
    Some((record, entry))
}

/// The entries of a service as Consul's health endpoint shows them, and how many could not be read. A lease counts while its own check and
/// its machine pass: maintenance, which says that an instance is not READY, does not end it.
pub fn of_health(body: &[u8]) -> (Vec<Entry>, usize) {
    let wire: Vec<HealthWire> = serde_json::from_slice(body).unwrap_or_default();
    let mut foreign = 0;
    let mut entries = Vec::with_capacity(wire.len());
    for HealthWire { service, checks } in wire {
        let Some((_, entry)) = written(&service) else {
            foreign += 1;
            continue;
        };
        let lease = lease_check(&service.id);
        let passing = |check: &CheckWire| check.status == "passing";
        let renewed =
            checks.iter().any(|it| it.check_id == lease && it.service_id == service.id && passing(it));
        let machine = checks.iter().all(|it| it.check_id != "serfHealth" || passing(it));
        entries.push(Entry { leased: renewed && machine, ..entry });
    }
    (entries, foreign)
}

/// The records that an agent has, whoever wrote them there.
pub fn of_agent(body: &[u8]) -> Vec<(String, Entry)> {
    let wire: BTreeMap<String, ServiceWire> = serde_json::from_slice(body).unwrap_or_default();
    wire.values().filter_map(written).collect()
}
