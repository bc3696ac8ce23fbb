//! Checks of public runners (check C112).
//!
//! GitLab does not report who may use a runner, so the operator must set the key `public`.

use super::super::runners::Runner;
use super::super::tree::Table;
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        if let Some((key, reason)) = refusal(runner) {
            let message = format!("the runner is public, but {reason}; this runner requests no jobs");
            let help =
                "give each job a separate machine, or set allow_machine_reuse = true if the jobs trust each other";
            check.report(runner, key, "C112", message, help);
        }
    }
}

/// Returns the key because of which a public runner must not request jobs, and the reason. `None` if it may.
pub(in super::super) fn refusal(runner: &Runner) -> Option<(&'static str, &'static str)> {
    let table = &runner.table;
    let is_set = |key: &str| table.bool(key) == Some(true);
    if !is_set("public") || is_set("allow_machine_reuse") {
        return None;
    }
    match runner.executor.as_str() {
        "instance" if is_set("autoscaler.vm_isolation.enabled") => None,
        executor @ ("instance" | "docker-autoscaler" | "docker+machine") => {
            // [runners.machine] has no effect beside [runners.autoscaler].
            let has_machines = executor == "docker+machine" || table.table("machine").is_some();
            match table.table("autoscaler") {
                None if has_machines => machine_refusal(table),
                _ => instance_refusal(table),
            }
        }
        // The driver decides where a job runs.
        "custom" => None,
        _ => Some(("executor", "all its jobs run on the same machine")),
    }
}

fn machine_refusal(table: &Table) -> Option<(&'static str, &'static str)> {
    (table.int("machine.MaxBuilds") != Some(1))
        .then_some(("machine.MaxBuilds", "several jobs use each machine, because MaxBuilds is not 1"))
}

fn instance_refusal(table: &Table) -> Option<(&'static str, &'static str)> {
    if table.int("autoscaler.max_use_count") != Some(1) {
        return Some(("autoscaler.max_use_count", "several jobs use each instance, because max_use_count is not 1"));
    }
    let is_shared = table.int("autoscaler.capacity_per_instance").is_some_and(|capacity| capacity > 1);
    is_shared.then_some((
        "autoscaler.capacity_per_instance",
        "jobs share an instance at the same time, because capacity_per_instance is not 1",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, found};

    fn runner(executor: &str, more: &str) -> String {
        format!(
            "[[runners]]\nname=\"a\"\nurl=\"https://g.example\"\ntoken=\"t\"\nexecutor=\"{executor}\"\npublic = true\n{more}"
        )
    }

    #[test]
    fn public_runner_whose_jobs_share_machines_is_refused() {
        let autoscaler = |keys: &str| format!("[runners.autoscaler]\nplugin = \"p\"\n{keys}");
        for executor in ["shell", "docker", "ssh"] {
            assert!(
                found("C112", &runner(executor, "")).contains("all its jobs run on the same machine"),
                "{executor}"
            );
        }
        for executor in ["instance", "docker-autoscaler"] {
            for keys in ["", "max_use_count = 0", "max_use_count = 2"] {
                let output = found("C112", &runner(executor, &autoscaler(keys)));
                assert!(output.contains("error[C112]") && output.contains("max_use_count is not 1"), "{output}");
            }
            let shared = autoscaler("max_use_count = 1\ncapacity_per_instance = 2");
            assert!(found("C112", &runner(executor, &shared)).contains("capacity_per_instance"));
            clean("C112", &runner(executor, &autoscaler("max_use_count = 1")));
        }
        assert!(found("C112", &runner("docker+machine", "[runners.machine]\nMaxBuilds = 100")).contains("MaxBuilds"));
        clean("C112", &runner("docker+machine", "[runners.machine]\nMaxBuilds = 1"));
    }

    #[test]
    fn autoscaler_table_of_a_public_runner_overrides_its_machine_table() {
        let tables = |builds: u32, uses: u32| {
            format!(
                "[runners.machine]\nMaxBuilds = {builds}\n[runners.autoscaler]\nplugin = \"p\"\nmax_use_count = {uses}"
            )
        };
        for executor in ["docker+machine", "docker-autoscaler", "instance"] {
            let output = found("C112", &runner(executor, &tables(1, 2)));
            assert!(output.contains("max_use_count is not 1"), "{executor}: {output}");
            clean("C112", &runner(executor, &tables(2, 1)));
            clean("C112", &runner(executor, "[runners.machine]\nMaxBuilds = 1"));
            assert!(found("C112", &runner(executor, "[runners.machine]\nMaxBuilds = 2")).contains("MaxBuilds"));
        }
    }

    #[test]
    fn runner_with_permission_or_isolation_is_not_refused() {
        clean("C112", &runner("shell", "allow_machine_reuse = true\n"));
        clean("C112", &runner("shell", "").replace("public = true", "public = false"));
        clean(
            "C112",
            &runner(
                "instance",
                "[runners.autoscaler]\nplugin = \"p\"\n[runners.autoscaler.vm_isolation]\nenabled = true",
            ),
        );
        clean("C112", &runner("custom", ""));
    }
}
