//! The table of defaults in the documentation, from the commented sample file.
//!
//! The sample (`config/default.toml` of a service) is complete, commented and tested to equal the
//! defaults, so it is the one place where a key is described. In it `# text` before a key describes
//! that key, and `#key = value` or `# key = value` shows a key that has no default.

use super::environment_prefix;

/// A Markdown table of every key of the commented TOML `sample` of `service`: key, default,
/// environment variable, description.
pub fn defaults_table(service: &str, sample: &str) -> String {
    let prefix = environment_prefix(service);
    let mut table = String::from("| key | default | environment | meaning |\n|---|---|---|---|\n");
    let mut section = String::new();
    let mut meaning: Vec<String> = Vec::new();
    for line in logical_lines(sample) {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("# ").filter(|_| assignment(line).is_none()) {
            meaning.push(text.trim().to_owned());
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.trim_matches(['[', ']']).clone_into(&mut section);
            meaning.clear();
        } else if let Some((key, value)) = assignment(line) {
            let unset = line.starts_with('#');
            let key = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            let variable = format!("{prefix}{}", key.to_ascii_uppercase().replace('.', "__"));
            let default =
                if unset { format!("unset (`{}`)", cell(value)) } else { format!("`{}`", cell(value)) };
            let meaning = cell(&std::mem::take(&mut meaning).join(" "));
            table.push_str(&format!("| `{key}` | {default} | `{variable}` | {meaning} |\n"));
        } else {
            meaning.clear();
        }
    }
    table
}

/// Joins an array that is written over several lines into one.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = 0usize;
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if open > 0 => last.push_str(line.trim()),
            _ => lines.push(line.to_owned()),
        }
        if open > 0 || assignment(line).is_some() {
            let opened = line.matches('[').count();
            let closed = line.matches(']').count();
            open = (open + opened).saturating_sub(closed);
        }
    }
    lines
}

fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let line = line.strip_prefix('#').map_or(line, |rest| rest.strip_prefix(' ').unwrap_or(rest));
    let (key, value) = line.split_once('=')?;
    let key = key.trim_end();
    let bare = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '.');
    (!key.is_empty() && key.chars().all(bare)).then(|| (key, value.trim()))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_every_kind_of_line() {
        let sample = "# Where to listen.\n# Loopback.\naddress = \"127.0.0.1:7200\"\n\n# stray\n\n[queue]\n# Longest queue.\nlimit = 64\n#token = \"x|y\"\n# Whom to ask.\n# peer = 1\nmany = [\n  1,\n  2,\n]\n";
        assert_eq!(
            defaults_table("router", sample),
            "| key | default | environment | meaning |\n|---|---|---|---|\n\
             | `address` | `\"127.0.0.1:7200\"` | `ARMATURE_ROUTER__ADDRESS` | Where to listen. Loopback. |\n\
             | `queue.limit` | `64` | `ARMATURE_ROUTER__QUEUE__LIMIT` | Longest queue. |\n\
             | `queue.token` | unset (`\"x\\|y\"`) | `ARMATURE_ROUTER__QUEUE__TOKEN` |  |\n\
             | `queue.peer` | unset (`1`) | `ARMATURE_ROUTER__QUEUE__PEER` | Whom to ask. |\n\
             | `queue.many` | `[1,2,]` | `ARMATURE_ROUTER__QUEUE__MANY` |  |\n"
        );
    }
}
