//! What `armature sim` can be told.

use std::path::PathBuf;
use std::time::Duration;

use armature_router::domain::policy::PolicyKind;
use armature_sim::{Kill, Machine, Pace, Pools, Settings, Slo, Source, Sweep, Workload};
use armature_svc_kit::exit::Failed;
use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Eviction {
    /// The oldest; a block that was hit at least once counts as half as old
    TwoSegment,
    /// The oldest
    Lru,
}

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// Trace to replay: Mooncake JSONL, or .csv of (timestamp, input tokens, output tokens) [default: a made-up workload]
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// At most so many requests of it
    #[arg(long)]
    pub(crate) limit: Option<u64>,
    /// Workers that prefill and decode; several numbers are several fleets
    #[arg(long, value_delimiter = ',', default_value = "8")]
    pub(crate) workers: Vec<usize>,
    /// Prefill workers instead; goes with --decode
    #[arg(long, requires = "decode")]
    pub(crate) prefill: Option<usize>,
    /// Decode workers instead; goes with --prefill
    #[arg(long, requires = "prefill")]
    pub(crate) decode: Option<usize>,
    /// Arrivals so many times faster than recorded; several are several runs
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) speed: Vec<f64>,
    /// How workers are chosen, by the router's names of policies; several are compared
    #[arg(long, value_delimiter = ',', default_value = "kv,round-robin")]
    pub(crate) policy: Vec<String>,
    /// Seeds, each a run: 1,2,3 or 1-5
    #[arg(long, default_value = "1")]
    pub(crate) seeds: String,
    /// A worker is lost: seconds from the start, a colon, its number from 0; repeat it for more
    #[arg(long, value_name = "SECONDS:WORKER")]
    pub(crate) kill: Vec<String>,
    /// KV blocks of each worker
    #[arg(long, default_value_t = 16_384)]
    pub(crate) blocks: usize,
    /// Tokens of a block
    #[arg(long, default_value_t = 64)]
    pub(crate) block_size: usize,
    /// Which cached block goes first when a block is needed
    #[arg(long, value_enum, default_value = "two-segment")]
    pub(crate) eviction: Eviction,
    /// Most tokens in a pass
    #[arg(long, default_value_t = 8192)]
    pub(crate) max_batched_tokens: usize,
    /// Most sequences of a worker at once
    #[arg(long, default_value_t = 256)]
    pub(crate) max_running: usize,
    /// Milliseconds that a pass with prefill should take [default: passes are filled up to --max-batched-tokens]
    #[arg(long)]
    pub(crate) step_target_ms: Option<f64>,
    /// Weight of decode time against time to first token [default: the router's]
    #[arg(long)]
    pub(crate) eta: Option<f64>,
    /// Price of duplicating blocks, in units of computing them [default: the router's]
    #[arg(long)]
    pub(crate) kappa: Option<f64>,
    /// Milliseconds by which KV events reach the router late
    #[arg(long, default_value_t = 0.0)]
    pub(crate) event_delay_ms: f64,
    /// Least milliseconds between two load reports of a worker [default: the router's]
    #[arg(long)]
    pub(crate) report_interval_ms: Option<f64>,
    /// Spreads each arrival over so many milliseconds of recorded time
    #[arg(long, default_value_t = 0.0)]
    pub(crate) jitter_ms: f64,
    /// A good answer has its first token within so many milliseconds
    #[arg(long, default_value_t = 500.0)]
    pub(crate) slo_ttft: f64,
    /// and a mean of at most so many milliseconds between tokens
    #[arg(long, default_value_t = 50.0)]
    pub(crate) slo_itl: f64,
    /// Where everything goes as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Where a page with plots goes
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Runs at a time [default: one for each processor]
    #[arg(long)]
    jobs: Option<usize>,
    #[command(flatten)]
    made: MadeArgs,
}

/// The made-up workload: sessions of several turns that share beginnings.
#[derive(Debug, Args)]
#[command(next_help_heading = "Without --trace: sessions of several turns")]
struct MadeArgs {
    /// Requests
    #[arg(long, default_value_t = 10_000)]
    requests: u64,
    /// Sessions that start per second
    #[arg(long, default_value_t = 2.0)]
    rate: f64,
    /// Sessions that start together
    #[arg(long, default_value_t = 1)]
    burst: u32,
    /// Different system prompts
    #[arg(long, default_value_t = 20)]
    prefixes: u64,
    /// Tokens of a system prompt
    #[arg(long, default_value_t = 2048)]
    prefix_tokens: u32,
    /// Turns of a session
    #[arg(long, default_value_t = 4)]
    turns: u32,
    /// Mean seconds from a turn to the next
    #[arg(long, default_value_t = 20.0)]
    think: f64,
    /// Mean tokens of what a turn asks
    #[arg(long, default_value_t = 1024)]
    input_tokens: u32,
    /// Mean tokens of an answer
    #[arg(long, default_value_t = 256)]
    output_tokens: u32,
}

fn wrong(problem: impl Into<String>) -> Failed {
    Failed::configuration(problem.into())
}

fn time(flag: &str, seconds: f64) -> Result<Duration, Failed> {
    Duration::try_from_secs_f64(seconds).map_err(|error| wrong(format!("{flag}: {error}")))
}

fn seeds(text: &str) -> Result<Vec<u64>, Failed> {
    let one = |text: &str| text.trim().parse::<u64>();
    let part = |part: &str| match part.split_once('-') {
        None => one(part).map(|seed| seed..=seed),
        Some((first, last)) => one(first).and_then(|first| one(last).map(|last| first..=last)),
    };
    let ranges: Result<Vec<_>, _> = text.split(',').map(part).collect();
    let seeds: Vec<u64> = ranges
        .map_err(|error| wrong(format!("--seeds: {text}: {error}")))?
        .into_iter()
        .flatten()
        .take(10_000)
        .collect();
    if seeds.is_empty() { Err(wrong(format!("--seeds: {text} is no seed"))) } else { Ok(seeds) }
}

fn kill(text: &str) -> Result<Kill, Failed> {
    let parsed = text.split_once(':').and_then(|(at, worker)| {
        Some(Kill { at: Duration::try_from_secs_f64(at.parse().ok()?).ok()?, worker: worker.parse().ok()? })
    });
    parsed.ok_or_else(|| wrong(format!("--kill: {text:?} is not SECONDS:WORKER, for instance 60:3")))
}

impl SimArgs {
    /// Runs at a time.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into)).max(1)
    }

    /// Name of the workload, for people.
    pub(crate) fn workload(&self) -> String {
        let stem = self.trace.as_ref().and_then(|path| path.file_stem());
        stem.map_or_else(|| "made-up sessions".to_owned(), |stem| stem.to_string_lossy().into_owned())
    }

    /// What they ask for.
    pub(crate) fn sweep(&self) -> Result<Sweep, Failed> {
        if let Some(speed) = self.speed.iter().find(|speed| !(speed.is_finite() && **speed > 0.0)) {
            return Err(wrong(format!("--speed: {speed} is not above 0")));
        }
        let policy = |name: &String| {
            let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            PolicyKind::named(name)
                .ok_or_else(|| wrong(format!("--policy: {name:?} is none of {}", names.join(", "))))
        };
        let pools = match (self.prefill, self.decode) {
            (Some(prefill), Some(decode)) => vec![Pools::Disaggregated { prefill, decode }],
            _ => self.workers.iter().copied().map(Pools::Aggregated).collect(),
        };
        Ok(Sweep {
            source: self.source()?,
            limit: self.limit,
            pools,
            speeds: self.speed.clone(),
            policies: self.policy.iter().map(policy).collect::<Result<_, _>>()?,
            seeds: seeds(&self.seeds)?,
            pace: Pace { jitter: time("--jitter-ms", self.jitter_ms / 1e3)?, ..Pace::default() },
            settings: self.settings()?,
        })
    }

    fn source(&self) -> Result<Source, Failed> {
        if let Some(path) = &self.trace {
            return Ok(Source::File(path.clone()));
        }
        let made = &self.made;
        Ok(Source::Made(Workload {
            requests: made.requests,
            rate: made.rate,
            burst: made.burst,
            prefixes: made.prefixes,
            prefix_tokens: made.prefix_tokens,
            turns: made.turns,
            think: time("--think", made.think)?,
            input_tokens: made.input_tokens,
            output_tokens: made.output_tokens,
        }))
    }

    fn settings(&self) -> Result<Settings, Failed> {
        let default = Settings::default();
        let mut machine = Machine {
            blocks: self.blocks,
            eviction: match self.eviction {
                Eviction::TwoSegment => armature_worker::domain::prefix_cache::Eviction::TwoSegment,
                Eviction::Lru => armature_worker::domain::prefix_cache::Eviction::Lru,
            },
            max_running: self.max_running,
            max_batched_tokens: self.max_batched_tokens,
            ..default.machine
        };
        machine.timing.block_size = self.block_size;
        if let Some(target) = self.step_target_ms {
            machine.step_target = Some(time("--step-target-ms", target / 1e3)?);
        }
        let mut policy = default.policy;
        policy.eta = self.eta.unwrap_or(policy.eta);
        policy.kappa = self.kappa.unwrap_or(policy.kappa);
        let interval = self.report_interval_ms.map(|interval| time("--report-interval-ms", interval / 1e3));
        Ok(Settings {
            machine,
            policy,
            event_delay: time("--event-delay-ms", self.event_delay_ms / 1e3)?,
            report_interval: interval.transpose()?.unwrap_or(default.report_interval),
            kills: self.kill.iter().map(|text| kill(text)).collect::<Result<_, _>>()?,
            slo: Slo {
                ttft: time("--slo-ttft", self.slo_ttft / 1e3)?,
                itl: time("--slo-itl", self.slo_itl / 1e3)?,
            },
            ..Settings::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser as _;

    fn sweep(flags: &[&str]) -> Result<Sweep, Failed> {
        let cli =
            Cli::try_parse_from([&["armature", "sim"], flags].concat()).map_err(Failed::configuration)?;
        let Command::Sim(args) = cli.command else { return Err(wrong("another command")) };
        args.sweep()
    }

    #[test]
    fn lists_make_a_case_for_each_combination() {
        let sweep =
            sweep(&["--workers", "4,8", "--speed", "1,1.5,2", "--policy", "kv", "--seeds", "1-3,9"]).unwrap();
        assert_eq!((sweep.cases().len(), sweep.seeds.as_slice()), (6, [1, 2, 3, 9].as_slice()));
        assert_eq!(sweep.cases()[5].name(), "8 workers, 2x, kv");
    }

    #[test]
    fn what_cannot_be_meant_is_named_with_its_flag() {
        for (flags, names) in [
            (["--policy", "best"], "--policy"),
            (["--speed", "0"], "--speed"),
            (["--seeds", "x"], "--seeds"),
            (["--seeds", "5-1"], "--seeds"),
            (["--kill", "12"], "--kill"),
            (["--slo-ttft=-1", "--slo-itl=1"], "--slo-ttft"),
            (["--prefill", "2"], "--decode"),
        ] {
            let problem = sweep(&flags).unwrap_err().to_string();
            assert!(problem.contains(names), "{flags:?}: {problem}");
        }
        let sweep = sweep(&["--prefill", "2", "--decode", "6", "--kill", "60.5:3"]).unwrap();
        assert_eq!(sweep.cases()[0].pools.to_string(), "2P+6D");
        assert_eq!(sweep.settings.kills, [Kill { at: Duration::from_millis(60_500), worker: 3 }]);
    }
}
