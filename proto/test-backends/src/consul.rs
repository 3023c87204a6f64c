//! A Consul agent.

use tempfile::TempDir;

use crate::program::{Program, free_port};

/// A real `consul agent`: a server that leads itself, or an agent that joins one. It keeps nothing over a restart.
#[derive(Debug)]
pub struct Consul {
    http: u16,
    dns: u16,
    serf: u16,
    program: Program,
    dir: TempDir,
}

impl Consul {
    /// Starts a server of its own; `args` are added (`["-config-file", "..."]`).
    ///
    /// # Panics
    /// When it is not there or does not come up.
    pub fn start(args: &[&str]) -> Self {
        Self::agent(&["-dev"], args)
    }

    /// Starts an agent without server that joins `server`: the second machine of a cluster.
    ///
    /// # Panics
    /// When it is not there or does not come up.
    pub fn join(server: &Self, args: &[&str]) -> Self {
        let join = format!("127.0.0.1:{}", server.serf);
        Self::agent(&["-retry-join", &join, "-retry-interval", "1s"], args)
    }

    fn agent(kind: &[&str], args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let [http, dns, serf, wan, server] = std::array::from_fn(|_| free_port());
        let [http_text, dns_text, serf_text, wan_text, server_text] =
            [http, dns, serf, wan, server].map(|port| port.to_string());
        let node = format!("node-{http}");
        let data = dir.path().join("data").to_string_lossy().into_owned();
        let fixed = [
            "agent",
            "-client",
            "127.0.0.1",
            "-bind",
            "127.0.0.1",
            "-log-level",
            "info",
            "-disable-host-node-id",
            "-grpc-port",
            "-1",
            "-node",
            &node,
            "-data-dir",
            &data,
            "-http-port",
            &http_text,
            "-dns-port",
            &dns_text,
            "-serf-lan-port",
            &serf_text,
            "-serf-wan-port",
            &wan_text,
            "-server-port",
            &server_text,
        ];
        let all = fixed.iter().chain(kind).chain(args).map(|&arg| arg.to_owned()).collect();
        // Said once the agent is in the catalogue of a cluster that has a leader.
        let mut program = Program::new("consul", dir.path(), all, "Synced node info");
        program.start();
        Self { http, dns, serf, program, dir }
    }

    /// Of its HTTP API, on loopback.
    pub fn port(&self) -> u16 {
        self.http
    }

    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// Of its DNS server (UDP and TCP), on loopback.
    pub fn dns_port(&self) -> u16 {
        self.dns
    }

    /// Its folder, for files that its arguments name.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Starts it again on the same ports, empty.
    pub fn restart(&mut self) {
        self.kill();
        self.revive();
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.program.kill();
    }

    /// Starts it again after [`Consul::kill`], empty.
    pub fn revive(&mut self) {
        let _ = std::fs::remove_dir_all(self.dir.path().join("data"));
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
