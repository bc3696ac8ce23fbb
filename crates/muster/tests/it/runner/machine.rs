//! Docker Machine's configurations: run as they are, and written anew.

use rustix::process::Signal;

use super::run::bench::Bench;
use super::support::Home;
use crate::process::Ended;

const MACHINE: &str = "[runners.machine]\nIdleCount = 1\nIdleTime = 600\nMachineName = \"auto-%s\"\nMachineDriver = \"google\"\n\
                       MachineOptions = [\"google-project=ci\"]\n";

/// A `docker-machine` that writes down how it was called, knows no machine, and fails to make one.
const PROGRAM: &str =
    "#!/bin/sh\necho \"$*\" >>\"$HOME/calls\"\ncase $1 in create) echo 'quota exceeded' >&2; exit 3 ;; esac\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_old_table_makes_its_machines_by_the_plugin_that_comes_with_the_program() {
    let bench = Bench::start(1).await;
    let program = bench.home.path("docker-machine");
    std::fs::write(&program, PROGRAM).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    bench.configure(&format!("{}{MACHINE}", bench.entry(0).replace("\"shell\"", "\"instance\"")));
    let path = format!("{}:{}", bench.home.path("").display(), std::env::var("PATH").unwrap());
    let run = bench.run_with(&[("PATH", &path)]);
    run.logged("quota exceeded", 1).await;
    run.logged("[runners.machine] is deprecated since GitLab 17.5", 1).await;
    let calls = std::fs::read_to_string(bench.home.path("calls")).unwrap();
    let create = calls.lines().find(|call| call.starts_with("create ")).unwrap();
    assert!(create.contains("--driver google") && create.contains("--google-project=ci"), "{create}");
    let name = create.split_whitespace().next_back().unwrap();
    assert!(name.starts_with("runner-") && name.contains("-auto-"), "{create}");
    run.signal(Signal::TERM);
    assert_eq!(run.code().await, 0);
}

fn migrate(text: &str, more: &[&str]) -> Ended {
    let home = Home::new();
    std::fs::write(home.path("old.toml"), text).unwrap();
    let ended = home.run(&[&["migrate-machine", "--config", "old.toml"], more].concat());
    assert_eq!(std::fs::read_to_string(home.path("old.toml")).unwrap(), text, "the file stays as it is");
    ended
}

#[test]
fn migrate_machine_prints_a_configuration_that_verifies_and_says_what_is_to_be_done() {
    let text = format!(
        "[[runners]]\nname = \"big\"\nurl = \"https://gitlab.example\"\ntoken = \"glrt-abcdefghijkl\"\nlimit = 4\n\
         executor = \"instance\" # was: docker+machine\n{MACHINE}"
    );
    let ended = migrate(&text, &[]).check(0, &["big: make the managed instance group `auto` first"]);
    assert!(ended.stdout.contains("plugin = \"googlecloud:latest\"") && ended.stdout.contains("# was: docker+machine"));
    let home = Home::new();
    std::fs::write(home.path("new.toml"), &ended.stdout).unwrap();
    // All that is left to do: the plugin is not here yet.
    let verified = home
        .run(&["verify-config", "--config", "new.toml"])
        .check(1, &["error[C086]: runner big: ", "muster plugin install googlecloud:latest"]);
    assert!(verified.stdout.contains("(1 error, "), "{verified:?}");
    let machines = migrate(&text, &["--to", "machines"]).check(0, &[]);
    assert!(machines.stdout.contains("MachineDriver = \"google\""), "{}", machines.stdout);
}

#[test]
fn migrate_machine_refuses_what_it_cannot_do() {
    migrate("concurrent = 1\n", &[]).check(1, &["there is nothing to migrate"]);
    migrate("concurrent = \n", &[]).check(1, &["old.toml:1", "errors, which come first"]);
    let entry = "[[runners]]\nname = \"big\"\nexecutor = \"instance\"\n";
    let ended = migrate(&format!("{entry}{}", MACHINE.replace("MachineDriver = \"google\"\n", "")), &[])
        .check(1, &["runner big: [runners.machine] has no MachineDriver", "then try again"]);
    assert_eq!(ended.stdout, "", "half a configuration must not look like a whole one");
    let home = Home::new();
    home.run(&["migrate-machine", "--config", "none.toml"]).check(1, &["none.toml does not exist", "--config"]);
    std::fs::write(home.path("latin.toml"), b"# f\xfcr alle\n").unwrap();
    let ended = home.run(&["migrate-machine", "--config", "latin.toml"]);
    let ended = ended.check(1, &["cannot read latin.toml: line 1 is not UTF-8", "convert the file"]);
    assert!(!ended.stderr.contains("--config"), "it was named: {ended:#?}");
}
