//! Several jobs at once on one instance of the `local` plugin: slots, workspaces, cgroups and sticky contexts.

use super::instance_executor::Fleet;

const JOBS: usize = 4;

/// Returns the line of a log that starts with a prefix, without the prefix.
fn said<'a>(log: &'a str, start: &str) -> &'a str {
    let line = log.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no line with {start:?} in {log}"))
}

fn sorted(logs: &[String], start: &str) -> Vec<String> {
    let mut all: Vec<String> = logs.iter().map(|log| said(log, start).to_owned()).collect();
    all.sort();
    all
}

#[test]
fn four_jobs_at_once_on_one_instance_have_slots_and_workspaces_of_their_own_and_one_context() {
    let names: Vec<String> = (0..JOBS).map(|n| format!("job {n}")).collect();
    // Each job waits for the others, so all of them must run at the same time.
    let script = "  stage: first\n  script:\n    \
        - 'echo \"home=$HOME\"; echo \"workspace=$CI_PROJECT_DIR\"; echo \"slot=$GITLAB_RUNNER_SLOT_CGROUP\"'\n    \
        - 'echo \"inside=$(grep -c \"$GITLAB_RUNNER_SLOT_CGROUP/job-\" /proc/self/cgroup)\"'\n    \
        - 'test ! -e mine && echo \"$CI_JOB_NAME\" > mine'\n    \
        - 'touch \"$MUSTER_CONTEXT_DIR/$CI_JOB_NAME_SLUG\"'\n    \
        - 'for n in $(seq 600); do test $(ls \"$MUSTER_CONTEXT_DIR\" | wc -l) -eq 4 && break; sleep 0.1; done'\n    \
        - 'test $(ls \"$MUSTER_CONTEXT_DIR\" | wc -l) -eq 4 && echo \"mine=$(cat mine)\"'\n";
    let jobs: String = names.iter().map(|name| format!("{name}:\n{script}")).collect();
    let yaml = format!(
        "stages: [first, second]\n{jobs}later:\n  stage: second\n  script:\n    \
         - 'echo \"found=$(ls \"$MUSTER_CONTEXT_DIR\" | tr \"\\n\" \" \")\"'\n    - 'echo \"home=$HOME\"'\n\
         without:\n  stage: second\n  variables: {{MUSTER_STICKY_CONTEXT: 'false'}}\n  script:\n    \
         - 'echo \"context=${{MUSTER_CONTEXT_DIR-none}}\"'\n"
    );
    let fleet = Fleet::start(
        &yaml,
        "    capacity_per_instance = 4\n    max_instances = 1\n    [runners.autoscaler.density]\n      learn_from_usage = true\n    \
         [runners.autoscaler.sticky_context]\n      enabled = true\n",
        "",
    );
    let all: Vec<String> = names.iter().cloned().chain(["later".to_owned(), "without".to_owned()]).collect();
    let (last, logs) = fleet.finish(&all);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let (first, second) = logs.split_at(JOBS);

    assert_eq!(sorted(first, "slot="), (0..JOBS).map(|n| format!("gitlab-runner/slot-{n}")).collect::<Vec<_>>());
    let home = said(&first[0], "home=");
    assert!(logs.iter().take(JOBS + 1).all(|log| said(log, "home=") == home), "one instance");
    for log in first {
        let slot = said(log, "slot=").rsplit('-').next().unwrap();
        let workspace = said(log, "workspace=");
        let place = workspace.strip_prefix(&format!("{home}/builds/")).unwrap();
        assert_eq!(place.split('/').nth(1), Some(slot), "{workspace}");
    }
    assert_eq!(sorted(first, "mine="), names, "nobody wrote into another one's workspace");
    let inside: Vec<bool> = first.iter().map(|log| said(log, "inside=") != "0").collect();
    if muster_test_needs::cgroups(inside.contains(&true)) {
        assert_eq!(inside, [true; JOBS], "each in the cgroup of its slot");
    }

    assert_eq!(said(&second[0], "found=").trim(), "job-0 job-1 job-2 job-3");
    assert!(second[0].contains("Sticky context: from earlier jobs here"), "{}", second[0]);
    assert_eq!(said(&second[1], "context="), "none");
}

#[test]
fn a_job_that_says_it_needs_more_takes_more_slots() {
    let job = |name: &str, cpus: &str| {
        format!(
            "{name}:\n  variables: {{MUSTER_CPU_REQUEST: '{cpus}'}}\n  script:\n    \
             - 'echo \"slot=$GITLAB_RUNNER_SLOT_CGROUP\"'\n"
        )
    };
    let names = ["large 1", "large 2", "large 3"].map(str::to_owned);
    let yaml: String = names.iter().map(|name| job(name, "1500m")).collect();
    let fleet = Fleet::start(
        &yaml,
        "    capacity_per_instance = 4\n    max_instances = 1\n    [runners.autoscaler.density]\n      slot_cpus = 1\n      \
         learn_from_usage = true\n",
        "",
    );
    let (last, logs) = fleet.finish(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    for log in &logs {
        // Each job has two slots. The lower one gives the cgroup its name.
        assert!(["gitlab-runner/slot-0", "gitlab-runner/slot-2"].contains(&said(log, "slot=")), "{log}");
    }
}
