//! One container of a fleet, and what can be done to it.

use armature_e2e::wait_until;

use crate::docker::{docker, run, succeed, text};

/// A container by its id; the id stays when it is stopped and started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// As the engine knows it.
    pub id: String,
}

/// A container cut off from others, until it is healed.
#[derive(Debug)]
#[must_use = "a cut lasts until it is healed"]
pub struct Cut {
    pid: String,
    rules: Vec<Vec<String>>,
}

impl Container {
    /// A field of `docker inspect`, by a template.
    pub async fn inspect(&self, format: &str) -> String {
        docker(&["inspect", "--format", format, &self.id]).await
    }

    /// Its name, for messages.
    pub async fn name(&self) -> String {
        self.inspect("{{.Name}}").await.trim_start_matches('/').to_owned()
    }

    /// Its address on the fleet's network: a Linux host reaches it there.
    pub async fn ip(&self) -> String {
        self.inspect("{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}").await
    }

    /// When it was started, and how often the engine started it again: changes when it restarts.
    pub async fn incarnation(&self) -> String {
        self.inspect("{{.State.StartedAt}} {{.RestartCount}}").await
    }

    /// Exit code of its last run.
    pub async fn exit_code(&self) -> i32 {
        self.inspect("{{.State.ExitCode}}").await.parse().expect("a number")
    }

    /// Whether it runs and its health check agrees.
    pub async fn is_healthy(&self) -> bool {
        self.inspect("{{.State.Running}} {{.State.Health.Status}}").await == "true healthy"
    }

    /// Waits for that.
    pub async fn healthy(&self) {
        wait_until("a container is healthy", async || self.is_healthy().await).await;
    }

    /// Everything that it has logged.
    pub async fn logs(&self) -> String {
        let output = run("docker", &["logs", &self.id]).await;
        text(&output.stdout) + &text(&output.stderr)
    }

    /// kill -9, by hand: the engine does not start it again.
    pub async fn kill(&self) {
        docker(&["kill", &self.id]).await;
    }

    /// kill -9 of its process, as a crash: its restart policy applies.
    pub async fn crash(&self) {
        let pid = self.pid().await;
        privileged(&["kill", "-9", &pid]).await;
    }

    /// SIGTERM, and what its drain takes.
    pub async fn stop(&self) {
        docker(&["stop", "--time", "60", &self.id]).await;
    }

    /// Starts it again.
    pub async fn start(&self) {
        docker(&["start", &self.id]).await;
    }

    async fn pid(&self) -> String {
        self.inspect("{{.State.Pid}}").await
    }

    /// Drops every packet from and to it, or only those of `peers`; connections stay open and nothing comes.
    pub async fn cut_off(&self, peers: &[String]) -> Cut {
        let rule =
            |chain: &str, flag: &str, who: &str| [chain, flag, who, "-j", "DROP"].map(str::to_owned).to_vec();
        let mut rules = Vec::new();
        if peers.is_empty() {
            rules.extend([rule("INPUT", "-i", "eth0"), rule("OUTPUT", "-o", "eth0")]);
        }
        for peer in peers {
            rules.extend([rule("INPUT", "-s", peer), rule("OUTPUT", "-d", peer)]);
        }
        let cut = Cut { pid: self.pid().await, rules };
        cut.apply("-I").await;
        cut
    }
}

impl Cut {
    /// Lets packets through again.
    pub async fn heal(self) {
        self.apply("-D").await;
    }

    async fn apply(&self, action: &str) {
        for rule in &self.rules {
            let mut args = vec!["nsenter", "--target", &self.pid, "--net", "iptables", action];
            args.extend(rule.iter().map(String::as_str));
            privileged(&args).await;
        }
    }
}

/// Runs a command as root: what is done to a network or a process of a container needs it.
async fn privileged(args: &[&str]) {
    let me = succeed("id", &["-u"]).await;
    match (me.as_str(), args) {
        ("0", [program, rest @ ..]) => succeed(program, rest).await,
        _ => succeed("sudo", &[&["--non-interactive"], args].concat()).await,
    };
}
