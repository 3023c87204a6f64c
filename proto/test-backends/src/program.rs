//! A child process that a test may stop, freeze, kill and start again on the same port.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port that was free a moment ago, from below the range that the system hands out by itself: what binds port 0
/// meanwhile does not take it.
pub fn free_port() -> u16 {
    loop {
        let port = rand::random_range(10_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// One program with fixed arguments, running or not.
#[derive(Debug)]
pub(crate) struct Program {
    name: &'static str,
    args: Vec<String>,
    ready: &'static str,
    log: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// Not started yet; it is up once its log contains `ready`.
    pub(crate) fn new(name: &'static str, dir: &Path, args: Vec<String>, ready: &'static str) -> Self {
        Self { name, args, ready, log: dir.join(format!("{name}.log")), child: None }
    }

    /// Starts it, unless it runs, and waits until it is up.
    ///
    /// # Panics
    /// When it is not there, ends, or is not up within a minute.
    pub(crate) fn start(&mut self) {
        if self.child.is_some() {
            return;
        }
        let path = match std::env::var_os("ARMATURE_BACKENDS") {
            Some(folder) => PathBuf::from(folder).join(self.name),
            None => PathBuf::from(self.name),
        };
        let log = File::create(&self.log).expect("a log file");
        let child = Command::new(&path)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{} does not start ({error}): ARMATURE_BACKENDS=$(ci/setup.sh backends)",
                    path.display()
                )
            });
        let child = self.child.insert(child);
        let start = Instant::now();
        while !fs::read_to_string(&self.log).unwrap_or_default().contains(self.ready) {
            let ended = child.try_wait().expect("a child can be waited for");
            assert!(ended.is_none(), "{} ended at once: {}", self.name, self.log());
            assert!(start.elapsed() < PATIENCE, "{} is not up: {}", self.name, self.log());
            // Between two looks at a state, in a helper that is not async.
            #[allow(clippy::disallowed_methods)]
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGTERM, SIGSTOP, SIGCONT... by name, while it runs.
    pub(crate) fn signal(&self, signal: &str) {
        if let Some(child) = &self.child {
            let status = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
            assert!(status.expect("kill runs").success(), "no {signal} to {}", self.name);
        }
    }

    /// kill -9, also when it is frozen.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What it has logged since its last start.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its pid while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            eprintln!("---- {}, last lines", self.name);
            for line in tail.iter().rev() {
                eprintln!("{line}");
            }
        }
    }
}
