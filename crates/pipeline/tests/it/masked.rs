//! Values of masked variables are hidden in diagnostics and decisions.

use muster_job::Variable;
use muster_pipeline::Compiled;

use crate::harness::{TestProject, project};

const SECRET: &str = "hunter22";

fn project_with_secret() -> TestProject {
    let mut project = project().scoped(Variable::secret("TOKEN", SECRET), false, "*");
    project.context.explains = true;
    project
}

/// Returns the rendered diagnostics, and the decisions about all jobs.
fn shown(compiled: &Compiled) -> String {
    let mut text = muster_pipeline::render::render(&compiled.diagnostics, &compiled.sources, false);
    let pipeline = compiled.pipeline.iter();
    let jobs = pipeline.clone().flat_map(|pipeline| pipeline.jobs.iter().map(|job| &job.decisions));
    let excluded = pipeline.flat_map(|pipeline| &pipeline.excluded).map(|job| &job.decisions);
    for decision in jobs.chain(excluded).flatten() {
        text.push_str(&decision.text);
        text.push('\n');
    }
    text
}

#[test]
fn masked_values_are_hidden_in_explanations() {
    for (rule, part) in [
        ("{changes: ['$TOKEN/**'], when: never}", "changes [MASKED]/**"),
        ("{exists: {paths: ['$TOKEN/*'], project: 'grp/$TOKEN', ref: main}}", "of grp/[MASKED]"),
        ("{changes: {paths: ['src/*'], compare_to: $TOKEN}}", "the merge base with `[MASKED]`"),
        ("{if: '$A == \"x\"'}", "A is \"a-[MASKED]\""),
    ] {
        let project = project_with_secret().git_ref(SECRET, &[]).variable("A", "a-hunter22");
        let compiled = project.compile(format!("a: {{script: [x], rules: [{rule}]}}\nb: {{script: [x]}}"));
        let shown = shown(&compiled);
        assert!(shown.contains(part) && !shown.contains(SECRET), "of {rule}: {shown}");
    }
}

#[test]
fn masked_values_are_hidden_in_errors_of_rules() {
    let compiled =
        project_with_secret().compile("a: {script: [x], rules: [{changes: {paths: [x], compare_to: 'ref-$TOKEN'}}]}");
    let shown = shown(&compiled);
    assert!(shown.contains("rules:changes:compare_to is not a valid ref: `ref-[MASKED]`"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}

/// Variables of other environments are hidden, too: a scope of the variable can match the environment of a job.
#[test]
fn masked_values_of_environments_are_hidden() {
    let compiled = project()
        .scoped(Variable::secret("TOKEN", SECRET), false, "prod")
        .compile("a: {script: [x], environment: prod, rules: [{changes: {paths: [x], compare_to: $TOKEN}}]}");
    let shown = shown(&compiled);
    assert!(shown.contains("is not a valid ref: `[MASKED]`"), "{shown}");
}

/// Values that contain or overlap each other, in both orders.
#[test]
fn overlapping_masked_values_are_hidden_completely() {
    for number in 0..20 {
        let mut project = project();
        for (name, value) in [("SHORT", "abcd"), ("LONG", "abcdefgh"), ("NEXT", "ghijkl")] {
            project = project.scoped(Variable::secret(format!("{name}{number}"), value), false, "*");
        }
        for text in ["abcdefgh", "abcdefghijkl"] {
            let found = project.load(format!("include: x-{text}.txt"));
            assert!(found.diagnostics[0].message.contains("`x-[MASKED].txt`"), "{}", found.diagnostics[0].message);
        }
    }
}
