//! The engine's command line.

use std::process::Output;

use tokio::process::Command;

/// Runs a program and returns all that it has said.
///
/// # Panics
/// When it cannot be started.
pub async fn run(program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    command.output().await.unwrap_or_else(|error| panic!("{program} does not start: {error}"))
}

/// Runs a program that must succeed, and returns its standard output without the last line break.
///
/// # Panics
/// When it fails, with what it said.
pub async fn succeed(program: &str, args: &[&str]) -> String {
    let output = run(program, args).await;
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{program} {args:?}: {}\n{said}\n{complained}", output.status);
    said.trim_end().to_owned()
}

/// `docker ...` that must succeed.
///
/// # Panics
/// When it fails, with what it said.
pub async fn docker(args: &[&str]) -> String {
    succeed("docker", args).await
}

/// Bytes that a program has written.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
