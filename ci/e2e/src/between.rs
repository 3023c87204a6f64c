//! Stands between every two services: whatever one says, the other hears as a peer of another time would have said it.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt;
use prost::Message;
use prost_reflect::{DynamicMessage, MapKey, ReflectMessage as _, Value};
use tonic::{Extensions, Request, Response, Status, Streaming};

use crate::eras::{Contracts, each};
use crate::wire::{Answers, Double, Peer, Served};

const INSTANCE: &str = "armature.discovery.v1.Instance";

/// Doors to services. Whoever finds a service in what discovery says finds its door instead.
#[derive(Debug, Clone)]
pub struct Between {
    contracts: Contracts,
    /// By the address behind them.
    doors: Arc<Mutex<HashMap<String, Served>>>,
}

impl Between {
    /// Doors through which peers of `contracts` speak.
    pub fn new(contracts: Contracts) -> Self {
        Self { contracts, doors: Arc::default() }
    }

    /// The door to `address`.
    pub fn door(&self, address: &str) -> String {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let open = || Served::start(Door { between: self.clone(), peer: Peer::at(address) });
        doors.entry(address.to_owned()).or_insert_with(open).address.clone()
    }

    /// Puts doors in the place of the addresses of instances.
    fn hide(&self, message: &mut DynamicMessage) {
        each(message, &mut |message| {
            if message.descriptor().full_name() == INSTANCE
                && let Some(Value::Map(addresses)) = message.get_field_by_name_mut("addresses")
                && let Some(Value::String(address)) = addresses.get_mut(&MapKey::String("grpc".into()))
            {
                *address = self.door(address);
            }
        });
    }
}

#[derive(Clone)]
struct Door {
    between: Between,
    peer: Peer,
}

impl Double for Door {
    async fn answer(
        &self,
        method: String,
        requests: Request<Streaming<Bytes>>,
    ) -> Result<Response<Answers>, Status> {
        let between = self.between.clone();
        let types = between.contracts.method(&method);
        let (metadata, _, requests) = requests.into_parts();
        let said = {
            let (contracts, types) = (between.contracts.clone(), types.clone());
            requests.filter_map(|it| ready(it.ok())).map(move |message| match &types {
                Some(method) => contracts.bytes(method.input(), &message),
                None => message,
            })
        };
        let request = Request::from_parts(metadata, Extensions::default(), said);
        let (metadata, answers, _) = self.peer.call(&method, request).await?.into_parts();
        let heard = answers.map(move |message| {
            let message = message?;
            // Health and reflection are not ours.
            let Some(method) = &types else { return Ok(message) };
            let mut message = between.contracts.spoken(method.output(), &message);
            between.hide(&mut message);
            Ok(message.encode_to_vec().into())
        });
        Ok(Response::from_parts(metadata, Box::pin(heard), Extensions::default()))
    }
}
