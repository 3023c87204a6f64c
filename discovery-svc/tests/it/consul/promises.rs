//! What every backend promises.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use armature_discovery::domain::store::Limits;
use armature_discovery::ports::Backend;
use armature_test_backends::Consul;

use super::replica::{Side, config};
use crate::backend::{limits, suite};

#[tokio::test]
async fn consul_keeps_the_promises() {
    let agent = Consul::start(&[]);
    let limits = Limits { ttl: Duration::from_secs(3), tombstone_ttl: Duration::from_secs(6), ..limits() };
    let sides = RefCell::new(Vec::new());
    let fresh = async || {
        let prefix = format!("fleet-{}", sides.borrow().len());
        let side = Side::open(config(&agent.url(), &prefix), limits).await;
        let backend = side.consul.clone() as Arc<dyn Backend>;
        sides.borrow_mut().push(side);
        (backend, Vec::new())
    };
    suite(fresh, limits).await;
}
