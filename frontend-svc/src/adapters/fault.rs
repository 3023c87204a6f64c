//! Reads what a peer answered, or what became of the connection to it.

use std::error::Error;

use armature_contracts::error::{DOMAIN, Fault, Reason};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Whether the status is the connection's, not the peer's: nobody said why.
pub fn is_transport(status: &Status) -> bool {
    let said = status.get_error_details().error_info().is_some_and(|info| info.domain == DOMAIN);
    let codes =
        [Code::Unavailable, Code::Unknown, Code::Internal, Code::Cancelled, Code::Aborted, Code::DataLoss];
    !said && codes.contains(&status.code())
}

/// Whether there was no connection, so that the peer has seen nothing of the call.
pub fn is_unconnected(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The fault of a worker's status; a broken connection is WORKER_LOST, whatever HTTP/2 calls it.
pub fn of_worker(status: &Status) -> Fault {
    if is_transport(status) {
        return Fault::new(
            Reason::WorkerLost,
            format!("the connection to the worker broke: {}", status.message()),
        );
    }
    Fault::from_status(status)
}
