//! Executor `docker+machine`: an unchanged configuration of gitlab-runner runs jobs on machines that docker-machine
//! creates.

use std::path::Path;

use muster_test_prerequisites::DockerEngine;

use crate::instance_executor::Fleet;

/// Only the engine of the machines has this image.
const IMAGE: &str = "muster-test/on-a-machine:1";
const JOBS: usize = 3;

#[test]
fn unchanged_configuration_runs_jobs_in_containers_on_machines() {
    if !muster_test_prerequisites::sshd() {
        return;
    }
    let Some(engine) = DockerEngine::shared() else { return };
    if !engine.create_image(IMAGE, &[]) {
        return;
    }
    let names: Vec<String> = (0..JOBS).map(|n| format!("job {n}")).collect();
    let job = |name: &String| {
        format!(
            "{name}:\n  image: {IMAGE}\n  script: ['head -c 24 /proc/1/cmdline | tr \"\\\\0\" \" \"; echo', 'echo made >out.txt']\n  \
             artifacts: {{paths: [out.txt]}}\n"
        )
    };
    // This job uses the image of the configuration.
    let last = "last:\n  stage: deploy\n  script: [cat out.txt]\n".to_owned();
    let yaml: String = names.iter().map(job).chain([last]).collect();
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("fake");
    let fleet = Fleet::with_entry(&yaml, "home/.docker/machine/machines", Some(&programs), |_| {
        format!(
            "executor = \"docker+machine\"\n  limit = 2\n  [runners.docker]\n    image = {IMAGE:?}\n    pull_policy = \"never\"\n    \
             privileged = false\n    disable_entrypoint_overwrite = false\n    oom_kill_disable = false\n    disable_cache = false\n    \
             volumes = [\"/cache\"]\n    shm_size = 0\n  [runners.machine]\n    IdleCount = 0\n    IdleTime = 1\n    MaxBuilds = 1\n    \
             MachineDriver = \"fake\"\n    MachineName = \"auto-scale-%s\"\n    MachineOptions = [\"fake-engine={}\", \"fake-process={}\"]\n",
            engine.socket().display(),
            std::process::id()
        )
    });
    let all: Vec<String> = names.iter().cloned().chain(["last".to_owned()]).collect();
    let (last, logs) = fleet.finish(&all);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let machines: std::collections::BTreeSet<_> = logs.iter().map(|log| machine_of(log)).collect();
    assert_eq!(machines.len(), all.len(), "MaxBuilds = 1: {machines:?}");
    for log in &logs[..JOBS] {
        assert!(log.contains("/.muster/muster-agent ag"), "the agent must be the first process of a container: {log}");
    }
    assert!(logs[JOBS].contains("\nmade\n"), "{}", logs[JOBS]);
}

fn machine_of(log: &str) -> &str {
    let rest = log.split("Dialing instance ").nth(1).unwrap_or_else(|| panic!("no machine in {log}"));
    let name = rest.split("...").next().unwrap();
    assert!(name.starts_with("runner-") && name.contains("-auto-scale-"), "{name}");
    name
}
