//! Checks the examples, the templates and the plugins: their size, their imports, and copied files.

use std::path::PathBuf;

fn read_text(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn example_providers_are_small() {
    for (path, max_lines) in [
        ("crates/fleeting/templates/rust/src/main.rs", 150),
        ("examples/plugins/rust/src/main.rs", 150),
        ("crates/fleeting/templates/python/group.py", 100),
        ("examples/plugins/python/fleeting-plugin-sshd.py", 100),
        ("crates/fleeting/templates/shell/group", 100),
        ("examples/plugins/shell/sshd-group", 100),
    ] {
        let lines = read_text(path).lines().count();
        assert!(lines < max_lines, "{path} has {lines} lines");
    }
}

/// The Python example contains the protocol file, so that the example can be copied as a whole.
#[test]
fn python_example_has_current_protocol() {
    let (copy, original) = (
        read_text("examples/plugins/python/instance_group.proto"),
        read_text("crates/fleeting/proto/instance_group.proto"),
    );
    assert!(copy == original, "copy crates/fleeting/proto/instance_group.proto to examples/plugins/python");
}

/// Requirement R045: plugins do not use the host, the scaler or the manager.
///
/// They use only the modules `sdk` and `connector` of this crate, and the crates `muster-remote` and `muster-files`. Host and scaler contain
/// no names of providers.
#[test]
fn plugins_use_only_the_sdk_while_host_and_scaler_contain_no_provider_names() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut plugins = 0;
    for plugin in std::fs::read_dir(root.join("plugins")).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(manifest) = std::fs::read_to_string(plugin.join("Cargo.toml")) else { continue };
        let dependencies = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
        let muster_crates: Vec<_> = dependencies.lines().filter(|line| line.starts_with("muster-")).collect();
        let allowed = |used: &&str| ["fleeting", "remote", "files"].iter().any(|name| used[7..].starts_with(name));
        assert!(
            !muster_crates.is_empty() && muster_crates.iter().all(allowed),
            "{}: {muster_crates:?}",
            plugin.display()
        );
        for (path, text) in sources(&plugin.join("src")) {
            // Tests of a plugin may check how a host uses it.
            let code = text.split("#[cfg(test)]").next().unwrap();
            for used in code.split("muster_fleeting::").skip(1) {
                let module = used.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
                assert!(matches!(module, "sdk" | "connector"), "{} uses {module}", path.display());
            }
        }
        plugins += 1;
    }
    assert!(plugins >= 4, "{plugins}");
    for directory in ["crates/taskscaler/src", "crates/fleeting/src/host"] {
        for (path, text) in sources(&root.join(directory)) {
            for name in ["docker-machine", "docker_machine", "amazonec2", "googlecloud"] {
                assert!(!text.contains(name), "{} contains {name}", path.display());
            }
        }
    }
}

fn sources(directory: &std::path::Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(sources(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            found.push((entry.clone(), std::fs::read_to_string(&entry).unwrap()));
        }
    }
    found
}
