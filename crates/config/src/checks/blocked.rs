//! Checks of addresses that jobs must not reach, such as those of the metadata services of clouds (check C113).

use super::super::docker::read;
use super::super::runners::Runner;
use super::super::tree::Table;
use super::{Check, EXECUTORS};
use crate::settings::CONTAINER_EXECUTORS;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        let executor = runner.executor.as_str();
        if CONTAINER_EXECUTORS.contains(&executor) {
            if let Some(docker) = runner.table.table("docker") {
                check_containers(check, runner, docker);
            }
        } else if runner.is_public() && EXECUTORS.contains(&(executor, true)) {
            let message = format!(
                "the runner is public, but jobs of the executor `{executor}` use the network of their machine, so Muster cannot block the \
                 metadata service of a cloud for them"
            );
            let help = "block 169.254.169.254 with a firewall of the machine, or give the machine no credentials";
            check.report(runner, "public", "C113", message, help);
        }
    }
}

/// Reports settings with which a container could undo the block (check C113). Jobs with such a container are refused.
fn check_containers(check: &mut Check<'_>, runner: &Runner, docker: &Table) {
    let (settings, _) = read(docker, runner.is_public());
    if settings.blocked_addresses.is_empty() {
        return;
    }
    let conflicts = [
        ("privileged", settings.build.privileged),
        ("services_privileged", settings.service.privileged && !settings.build.privileged),
        ("cap_add", settings.build.unblocking_capability().is_some()),
        ("network_mode", settings.uses_network_of_others()),
    ];
    for (key, _) in conflicts.into_iter().filter(|(_, conflicts)| *conflicts) {
        let message = format!("addresses cannot be blocked for containers with this {key}; their jobs are refused");
        let help = "remove this setting, or set blocked_addresses = [] and use a firewall of the machine";
        check.report(runner, &format!("docker.{key}"), "C113", message, help);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, count, found};

    fn runner(executor: &str, keys: &str) -> String {
        format!("[[runners]]\nname=\"a\"\nurl=\"https://g.example\"\ntoken=\"t\"\nexecutor=\"{executor}\"\n{keys}")
    }

    #[test]
    fn public_runner_whose_jobs_use_the_network_of_their_machine_is_reported() {
        for executor in ["shell", "ssh", "instance", "custom"] {
            let output = found("C113", &runner(executor, "public = true\n"));
            assert!(output.contains("warning[C113]") && output.contains(&format!("`{executor}`")), "{output}");
            clean("C113", &runner(executor, ""));
        }
        for executor in ["docker", "docker-autoscaler", "docker+machine"] {
            clean("C113", &runner(executor, "public = true\n[runners.docker]\nimage = \"a\""));
        }
    }

    #[test]
    fn settings_with_which_a_container_could_undo_the_block_are_reported() {
        let block = "blocked_addresses = [\"192.0.2.7\"]\n";
        for keys in [
            "privileged = true",
            "services_privileged = true",
            "cap_add = [\"CAP_net_admin\"]",
            "network_mode = \"host\"",
            "network_mode = \"container:other\"",
        ] {
            let key = keys.split(' ').next().unwrap();
            let message = format!("containers with this {key}; their jobs are refused");
            let docker =
                |public: &str, block: &str| runner("docker", &format!("{public}[runners.docker]\n{block}{keys}"));
            for text in [docker("", block), docker("public = true\n", "")] {
                let output = found("C113", &text);
                assert!(output.contains(&message) && count("C113", &text) == 1, "{output}");
            }
            clean("C113", &docker("", ""));
            clean("C113", &docker("public = true\n", "blocked_addresses = []\n"));
        }
        clean("C113", &runner("docker", &format!("[runners.docker]\n{block}cap_add = [\"CAP_SYS_PTRACE\"]")));
    }
}
