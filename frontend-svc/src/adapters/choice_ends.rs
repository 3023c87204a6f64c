//! Choices that nobody wants any more while others of their leg go on, told to the workers behind the requests' backs. Best effort: a
//! choice that is not told of ends with its leg.

use std::time::Duration;

use armature_contracts::ids::ReservationKey;
use armature_contracts::worker::v1::EndChoicesRequest;
use armature_contracts::worker::v1::worker_service_client::WorkerServiceClient;
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::Channels;
use armature_svc_kit::limited;
use futures_util::StreamExt as _;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

/// Choices that may wait; more are dropped and counted.
const WAITING: usize = 1024;
/// Workers told at a time, so that one that hangs does not hold up the others.
const AT_ONCE: usize = 16;
/// A worker that does not answer within it is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct ChoiceEnd {
    worker: String,
    leg: ReservationKey,
    choice: u32,
}

/// Takes ends without waiting.
#[derive(Debug, Clone)]
pub struct ChoiceEnds {
    queue: mpsc::Sender<ChoiceEnd>,
    dropped: Counter,
}

/// Sends them.
#[derive(Debug)]
pub struct ChoiceEndSender {
    queue: mpsc::Receiver<ChoiceEnd>,
    channels: Channels,
}

/// Both ends.
pub fn choice_ends(channels: Channels, dropped: Counter) -> (ChoiceEnds, ChoiceEndSender) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (ChoiceEnds { queue: sender, dropped }, ChoiceEndSender { queue: receiver, channels })
}

impl ChoiceEnds {
    /// The worker at address `worker` need not go on with `choice` of `leg`.
    pub fn push(&self, worker: &str, leg: ReservationKey, choice: u32) {
        if self.queue.try_send(ChoiceEnd { worker: worker.to_owned(), leg, choice }).is_err() {
            self.dropped.inc();
        }
    }
}

impl ChoiceEndSender {
    /// Sends until every [`ChoiceEnds`] is gone.
    pub async fn run(self) {
        let Self { queue, channels } = self;
        let ends = ReceiverStream::new(queue);
        ends.for_each_concurrent(AT_ONCE, |end| send(&channels, end)).await;
    }
}

async fn send(channels: &Channels, ChoiceEnd { worker, leg, choice }: ChoiceEnd) {
    let Ok(address) = worker.parse::<Address>() else { return };
    let mut client = limited!(WorkerServiceClient::new(channels.to(&address)));
    let request = EndChoicesRequest { reservation: Some(leg.into()), choices: vec![choice] };
    match timeout(PATIENCE, client.end_choices(request)).await {
        Ok(Ok(_)) => {}
        // A worker of an older version does not know the call.
        Ok(Err(status)) => tracing::debug!(worker, %status, "a choice was not ended"),
        Err(_) => tracing::debug!(worker, "ending a choice timed out"),
    }
}
