//! `muster plugin new`: the created projects build, and pass `muster plugin test`.

use std::path::Path;
use std::process::Command;

use super::support::{Home, sibling};
use crate::process::CommandResult;

/// Creates a project, builds it, and runs the conformance tests in its directory, with `programs` first on `PATH`.
fn create_and_test(home: &Home, arguments: &[&str], build: impl FnOnce(&Path), programs: &Path) -> CommandResult {
    home.run(&[&["muster", "plugin", "new", "box-office"], arguments].concat()).check(0, &["muster plugin test"]);
    let project = home.path("fleeting-plugin-box-office");
    build(&project);
    let mut test = home.command(&["muster", "plugin", "test", "--config", "plugin.toml"]);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    CommandResult::of_report(test.current_dir(project).env("PATH", path).output().unwrap())
}

fn count(result: &CommandResult, word: &str) -> usize {
    result.stdout.lines().filter(|line| line.starts_with(&format!("{word}  "))).count()
}

#[test]
fn new_shell_and_python_projects_pass() {
    let Some(script) = sibling("fleeting-plugin-script") else { return };
    for language in ["shell", "python"] {
        let home = Home::new();
        let result = create_and_test(&home, &["--lang", language], |_| {}, script.parent().unwrap());
        let result = result.check(0, &[]);
        assert_eq!((count(&result, "fail"), count(&result, "warn")), (0, 0), "{language}: {}", result.stdout);
        assert!(
            result.stdout.contains("pass  L11 "),
            "the plugin must list its instances after a crash: {}",
            result.stdout
        );
        let config = std::fs::read_to_string(home.path("fleeting-plugin-box-office/plugin.toml")).unwrap();
        assert!(config.contains("fleeting-plugin-script"), "{config}");
    }
}

/// Uses the crates and the lock file of this program, so that no network is needed.
#[test]
fn new_rust_project_builds_and_passes() {
    let cargo = env!("CARGO");
    if !Path::new(cargo).is_file() {
        return muster_test_prerequisites::missing(format_args!(
            "{cargo} does not exist, so the project cannot be built"
        ));
    }
    let home = Home::new();
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fleeting");
    let build = |project: &Path| {
        std::fs::copy(sdk.join("../../Cargo.lock"), project.join("Cargo.lock")).unwrap();
        let mut build = Command::new(cargo);
        build.args(["build", "--offline", "--quiet"]).current_dir(project);
        // The build output is kept between test runs; the project is new each time.
        build.env("CARGO_TARGET_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/plugin-new"));
        build.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_BUILD_TARGET");
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let source = std::fs::read_to_string(project.join("src/main.rs")).unwrap();
        assert!(source.lines().count() < 150, "the plugin must have fewer than 150 lines");
        std::fs::create_dir_all(project.join("target/debug")).unwrap();
        let name = "debug/fleeting-plugin-box-office";
        let executable = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/plugin-new")).join(name);
        std::os::unix::fs::symlink(executable, project.join("target").join(name)).unwrap();
    };
    let result = create_and_test(&home, &["--sdk", sdk.to_str().unwrap()], build, Path::new("/nowhere"));
    let result = result.check(0, &[]);
    assert_eq!((count(&result, "fail"), count(&result, "warn")), (0, 0), "{}", result.stdout);
}

#[test]
fn new_go_project_builds_and_passes() {
    // Runs only if Go and its modules are installed.
    if muster_test_prerequisites::variable("MUSTER_TEST_FLEETING_DUMMY", "fleeting-plugin-dummy").is_none() {
        return;
    }
    let home = Home::new();
    let build = |project: &Path| {
        // The checksums of the modules that scripts/test downloaded.
        let sums = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/go/go.sum");
        std::fs::copy(sums, project.join("go.sum")).unwrap();
        let go = Command::new("go").args(["build", "-mod=mod"]).current_dir(project).output().unwrap();
        assert!(go.status.success(), "{}", String::from_utf8_lossy(&go.stderr));
    };
    let result = create_and_test(&home, &["--lang", "go"], build, Path::new("/nowhere")).check(0, &[" 0 fail"]);
    for id in ["P8", "P15"] {
        assert!(result.stdout.contains(&format!("warn  {id:<4} ")), "{}", result.stdout);
    }
}

#[test]
fn new_keeps_existing_files_and_checks_names() {
    let home = Home::new();
    let new = |name: &str| home.run(&["muster", "plugin", "new", name, "--lang", "shell"]);
    new("mine").check(0, &["cd fleeting-plugin-mine"]);
    new("mine").check(1, &["the directory already exists"]);
    new("fleeting-plugin-other").check(0, &["cd fleeting-plugin-other && muster plugin test"]);
    for name in ["Mine", "a/b", "1st", "..", "a b", ""] {
        new(name).check(1, &["lowercase letters, digits and dashes"]);
    }
    home.run(&["muster", "plugin", "new", "x", "--sdk", "nowhere"]).check(1, &["no Cargo.toml in this directory"]);
}
