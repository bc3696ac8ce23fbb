//! Checks for values that the scaler, its connector and its plugin do not accept (checks C086, C088).

use std::ops::Range;

use muster_job::GoDuration;

use super::super::codes::Severity;
use super::super::facts::NoPlugin;
use super::super::problem::{Problem, shown_name};
use super::super::runners::Runner;
use super::super::scaling;
use super::super::tree::{Table, Value, visit};
use super::Check;

pub(in super::super) const PLUGIN_EXECUTORS: [&str; 2] = ["instance", "docker-autoscaler"];
/// Suffixes of keys that other checks report (C014 to C016).
const REPORTED_ELSEWHERE: [&str; 3] = [".periods", ".timezone", "slot_memory"];

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        let Some(autoscaler) = runner.table.table("autoscaler") else { continue };
        check_values(check, runner, autoscaler);
        check_durations(check, runner, autoscaler);
        check_ports(check, runner, autoscaler);
        if runner.table.str("executor").is_some_and(|executor| PLUGIN_EXECUTORS.contains(&executor)) {
            check_plugins(check, runner, autoscaler);
        }
    }
}

/// Check C088.
fn check_values(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    for problem in out_of_range(autoscaler, &REPORTED_ELSEWHERE) {
        let problem = problem.of(runner.index, &runner.name);
        check.add(problem.help("until this is fixed, this runner gets no instances and requests no jobs"));
    }
}

/// Returns the values that the scaler rejects, without keys that end with one of `except`.
pub(crate) fn out_of_range(autoscaler: &Table, except: &[&str]) -> impl Iterator<Item = Problem> {
    let (_, problems) = scaling::read(autoscaler);
    problems.into_iter().filter(|problem| !except.iter().any(|except| problem.key.ends_with(except))).map(|problem| {
        let message = format!("`runners.autoscaler.{}`: {}", problem.key, shown_name(&problem.message));
        Problem::new("C088", message).at(&problem.span)
    })
}

/// Check C088 of negative durations.
fn check_durations(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    for (path, span) in negative_durations(autoscaler) {
        let message = format!("`{path}` is negative and ignored");
        let problem = Problem::new("C088", message).of(runner.index, &runner.name).at(&span);
        check.add(problem.help("write a duration such as \"20m0s\", or remove the line"));
    }
}

/// Returns the keys with negative durations, and the byte ranges of their values.
pub(crate) fn negative_durations(autoscaler: &Table) -> Vec<(String, Range<usize>)> {
    let mut found = Vec::new();
    visit(autoscaler, "runners.autoscaler", &mut |path, _, node| {
        if node.value == Value::Duration(GoDuration::Negative) {
            found.push((path.to_owned(), node.span.clone()));
        }
    });
    found
}

/// Check C088 of ports.
fn check_ports(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    for table in std::iter::once(autoscaler).chain(autoscaler.tables("groups")) {
        let Some(node) = table.node("connector_config.protocol_port") else { continue };
        if let Value::Int(port) = node.value
            && u16::try_from(port).is_err()
        {
            let message =
                format!("protocol_port = {port} is not between 0 and {}, so the default port is used", u16::MAX);
            check.add(Problem::new("C088", message).of(runner.index, &runner.name).at(&node.span));
        }
    }
}

/// Check C086: every group needs a plugin that this machine can run.
fn check_plugins(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    let own = std::slice::from_ref(autoscaler);
    let groups = autoscaler.tables("groups");
    for table in if groups.is_empty() { own } else { groups } {
        let owner = if table.str("plugin").is_some() { table } else { autoscaler };
        let at = owner.span_of("plugin");
        let problem = |message: String| Problem::new("C086", message).of(runner.index, &runner.name).at(&at);
        let Some(plugin) = owner.str("plugin") else {
            let message = "`plugin` is not set, so nothing can create instances for this runner".to_owned();
            check.add(problem(message).help("name a plugin in [runners.autoscaler], such as plugin = \"static\""));
            continue;
        };
        let Some(Err(reason)) = check.facts.find_plugin.map(|find| find(plugin)) else { continue };
        check.add(match reason {
            NoPlugin::InvalidName(reason) => {
                problem(reason).help("write a name such as \"static\" or \"aws:latest\", or the path of an executable")
            }
            NoPlugin::NotInstalled(reason) if check.facts.for_any_machine => {
                let help =
                    "this concerns only this machine; the machine that uses this file needs the plugin: run `verify-config` there";
                problem(reason).severity(Severity::Warning).help(help)
            }
            NoPlugin::NotInstalled(reason) => problem(reason).help(
                "without it this runner gets no instances and requests no jobs; the manager keeps looking for it",
            ),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, clean_with, found, found_with};
    use super::NoPlugin;

    fn runner(autoscaler: &str) -> String {
        format!(
            "[[runners]]\nname = \"a\"\nexecutor = \"instance\"\n[runners.autoscaler]\nplugin = \"p\"\n{autoscaler}\n"
        )
    }

    #[test]
    fn c088_counts_and_amounts_have_ranges() {
        for (text, location) in [
            ("max_instances = -1", "6:17"),
            ("max_use_count = -1", "6:17"),
            ("capacity_per_instance = -1", "6:25"),
            ("failure_threshold = 4294967296", "6:21"),
            ("price_per_hour = -0.5", "6:18"),
            ("max_cost_per_hour = -1.0", "6:21"),
            ("[runners.autoscaler.scale_throttle]\nburst = -1", "7:9"),
            ("[runners.autoscaler.density]\nslot_cpus = -1.5", "7:13"),
            ("[runners.autoscaler.forecast]\ndays = 61", "7:8"),
            ("[runners.autoscaler.connector_config]\nprotocol_port = 70000", "7:17"),
            ("[[runners.autoscaler.policy]]\n[[runners.autoscaler.policy]]\nidle_count = -1", "8:14"),
            ("[[runners.autoscaler.policy]]\nscale_factor = -0.5", "7:16"),
            ("[[runners.autoscaler.policy]]\nplacement = \"near\"", "7:13"),
            ("[[runners.autoscaler.groups]]\nname = \"g\"\nmax_instances = -2", "8:17"),
        ] {
            let output = found("C088", &runner(text));
            assert!(output.starts_with(&format!("{location} error[C088]: runner a: ")), "{text}: {output}");
            assert_eq!(output.lines().count(), 1, "{text}: {output}");
        }
        clean("C088", &runner("max_instances = 0\nmax_use_count = 1\n[[runners.autoscaler.policy]]\nidle_count = 3"));
    }

    #[test]
    fn c088_negative_duration_is_reported() {
        for (text, location) in [
            ("update_interval = \"-3s\"", "6:19"),
            ("instance_acquire_timeout = \"-1s\"", "6:28"),
            ("[runners.autoscaler.connector_config]\nkeepalive = \"-1m\"", "7:13"),
            ("[[runners.autoscaler.policy]]\nidle_time = \"-5s\"", "7:13"),
        ] {
            let output = found("C088", &runner(text));
            assert!(output.starts_with(location) && output.contains("is negative"), "{text}: {output}");
            assert_eq!(output.lines().count(), 1, "{text}: {output}");
        }
        clean("C088", &runner("update_interval = \"0s\""));
    }

    #[test]
    fn c086_missing_plugin_is_reported() {
        let find = |facts: &mut super::super::super::HostFacts| {
            facts.find_plugin = Some(|plugin| {
                if plugin == "p" { Ok(()) } else { Err(NoPlugin::NotInstalled(format!("plugin {plugin}: not here"))) }
            });
        };
        clean_with("C086", &runner(""), find);
        let output = found_with("C086", &runner("").replace("\"p\"", "\"q\""), find);
        assert!(output.starts_with("5:10 error[C086]: runner a: plugin q: not here; without it"), "{output}");
        let output = found_with("C086", &runner("").replace("plugin = \"p\"", ""), find);
        assert!(output.starts_with("4:1 error[C086]: runner a: `plugin` is not set"), "{output}");
        let group =
            "[[runners.autoscaler.groups]]\nname = \"g\"\n[[runners.autoscaler.groups]]\nname = \"h\"\nplugin = \"r\"";
        let output = found_with("C086", &runner(group), find);
        assert!(output.starts_with("10:10 error") && output.lines().count() == 1, "{output}");
        clean_with("C086", &runner("").replace("\"instance\"", "\"shell\"").replace("\"p\"", "\"q\""), find);
    }

    #[test]
    fn c086_plugin_missing_here_is_a_warning_if_the_file_is_for_any_machine() {
        let find = |facts: &mut super::super::super::HostFacts| {
            facts.find_plugin = Some(|_| Err(NoPlugin::NotInstalled("plugin p: not here".to_owned())));
            facts.for_any_machine = true;
        };
        let output = found_with("C086", &runner(""), find);
        assert!(
            output.starts_with("5:10 warning[C086]: runner a: plugin p: not here; this concerns only this machine"),
            "{output}"
        );
        let output = found_with("C086", &runner("").replace("plugin = \"p\"", ""), find);
        assert!(
            output.starts_with("4:1 error[C086]: runner a: `plugin` is not set"),
            "a missing key must be an error on every machine: {output}"
        );
    }

    #[test]
    fn c086_invalid_plugin_name_is_always_an_error() {
        for for_any_machine in [false, true] {
            let output = found_with("C086", &runner(""), |facts| {
                facts.find_plugin = Some(|plugin| Err(NoPlugin::InvalidName(format!("{plugin} is not a valid name"))));
                facts.for_any_machine = for_any_machine;
            });
            assert!(
                output.starts_with("5:10 error[C086]: runner a: p is not a valid name; write a name such as "),
                "{output}"
            );
        }
    }
}
