//! GET /v1/models.

use armature_contracts::error::{Fault, Reason};
use serde_json::{Value, json};

use crate::models::catalogue::{Catalogue, ServedSet};

/// Every name that can be used now.
pub fn list(catalogue: &Catalogue, created: i64) -> Value {
    let data: Vec<Value> = catalogue.names().map(|(name, set)| model(name, set, created)).collect();
    json!({"object": "list", "data": data})
}

/// One of them.
pub fn one(catalogue: &Catalogue, name: &str, created: i64) -> Result<Value, Fault> {
    let found = catalogue.names().find(|(known, _)| *known == name);
    found.map(|(name, set)| model(name, set, created)).ok_or_else(|| {
        Fault::new(Reason::ModelNotFound, format!("the model `{name}` does not exist"))
            .resource("model", name)
    })
}

fn model(name: &str, set: &ServedSet, created: i64) -> Value {
    json!({"id": name, "object": "model", "created": created, "owned_by": "armature", "root": set.name,
        "max_model_len": set.context_length})
}
