//! Configurations with Docker Machine: run unchanged, and migrated.

use rustix::process::Signal;

use super::run::harness::Harness;
use super::support::Home;
use crate::process::CommandResult;

const MACHINE: &str = "[runners.machine]\nIdleCount = 1\nIdleTime = 600\nMachineName = \"auto-%s\"\nMachineDriver = \"google\"\n\
                       MachineOptions = [\"google-project=ci\"]\n";

/// A `docker-machine` that records its calls, knows no machine, and fails to create one.
const PROGRAM: &str =
    "#!/bin/sh\necho \"$*\" >>\"$HOME/calls\"\ncase $1 in create) echo 'quota exceeded' >&2; exit 3 ;; esac\n";

#[tokio::test(flavor = "multi_thread")]
async fn docker_machine_config_uses_the_built_in_plugin() {
    let harness = Harness::start(1).await;
    let program = harness.home.path("docker-machine");
    muster_test_prerequisites::create_program(&program, PROGRAM);
    harness.configure(&format!("{}{MACHINE}", harness.entry(0).replace("\"shell\"", "\"instance\"")));
    let path = format!("{}:{}", harness.home.path("").display(), std::env::var("PATH").unwrap());
    let run = harness.run_with(&[("PATH", &path)]);
    run.wait_for_log("quota exceeded", 1).await;
    run.wait_for_log("[runners.machine] has been deprecated since GitLab 17.5", 1).await;
    let calls = std::fs::read_to_string(harness.home.path("calls")).unwrap();
    let create = calls.lines().find(|call| call.starts_with("create ")).unwrap();
    assert!(create.contains("--driver google") && create.contains("--google-project=ci"), "{create}");
    let name = create.split_whitespace().next_back().unwrap();
    assert!(name.starts_with("runner-") && name.contains("-auto-"), "{create}");
    run.signal(Signal::TERM);
    assert_eq!(run.wait_for_exit_code().await, 0);
}

fn migrate(text: &str, more: &[&str]) -> CommandResult {
    let home = Home::new();
    std::fs::write(home.path("old.toml"), text).unwrap();
    let result = home.run(&[&["migrate-machine", "--config", "old.toml"], more].concat());
    assert_eq!(std::fs::read_to_string(home.path("old.toml")).unwrap(), text, "the input file must not change");
    result
}

#[test]
fn migrate_machine_prints_a_valid_configuration_and_what_the_user_must_do() {
    let text = format!(
        "[[runners]]\nname = \"big\"\nurl = \"https://gitlab.example\"\ntoken = \"glrt-abcdefghijkl\"\nlimit = 4\n\
         executor = \"instance\" # was: docker+machine\n{MACHINE}"
    );
    let result = migrate(&text, &[]).check(0, &["big: create the managed instance group `auto` first"]);
    assert!(
        result.stdout.contains("plugin = \"googlecloud:latest\"") && result.stdout.contains("# was: docker+machine")
    );
    let home = Home::new();
    std::fs::write(home.path("new.toml"), &result.stdout).unwrap();
    // The only remaining problem: the plugin is not installed here.
    let verified = home
        .run(&["verify-config", "--config", "new.toml"])
        .check(1, &["error[C086]: runner big: ", "muster plugin install googlecloud:latest"]);
    assert!(verified.stdout.contains("(1 error, "), "{verified:?}");
    let machines = migrate(&text, &["--to", "machines"]).check(0, &[]);
    assert!(machines.stdout.contains("MachineDriver = \"google\""), "{}", machines.stdout);
}

#[test]
fn migrate_machine_rejects_invalid_configurations() {
    migrate("concurrent = 1\n", &[]).check(1, &["nothing to migrate"]);
    migrate("concurrent = \n", &[]).check(1, &["old.toml:1", "the configuration has errors; fix them first"]);
    let entry = "[[runners]]\nname = \"big\"\nexecutor = \"instance\"\n";
    let result = migrate(&format!("{entry}{}", MACHINE.replace("MachineDriver = \"google\"\n", "")), &[])
        .check(1, &["runner big: [runners.machine] has no MachineDriver", "then try again"]);
    assert_eq!(result.stdout, "", "an incomplete configuration must not be printed");
    let home = Home::new();
    home.run(&["migrate-machine", "--config", "none.toml"]).check(1, &["none.toml does not exist", "--config"]);
    std::fs::write(home.path("latin.toml"), b"# f\xfcr alle\n").unwrap();
    let result = home.run(&["migrate-machine", "--config", "latin.toml"]);
    let result = result.check(1, &["failed to read latin.toml: line 1 is not UTF-8", "convert the file"]);
    assert!(
        !result.stderr.contains("--config"),
        "the file was named, so no hint about --config is needed: {result:#?}"
    );
}
