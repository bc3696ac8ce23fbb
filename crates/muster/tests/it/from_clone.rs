//! `scripts/muster`, which builds and runs Muster, and `scripts/need`, which installs tools. `cargo` and `apt-get` are fakes.

use std::path::Path;
use std::process::Command;

use crate::process::CommandResult;

/// Runs `scripts/muster` with a fake Cargo that prints `output` and reports `executable` (JSON).
fn run(output: &str, executable: &str) -> CommandResult {
    let directory = tempfile::tempdir().unwrap();
    let cargo = directory.path().join("cargo");
    let artifact = |name: &str, executable: &str| {
        format!(r#"{{"reason":"compiler-artifact","target":{{"name":"{name}"}},"executable":{executable}}}"#)
    };
    let artifacts = format!("{}\n{}", artifact("build-script-build", "null"), artifact("muster", executable));
    muster_test_prerequisites::create_program(
        &cargo,
        format!("#!/bin/sh\ncat >&2 <<'END'\n{output}\nEND\ncat <<'END'\n{artifacts}\nEND\n"),
    );
    // The executable of another clone exists in the cache. The script must not run it.
    let other = directory.path().join("cache/muster/target/x86_64/debug/muster");
    std::fs::create_dir_all(other.parent().unwrap()).unwrap();
    std::fs::write(other, "").unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([directory.path().into()].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/muster"));
    script.args(["ci", "two  words"]).env("PATH", path).env("XDG_CACHE_HOME", directory.path().join("cache"));
    CommandResult::of(script.env_remove("CARGO_TARGET_DIR").output().unwrap())
}

#[test]
fn script_reports_only_long_builds() {
    let fresh = run("    Finished `dev` profile", r#""/bin/echo""#).check(0, &[]);
    assert_eq!((fresh.stdout.as_str(), fresh.stderr.as_str()), ("ci two  words\n", ""));
    for work in
        ["   Compiling muster v0.1.0", "    Blocking waiting for file lock", "\x1b[32m   Compiling\x1b[0m muster"]
    {
        let built = run(&format!("{work}\n    Finished `dev` profile"), r#""/bin/echo""#);
        let built = built.check(0, &["scripts/muster: building Muster", "a few minutes\n", work]);
        assert!(built.stdout == "ci two  words\n" && !built.stderr.contains("Finished"), "{built:?}");
    }
    let failed = run("error: could not compile `muster`", "null").check(101, &["could not compile"]);
    assert!(!failed.stderr.contains("minutes") && failed.stdout.is_empty(), "{failed:?}");
}

/// Runs `scripts/need python3` as root on a machine without Python, with this fake `apt-get`.
fn need_python(apt_get: &str) -> CommandResult {
    let directory = tempfile::tempdir().unwrap();
    let program = |name: &str, text: &str| {
        let path = directory.path().join(name);
        muster_test_prerequisites::create_program(&path, format!("#!/bin/sh\n{text}\n"));
    };
    program("id", "echo 0");
    program("dirname", "echo \"${1%/*}\"");
    program("flock", "shift; exec \"$@\"");
    program("apt-get", apt_get);
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/need"));
    script.arg("python3").env("PATH", directory.path()).env("TEST_DIR", directory.path());
    CommandResult::of(script.output().unwrap())
}

#[test]
fn need_script_installs_or_names_missing_tools() {
    let installs = "case \"$*\" in *' python3') : >\"$TEST_DIR/python3\"; /bin/chmod +x \"$TEST_DIR/python3\";; esac";
    need_python(installs).check(0, &[]);
    need_python("exit 100").check(1, &["failed to install python3; run: apt-get install python3"]);

    // The pipeline must run `scripts/need` directly before each line that needs a tool.
    let pipeline = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.gitlab-ci.yml");
    let text = std::fs::read_to_string(pipeline).unwrap();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let needs = |line: &str| match line {
        "- cargo fmt --check" => Some("- scripts/need rustfmt"),
        // This check is a shell script, so it does not need Python.
        "- scripts/check-msrv" => None,
        line if line.starts_with("- scripts/check-") => Some("- scripts/need python3"),
        _ => None,
    };
    for pair in lines.windows(2) {
        assert!(
            needs(pair[1]).is_none_or(|need| need == pair[0]),
            "`{}` comes before `{}`, instead of the line that installs its tool",
            pair[0],
            pair[1]
        );
    }
    assert!(lines.iter().filter_map(|line| needs(line)).count() >= 3, "{text}");
}
