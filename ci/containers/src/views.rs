//! What every router of a fleet believes of its workers.

use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::{ListWorkersRequest, WorkerView};
use armature_e2e::wait_until;

use crate::fleet::Fleet;

/// The workers as the router at `address` sees them; nothing when it does not answer.
async fn of(address: &str) -> Option<Vec<WorkerView>> {
    let mut router = RouterServiceClient::connect(format!("http://{address}:7200")).await.ok()?;
    let answer = router.list_workers(ListWorkersRequest { namespace: "default".into() }).await.ok()?;
    let mut workers = answer.into_inner().workers;
    workers.sort_by_key(|view| view.worker.map(|worker| worker.instance_id));
    Some(workers)
}

/// What a worker's entry in a view must agree on between routers.
fn facts(view: &WorkerView) -> (Option<u64>, &str, u64) {
    (view.worker.map(|worker| worker.instance_id), &view.status, view.indexed_blocks)
}

/// Waits until every router sees `workers` of them READY and idle, knows each one's blocks by count and digest, and agrees with the others.
pub async fn agree(fleet: &Fleet, workers: usize) {
    let routers = fleet.containers("router").await;
    let idle = |it: &WorkerView| {
        it.status == "READY" && it.running + it.waiting + it.unsettled_reservations + it.blocks_active == 0
    };
    let known = |it: &WorkerView| it.index_known && it.indexed_blocks == it.reported_blocks;
    wait_until("every router's view is right", async || {
        let mut views = Vec::new();
        for router in &routers {
            let Some(view) = of(&router.ip().await).await else { return false };
            views.push(view);
        }
        views.iter().all(|view| view.len() == workers && view.iter().all(|it| idle(it) && known(it)))
            && views.windows(2).all(|two| two[0].iter().map(facts).eq(two[1].iter().map(facts)))
    })
    .await;
}
