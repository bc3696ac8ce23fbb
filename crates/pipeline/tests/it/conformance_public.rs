//! Cases C223, C225 to C228 and C230 to C233: constructs of public configurations that GitLab accepts or rejects.
//!
//! In the texts, the separate word `S` stands for `script: [x]`.

use muster_pipeline::model::Need;

use crate::case::{Case, assert_fails, job, jobs, needs, script};
use crate::harness::{errors, merged, project};

#[test]
fn c223_flow_collections_can_end_at_the_column_of_their_key() {
    let text = "a:\n  script: [\n    \"echo 1\",\n    echo 2\n  ]\nb:\n  script: [\n  'x'\n  ]\n  variables: {\n    V: \"v\"\n}\n";
    let jobs = project().compile(text).pipeline.expect("no pipeline").jobs;
    assert_eq!(script(&jobs[0]).script, ["echo 1", "echo 2"]);
    assert_eq!(script(&jobs[1]).script, ["x"]);
}

#[test]
fn c223_quoted_text_can_continue_at_the_column_of_its_key() {
    let text = "a:\n  script:\n  - \"echo\n  one\n\n    two\"\n  - 'x\n  y'\n";
    let jobs = project().compile(text).pipeline.expect("no pipeline").jobs;
    assert_eq!(script(&jobs[0]).script, ["echo one\ntwo", "x y"]);
}

#[test]
fn c225_exposed_artifact_paths_reject_only_the_asterisk() {
    for path in ["$F", "out?.tar", "a[1].txt"] {
        let yaml = format!("a: {{S, artifacts: {{expose_as: Files, paths: ['{path}']}}}}");
        let artifacts = script(&job(&yaml, "a")).artifacts.clone().expect("no artifacts");
        assert_eq!(artifacts.paths, [path]);
    }
    assert_fails(
        "a: {S, artifacts: {expose_as: Files, paths: ['*.txt']}}",
        "can't contain '*' when used with 'expose_as'",
    );
    assert_fails(
        "a: {S, artifacts: {expose_as: 'a/b', paths: [x]}}",
        "can contain only letters, digits, '-', '_' and spaces",
    );
}

#[test]
fn c226_lists_inside_cache_are_flattened() {
    let yaml = ".list: &list [{key: a, paths: [x]}, {key: b, paths: [y]}]\n.one: {cache: [{key: c, paths: [z]}]}\n\
                j: {S, cache: [*list, !reference [.one, cache]]}";
    let job = job(yaml, "j");
    let keys: Vec<&str> = script(&job).cache.iter().map(|cache| cache.key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c"]);
}

#[test]
fn c227_need_on_another_project_may_omit_the_key_artifacts() {
    let job = job("j: {S, needs: [{project: g/p, job: build, ref: main}]}", "j");
    assert!(
        matches!(&job.needs.as_deref(), Some([Need::Project { project, artifacts: true, .. }]) if project == "g/p"),
        "{:?}",
        job.needs
    );
}

#[test]
fn c228_every_report_accepts_a_list() {
    for kind in ["annotations", "accessibility", "browser_performance", "junit"] {
        let yaml = format!("a: {{S, artifacts: {{reports: {{{kind}: [a.json, b.json]}}}}}}");
        let artifacts = script(&job(&yaml, "a")).artifacts.clone().expect("no artifacts");
        assert_eq!(artifacts.reports, [(kind.to_owned(), vec!["a.json".to_owned(), "b.json".to_owned()])]);
    }
}

fn first_script_line(inputs: &str, given: &str) -> serde_json::Value {
    let project =
        project().file("t.yml", format!("spec:\n  inputs: {inputs}\n---\na: {{script: [\"<$[[ inputs.x ]]>\"]}}\n"));
    merged(&project.load(format!("include: [{{local: t.yml, inputs: {given}}}]")))["a"]["script"][0].clone()
}

fn input_errors(inputs: &str, given: &str) -> Vec<String> {
    let project =
        project().file("t.yml", format!("spec:\n  inputs: {inputs}\n---\na: {{script: [\"<$[[ inputs.x ]]>\"]}}\n"));
    errors(&project.load(format!("include: [{{local: t.yml, inputs: {given}}}]")).diagnostics)
}

#[test]
fn c230_a_null_default_is_a_default() {
    assert_eq!(first_script_line("{x: {default: null}}", "{}"), "<>");
    assert_eq!(first_script_line("{x: {default: null}}", "{x: y}"), "<y>");
    assert_eq!(input_errors("{x: }", "{}").len(), 1, "without a default, a value is required");
}

#[test]
fn null_default_of_an_input_rule_without_options_counts_as_no_default() {
    for kind in ["string", "number"] {
        let inputs = format!("{{x: {{type: {kind}, rules: [{{default: null}}]}}}}");
        assert_eq!(input_errors(&inputs, "{}"), ["`t.yml`: `x` input: required value has not been provided"]);
        assert_eq!(first_script_line(&inputs, "{x: 12}"), "<12>");
    }
    assert_eq!(first_script_line("{x: {rules: [{options: ['', a], default: null}]}}", "{}"), "<>");
}

#[test]
fn c230_text_inputs_accept_numbers_and_booleans() {
    assert_eq!(first_script_line("{x: {type: string}}", "{x: 12}"), "<12>");
    assert_eq!(first_script_line("{x: }", "{x: 1.5}"), "<1.5>");
    assert_eq!(first_script_line("{x: {default: no}}", "{}"), "<false>");
    assert_eq!(first_script_line("{x: {options: [1, 2]}}", "{x: 2}"), "<2>");
}

#[test]
fn c230_boolean_inputs_accept_the_texts_true_and_false() {
    assert_eq!(first_script_line("{x: {type: boolean}}", "{x: 'true'}"), "<true>");
    assert_eq!(input_errors("{x: {type: boolean}}", "{x: 'yes please'}").len(), 1);
}

#[test]
fn c230_options_of_a_list_apply_to_its_elements() {
    assert_eq!(first_script_line("{x: {type: array, options: [a, b, c]}}", "{x: [a, c]}"), "<[\"a\", \"c\"]>");
    assert_eq!(first_script_line("{x: {type: array, options: [true, a]}}", "{x: [true]}"), "<[true]>");
    let found = input_errors("{x: {type: array, options: [a, b]}}", "{x: [a, z]}");
    assert!(found.len() == 1 && found[0].contains("is not one of the options: a, b"), "{found:?}");
}

#[test]
fn c231_null_entries_are_ignored() {
    let job = job("a: {S}\nb: {S, needs: [a, null, ], services: [null, redis], cache: [null, {paths: [x]}]}", "b");
    assert_eq!(needs(&job).as_deref(), Some(&["a".to_owned()][..]));
    assert_eq!(script(&job).services.len(), 1);
    assert_eq!(script(&job).cache.len(), 1);
}

#[test]
fn c232_names_of_variables_and_matrix_keys_may_have_a_hyphen() {
    let found =
        Case::new("variables: {MY-VAR: 1}\na: {S, variables: {a-b: c}, parallel: {matrix: [{x-y: [1, 2]}]}}").jobs();
    assert_eq!(found, ["a: [1]", "a: [2]"]);
}

#[test]
fn c233_nested_lists_are_rejected_in_keywords_that_gitlab_does_not_flatten() {
    for yaml in [
        "a: {S, tags: [[x]]}",
        "a: {S, artifacts: {paths: [[x]]}}",
        "a: {S, artifacts: {paths: [x], exclude: [[y]]}}",
        "a: {S, artifacts: {reports: {junit: [[x]]}}}",
        "a: {S, cache: {paths: [[x]]}}",
        "b: {S}\na: {S, stage: deploy, dependencies: [[b]]}",
    ] {
        assert_fails(yaml, "config should be an array of strings");
    }
    assert_eq!(jobs("a: {script: [[x]], services: [[redis]]}"), ["a"]);
}
