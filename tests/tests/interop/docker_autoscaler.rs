//! Executor `docker-autoscaler`: jobs run in containers on the Docker engines of instances.

use std::collections::BTreeSet;

use muster_test_prerequisites::DockerEngine;

use crate::instance_executor::Fleet;

const IMAGE: &str = "muster-test/busybox:1";
const JOBS: usize = 6;

#[test]
fn instance_runs_several_jobs_and_each_job_has_its_own_container() {
    let Some(engine) = DockerEngine::shared() else { return };
    if !engine.create_image(IMAGE, &[]) {
        return;
    }
    let names: Vec<String> = (0..JOBS).map(|n| format!("job {n}")).collect();
    let job = |name: &String| {
        format!(
            "{name}:\n  image: {IMAGE}\n  services: [{{name: {IMAGE}, alias: web, command: [nc, -ll, -p, '80', -e, echo, served], variables: {{HEALTHCHECK_TCP_PORT: '80'}}}}]\n  \
             script: ['test ! -e /tmp/mark && touch /tmp/mark', 'mkdir /shared/in-use', 'sleep 1', 'rmdir /shared/in-use', 'echo \"container $(hostname) has $(nc web 80 </dev/null)\"', 'head -n 1 .gitlab-ci.yml', \
             'echo made > out.txt']\n  artifacts: {{paths: [out.txt]}}\n"
        )
    };
    let last = "last:\n  stage: deploy\n  image: {IMAGE}\n  script: [cat out.txt]\n".replace("{IMAGE}", IMAGE);
    let yaml: String = names.iter().map(job).chain([last]).collect();
    let keys = format!(
        "[runners.docker]\n    host = {:?}\n    image = {IMAGE:?}\n    pull_policy = \"if-not-present\"\n    volumes = [\"/shared\"]",
        engine.url()
    );
    let autoscaler = "    capacity_per_instance = 2\n    max_instances = 2\n";
    let fleet = Fleet::with_executor("docker-autoscaler", &keys, &yaml, autoscaler, "");
    let all: Vec<String> = names.iter().cloned().chain(["last".to_owned()]).collect();
    let (last, logs) = fleet.finish(&all);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let (mut instances, mut containers) = (BTreeSet::new(), BTreeSet::new());
    for log in logs.iter().take(JOBS) {
        let word = |before: &str| {
            let rest = log.split(before).nth(1).unwrap_or_else(|| panic!("{before}: {log}"));
            rest.split_whitespace().next().unwrap().trim_end_matches("...").to_owned()
        };
        instances.insert(word("Dialing instance "));
        containers.insert(word("\ncontainer "));
        assert!(log.contains(" has served\n") && log.contains("\njob 0:\n"), "{log}");
    }
    assert!(
        (2..=4).contains(&containers.len()),
        "containers are named after slots, and two instances have four slots: {containers:?}"
    );
    assert!((1..=2).contains(&instances.len()), "an instance runs several jobs: {instances:?}");
    assert!(logs[JOBS].contains("\nmade\n"), "{}", logs[JOBS]);
    for name in containers {
        assert_eq!(
            engine.call("GET", &format!("/containers/{name}/json"), &[]).0,
            404,
            "container {name} must be removed"
        );
    }
}
