//! How processes end that cannot do their work: which code, and what the last line says.

use std::io::Write as _;

use armature_e2e::process::{Process, free_port};
use armature_e2e::wait_until;

const SERVICES: [&str; 4] = ["armature-discovery", "armature-router", "armature-frontend", "armature-worker"];

/// The last line of what `binary` said when it ended with `code`.
async fn ends(binary: &str, args: &[&str], code: i32) -> String {
    let (ended, said) = Process::run(binary, args).await;
    assert_eq!(ended, code, "{binary} {args:?}: {said}");
    let last = said.lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with(&format!("{binary}: ")), "the last line is not the reason: {said}");
    last
}

#[tokio::test]
async fn a_wrong_command_line_or_configuration_is_64_everywhere() {
    for binary in SERVICES.into_iter().chain(["armature"]) {
        let (code, said) = Process::run(binary, &["--no-such-flag"]).await;
        assert!(code == 64 && said.contains("--no-such-flag"), "{binary}: {code} {said}");
        assert_eq!(Process::run(binary, &["--version"]).await.0, 0);
    }
    for binary in SERVICES {
        let last = ends(binary, &["--config", "/no/such/file"], 64).await;
        assert_eq!(last.matches("No such file").count(), 1, "a cause is told once: {last}");
        assert!(ends(binary, &["--set", "no_such_key=1"], 64).await.contains("`no_such_key`"));
    }
    for (flags, told) in [
        (["--policy", "none"], "--policy"),
        (["--transports", "pigeon"], "--transports"),
        (["--http", "nonsense"], "--http"),
        (["--decode", "0"], "--decode"),
        (["--model", "/tmp"], "--model goes with"),
    ] {
        let args = ["up", "--engine", "sim", flags[0], flags[1]];
        let free = ["--http", "--grpc", "--router", "--admin"]
            .into_iter()
            .filter(|flag| *flag != flags[0])
            .flat_map(|flag| [flag, "127.0.0.1:0"]);
        let args: Vec<&str> = args.into_iter().chain(free).collect();
        assert!(ends("armature", &args, 64).await.contains(told));
    }
}

#[tokio::test]
async fn a_model_that_is_a_folder_or_is_not_there_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let told = ends("armature", &["up", "--model", path], 64).await;
    assert!(told.contains(path) && told.contains("is a folder"), "{told}");
    let set = format!("model={path}");
    let any = ["--set", "listen=127.0.0.1:0", "--set", "admin=127.0.0.1:0", "--set"];
    let told = ends("armature-worker", &[&any[..], &[&set]].concat(), 64).await;
    assert!(told.contains(path) && told.contains("is a folder"), "{told}");
    let missing = format!("model={path}/none.gguf");
    let told = ends("armature-worker", &[&any[..], &[&missing]].concat(), 64).await;
    assert_eq!(told.matches("none.gguf").count(), 1, "{told}");
    assert!(told.contains("No such file"), "{told}");
}

#[tokio::test]
async fn a_port_in_use_may_be_free_at_the_next_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = ["--set", "admin=127.0.0.1:0", "--set"];
    let listen = format!("listen={taken}");
    assert!(ends("armature-router", &[&free[..], &[&listen]].concat(), 1).await.contains("already in use"));
    let up = ["up", "--engine", "sim", "--grpc", "127.0.0.1:0", "--router", "127.0.0.1:0", "--admin"];
    let told = ends("armature", &[&up[..], &["127.0.0.1:0", "--http", &taken]].concat(), 1).await;
    assert!(told.contains(&taken) && told.contains("already in use"), "{told}");
}

#[tokio::test]
async fn status_shows_the_service_token_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let router = format!("127.0.0.1:{}", free_port());
    let sets = [format!("listen={router}"), "admin=127.0.0.1:0".into(), "token=\"open sesame\"".into()];
    let args: Vec<String> = sets.into_iter().flat_map(|set| ["--set".into(), set]).collect();
    let mut process = Process::start(folder.path(), "router", "armature-router", &args);
    wait_until("the router listens", async || {
        assert!(process.runs(), "it has ended");
        process.log().contains("router listens")
    })
    .await;
    let told = ends("armature", &["status", "--router", &router], 1).await;
    assert!(told.contains("--token-file"), "{told}");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "open sesame").unwrap();
    let token = file.path().to_str().unwrap();
    let (code, said) =
        Process::run("armature", &["status", "--router", &router, "--token-file", token]).await;
    assert_eq!(code, 0, "{said}");
    let told = ends("armature", &["status", "--router", &router, "--token-file", "/no/such/file"], 64).await;
    assert!(told.contains("--token-file") && told.contains("/no/such/file"), "{told}");
}
