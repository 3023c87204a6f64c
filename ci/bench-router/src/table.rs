//! The table: medians of the runs, and the spread of the ratio.

use crate::measure::Figures;

/// Runs both subjects by turns, and prints a section per shape.
pub(crate) fn print(shapes: &[&str], runs: usize, once: impl Fn(&str, &str) -> Figures) {
    for shape in shapes {
        let runs: Vec<_> = (0..runs).map(|_| (once("ours", shape).0, once("theirs", shape).0)).collect();
        println!("\n{shape}");
        println!("{:34} {:>11} {:>11} {:>8}   spread of the ratio", "", "ours", "theirs", "ratio");
        let Some((first, _)) = runs.first() else { return };
        for (at, (name, _)) in first.iter().enumerate() {
            let ours = sorted(runs.iter().map(|(ours, _)| ours[at].1));
            let theirs = sorted(runs.iter().map(|(_, theirs)| theirs[at].1));
            // More is better of what is counted per second; of the rest, less.
            let ratio =
                |(ours, theirs): (f64, f64)| if name.ends_with("/s") { ours / theirs } else { theirs / ours };
            let ratios = sorted(runs.iter().map(|(ours, theirs)| ratio((ours[at].1, theirs[at].1))));
            println!(
                "{name:34} {:>11} {:>11} {:>8.2}   {:.2} to {:.2}",
                short(middle(&ours)),
                short(middle(&theirs)),
                middle(&ratios),
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("\nratio: how many times better ours is; load of the machine at the end: {}", load.trim());
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

fn middle(values: &[f64]) -> f64 {
    values[values.len() / 2]
}

fn short(value: f64) -> String {
    if value >= 1e5 { format!("{:.2} M", value / 1e6) } else { format!("{value:.2}") }
}
