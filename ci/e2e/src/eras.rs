//! The contracts as peers of another time have them: what they would have sent, and what they understand of what they are sent.

use std::sync::Arc;

use armature_contracts::FILE_DESCRIPTOR_SET;
use bytes::Bytes;
use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, ReflectMessage as _, Value,
};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// A number that no field has.
const FROM_THE_FUTURE: u32 = 15_000;

/// The contracts of one time.
#[derive(Debug, Clone)]
pub struct Contracts {
    pool: DescriptorPool,
    added: Option<Arc<str>>,
}

impl Contracts {
    /// Of proto/baseline: what peers may still speak.
    ///
    /// # Panics
    /// When the baseline cannot be read.
    pub fn baseline() -> Self {
        let baseline = include_bytes!("../../../proto/baseline/armature.binpb");
        let pool = DescriptorPool::decode(&baseline[..]).expect("the baseline is a set of descriptors");
        Self { pool, added: None }
    }

    /// Of a time in which every message has one more field, which is sent always.
    ///
    /// # Panics
    /// When the contracts cannot be read.
    pub fn future() -> Self {
        let mut set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("the contracts are descriptors");
        for file in set.file.iter_mut().filter(|file| file.package().starts_with("armature.")) {
            file.message_type.iter_mut().for_each(add_field);
        }
        let pool = DescriptorPool::from_file_descriptor_set(set).expect("one more field is a contract");
        Self { pool, added: Some("what nobody knows yet".into()) }
    }

    /// A method that these contracts have, by `package.Service/Method`.
    pub fn method(&self, name: &str) -> Option<MethodDescriptor> {
        let (service, method) = name.split_once('/')?;
        self.pool.get_service_by_name(service)?.methods().find(|it| it.name() == method)
    }

    /// Every method, as `package.Service/Method`.
    pub fn methods(&self) -> impl Iterator<Item = String> {
        let of =
            |method: MethodDescriptor| format!("{}/{}", method.parent_service().full_name(), method.name());
        self.pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()).map(of)
    }

    /// A message by its full name.
    ///
    /// # Panics
    /// When these contracts have none of that name.
    pub fn message(&self, full_name: &str) -> MessageDescriptor {
        self.pool.get_message_by_name(full_name).expect("a message of these contracts")
    }

    /// What a peer of these contracts would have sent, or understands, where `bytes` are sent: without fields that these do not have, with those
    /// that they have added.
    ///
    /// # Panics
    /// When these are no such message.
    pub fn spoken(&self, message: MessageDescriptor, bytes: &[u8]) -> DynamicMessage {
        let mut message = DynamicMessage::decode(message, bytes).expect("a message of its type");
        each(&mut message, &mut |message| {
            message.take_unknown_fields().for_each(drop);
            if let Some(text) = &self.added
                && let Some(field) = message.descriptor().get_field(FROM_THE_FUTURE)
            {
                message.set_field(&field, Value::String(text.to_string()));
            }
        });
        message
    }

    /// The same, as bytes again.
    pub fn bytes(&self, message: MessageDescriptor, bytes: &[u8]) -> Bytes {
        self.spoken(message, bytes).encode_to_vec().into()
    }
}

fn add_field(message: &mut DescriptorProto) {
    let is_map_entry = message.options.as_ref().is_some_and(|options| options.map_entry());
    if !is_map_entry {
        message.field.push(FieldDescriptorProto {
            name: Some("from_the_future".into()),
            json_name: Some("fromTheFuture".into()),
            number: Some(FROM_THE_FUTURE as i32),
            label: Some(Label::Optional.into()),
            r#type: Some(Type::String.into()),
            ..Default::default()
        });
    }
    message.nested_type.iter_mut().for_each(add_field);
}

/// Calls `visit` with `message` and with every message in it.
pub fn each(message: &mut DynamicMessage, visit: &mut impl FnMut(&mut DynamicMessage)) {
    visit(message);
    for (_, value) in message.fields_mut() {
        match value {
            Value::Message(inner) => each(inner, visit),
            Value::List(items) => {
                items.iter_mut().filter_map(Value::as_message_mut).for_each(|it| each(it, visit))
            }
            Value::Map(entries) => {
                entries.values_mut().filter_map(Value::as_message_mut).for_each(|it| each(it, visit));
            }
            _ => {}
        }
    }
}
