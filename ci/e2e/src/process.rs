//! A child process: its log in a file, shown on failure; killed on drop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

pub use armature_test_backends::free_port;

/// A running binary of this build.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// Folder of the binaries of this build.
pub fn binaries() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.parent().and_then(Path::parent).expect("target/debug/deps/test").to_owned()
}

impl Process {
    /// Starts `binary` with `args`; its output goes to `<dir>/<name>.log`.
    ///
    /// # Panics
    /// When the binary is not there.
    pub fn start(dir: &Path, name: &str, binary: &str, args: &[String]) -> Self {
        let path = binaries().join(binary);
        assert!(path.exists(), "{} is not built: cargo build --workspace --bins", path.display());
        let log = dir.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).expect("a log file");
        let child = Command::new(path)
            .args(args)
            .env("RUST_LOG", "info")
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("the binary starts");
        Self { name: name.into(), child, log }
    }

    /// Runs `binary` with `args` to its end: exit code, standard error.
    ///
    /// # Panics
    /// When it is not there, or a signal ends it.
    pub async fn run(binary: &str, args: &[&str]) -> (i32, String) {
        let mut command = tokio::process::Command::new(binaries().join(binary));
        let ended =
            command.args(args).env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true).output();
        let ended = tokio::time::timeout(crate::PATIENCE, ended).await.expect("it ends").expect("it starts");
        (ended.status.code().expect("an exit code"), String::from_utf8_lossy(&ended.stderr).into_owned())
    }

    /// Its name in this test.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, SIGSTOP, ... by name.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success(), "no {signal} to {}", self.name);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end within a minute.
    pub async fn ended(&mut self) -> ExitStatus {
        for _ in 0..6000 {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} does not end", self.name);
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("---- {} ({}), last lines", self.name, self.log.display());
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}
