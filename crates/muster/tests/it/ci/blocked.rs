//! Pipelines that wait for a person: how a run of them ends.

use serde_json::Value;

use super::Project;

/// The last event of a run: its status, and the status of each job.
fn end(events: &[Value]) -> (String, Vec<(String, String)>) {
    let last = events.last().unwrap();
    assert_eq!(last["event"], "run_finished");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut jobs: Vec<_> =
        last["jobs"].as_array().unwrap().iter().map(|job| (text(&job["name"]), text(&job["status"]))).collect();
    jobs.sort();
    (text(&last["status"]), jobs)
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, status)| ((*name).to_owned(), (*status).to_owned())).collect()
}

#[test]
fn a_gate_blocks_what_comes_after_it_and_is_told() {
    let project = Project::new(
        "stages: [a, b]\ngate: {stage: a, rules: [{when: manual, allow_failure: false}], script: 'true'}\nlate: {stage: b, script: 'true'}\n",
    );
    let said = project.ci(&["--output", "json"]).code(0);
    assert_eq!(end(&said.events()), ("blocked".to_owned(), pairs(&[("gate", "manual"), ("late", "created")])));
}

#[test]
fn a_failure_beside_a_gate_fails_the_run() {
    let project = Project::new(
        "gate: {rules: [{when: manual, allow_failure: false}], script: 'true'}\nbad: {script: 'exit 1'}\n",
    );
    let said = project.ci(&["--output", "json"]).code(1);
    assert_eq!(end(&said.events()), ("failed".to_owned(), pairs(&[("bad", "failed"), ("gate", "manual")])));
}

#[test]
fn a_delayed_job_beside_a_gate_runs() {
    let project = Project::new(
        "gate: {rules: [{when: manual, allow_failure: false}], script: 'true'}\nsoon: {when: delayed, start_in: 1 second, script: 'true'}\n",
    );
    let said = project.ci(&["--output", "json"]).code(0);
    assert_eq!(end(&said.events()), ("blocked".to_owned(), pairs(&[("gate", "manual"), ("soon", "success")])));
}

#[test]
fn a_need_on_an_optional_manual_job_is_skipped_and_told() {
    let project = Project::new(
        "stages: [a, b]\nopt: {stage: a, when: manual, script: 'true'}\ny: {stage: b, needs: [opt], script: 'true'}\n",
    );
    let said = project.ci(&["--output", "json"]).code(0);
    assert_eq!(end(&said.events()).1, pairs(&[("opt", "manual"), ("y", "skipped")]));
}

#[test]
fn a_child_that_waits_for_a_person_blocks_its_bridge_and_the_run_ends() {
    let project = Project::new("t: {trigger: {include: child.yml, strategy: depend}}\n");
    project.write("child.yml", "gate: {rules: [{when: manual, allow_failure: false}], script: 'true'}\n");
    let said = project.ci(&["--output", "json"]).code(0);
    assert_eq!(end(&said.events()), ("blocked".to_owned(), pairs(&[("gate", "manual"), ("t", "running")])));
}
