//! A Redis server.

use tempfile::TempDir;

use crate::program::{Program, free_port};

/// A real `redis-server` without persistence: killed and started again, it is empty.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    program: Program,
    dir: TempDir,
}

impl Redis {
    /// Starts one with noeviction and no persistence; `args` come after and override (`["--requirepass", "secret"]`).
    ///
    /// # Panics
    /// When it is not there or does not come up.
    pub fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let path = dir.path().to_string_lossy().into_owned();
        let port_text = port.to_string();
        let fixed =
            ["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", &path];
        let all = fixed.iter().chain(args).map(|&arg| arg.to_owned()).collect();
        let mut program = Program::new("redis-server", dir.path(), all, "Ready to accept connections");
        program.start();
        Self { port, program, dir }
    }

    /// On loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its folder, for files that its arguments name.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Starts it again on the same port, empty.
    pub fn restart(&mut self) {
        self.program.kill();
        self.program.start();
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Starts it again after [`Redis::kill`].
    pub fn revive(&mut self) {
        self.program.start();
    }

    /// SIGSTOP: connections stay open and nothing is answered.
    pub fn freeze(&self) {
        self.program.signal("STOP");
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.program.signal("CONT");
    }

    /// While it runs; for its CPU time and memory under /proc.
    pub fn pid(&self) -> Option<u32> {
        self.program.pid()
    }

    /// What it has logged since its last start.
    pub fn log(&self) -> String {
        self.program.log()
    }
}
