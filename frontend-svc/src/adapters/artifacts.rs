//! Cards and artifacts from discovery: the first of its endpoints that answers.

use armature_contracts::discovery::v1::{GetArtifactRequest, GetCardRequest};
use armature_contracts::error::Fault;
use armature_svc_kit::discovery_client::Discovery;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use crate::domain::digest::Digest;
use crate::ports::ArtifactSource;

/// Discovery, as a store of small files.
#[derive(Debug, Clone)]
pub struct DiscoveryArtifacts(pub Discovery);

impl ArtifactSource for DiscoveryArtifacts {
    fn card(&self, digest: &Digest) -> BoxFuture<'static, Result<Bytes, Fault>> {
        let (discovery, digest) = (self.0.clone(), digest.0.clone());
        async move {
            let ask = |mut client: armature_svc_kit::discovery_client::Client| {
                let request = GetCardRequest { digest: digest.clone() };
                async move { client.get_card(request).await }
            };
            let answer = discovery.call(ask).await.map_err(|status| Fault::from_status(&status))?;
            Ok(answer.card)
        }
        .boxed()
    }

    fn artifact(&self, digest: &Digest) -> BoxFuture<'static, Result<Bytes, Fault>> {
        let (discovery, digest) = (self.0.clone(), digest.0.clone());
        async move {
            let ask = |mut client: armature_svc_kit::discovery_client::Client| {
                let request = GetArtifactRequest { digest: digest.clone() };
                async move { client.get_artifact(request).await }
            };
            let answer = discovery.call(ask).await.map_err(|status| Fault::from_status(&status))?;
            Ok(answer.content)
        }
        .boxed()
    }
}
