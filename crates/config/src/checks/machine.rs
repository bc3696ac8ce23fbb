//! Checks of `docker+machine` (checks C080, C081, C082).

use super::super::codes::Severity;
use super::super::problem::Problem;
use super::super::runners::Runner;
use super::super::tree::Table;
use super::{Check, limits};

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        if let Some(machine) = runner.table.table("machine") {
            report_deprecation(check, runner, machine);
            check_capacity(check, runner, machine);
            check_names(check, runner, machine);
        }
    }
}

/// Check C082.
fn report_deprecation(check: &mut Check<'_>, runner: &Runner, machine: &Table) {
    let unused = runner.table.table("autoscaler").is_some();
    let message = if unused {
        "[runners.machine] has no effect beside [runners.autoscaler]"
    } else {
        "[runners.machine] has been deprecated since GitLab 17.5 and will be removed in 20.0; until then, the plugin \
         `docker-machine` creates its machines"
    };
    let problem = Problem::new("C082", message).of(runner.index, &runner.name).at(&machine.header);
    check.add(problem.help(
        "`muster runner migrate-machine` prints the file with the keys that replace it: plugin, plugin_config, max_instances, \
         max_use_count and [[runners.autoscaler.policy]] of [runners.autoscaler]",
    ));
}

/// Check C080.
fn check_capacity(check: &mut Check<'_>, runner: &Runner, machine: &Table) {
    let concurrent = limits::concurrent_of(check);
    let limit = runner.table.int("limit").filter(|limit| *limit > 0);
    let idle = machine.int("IdleCount").filter(|idle| *idle > 0);
    if let (Some(limit), Some(idle)) = (limit, idle)
        && limit < idle.saturating_add(concurrent)
    {
        let message = format!(
            "limit = {limit} leaves no capacity for IdleCount = {idle} in addition to {concurrent} jobs: limit counts all machines"
        );
        check.report(runner, "limit", "C080", message, &format!("set limit to {}", idle.saturating_add(concurrent)));
    }
}

/// Check C081. A name is `runner-<9 characters of the token>-<MachineName>`, with `<seconds>-<8 characters>` for `%s`.
fn check_names(check: &mut Check<'_>, runner: &Runner, machine: &Table) {
    const MAX_NAME_LENGTH: usize = 64;
    const ADDED_LENGTH: usize = "runner-123456789-".len() + "1700000000-12345678".len() - "%s".len();
    if runner.executor == "docker+machine" || machine.node("MachineName").is_some() {
        let name = machine.str("MachineName").unwrap_or_default();
        if !name.contains("%s") {
            let problem = Problem::new("C081", "MachineName must contain %s").severity(Severity::Fatal);
            let at = runner.table.span_of("machine.MachineName");
            check.add(problem.of(runner.index, &runner.name).at(&at).help("set it, for example to \"ci-%s\""));
        } else if name.len() + ADDED_LENGTH > MAX_NAME_LENGTH {
            let message = format!(
                "machine names can reach {} characters; many systems allow {MAX_NAME_LENGTH}",
                name.len() + ADDED_LENGTH
            );
            check.report(runner, "machine.MachineName", "C081", message, "shorten MachineName");
        }
    }
    for (option, node) in machine.strings("MachineOptionsWithName") {
        if !option.contains("%s") {
            let problem =
                Problem::new("C081", "an entry of MachineOptionsWithName must contain %s").severity(Severity::Fatal);
            check.add(
                problem
                    .of(runner.index, &runner.name)
                    .at(&node.span)
                    .help("move options without the name to MachineOptions"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, found};

    fn machine(text: &str) -> String {
        format!(
            "concurrent = 10\n[[runners]]\nname = \"a\"\nexecutor = \"docker+machine\"\nlimit = 12\n[runners.machine]\n{text}\n"
        )
    }

    #[test]
    fn c080_limit_counts_machines_in_every_state() {
        assert!(found("C080", &machine("IdleCount = 5")).contains("set limit to 15"));
        clean("C080", &machine("IdleCount = 2"));
        clean("C080", &machine("IdleCount = 0"));
    }

    #[test]
    fn c082_docker_machine_is_deprecated() {
        let output = found("C082", &machine("MachineName = \"ci-%s\""));
        assert!(output.contains("max_use_count") && output.contains("migrate-machine"), "{output}");
        let both = machine("MachineName = \"ci-%s\"\n[runners.autoscaler]\nplugin = \"aws\"");
        assert!(found("C082", &both).contains("has no effect beside"));
    }

    #[test]
    fn c081_machine_name_needs_placeholder() {
        assert!(
            found("C081", &machine("MachineName = \"ci\""))
                .contains("fatal[C081]: runner a: MachineName must contain %s")
        );
        assert!(found("C081", &machine("IdleCount = 0")).contains("fatal"));
        found("C081", &machine("MachineName = \"ci-%s\"\nMachineOptionsWithName = [\"x=1\"]"));
        assert!(
            found("C081", &machine(&format!("MachineName = \"{}-%s\"", "n".repeat(40))))
                .contains("many systems allow 64")
        );
        clean("C081", &machine("MachineName = \"ci-%s\"\nMachineOptionsWithName = [\"x=%s\"]"));
    }
}
