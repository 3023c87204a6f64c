//! docs/defaults.md says what the commented config files say, which their services' own tests hold equal to the defaults in code.
#![allow(clippy::unwrap_used)]

use std::fs;

use armature_svc_kit::config::defaults_table;
use armature_tidy::root;

/// Folder and name in environment variables, in the order of the page.
const SERVICES: [(&str, &str); 4] = [
    ("frontend-svc", "frontend"),
    ("router-svc", "router"),
    ("worker-svc", "worker"),
    ("discovery-svc", "discovery"),
];

const HEAD: &str = "# Defaults

Every setting of every service, generated from `<service>-svc/config/default.toml`; do not edit. How the layers (file, environment, flags) win
over each other is in [operations.md](operations.md#configuration). After a change of a config file:

```
ARMATURE_BOOTSTRAP=write cargo test -p armature-tidy --test defaults
```
";

fn page() -> String {
    SERVICES.iter().fold(HEAD.to_owned(), |page, (folder, service)| {
        let sample = fs::read_to_string(root().join(folder).join("config/default.toml")).unwrap();
        format!("{page}\n## {service}\n\n{}", defaults_table(service, &sample))
    })
}

#[test]
fn the_page_of_defaults_is_what_the_config_files_say() {
    let path = root().join("docs/defaults.md");
    if std::env::var_os("ARMATURE_BOOTSTRAP").is_some_and(|value| value == "write") {
        fs::write(&path, page()).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == page(),
        "docs/defaults.md is not what the config files say: run `ARMATURE_BOOTSTRAP=write cargo test -p armature-tidy --test defaults`"
    );
}
