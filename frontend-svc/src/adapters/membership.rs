//! The view of discovery in our words.

use std::sync::Arc;

use armature_svc_kit::discovery_client as kit;
use tokio::sync::watch;

use crate::domain::digest::Digest;
use crate::domain::member::{Kind, Member, Members, Status};

/// Keeps `members` what `views` says, until either ends.
pub async fn follow(mut views: watch::Receiver<Arc<kit::View>>, members: watch::Sender<Arc<Members>>) {
    loop {
        let view = views.borrow_and_update().clone();
        let now: Members = view.instances.values().map(|it| (it.id, member(it))).collect();
        members.send_if_modified(|shown| {
            let differs = **shown != now;
            if differs {
                *shown = Arc::new(now);
            }
            differs
        });
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = members.closed() => return,
        }
    }
}

fn member(instance: &kit::Instance) -> Member {
    Member {
        id: instance.id,
        kind: match instance.component {
            kit::Component::Worker => Kind::Worker,
            kit::Component::Router => Kind::Router,
            _ => Kind::Other,
        },
        status: match instance.status {
            kit::Status::Ready => Status::Ready,
            kit::Status::Suspect => Status::Suspect,
            kit::Status::Draining => Status::Draining,
            kit::Status::Starting | kit::Status::Unspecified => Status::Starting,
        },
        address: instance.addresses.get("grpc").cloned().unwrap_or_default(),
        http: instance.addresses.get("http").cloned(),
        card: instance.card.map(|it| Digest::from(bytes::Bytes::copy_from_slice(&it.0))).unwrap_or_default(),
    }
}
