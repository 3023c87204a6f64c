//! Makes an in-process listener reachable from outside: bytes in, bytes out.

use armature_svc_kit::address::Address;
use armature_svc_kit::network::{BindError, Network};
use tokio::task::{JoinHandle, JoinSet};

/// Listens on `from` and pipes each connection to `to` until the task is aborted. Returns the bound address.
pub(super) async fn forward(
    network: Network,
    from: &Address,
    to: Address,
) -> Result<(Address, JoinHandle<()>), BindError> {
    let mut listener = network.bind(from).await?;
    let bound = listener.address().clone();
    let task = tokio::spawn(async move {
        let mut pipes = JoinSet::new();
        loop {
            let mut outside = listener.accept().await;
            while pipes.try_join_next().is_some() {}
            let (network, to) = (network.clone(), to.clone());
            pipes.spawn(async move {
                if let Ok(mut inside) = network.connect(&to).await {
                    // Either side may end it at any time.
                    let _ = tokio::io::copy_bidirectional(&mut outside, &mut inside).await;
                }
            });
        }
    });
    Ok((bound, task))
}
