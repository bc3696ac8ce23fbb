//! Results of pipelines that wait for a manual job.

use serde_json::Value;

use super::Project;

fn final_statuses(events: &[Value]) -> (String, Vec<(String, String)>) {
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
fn required_manual_job_blocks_later_jobs() {
    let project = Project::new(
        "stages: [a, b]\ngate: {stage: a, rules: [{when: manual, allow_failure: false}], script: 'true'}\nlate: {stage: b, script: 'true'}\n",
    );
    let output = project.ci(&["--output", "json"]).code(0);
    assert_eq!(
        final_statuses(&output.events()),
        ("blocked".to_owned(), pairs(&[("gate", "manual"), ("late", "created")]))
    );
}

#[test]
fn failure_next_to_a_manual_job_fails_the_run() {
    let project = Project::new(
        "gate: {rules: [{when: manual, allow_failure: false}], script: 'true'}\nbad: {script: 'exit 1'}\n",
    );
    let output = project.ci(&["--output", "json"]).code(1);
    assert_eq!(
        final_statuses(&output.events()),
        ("failed".to_owned(), pairs(&[("bad", "failed"), ("gate", "manual")]))
    );
}

#[test]
fn delayed_job_next_to_a_manual_job_runs() {
    let project = Project::new(
        "gate: {rules: [{when: manual, allow_failure: false}], script: 'true'}\nsoon: {when: delayed, start_in: 1 second, script: 'true'}\n",
    );
    let output = project.ci(&["--output", "json"]).code(0);
    assert_eq!(
        final_statuses(&output.events()),
        ("blocked".to_owned(), pairs(&[("gate", "manual"), ("soon", "success")]))
    );
}

#[test]
fn job_that_needs_an_optional_manual_job_is_skipped() {
    let project = Project::new(
        "stages: [a, b]\nopt: {stage: a, when: manual, script: 'true'}\ny: {stage: b, needs: [opt], script: 'true'}\n",
    );
    let output = project.ci(&["--output", "json"]).code(0);
    assert_eq!(final_statuses(&output.events()).1, pairs(&[("opt", "manual"), ("y", "skipped")]));
}

#[test]
fn blocked_child_pipeline_blocks_its_bridge() {
    let project = Project::new("t: {trigger: {include: child.yml, strategy: depend}}\n");
    project.write("child.yml", "gate: {rules: [{when: manual, allow_failure: false}], script: 'true'}\n");
    let output = project.ci(&["--output", "json"]).code(0);
    assert_eq!(
        final_statuses(&output.events()),
        ("blocked".to_owned(), pairs(&[("gate", "manual"), ("t", "running")]))
    );
}
