//! The report: its table, and a page that needs nothing from elsewhere.

use armature_router::domain::policy::PolicyKind;
use armature_sim::{CaseOutcome, Pools, Report, SimRequest, Workload, html, table};

use crate::rig;

fn report() -> Report {
    let requests: Vec<SimRequest> =
        Workload { requests: 60, rate: 20.0, ..Workload::default() }.requests(1).unwrap().collect();
    let case = |policy, name: &str| CaseOutcome {
        workers: "2".into(),
        speed: 1.5,
        policy: name.into(),
        seeds: vec![1, 2],
        runs: (1..=2)
            .map(|seed| {
                let mut settings = rig::settings(Pools::Aggregated(2), policy);
                settings.seed = seed;
                settings.machine.blocks = 4096;
                rig::run(settings, &requests)
            })
            .collect(),
    };
    let cases = vec![case(PolicyKind::Kv, "kv"), case(PolicyKind::RoundRobin, "round-robin")];
    Report::new("a <small> one".into(), &rig::settings(Pools::Aggregated(2), PolicyKind::Kv), cases)
}

#[test]
fn the_table_has_a_row_for_each_case_and_means_over_seeds() {
    let report = report();
    let text = table(&report);
    let rows: Vec<&str> = text.lines().collect();
    assert!(rows[0].starts_with("WORKERS  SPEED  POLICY"), "{text}");
    assert!(rows[1].contains("kv") && rows[2].contains("round-robin"), "{text}");
    let (mean, least, most) = report.cases[0].over_seeds(|run| run.ttft.mean);
    assert!(least <= mean && mean <= most && rows[1].contains(&format!("{mean:.1}")), "{text}");
}

#[test]
fn the_page_is_whole_and_loads_nothing() {
    let page = html(&report());
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert!(page.contains("a &lt;small&gt; one"), "names are escaped");
    for elsewhere in ["http://", "https://", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(elsewhere), "{elsewhere}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (6, 6));
    assert!(!page.contains("NaN") && !page.contains("inf"), "every number is one");
}

#[test]
fn the_report_survives_json() {
    let report = report();
    let text = serde_json::to_string(&report).unwrap();
    let again: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(table(&again), table(&report));
}
