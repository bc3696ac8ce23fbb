//! Checks of instances from fleeting plugins (checks C014, C070 to C076, C079, C083 to C085).

use std::collections::BTreeSet;

use muster_taskscaler::resources::memory_bytes;

use super::super::problem::shown_name;
use super::super::runners::Runner;
use super::super::tree::{Table, Value, json};
use super::{Check, limits};

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        if let Some(autoscaler) = runner.table.table("autoscaler") {
            check_policies(check, runner, autoscaler);
            check_instances(check, runner, autoscaler);
            check_build_directory(check, runner, autoscaler);
            check_shared_user(check, runner, autoscaler);
            check_amounts(check, runner, autoscaler);
            check_isolation(check, runner, autoscaler);
        }
        check_slot_cgroups(check, runner);
    }
    check_shared_groups(check);
}

fn capacity(autoscaler: &Table) -> i64 {
    autoscaler.int("capacity_per_instance").filter(|capacity| *capacity > 0).unwrap_or(1)
}

/// Returns the sum of `max_instances` of all groups, or 0 if a group has no limit.
fn total_max_instances(autoscaler: &Table) -> i64 {
    let max_instances = |table: &Table| table.int("max_instances").unwrap_or(0).max(0);
    let groups = autoscaler.tables("groups").iter().map(max_instances);
    let sum = groups.reduce(|one, other| if one == 0 || other == 0 { 0 } else { one.saturating_add(other) });
    sum.unwrap_or_else(|| max_instances(autoscaler))
}

/// Checks C070 and C074.
fn check_policies(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    let capacity = capacity(autoscaler);
    let policies = autoscaler.tables("policy");
    if policies.is_empty() {
        let message =
            "no [[runners.autoscaler.policy]]: no instance is kept idle, so each job waits until one has booted";
        check.report(runner, "autoscaler", "C074", message, "add a policy with idle_count, if that is too slow");
    }
    for policy in policies {
        let count = policy.int("idle_count").filter(|count| *count > 0 && capacity > 1);
        if let (Some(count), Some(node)) = (count, policy.node("idle_count")) {
            let instances = count.saturating_add(capacity - 1) / capacity;
            let s = if instances == 1 { "" } else { "s" };
            let message =
                format!("idle_count = {count} counts job slots: it keeps {instances} instance{s} of {capacity} slots");
            let problem = super::super::problem::Problem::new("C070", message);
            check.add(
                problem
                    .of(runner.index, &runner.name)
                    .at(&node.span)
                    .help("set it to the number of idle instances times capacity_per_instance"),
            );
        }
    }
}

/// Checks C072, C073, C075 and C076.
fn check_instances(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    if autoscaler.bool("state_storage.enabled") != Some(true) {
        let message = "state_storage is off: Muster keeps its instances across a restart anyway, but GitLab Runner would remove them all";
        check.report(
            runner,
            "autoscaler.state_storage.enabled",
            "C072",
            message,
            "if GitLab Runner also uses this file, set enabled = true in [runners.autoscaler.state_storage]",
        );
    }
    let instances = total_max_instances(autoscaler);
    if instances <= 0 {
        let message = "max_instances is 0 or not set: only the group's own maximum limits the number of instances, and their cost";
        check.report(runner, "autoscaler.max_instances", "C075", message, "set max_instances");
    } else {
        let jobs = instances.saturating_mul(capacity(autoscaler));
        let concurrent = limits::concurrent_of(check);
        let limit = runner.table.int("limit").filter(|limit| *limit > 0);
        let (key, wanted) = limit.map_or(("concurrent", concurrent), |limit| ("limit", limit));
        if jobs < wanted {
            let message = format!(
                "max_instances and capacity_per_instance limit the number of jobs to {jobs}; {key} = {wanted} is never reached"
            );
            check.report(
                runner,
                "autoscaler.max_instances",
                "C073",
                message,
                "raise max_instances or capacity_per_instance",
            );
        }
    }
    let plugin = autoscaler.str("plugin").unwrap_or_default().to_lowercase();
    let scaling = [
        ("aws", "suspend the process AZRebalance"),
        ("azure", "disable overprovisioning and autoscale rules"),
        ("google", "disable the autoscaler"),
    ];
    if let Some((_, help)) = scaling.iter().find(|(name, _)| plugin.contains(name)) {
        let message = "the provider must not scale or balance the group: it would remove instances with jobs";
        check.report(runner, "autoscaler.plugin", "C076", message, &format!("{help} for this group"));
    }
}

/// Check C079.
fn check_build_directory(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    let isolated = autoscaler.bool("vm_isolation.enabled") == Some(true) || autoscaler.int("max_use_count") == Some(1);
    if runner.table.bool("instance.use_common_build_dir") == Some(true) && !isolated {
        let message =
            "use_common_build_dir is ignored, because several jobs of an instance would share a build directory";
        check.report(
            runner,
            "instance.use_common_build_dir",
            "C079",
            message,
            "set max_use_count = 1, or use vm_isolation",
        );
    }
}

/// Check C084: without virtual machines, jobs of several projects must not share a user.
fn check_shared_user(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    if autoscaler.bool("vm_isolation.enabled") == Some(true) {
        return;
    }
    const HELP: &str = "use one runner for each group of projects that trust each other";
    if autoscaler.bool("sticky_context.enabled") == Some(true) {
        let message = "sticky contexts do not isolate jobs: all jobs of an instance run as the same user, so each can read and write the \
                       contexts of other projects, and those of protected refs";
        check.report(runner, "autoscaler.sticky_context.enabled", "C084", message, HELP);
    }
    let capacity = capacity(autoscaler);
    if capacity > 1 {
        let message = format!(
            "capacity_per_instance = {capacity}: jobs that run at the same time on an instance run as the same user, so each \
             job can read and write the files of the other jobs, and the agent's files, which contain the variables of all jobs"
        );
        check.report(runner, "autoscaler.capacity_per_instance", "C084", message, HELP);
    }
}

/// Check C085.
fn check_isolation(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    if autoscaler.bool("vm_isolation.enabled") != Some(true) {
        return;
    }
    let text = |key: &str| autoscaler.str(key).unwrap_or_default().trim();
    if text("vm_isolation.nesting_host").is_empty() {
        check.report(
            runner,
            "autoscaler.vm_isolation.nesting_host",
            "C085",
            "vm_isolation without nesting_host: no virtual machines can be created, so no instance becomes ready",
            "set it to the address on which the nesting daemon listens on an instance, for example unix:///run/nesting.sock",
        );
    }
    let protocol = text("vm_isolation.connector_config.protocol");
    if !matches!(protocol, "" | "ssh") {
        check.report(
            runner,
            "autoscaler.vm_isolation.connector_config.protocol",
            "C085",
            format!("virtual machines support SSH only, not {protocol:?}: no job gets a virtual machine"),
            "remove protocol, and install an SSH server in the image",
        );
    }
}

/// Check C014 of amounts of memory.
fn check_amounts(check: &mut Check<'_>, runner: &Runner, autoscaler: &Table) {
    for key in ["density.slot_memory", "sticky_context.max_size"] {
        if let Some(text) = autoscaler.str(key).filter(|text| memory_bytes(text).is_none()) {
            let message = format!("{key}: `{}` is not a valid amount of memory", shown_name(text));
            check.report(runner, &format!("autoscaler.{key}"), "C014", message, "write for example 512m or 2g");
        }
    }
}

/// Check C083.
fn check_slot_cgroups(check: &mut Check<'_>, runner: &Runner) {
    if runner.table.bool("use_slot_cgroups") != Some(true) {
        return;
    }
    for key in ["slot_cgroup_template", "docker.service_slot_cgroup_template"] {
        let template =
            runner.table.str(key).filter(|template| !template.contains("${slot}") && !template.contains("$slot"));
        if let Some(template) = template {
            let message =
                format!("{key} `{}` does not contain ${{slot}}: all slots share one cgroup", shown_name(template));
            check.report(runner, key, "C083", message, "add ${slot} to it");
        }
    }
}

/// Check C071.
fn check_shared_groups(check: &mut Check<'_>) {
    // A group is known by its plugin and the plugin's configuration. Line breaks and the order of keys do not matter.
    let mut seen: Vec<(&Runner, InstanceGroup)> = Vec::new();
    for runner in check.runners {
        let mut reported = BTreeSet::new();
        for group in groups(runner) {
            match seen.iter().find(|(_, known)| *known == group) {
                Some((first, _)) if first.index != runner.index && reported.insert(first.index) => {
                    let name = |runner: &Runner| {
                        if runner.name.is_empty() { format!("{}", runner.index + 1) } else { shown_name(&runner.name) }
                    };
                    let message = format!(
                        "runners {} and {} use the same instance group: each deletes instances of the other",
                        name(first),
                        name(runner)
                    );
                    let has_groups = runner.table.node("autoscaler.groups").is_some();
                    let key = if has_groups { "autoscaler.groups" } else { "autoscaler.plugin_config" };
                    check.report(runner, key, "C071", message, "give each runner its own group");
                }
                Some(_) => {}
                None => seen.push((runner, group)),
            }
        }
    }
}

/// Plugin of an instance group, and the plugin's configuration. `None` means an empty or missing configuration.
type InstanceGroup = (String, Option<serde_json::Map<String, serde_json::Value>>);

fn groups(runner: &Runner) -> Vec<InstanceGroup> {
    let Some(autoscaler) = runner.table.table("autoscaler") else { return Vec::new() };
    let config = |table: &Table| match table.node("plugin_config").map(|node| &node.value) {
        Some(Value::Any(text)) => Some(json(text)),
        _ => None,
    };
    let (plugin, plugin_config) = (autoscaler.str("plugin").unwrap_or_default(), config(autoscaler));
    // A group uses the runner's value of each key that it does not set.
    let of_group = |group: &Table| {
        let plugin = group.str("plugin").unwrap_or(plugin).to_owned();
        (plugin, config(group).or_else(|| plugin_config.clone()))
    };
    let mut groups: Vec<_> = autoscaler.tables("groups").iter().map(of_group).collect();
    if groups.is_empty() {
        groups.push((plugin.to_owned(), plugin_config));
    }
    groups.retain(|(plugin, _)| !plugin.is_empty());
    let entries = |config: serde_json::Value| config.as_object().filter(|entries| !entries.is_empty()).cloned();
    groups.into_iter().map(|(plugin, config)| (plugin, config.and_then(entries))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, found};

    fn runner(name: &str, autoscaler: &str) -> String {
        format!("[[runners]]\nname = \"{name}\"\nexecutor = \"instance\"\n[runners.autoscaler]\n{autoscaler}\n")
    }

    #[test]
    fn c070_idle_count_counts_slots() {
        let text = |capacity: u32| {
            runner("a", &format!("capacity_per_instance = {capacity}\n[[runners.autoscaler.policy]]\nidle_count = 10"))
        };
        assert!(found("C070", &text(4)).contains("keeps 3 instances of 4 slots"));
        clean("C070", &text(1));
    }

    #[test]
    fn c071_two_runners_must_not_share_an_instance_group() {
        let group = |name: &str, group: &str| {
            runner(
                name,
                &format!("plugin = \"aws\"\n[runners.autoscaler.plugin_config]\nname = \"{group}\"\nzone = \"b\""),
            )
        };
        assert!(found("C071", &format!("{}{}", group("a", "g"), group("b", "g"))).contains("runners a and b"));
        clean("C071", &format!("{}{}", group("a", "g"), group("b", "h")));
    }

    #[test]
    fn c071_compares_each_instance_group() {
        let two = |name: &str, plugin: &str, groups: [&str; 2]| {
            let group = |group: &str| {
                format!(
                    "[[runners.autoscaler.groups]]\n{plugin}[runners.autoscaler.groups.plugin_config]\nname = \"{group}\"\n"
                )
            };
            runner(name, &format!("plugin = \"aws\"\n{}", groups.map(group).concat()))
        };
        clean("C071", &format!("{}{}", two("a", "", ["g1", "g2"]), two("b", "", ["g3", "g4"])));
        clean("C071", &format!("{}{}", two("a", "", ["g1", "g2"]), two("b", "plugin = \"azure\"\n", ["g1", "g2"])));
        let shared = found("C071", &format!("{}{}", two("a", "", ["g1", "g2"]), two("b", "", ["g2", "g3"])));
        assert!(shared.contains("runners a and b") && shared.lines().count() == 1, "{shared}");
        let alone = runner("b", "plugin = \"aws\"\nplugin_config = { name = \"g2\" }");
        assert!(found("C071", &format!("{}{alone}", two("a", "", ["g1", "g2"]))).contains("runners a and b"));
    }

    #[test]
    fn c072_disabled_state_storage_is_reported() {
        found("C072", &runner("a", "max_instances = 3"));
        clean("C072", &runner("a", "[runners.autoscaler.state_storage]\nenabled = true"));
    }

    #[test]
    fn c084_jobs_on_one_instance_share_a_user() {
        let sticky = "[runners.autoscaler.sticky_context]\nenabled = true";
        assert!(found("C084", &runner("a", sticky)).contains("sticky contexts do not isolate jobs"));
        assert!(found("C084", &runner("a", "capacity_per_instance = 4")).contains("jobs that run at the same time"));
        clean("C084", &runner("a", "capacity_per_instance = 1"));
        let isolated = "capacity_per_instance = 4\n[runners.autoscaler.vm_isolation]\nenabled = true";
        clean("C084", &runner("a", isolated));
    }

    #[test]
    fn c073_too_few_instances_for_the_limit_are_reported() {
        let text = |limit: &str| {
            format!(
                "concurrent = 20\n{}",
                runner("a", "max_instances = 3\ncapacity_per_instance = 4")
                    .replace("executor", &format!("{limit}\nexecutor"))
            )
        };
        assert!(found("C073", &text("")).contains("limit the number of jobs to 12; concurrent = 20 is never reached"));
        assert!(found("C073", &text("limit = 13")).contains("limit = 13"));
        let groups =
            "[[runners.autoscaler.groups]]\nmax_instances = 2\n[[runners.autoscaler.groups]]\nmax_instances = 3";
        assert!(
            found("C073", &format!("concurrent = 20\n{}", runner("a", groups)))
                .contains("limit the number of jobs to 5;")
        );
        clean("C073", &text("limit = 12"));
    }

    #[test]
    fn c074_without_policy_no_instance_is_kept_idle() {
        found("C074", &runner("a", "max_instances = 3"));
        clean("C074", &runner("a", "[[runners.autoscaler.policy]]\nidle_count = 1"));
    }

    #[test]
    fn c075_missing_limit_on_instances_is_reported() {
        found("C075", &runner("a", "max_instances = 0"));
        found("C075", &runner("a", ""));
        clean("C075", &runner("a", "max_instances = 3"));
    }

    #[test]
    fn c076_provider_must_not_scale_group() {
        assert!(found("C076", &runner("a", "plugin = \"fleeting-plugin-aws\"")).contains("AZRebalance"));
        found("C076", &runner("a", "plugin = \"azure:latest\""));
        clean("C076", &runner("a", "plugin = \"static\""));
    }

    #[test]
    fn c077_one_ssh_session_serves_many_slots() {
        // Muster opens one session for all jobs of an instance, and sshd allows ten.
        clean("C077", &runner("a", "capacity_per_instance = 64"));
    }

    #[test]
    fn c014_invalid_memory_amount_is_reported() {
        let text = |table: &str, key: &str, value: &str| {
            runner("a", &format!("[runners.autoscaler.{table}]\n{key} = \"{value}\""))
        };
        for (table, key) in [("density", "slot_memory"), ("sticky_context", "max_size")] {
            assert!(found("C014", &text(table, key, "much")).contains("`much` is not a valid amount of memory"));
            clean("C014", &text(table, key, "1.5g"));
        }
    }

    #[test]
    fn c085_virtual_machines_need_daemon_and_ssh() {
        let text = |more: &str| runner("a", &format!("[runners.autoscaler.vm_isolation]\nenabled = true\n{more}"));
        assert!(found("C085", &text("")).contains("without nesting_host"));
        let host = "nesting_host = \"unix:///run/nesting.sock\"\n[runners.autoscaler.vm_isolation.connector_config]\n";
        let output = found("C085", &text(&format!("{host}protocol = \"winrm\"")));
        assert!(output.contains("support SSH only, not \"winrm\""), "{output}");
        clean("C085", &text(host));
        clean("C085", &text(&format!("{host}protocol = \"ssh\"")));
        clean("C085", &runner("a", "[runners.autoscaler.vm_isolation]\nenabled = false"));
    }

    #[test]
    fn c079_common_build_directory_needs_isolation() {
        let text = |more: &str| runner("a", &format!("{more}\n[runners.instance]\nuse_common_build_dir = true"));
        found("C079", &text(""));
        clean("C079", &text("max_use_count = 1"));
        clean("C079", &text("[runners.autoscaler.vm_isolation]\nenabled = true"));
    }

    #[test]
    fn c083_cgroup_template_needs_slot() {
        let text =
            |template: &str| format!("[[runners]]\nuse_slot_cgroups = true\nslot_cgroup_template = \"{template}\"\n");
        found("C083", &text("runner/all"));
        clean("C083", &text("runner/slot-${slot}"));
        clean("C083", &text("runner/slot-$slot"));
    }
}
