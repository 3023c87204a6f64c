//! The report as one page: no script, no font, no picture from elsewhere; it follows the reader's light or dark.

use std::fmt::Write as _;

use super::Report;
use super::plot::{Line, Scale, bars, escaped, lines, short};
use crate::measure::Outcome;
use crate::sweep::CaseOutcome;

const STYLE: &str = include_str!("style.css");

/// Workers whose bars a plot can tell apart.
const MAX_BARS: usize = 64;

/// The page.
pub fn html(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{0}: simulated</title><style>{STYLE}</style></head><body><main><header><h1>{0}</h1><p>{1}</p></header>",
        escaped(&report.workload),
        escaped(&report.machine)
    );
    if let Some(run) = report.cases.first().and_then(|case| case.runs.first()) {
        page += &facts(run);
    }
    page += &overview(report);
    let mut rest = report.cases.as_slice();
    while let Some(first) = rest.first() {
        let same = |case: &&CaseOutcome| case.workers == first.workers && case.speed == first.speed;
        let count = rest.iter().take_while(same).count();
        let (group, others) = rest.split_at(count);
        page += &section(report, group);
        rest = others;
    }
    page + "</main></body></html>\n"
}

fn facts(run: &Outcome) -> String {
    let per_request = |tokens: u64| short(tokens as f64 / run.requests.max(1) as f64);
    let facts = [
        ("requests", short(run.requests as f64)),
        ("prompt tokens, mean", per_request(run.prompt_tokens)),
        ("answer tokens, mean", per_request(run.output_tokens)),
        ("an endless cache would hit", format!("{:.1} %", run.hit_ceiling * 100.0)),
    ];
    let cards = facts.map(|(name, value)| format!("<div><b>{value}</b><span>{name}</span></div>"));
    format!("<section class=\"facts\">{}</section>", cards.concat())
}

/// A cell: its mean, where it varies its range, and a bar of its share of the largest in the table.
fn cell(case: &CaseOutcome, most: f64, digits: usize, value: fn(&Outcome) -> f64) -> String {
    let (mean, least, largest) = case.over_seeds(value);
    let range = if case.runs.len() > 1 {
        format!(" title=\"{least:.digits$} to {largest:.digits$}\"")
    } else {
        String::new()
    };
    let share = if most > 0.0 { mean / most * 100.0 } else { 0.0 };
    format!("<td{range}><i style=\"width:{share:.1}%\"></i><span>{mean:.digits$}</span></td>")
}

type Column = (&'static str, usize, fn(&Outcome) -> f64);

const COLUMNS: [Column; 11] = [
    ("hit ratio", 4, |run| run.hit_ratio),
    ("TTFT mean", 1, |run| run.ttft.mean),
    ("p50", 0, |run| run.ttft.p50),
    ("p90", 0, |run| run.ttft.p90),
    ("p99", 0, |run| run.ttft.p99),
    ("ITL p50", 1, |run| run.itl.p50),
    ("p99", 1, |run| run.itl.p99),
    ("E2E mean", 0, |run| run.e2e.mean),
    ("p99", 0, |run| run.e2e.p99),
    ("good %", 1, |run| run.good * 100.0),
    ("max/mean", 2, |run| run.imbalance),
];

fn overview(report: &Report) -> String {
    let mut html =
        "<section class=\"wide\"><table><thead><tr><th>workers</th><th>speed</th><th>policy</th>".to_owned();
    for (name, ..) in COLUMNS {
        let _ = write!(html, "<th class=\"number\">{name}</th>");
    }
    html += "</tr></thead><tbody>";
    let most = COLUMNS
        .map(|(_, _, value)| report.cases.iter().map(|case| case.over_seeds(value).0).fold(0.0, f64::max));
    for case in &report.cases {
        let CaseOutcome { workers, speed, policy, .. } = case;
        let _ =
            write!(html, "<tr><td>{}</td><td>{speed}×</td><td>{}</td>", escaped(workers), escaped(policy));
        for ((_, digits, value), most) in COLUMNS.into_iter().zip(most) {
            html += &cell(case, most, digits, value);
        }
        html += "</tr>";
    }
    let _ = write!(
        html,
        "</tbody></table><p class=\"note\">Milliseconds; means over the seeds, with their range under the pointer. Good: first token within {} ms \
         and a mean of {} ms between tokens. Max/mean: prompt tokens computed by the busiest worker.</p></section>",
        short(report.slo_ttft_ms),
        short(report.slo_itl_ms)
    );
    html
}

/// The plots of one fleet at one pace; of several seeds the first is shown.
fn section(report: &Report, group: &[CaseOutcome]) -> String {
    let shown: Vec<(&CaseOutcome, &Outcome)> =
        group.iter().filter_map(|case| Some((case, case.runs.first()?))).collect();
    let Some((first, run)) = shown.first() else { return String::new() };
    let legend = shown.iter().enumerate().map(|(colour, (case, _))| {
        format!("<span><b class=\"c{colour}\"></b>{}</span>", escaped(&case.policy))
    });
    let line = |points: fn(&Outcome) -> Vec<(f64, f64)>| -> Vec<Line> {
        let line = |(colour, (case, run)): (usize, &(&CaseOutcome, &Outcome))| Line {
            name: case.policy.clone(),
            colour,
            points: points(run),
        };
        shown.iter().enumerate().map(line).collect()
    };
    let bar = |value: fn(&Outcome) -> f64| -> Vec<(String, f64)> {
        shown.iter().map(|(case, run)| (case.policy.clone(), value(run))).collect()
    };
    let slo = Line {
        name: format!("SLO: {} ms", short(report.slo_ttft_ms)),
        colour: 9,
        points: vec![(report.slo_ttft_ms, 0.0), (report.slo_ttft_ms, 1.0)],
    };
    let mut ttft = line(|run| run.ttft_curve.clone());
    ttft.push(slo);
    let figures = [
        ("Time to first token: share of requests", lines(&ttft, Scale::Log, "milliseconds", true)),
        (
            "Time to last token: share of requests",
            lines(&line(|run| run.e2e_curve.clone()), Scale::Log, "milliseconds", true),
        ),
        (
            "Mean time to first token, by arrival",
            lines(&line(mean_ttft), Scale::Linear, "seconds into the workload", false),
        ),
        (
            "Hit ratio; the line is an endless cache",
            bars(&[bar(|run| run.hit_ratio)], "share of prompt tokens", Some(("ceiling", run.hit_ceiling))),
        ),
        ("Prompt tokens computed, by worker", bars(&by_worker(&shown), "workers", None)),
        (
            "Arrivals per second",
            lines(&line(arrivals)[..1], Scale::Linear, "seconds into the workload", false),
        ),
    ];
    let figures =
        figures.map(|(title, plot)| format!("<figure><figcaption>{title}</figcaption>{plot}</figure>"));
    format!(
        "<section class=\"wide\"><h2>{} workers, {}×</h2><p class=\"legend\">{}</p><div class=\"plots\">{}</div></section>",
        escaped(&first.workers),
        first.speed,
        legend.collect::<String>(),
        figures.concat()
    )
}

fn mean_ttft(run: &Outcome) -> Vec<(f64, f64)> {
    let seen = run.timeline.iter().filter(|bucket| bucket.first_tokens > 0);
    seen.map(|bucket| (bucket.from_seconds, bucket.ttft_sum_ms / bucket.first_tokens as f64)).collect()
}

fn arrivals(run: &Outcome) -> Vec<(f64, f64)> {
    let length = run.timeline.get(1).map_or(1.0, |second| second.from_seconds);
    run.timeline.iter().map(|bucket| (bucket.from_seconds, bucket.arrivals as f64 / length)).collect()
}

/// A group for each worker that prefills. Of many, neighbours in the order of their load stand for each other.
fn by_worker(shown: &[(&CaseOutcome, &Outcome)]) -> Vec<Vec<(String, f64)>> {
    let loads: Vec<Vec<f64>> = shown
        .iter()
        .map(|(_, run)| {
            let prefills = run.workers.iter().filter(|worker| worker.prefills);
            let mut loads: Vec<f64> = prefills.map(|worker| worker.prefill_tokens as f64).collect();
            if loads.len() > MAX_BARS {
                loads.sort_by(|a, b| b.total_cmp(a));
            }
            loads
        })
        .collect();
    let workers = loads.iter().map(Vec::len).max().unwrap_or(0);
    let groups = workers.min(MAX_BARS);
    let worker = |group: usize| group * workers / groups.max(1);
    (0..groups)
        .map(|group| {
            let number = worker(group);
            let bar = |((case, _), loads): (&(&CaseOutcome, &Outcome), &Vec<f64>)| {
                (format!("{}, worker {number}", case.policy), loads.get(number).copied().unwrap_or(0.0))
            };
            shown.iter().zip(&loads).map(bar).collect()
        })
        .collect()
}
