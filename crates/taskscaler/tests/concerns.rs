//! R033: five concerns are separate crates, and each depends only on concerns below it.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The concerns, each with its crates and the concerns that it may depend on.
const CONCERNS: [(&str, &[&str], &[&str]); 5] = [
    ("VM shape", &["local", "script", "static", "docker-machine"], &["VM life cycle"]),
    ("VM life cycle", &["fleeting", "remote"], &[]),
    ("VM autoscaling", &["taskscaler"], &["VM life cycle"]),
    ("job-to-VM mapping", &["executor"], &["VM autoscaling", "VM life cycle"]),
    ("in-VM execution", &["agent", "steps", "builtins"], &[]),
];

/// Returns the dependencies of each crate and plugin on other crates of the workspace, according to the manifests.
fn direct_dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crates = ["crates", "plugins"].map(|directory| std::fs::read_dir(root.join(directory)).unwrap());
    let manifests = crates.into_iter().flatten().map(|krate| krate.unwrap().path());
    let read = |krate: std::path::PathBuf| {
        let text = std::fs::read_to_string(krate.join("Cargo.toml")).ok()?;
        let manifest: toml::Table = text.parse().unwrap();
        let names =
            manifest.get("dependencies").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
        let workspace_names = names.filter_map(|name| name.strip_prefix("muster-").map(str::to_owned)).collect();
        Some((krate.file_name().unwrap().to_str().unwrap().to_owned(), workspace_names))
    };
    manifests.filter_map(read).collect()
}

/// Returns all direct and indirect dependencies of a crate.
fn all_dependencies(krate: &str, direct: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut found, mut pending) = (BTreeSet::new(), vec![krate.to_owned()]);
    while let Some(krate) = pending.pop() {
        for used in direct.get(&krate).into_iter().flatten() {
            if found.insert(used.clone()) {
                pending.push(used.clone());
            }
        }
    }
    found
}

#[test]
fn concerns_depend_only_on_lower_layers() {
    let direct = direct_dependencies();
    for krate in direct.keys() {
        assert!(!all_dependencies(krate, &direct).contains(krate), "{krate} depends on itself through other crates");
    }
    for (concern, crates, below) in CONCERNS {
        for krate in crates {
            assert!(direct.contains_key(*krate), "the crate {krate} does not exist: {:?}", direct.keys());
            let dependencies = all_dependencies(krate, &direct);
            for (other, their_crates, _) in
                CONCERNS.iter().filter(|(other, ..)| *other != concern && !below.contains(other))
            {
                let violations: Vec<_> = their_crates.iter().filter(|krate| dependencies.contains(**krate)).collect();
                assert!(violations.is_empty(), "{concern} ({krate}) depends on {other}: {violations:?}");
            }
        }
    }
}
