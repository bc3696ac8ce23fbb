//! Follows the guide `docs/how-to/write-a-plugin.md`: creates each section's files, and runs its commands. The
//! resulting plugins must pass `muster plugin test`.

use std::path::{Path, PathBuf};

use super::support::{Home, sibling};
use crate::process::CommandResult;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the text of the guide after a heading, including all later sections.
fn section(heading: &str) -> String {
    let guide = std::fs::read_to_string(repository().join("docs/how-to/write-a-plugin.md")).unwrap();
    guide.split_once(&format!("\n## {heading}")).unwrap().1.to_owned()
}

/// Returns the first code block in a language after the given heading or sentence.
fn block(text: &str, after: &str, language: &str) -> String {
    let rest = text.split_once(after).unwrap_or_else(|| panic!("`{after}` is not in the guide")).1;
    let rest = rest.split_once(&format!("```{language}\n")).unwrap().1;
    rest.split_once("\n```").unwrap().0.to_owned() + "\n"
}

/// Runs commands as a reader would, in this home directory and with `muster` on `PATH`. `variables` are additional environment variables.
fn run_commands(home: &Home, commands: &str, variables: &[(&str, &str)]) -> CommandResult {
    let mut shell = home.command(&["muster"]);
    let mut path = home.path("").into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let arguments = ["-e", "-c", commands];
    let program = std::mem::replace(&mut shell, std::process::Command::new("sh"));
    shell.args(arguments).env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(home.path("")).env("PATH", path).env("MUSTER", repository()).envs(variables.iter().copied());
    CommandResult::of_report(shell.output().unwrap())
}

/// Checks that no test failed. Warnings are accepted, because a plugin without the SDK may get some.
fn check_passed(result: CommandResult) -> CommandResult {
    result.check(0, &[" 0 fail", "pass  C4 ", "pass  C6 "])
}

#[test]
fn guide_has_the_files_of_the_example() {
    let rust = section("Rust");
    for (step, language, file) in [("**1.**", "toml", "Cargo.toml"), ("**2.**", "rust", "src/main.rs")] {
        let text = std::fs::read_to_string(repository().join("examples/plugins/rust").join(file)).unwrap();
        assert_eq!(block(&rust, step, language), text, "the guide must contain {file} unchanged");
        assert!(text.lines().count() < 150, "R022: the plugin must have fewer than 150 lines");
    }
}

/// Uses the crates and the lock file of this program, so that no network is needed.
#[test]
fn rust_guide_creates_a_passing_plugin() {
    if !muster_test_prerequisites::sshd() {
        return;
    }
    let (home, rust) = (Home::new(), section("Rust"));
    let manifest = block(&rust, "**1.**", "toml").replace("../../..", repository().to_str().unwrap());
    std::fs::write(home.path("Cargo.toml"), manifest).unwrap();
    std::fs::create_dir(home.path("src")).unwrap();
    std::fs::write(home.path("src/main.rs"), block(&rust, "**2.**", "rust")).unwrap();
    std::fs::write(home.path("config.toml"), block(&rust, "**5.**", "toml")).unwrap();
    std::fs::copy(repository().join("Cargo.lock"), home.path("Cargo.lock")).unwrap();
    // The build output is kept between test runs; the project is new each time.
    let build_directory = concat!(env!("CARGO_TARGET_TMPDIR"), "/plugin-new");
    std::fs::create_dir_all(build_directory).unwrap();
    std::os::unix::fs::symlink(build_directory, home.path("target")).unwrap();
    let cargo = Path::new(env!("CARGO")).parent().unwrap().to_str().unwrap();
    let user_variables =
        ["CARGO_HOME", "RUSTUP_HOME", "HOME"].map(|name| (name, std::env::var(name).unwrap_or_default()));
    let mut variables: Vec<(&str, &str)> = user_variables
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    variables.extend([("CARGO_NET_OFFLINE", "true"), ("CARGO_PROFILE_DEV_DEBUG", "0")]);
    let steps: String = ["**3.**", "**4.**", "**5.**"].map(|step| block(&rust, step, "sh")).concat();
    let result = check_passed(run_commands(&home, &format!("PATH={cargo}:$PATH\n{steps}"), &variables));
    for expected in [
        "Name:         fleeting-plugin-sshd",
        "| `max_size` | integer | `10` | Maximum number of instances. |",
        "runners.autoscaler.plugin = \"fleeting-plugin-sshd\"",
        "config.toml: usable (0 errors, ",
    ] {
        let output = result.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(output.contains(&expected), "`{expected}` is not in {result:#?}");
    }
    assert!(!result.stdout.contains("warn  "), "{}", result.stdout);
}

#[test]
fn python_guide_creates_a_passing_plugin() {
    let Some(venv) = muster_test_prerequisites::variable("MUSTER_TEST_PYTHON_VENV", "a Python with grpcio") else {
        return;
    };
    if !muster_test_prerequisites::sshd() {
        return;
    }
    let home = Home::new();
    let commands = block(&section("Python"), "", "sh");
    // The first two lines were run by scripts/test.
    let (setup, rest) = commands.split_at(commands.find("cp ").unwrap());
    assert_eq!(setup, "python3 -m venv venv\nvenv/bin/pip install grpcio grpcio-tools\n");
    std::os::unix::fs::symlink(venv, home.path("venv")).unwrap();
    check_passed(run_commands(&home, rest, &[]));
    let lines = std::fs::read_to_string(home.path("fleeting-plugin-sshd.py")).unwrap().lines().count();
    assert!(lines < 100, "R022: the plugin has {lines} lines, but must have fewer than 100");
}

#[test]
fn go_guide_creates_a_passing_plugin() {
    // Runs only if Go and the modules of the example are installed.
    if muster_test_prerequisites::variable("MUSTER_TEST_GO_EXAMPLE", "the plugin in Go").is_none()
        || !muster_test_prerequisites::sshd()
    {
        return;
    }
    let home = Home::new();
    let user_variables = [
        "HOME",
        "GOPATH",
        "GOCACHE",
        "GOMODCACHE",
        "GOPROXY",
        "GONOSUMDB",
        "GONOSUMCHECK",
        "GOFLAGS",
        "GOTOOLCHAIN",
        "GOSUMDB",
    ];
    let user_variables = user_variables.map(|name| (name, std::env::var(name).unwrap_or_default()));
    let variables: Vec<(&str, &str)> = user_variables
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    check_passed(run_commands(&home, &block(&section("Go"), "", "sh"), &variables));
}

#[test]
fn shell_guide_creates_a_passing_plugin() {
    if !muster_test_prerequisites::sshd() || sibling("fleeting-plugin-script").is_none() {
        return;
    }
    let home = Home::new();
    let result = check_passed(run_commands(&home, &block(&section("Shell"), "", "sh"), &[]));
    assert!(!result.stdout.contains("warn  "), "{}", result.stdout);
}
