//! `armature sim`: runs a sweep of simulations, tells how far it is, and writes what it found.

mod args;

use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use armature_sim::{Case, CaseOutcome, Outcome, Progress, Report, SimError, Sweep};
use armature_svc_kit::exit::Failed;

pub(crate) use args::SimArgs;

/// Between two lines about a run.
const TELL_EVERY: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &SimArgs) -> Result<(), Failed> {
    let sweep = args.sweep()?;
    let cases = sweep.cases();
    let runs: Vec<(usize, u64)> =
        (0..cases.len()).flat_map(|case| sweep.seeds.iter().map(move |seed| (case, *seed))).collect();
    let outcomes = run_all(&sweep, &cases, &runs, args.jobs()).map_err(failed)?;
    let mut outcomes = outcomes.into_iter();
    let of_case = |case: &Case| CaseOutcome {
        workers: case.pools.to_string(),
        speed: case.speed,
        policy: case.policy.name().to_owned(),
        seeds: sweep.seeds.clone(),
        runs: outcomes.by_ref().take(sweep.seeds.len()).collect(),
    };
    let report = Report::new(args.workload(), &sweep.settings, cases.iter().map(of_case).collect());
    print(&armature_sim::table(&report));
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failed::running)?;
        write(path, &(text + "\n"))?;
    }
    if let Some(path) = &args.html {
        write(path, &armature_sim::html(&report))?;
    }
    Ok(())
}

/// A workload or a setting that cannot be used is not better the next time.
fn failed(error: SimError) -> Failed {
    match error {
        SimError::Stuck { .. } => Failed::running(error),
        SimError::Trace(error) => Failed::configuration(error).during("--trace"),
        SimError::Settings(_) | SimError::Workload(_) => Failed::configuration(error),
    }
}

/// Runs everything, `jobs` at a time; the outcomes in the order of `runs`.
fn run_all(
    sweep: &Sweep,
    cases: &[Case],
    runs: &[(usize, u64)],
    jobs: usize,
) -> Result<Vec<Outcome>, SimError> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Result<Outcome, SimError>>>> =
        runs.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(runs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((case, seed)) = runs.get(at).copied() else { return };
                    let outcome = told(sweep, &cases[case], seed, (at + 1, runs.len()));
                    let is_over = outcome.is_err();
                    *outcomes[at].lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(outcome);
                    if is_over {
                        next.store(runs.len(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let outcomes = outcomes
        .into_iter()
        .filter_map(|outcome| outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner));
    outcomes.collect()
}

/// One run, with lines on standard error.
fn told(sweep: &Sweep, case: &Case, seed: u64, (number, of): (usize, usize)) -> Result<Outcome, SimError> {
    let began = Instant::now();
    let mut told = began;
    let name = format!("[{number}/{of}] {}, seed {seed}", case.name());
    let outcome = sweep.run(case, seed, |Progress { now, arrived, ended }| {
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            let (virtual_time, real) = (now.as_secs_f64(), began.elapsed().as_secs_f64());
            eprintln!(
                "{name}: {ended} of {arrived} requests ended, {virtual_time:.0} s in {real:.1} s ({:.0}x)",
                virtual_time / real
            );
        }
    })?;
    eprintln!(
        "{name}: {} requests, {:.0} s in {:.1} s",
        outcome.requests,
        outcome.seconds,
        began.elapsed().as_secs_f64()
    );
    Ok(outcome)
}

fn write(path: &Path, text: &str) -> Result<(), Failed> {
    std::fs::write(path, text)
        .map_err(|error| Failed::running(error).during(format!("cannot write {}", path.display())))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// The table is what this command is for: it goes to standard output. Nobody is left to tell when that is gone.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
