//! The router's prefix index beside dynamo-kv-router's concurrent compressed radix tree: the same workload, one run, a table of ratios.
//!
//! Each of the runs is a process of its own, so that memory can be compared; `armature-bench-router once NAME` is such a process.
//! Store and remove are CPU time of the writing thread, finds are wall time per call, memory is resident bytes.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod churn;
mod measure;
mod ours;
mod table;
mod theirs;
mod workload;

use measure::Figures;
use workload::Shape;

const SHAPE: Shape = Shape { workers: 64, chains: 2_048, blocks: 512, holders: 1, event: 16, alike: false };
/// Of a chain each: 1 M pairs, unless it says otherwise.
const SHAPES: [(&str, Shape); 6] = [
    ("512 blocks", SHAPE),
    ("512 blocks, prompts that begin alike", Shape { alike: true, ..SHAPE }),
    ("512 blocks, 1 per event", Shape { event: 1, ..SHAPE }),
    ("8,192 blocks", Shape { chains: 128, blocks: 8_192, ..SHAPE }),
    ("512 blocks, 8 M pairs", Shape { chains: 16_384, ..SHAPE }),
    ("2,000 workers, 8 holders each, 8 M pairs", Shape { workers: 2_000, holders: 8, ..SHAPE }),
];

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["once", subject, name] => {
            let (_, shape) = SHAPES.iter().find(|(known, _)| *known == name).expect("a known shape");
            let figures = match subject {
                "ours" => measure::run(&ours::Ours::new(shape), shape),
                _ => measure::run(&theirs::Theirs::new(), shape),
            };
            print!("{}", figures.lines());
        }
        ["churn"] => churn::print(),
        [] | ["--runs", _] => {
            let runs = args.get(1).map_or(5, |runs| runs.parse().expect("--runs takes a number"));
            let names = SHAPES.map(|(name, _)| name);
            let once = |subject: &str, name: &str| {
                let me = std::env::current_exe().expect("this program has a path");
                let output = std::process::Command::new(me).args(["once", subject, name]).output().unwrap();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                Figures::parse(&String::from_utf8_lossy(&output.stdout))
            };
            table::print(&names, runs, once);
            churn::print();
        }
        _ => println!("usage: armature-bench-router [--runs N | churn]"),
    }
}
