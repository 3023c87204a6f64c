//! The report for a terminal.

use super::Report;
use crate::measure::Outcome;
use crate::sweep::CaseOutcome;

/// A column: its head, and its cell in a case.
type Column = (&'static str, fn(&CaseOutcome) -> String);

const COLUMNS: [Column; 15] = [
    ("WORKERS", |case| case.workers.clone()),
    ("SPEED", |case| format!("{}x", case.speed)),
    ("POLICY", |case| case.policy.clone()),
    ("SEEDS", |case| case.seeds.len().to_string()),
    ("HIT", |case| mean(case, 4, |run| run.hit_ratio)),
    ("CEILING", |case| mean(case, 4, |run| run.hit_ceiling)),
    ("TTFT mean", |case| mean(case, 1, |run| run.ttft.mean)),
    ("p50", |case| mean(case, 0, |run| run.ttft.p50)),
    ("p90", |case| mean(case, 0, |run| run.ttft.p90)),
    ("p99", |case| mean(case, 0, |run| run.ttft.p99)),
    ("ITL p50/p99", |case| {
        format!("{}/{}", mean(case, 1, |run| run.itl.p50), mean(case, 1, |run| run.itl.p99))
    }),
    ("E2E mean", |case| mean(case, 0, |run| run.e2e.mean)),
    ("p99", |case| mean(case, 0, |run| run.e2e.p99)),
    ("GOOD", |case| format!("{} %", mean(case, 1, |run| run.good * 100.0))),
    ("MAX/MEAN", |case| mean(case, 2, |run| run.imbalance)),
];

fn mean(case: &CaseOutcome, digits: usize, value: fn(&Outcome) -> f64) -> String {
    format!("{:.digits$}", case.over_seeds(value).0)
}

/// The report as text: a row for each case, means over the seeds, times in milliseconds.
pub fn table(report: &Report) -> String {
    let mut rows: Vec<Vec<String>> = vec![COLUMNS.iter().map(|(head, _)| (*head).to_owned()).collect()];
    rows.extend(report.cases.iter().map(|case| COLUMNS.iter().map(|(_, cell)| cell(case)).collect()));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text += &notes(report);
    text
}

fn notes(report: &Report) -> String {
    let mut text = format!(
        "{}: {}\ngood: first token within {} ms and a mean of {} ms between tokens; max/mean: prefill tokens of workers\n",
        report.workload, report.machine, report.slo_ttft_ms, report.slo_itl_ms
    );
    for case in &report.cases {
        let sum = |value: fn(&Outcome) -> u64| case.runs.iter().map(value).sum::<u64>();
        let (refused, migrated) = (sum(|run| run.refused), sum(|run| run.migrated));
        if refused + migrated > 0 {
            let CaseOutcome { workers, speed, policy, .. } = case;
            text += &format!(
                "{workers} workers, {speed}x, {policy}: {refused} refused, {migrated} moved to another worker\n"
            );
        }
    }
    text
}
