//! Pages do not promise what is not there: every relative link leads to a file, and a link from a name to a Rust file names something that
//! the file defines, so that a renamed test shows.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use armature_tidy::{files, root};

/// (text, target) of every Markdown link in `page`, code blocks aside.
fn links(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if number % 2 == 1 {
            continue;
        }
        for (at, _) in part.match_indices("](") {
            let (before, after) = (&part[..at], &part[at + 2..]);
            if let (Some(start), Some(end)) = (before.rfind('['), after.find(')')) {
                found.push((before[start + 1..].to_owned(), after[..end].to_owned()));
            }
        }
    }
    found
}

/// Whether `source` defines a function, constant or type called `name`.
fn defines(source: &str, name: &str) -> bool {
    ["fn", "const", "struct", "enum", "mod"].iter().any(|kind| {
        source.match_indices(&format!("{kind} {name}")).any(|(at, found)| {
            !source[at + found.len()..].starts_with(|next: char| next.is_alphanumeric() || next == '_')
        })
    })
}

#[test]
fn links_lead_somewhere_and_name_what_is_there() {
    let mut checked = 0;
    for page in files(&root(), "md") {
        let folder = page.parent().unwrap_or(Path::new("/"));
        for (text, target) in links(&fs::read_to_string(&page).unwrap()) {
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = folder.join(target);
            assert!(file.exists(), "{}: [{text}]({target}) leads nowhere", page.display());
            let name = text.trim_matches('`');
            let names_an_item =
                text.starts_with('`') && name.chars().all(|c| c.is_alphanumeric() || c == '_');
            if names_an_item && target.ends_with(".rs") {
                let source = fs::read_to_string(&file).unwrap();
                assert!(defines(&source, name), "{}: {target} has no `{name}`", page.display());
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "only {checked} links from names to code were found");
}

#[test]
fn a_name_is_not_found_inside_a_longer_one() {
    assert!(defines("async fn it_works() {", "it_works"));
    assert!(!defines("fn it_works_twice() {", "it_works"));
    assert_eq!(links("[a](b) ```[c](d)``` [`e`](f#g)").len(), 2);
}
