//! Interruption notices: the plugin announces that instances will be preempted.

use crate::instance_executor::Fleet;

fn six_jobs() -> (Vec<String>, String) {
    let names: Vec<String> = (0..6).map(|n| format!("job {n}")).collect();
    let yaml = names.iter().map(|name| format!("{name}:\n  script: ['echo \"this is $HOME\"']\n")).collect();
    (names, yaml)
}

#[test]
fn instance_with_interruption_notice_gets_no_jobs() {
    // About 70 % of the instances are preempted within an hour. The plugin announces this as soon as the instance runs.
    let plugin = "      preemptions_per_minute = 0.02\n      preemption_notice_s = 3600\n      seed = 7\n";
    let (names, yaml) = six_jobs();
    let fleet = Fleet::start(&yaml, "    max_use_count = 1\n    max_instances = 2\n", plugin);
    let (last, _, log) = fleet.finish_with_log(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let log = log.join("\n");
    assert!(log.contains("interruption notice received; the instance gets no more jobs"), "{log}");
    assert!(log.contains("retired: the provider will interrupt it: preempted (preemptions_per_minute)"), "{log}");
}
