//! What a plugin tells by itself, heard by Muster's own runner: `fleeting-plugin-local` announces that instances go.

use crate::instance_executor::Fleet;

/// Six jobs, one after the other where the runner cannot do better.
fn jobs() -> (Vec<String>, String) {
    let names: Vec<String> = (0..6).map(|n| format!("job {n}")).collect();
    let yaml = names.iter().map(|name| format!("{name}:\n  script: ['echo \"this is $HOME\"']\n")).collect();
    (names, yaml)
}

#[test]
fn an_instance_that_the_provider_takes_back_gets_no_jobs() {
    // Of these instances every second one is announced to go as soon as it runs, and is there for an hour.
    let plugin = "      preemptions_per_minute = 0.02\n      preemption_notice_s = 3600\n      seed = 7\n";
    let (names, yaml) = jobs();
    let fleet = Fleet::start(&yaml, "    max_use_count = 1\n    max_instances = 2\n", plugin);
    let (last, _, log) = fleet.finish_with_log(&names);
    assert!(last["jobs"].as_array().unwrap().iter().all(|job| job["status"] == "success"), "{last}");
    let log = log.join("\n");
    assert!(log.contains("the provider takes an instance back: it gets no more jobs"), "{log}");
    assert!(log.contains("retired: the provider takes it back: preempted (preemptions_per_minute)"), "{log}");
}
