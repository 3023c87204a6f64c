//! `armature replay`: makes recorded decisions again.

use std::path::Path;

use armature_router::adapters::record::read;
use armature_router::domain::explain::Outcome;
use armature_router::domain::policy::{Inputs, Overrides};
use armature_router::domain::units::Millis;
use armature_svc_kit::exit::Failed;

use crate::cli::ReplayArgs;
use crate::table::table;

/// Weights beside the recorded ones when none are named.
const USUAL: [(&str, f64); 4] = [("kappa", 0.0), ("kappa", 8.0), ("eta", 0.0), ("eta", 0.2)];

pub(crate) fn decisions(args: ReplayArgs) -> Result<(), Failed> {
    let (text, differing) = text(&args.file, &args.weights)?;
    print(&text);
    match differing {
        0 => Ok(()),
        differing => Err(Failed::running(format!("{differing} decisions do not come out as answered"))),
    }
}

/// The answer is what this command is for: it goes to standard output.
#[allow(clippy::print_stdout)]
fn print(text: &str) {
    print!("{text}");
}

/// What is to be shown, and how many decisions come out otherwise than they were answered.
fn text(file: &Path, weights: &[String]) -> Result<(String, usize), Failed> {
    let decisions = read::decisions(file).map_err(Failed::running)?;
    let answers = read::answers(file).map_err(Failed::running)?;
    let outcomes: Vec<_> = decisions.iter().map(|(_, inputs)| Outcome::of(inputs)).collect();
    let recorded = decisions.iter().zip(&outcomes);
    let compared = recorded.filter_map(|((number, _), outcome)| Some((outcome, answers.get(&number.0)?)));
    let (mut same, mut other) = (0, 0);
    for (outcome, answer) in compared {
        if outcome.to_string() == *answer { same += 1 } else { other += 1 }
    }
    let mut text = format!("{} decisions, made again: {same} as answered, {other} otherwise", outcomes.len());
    text += &format!(", {} without an answer to compare with\n\n", outcomes.len() - same - other);

    let weights = match weights {
        [] => USUAL.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        named => named.iter().map(|text| weight(text)).collect::<Result<_, _>>()?,
    };
    let rows: Vec<_> = weights
        .iter()
        .map(|(name, value)| row(name, *value, &decisions, &outcomes))
        .collect::<Result<_, _>>()?;
    text += &table(&["WITH", "OTHER DECODE", "OTHER PREFILL", "MATCHED BLOCKS"], &rows);
    Ok((text, other))
}

fn weight(text: &str) -> Result<(String, f64), Failed> {
    let wrong = || Failed::configuration(format!("--with: {text:?} is not NAME=NUMBER"));
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), value.parse().map_err(|_| wrong())?))
}

fn row<N>(
    name: &str,
    value: f64,
    decisions: &[(N, Inputs)],
    outcomes: &[Outcome],
) -> Result<Vec<String>, Failed> {
    let weights = match name {
        "kappa" => Overrides { kappa: Some(value), ..Overrides::default() },
        "eta" => Overrides { eta: Some(value), ..Overrides::default() },
        "temperature_ms" => Overrides { temperature: Some(Millis(value)), ..Overrides::default() },
        _ => {
            let problem = format!("--with: {name:?} is none of kappa, eta, temperature_ms");
            return Err(Failed::configuration(problem));
        }
    };
    let (mut decode, mut prefill, mut blocks, mut before) = (0usize, 0usize, 0u64, 0u64);
    for ((_, inputs), outcome) in decisions.iter().zip(outcomes) {
        let other = Outcome::of(&Inputs { settings: inputs.settings.with(weights), ..inputs.clone() });
        decode += usize::from(other.decode != outcome.decode);
        prefill += usize::from(other.prefill.first() != outcome.prefill.first());
        blocks += matched(inputs, &other);
        before += matched(inputs, outcome);
    }
    let share = |count: usize| format!("{:.1} %", 100.0 * count as f64 / decisions.len().max(1) as f64);
    Ok(vec![
        format!("{name}={value}"),
        share(decode),
        share(prefill),
        format!("{blocks} ({before} recorded)"),
    ])
}

/// Prompt blocks that the worker which computes the prompt was believed to have.
fn matched(inputs: &Inputs, outcome: &Outcome) -> u64 {
    let computes = outcome.prefill.first().copied().or(outcome.decode);
    let of = inputs.candidates.iter().find(|candidate| Some(candidate.worker.rank) == computes);
    of.map_or(0, |candidate| u64::from(candidate.matched.0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_without_decisions_compares_nothing_and_weights_are_named() {
        let dir = std::env::temp_dir().join(format!("armature-replay-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("decisions-00000001.rec");
        std::fs::write(&file, []).unwrap();
        let (shown, differing) = text(&file, &["kappa=4".into()]).unwrap();
        assert!(shown.starts_with("0 decisions, made again: 0 as answered, 0 otherwise"), "{shown}");
        assert!(shown.contains("kappa=4") && differing == 0, "{shown}");
        for wrong in ["kappa", "kappa=much", "lambda=1"] {
            assert!(text(&file, &[wrong.into()]).is_err(), "{wrong}");
        }
        assert!(text(&dir.join("none.rec"), &[]).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
