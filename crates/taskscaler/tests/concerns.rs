//! R033: five concerns are separate crates, with dependencies in one direction. R202: executors and managers do not
//! execute jobs.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each concern has its crates and the concerns on which it may depend.
const CONCERNS: [(&str, &[&str], &[&str]); 5] = [
    ("VM shape", &["local", "script", "static", "docker-machine"], &["VM life cycle"]),
    ("VM life cycle", &["fleeting", "remote"], &[]),
    ("VM autoscaling", &["taskscaler"], &["VM life cycle"]),
    ("job-to-VM mapping", &["executor"], &["VM autoscaling", "VM life cycle"]),
    ("in-VM execution", &["agent", "steps", "builtins"], &[]),
];

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

/// Returns the direct and indirect dependencies of a crate.
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

/// Modules of `agent-api` that an executor may use, because they serve the connection to an agent.
const CONNECTION_MODULES: [&str; 3] = ["agent", "client", "result"];
const SCRIPT_WORDS: [&str; 11] = [
    "after_script",
    "artifact",
    "before_script",
    "CI_",
    "get_sources",
    " git ",
    "pipefail",
    "set -e",
    "step_script",
    "\"git\"",
    "submodule",
];

/// Returns the paths of Rust files and their texts without comments and tests.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && !name.contains("test") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            found.push((path.clone(), lines.collect::<Vec<_>>().join("\n")));
        }
    }
    found
}

#[test]
fn executors_and_managers_do_not_execute_jobs() {
    let direct = direct_dependencies();
    for (krate, forbidden) in [
        ("manager", &["agent", "steps", "builtins"][..]),
        // Without the crate `runner-api`, an executor cannot read a job's scripts.
        ("executor", &["agent", "steps", "builtins", "manager", "pipeline", "runner-api"]),
    ] {
        let dependencies = all_dependencies(krate, &direct);
        for other in forbidden {
            assert!(direct.contains_key(*other), "the crate {other} does not exist: {:?}", direct.keys());
            assert!(!dependencies.contains(*other), "{krate} depends on {other}, which executes or describes jobs");
        }
    }
    let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/src"));
    assert!(files.iter().any(|(path, _)| path.ends_with("host/mod.rs")), "{files:?}");
    for (path, code) in files {
        for used in code.split("muster_agent_api::").skip(1) {
            let module = used.split(|character: char| !character.is_alphanumeric() && character != '_').next();
            assert!(
                CONNECTION_MODULES.contains(&module.unwrap()),
                "{} uses {module:?} of agent-api, but executors may only connect to agents",
                path.display()
            );
        }
        let words: Vec<_> = SCRIPT_WORDS.iter().filter(|word| code.contains(**word)).collect();
        assert!(words.is_empty(), "{} has logic of job scripts: {words:?}", path.display());
    }
}
