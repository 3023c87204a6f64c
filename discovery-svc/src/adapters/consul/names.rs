//! What things are called in Consul. Every name begins with the configured prefix.
//!
//! ```text
//! service           <prefix>-<component>
//! its id            <prefix>-<component>-<instance id>, one per agent and instance
//! check of a lease  <id of the service>:lease
//! key               <prefix>/gone/<instance id>                    fence
//!                   <prefix>/leaders/<name, percent-encoded>       leadership
//!                   <prefix>/blobs/<card|artifact>/index/<digest>  size and chunks
//!                   <prefix>/blobs/<card|artifact>/content/<digest>/<chunk>
//! ```

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::blobs::Kind;
use crate::domain::instance::{Component, Digest, InstanceId};

/// Makes names.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// Names that begin with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The service of a component.
    pub fn service(&self, component: Component) -> String {
        format!("{}-{}", self.prefix, component.as_str())
    }

    /// The id of an instance's service at an agent.
    pub fn service_id(&self, component: Component, id: InstanceId) -> String {
        format!("{}-{id}", self.service(component))
    }

    /// The check that an instance's lease is renewed by.
    pub fn lease_check(&self, component: Component, id: InstanceId) -> String {
        lease_check(&self.service_id(component, id))
    }

    /// Where fences are.
    pub fn fences(&self) -> String {
        format!("{}/gone/", self.prefix)
    }

    /// The fence of an id.
    pub fn fence(&self, id: InstanceId) -> String {
        format!("{}{id}", self.fences())
    }

    /// Where leaderships are.
    pub fn leaders(&self) -> String {
        format!("{}/leaders/", self.prefix)
    }

    /// The leadership of a name.
    pub fn leader(&self, name: &str) -> String {
        format!("{}{}", self.leaders(), utf8_percent_encode(name, NON_ALPHANUMERIC))
    }

    /// Where the sizes of blobs are.
    pub fn blob_index(&self, kind: Kind) -> String {
        format!("{}/blobs/{}/index/", self.prefix, kind.as_str())
    }

    /// The size of a blob.
    pub fn blob(&self, kind: Kind, digest: &Digest) -> String {
        format!("{}{digest}", self.blob_index(kind))
    }

    /// Where the chunks of a blob are.
    pub fn chunks(&self, kind: Kind, digest: &Digest) -> String {
        format!("{}/blobs/{}/content/{digest}/", self.prefix, kind.as_str())
    }

    /// One of them.
    pub fn chunk(&self, kind: Kind, digest: &Digest, turn: usize) -> String {
        format!("{}{turn:04}", self.chunks(kind, digest))
    }
}

/// The check of the lease behind a service's id.
pub(super) fn lease_check(service_id: &str) -> String {
    format!("{service_id}:lease")
}
