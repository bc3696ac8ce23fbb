//! Several jobs at once on one instance: slots, workspaces, cgroups and sticky contexts.

use super::instance_executor::Fleet;

const JOBS: usize = 4;

/// Returns the rest of the log line with this prefix.
fn value_of<'a>(log: &'a str, prefix: &str) -> &'a str {
    let line = log.lines().find_map(|line| line.strip_prefix(prefix));
    line.unwrap_or_else(|| panic!("no line begins with {prefix:?} in {log}"))
}

fn sorted_values(logs: &[String], prefix: &str) -> Vec<String> {
    let mut all: Vec<String> = logs.iter().map(|log| value_of(log, prefix).to_owned()).collect();
    all.sort();
    all
}

#[test]
fn four_jobs_on_one_instance_have_separate_slots_and_share_a_context() {
    let names: Vec<String> = (0..JOBS).map(|n| format!("job {n}")).collect();
    // Each job waits for the others, so all must run at the same time.
    let script = "  stage: first\n  script:\n    \
        - 'echo \"home=$HOME\"; echo \"workspace=$CI_PROJECT_DIR\"; echo \"slot=$GITLAB_RUNNER_SLOT_CGROUP\"'\n    \
        - 'echo \"inside=$(grep -c \"$GITLAB_RUNNER_SLOT_CGROUP/job-\" /proc/self/cgroup)\"'\n    \
        - 'test ! -e own && echo \"$CI_JOB_NAME\" > own'\n    \
        - 'touch \"$MUSTER_CONTEXT_DIR/$CI_JOB_NAME_SLUG\"'\n    \
        - 'for n in $(seq 600); do test $(ls \"$MUSTER_CONTEXT_DIR\" | wc -l) -eq 4 && break; sleep 0.1; done'\n    \
        - 'test $(ls \"$MUSTER_CONTEXT_DIR\" | wc -l) -eq 4 && echo \"own=$(cat own)\"'\n";
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

    assert_eq!(sorted_values(first, "slot="), (0..JOBS).map(|n| format!("gitlab-runner/slot-{n}")).collect::<Vec<_>>());
    let home = value_of(&first[0], "home=");
    assert!(logs.iter().take(JOBS + 1).all(|log| value_of(log, "home=") == home), "all jobs ran on one instance");
    for log in first {
        let slot = value_of(log, "slot=").rsplit('-').next().unwrap();
        let workspace = value_of(log, "workspace=");
        let relative = workspace.strip_prefix(&format!("{home}/builds/")).unwrap();
        assert_eq!(relative.split('/').nth(1), Some(slot), "{workspace}");
    }
    assert_eq!(sorted_values(first, "own="), names, "each job has its own workspace");
    let inside: Vec<bool> = first.iter().map(|log| value_of(log, "inside=") != "0").collect();
    let can_create_cgroups = inside.contains(&true);
    if muster_test_prerequisites::cgroups(can_create_cgroups) {
        assert_eq!(inside, [true; JOBS], "each job is in the cgroup of its slot");
    }

    assert_eq!(value_of(&second[0], "found=").trim(), "job-0 job-1 job-2 job-3");
    assert!(second[0].contains("Sticky context: reused from earlier jobs on this machine"), "{}", second[0]);
    assert_eq!(value_of(&second[1], "context="), "none");
}

#[test]
fn job_with_larger_cpu_request_takes_more_slots() {
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
        // Each job takes two slots. Its cgroup has the number of the lower slot.
        assert!(["gitlab-runner/slot-0", "gitlab-runner/slot-2"].contains(&value_of(log, "slot=")), "{log}");
    }
}
