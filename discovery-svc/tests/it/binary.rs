//! The process: its exit codes and its end.

use std::process::{Output, Stdio};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_armature-discovery"));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn output(args: &[&str]) -> Output {
    binary().args(args).output().await.unwrap()
}

#[tokio::test]
async fn a_wrong_configuration_exits_with_64_and_names_the_key() {
    for (args, named) in [
        (&["--set", "lease.tll_seconds=3"][..], "lease.ttl_seconds"),
        (&["--set", "limits.watchers=0"][..], "limits.watchers"),
        (&["--listen", "nowhere"][..], "nowhere"),
        (&["--set", "backend.kind=consul", "--set", "consul.url=consul:8500"][..], "consul.url"),
        (&["--set", "backend.kind=consul", "--set", "consul.prefix=X"][..], "consul.prefix"),
        (&["--set", "backend.kind=file", "--set", "backend.file=/does/not/exist"][..], "/does/not/exist"),
    ] {
        let output = output(args).await;
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {told}");
        assert!(told.contains(named), "{args:?}: {told}");
    }
}

#[tokio::test]
async fn the_printed_configuration_is_read_back() {
    let printed = output(&["--print-config", "--set", "lease.grace_seconds=7"]).await;
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).unwrap();
    let config: armature_discovery::config::Config = armature_svc_kit::config::parse_toml(&text).unwrap();
    assert_eq!(config.lease.grace_seconds, 7);
}

#[tokio::test]
async fn sigterm_ends_it_with_0() {
    let mut child = binary().args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    while !log.next_line().await.unwrap().expect("it listens before it ends").contains("listening") {}
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}
