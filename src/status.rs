//! `armature status`: the fleet as a router sees it.

use armature_contracts::error::Fault;
use armature_contracts::ids::WorkerRank;
use armature_contracts::router::v1::router_service_client::RouterServiceClient;
use armature_contracts::router::v1::{ListWorkersRequest, WorkerView};
use armature_svc_kit::address::Address;
use armature_svc_kit::channel::{ChannelOptions, Channels};
use armature_svc_kit::exit::Failed;
use armature_svc_kit::network::Network;
use armature_svc_kit::secret::Secret;
use tonic::Code;

use crate::cli::StatusArgs;
use crate::table::table;

const HEAD: [&str; 10] =
    ["WORKER", "STATE", "MODEL", "ROLE", "ENGINE", "RUNNING", "WAITING", "KV USED", "KV CACHED", "INDEX"];

pub(crate) async fn run(args: StatusArgs) -> Result<(), Failed> {
    let address: Address =
        args.router.parse().map_err(|error| Failed::configuration(error).during("--router"))?;
    let token = args.token_file.as_deref().map(Secret::from_file).transpose();
    let token = token.map_err(|error| Failed::configuration(error).during("--token-file"))?;
    let options = ChannelOptions { token, ..ChannelOptions::default() };
    let channels = Channels::new(Network::new(), options).map_err(Failed::configuration)?;
    let mut router = armature_svc_kit::limited!(RouterServiceClient::new(channels.to(&address)));
    let answer = router.list_workers(ListWorkersRequest { namespace: args.namespace }).await;
    let answer = answer.map_err(|status| refused(&status, &args.router))?.into_inner();
    print(&text(&answer.workers, &answer.policy));
    Ok(())
}

/// What a refusal means to who asked.
fn refused(status: &tonic::Status, router: &str) -> Failed {
    let failed = Failed::running(Fault::from_status(status));
    match status.code() {
        Code::Unauthenticated => failed.during(format!("{router} asks for the service token (--token-file)")),
        Code::Unavailable => failed.during(format!(
            "no router answers at {router}: is `armature up` running? (--router names another)"
        )),
        _ => failed.during(format!("the router at {router} does not say")),
    }
}

/// The answer is what this command is for: it goes to standard output.
#[allow(clippy::print_stdout)]
fn print(text: &str) {
    print!("{text}");
}

/// The workers as a table, then what the router does with them.
pub(crate) fn text(workers: &[WorkerView], policy: &str) -> String {
    let rows: Vec<Vec<String>> = workers.iter().map(row).collect();
    table(&HEAD, &rows) + &format!("{} workers, policy {policy}\n", workers.len())
}

fn row(worker: &WorkerView) -> Vec<String> {
    let name = worker.worker.map(|rank| WorkerRank::from(rank).to_string()).unwrap_or_default();
    let index = match worker.index_known {
        true => format!("{} of {}", worker.indexed_blocks, worker.reported_blocks),
        false => "unknown".into(),
    };
    vec![
        name,
        worker.status.clone(),
        worker.served_name.clone(),
        worker.roles.join(","),
        worker.engine.clone(),
        worker.running.to_string(),
        worker.waiting.to_string(),
        format!("{}/{}", worker.blocks_active, worker.blocks_total),
        worker.blocks_cached.to_string(),
        index,
    ]
}
