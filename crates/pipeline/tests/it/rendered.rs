//! Snapshots of rendered errors, one for each kind of error.

use muster_job::Variable;
use muster_pipeline::render::render;

use crate::harness::{TestProject, project};

fn render_diagnostics(project: &TestProject, text: &str) -> String {
    let loaded = project.load(text);
    render(&loaded.diagnostics, &loaded.sources, false)
}

#[test]
fn unknown_parent_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project(),
        ".node: {image: n}\n\na:\n  extends: .nope\n  script: [x]\n"
    ));
}

#[test]
fn cycle_of_parents_is_reported() {
    insta::assert_snapshot!(render_diagnostics(&project(), ".a:\n  extends: .b\n.b:\n  extends: [.c, .a]\n.c: {}\n"));
}

#[test]
fn reference_without_target_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project(),
        ".setup:\n  scripts: [p]\n\na:\n  script:\n    - !reference [.setup, script]\n"
    ));
}

#[test]
fn yaml_grammar_error_is_reported() {
    insta::assert_snapshot!(render_diagnostics(&project(), "a:\n  script:\n    - echo: \"hi\": there\n"));
}

#[test]
fn tab_in_indentation_is_reported() {
    insta::assert_snapshot!(render_diagnostics(&project(), "a:\n\tscript: [x]\n"));
}

#[test]
fn missing_include_file_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project().file("ci/build.yml", "a: {script: [x]}"),
        "include:\n  - local: ci/biuld.yml\n"
    ));
}

#[test]
fn unreachable_include_project_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project(),
        "include:\n  - project: grp/tools\n    ref: v1\n    file: [lint.yml]\n"
    ));
}

#[test]
fn invalid_include_inputs_are_reported() {
    let file = "spec:\n  inputs:\n    count:\n      type: number\n---\na: {script: [x]}\n";
    insta::assert_snapshot!(render_diagnostics(
        &project().file("c.yml", file),
        "include:\n  local: c.yml\n  inputs:\n    count: many\n    cuont: 1\n"
    ));
}

#[test]
fn invalid_interpolations_are_reported() {
    let text = "spec:\n  inputs:\n    name: {default: x}\n---\na:\n  script:\n    - echo $[[ inputs.name ]] $[[ inputs.nmae ]]\n    - echo $[[ inputs.name | uper ]]\n";
    insta::assert_snapshot!(render_diagnostics(&project(), text));
}

#[test]
fn masked_variable_in_input_default_is_reported() {
    let project = project().scoped(Variable::secret("TOKEN", "hunter22"), false, "*");
    let text = "spec: {inputs: {v: {default: $TOKEN}}}\n---\na:\n  script: [\"$[[ inputs.v | expand_vars ]]\"]\n";
    insta::assert_snapshot!(render_diagnostics(&project, text));
}

#[test]
fn error_in_included_file_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project().file("c.yml", "a:\n  script: [x\n"),
        "# main\ninclude: c.yml\n"
    ));
}

#[test]
fn repeated_key_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project(),
        "größe:\n  script: [ü]\nb: {script: [x]}\ngröße:\n  script: [x]\n"
    ));
}

#[test]
fn unquoted_string_in_include_rule_is_reported() {
    insta::assert_snapshot!(render_diagnostics(
        &project(),
        "include:\n  - local: c.yml\n    rules:\n      - if: $CI_COMMIT_BRANCH == main\n"
    ));
}

/// For each keyword with an expression, in each YAML quoting style, the marker points at the faulty token.
#[test]
fn expression_error_is_marked_at_its_position_in_each_keyword() {
    let file = "spec:\n  inputs:\n    größe:\n      default: x\n      rules:\n        - if: \"$[[ inputs.größe ]] == \\\"x\\\"\"\n---\n";
    let text = r#"include:
  - local: c.yml
    rules: [{if: '$A = "b"'}]
  - local: d.yml
workflow: {rules: [{if: "ü $A == \"b\""}]}
a:
  script: [x]
  rules:
    - if: $A == "b" && ($B
    - if: '$A == ''b'' &&'
    - if: |
        $A == b
b:
  script: [x]
  only: {variables: ["$A =~ /[a/"]}
"#;
    let compiled = project().file("d.yml", file).compile(text);
    insta::assert_snapshot!(render(&compiled.diagnostics, &compiled.sources, false));
}

#[test]
fn empty_file_and_binary_file_are_reported() {
    insta::assert_snapshot!(render_diagnostics(&project(), ""));
    insta::assert_snapshot!(render_diagnostics(&project(), "a: \u{1}\n"));
}

#[test]
fn control_characters_are_not_printed() {
    let text = render_diagnostics(&project(), "a:\n  extends: \"\\e[31mred\\a\"\n");
    assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text}");
    let loaded = project().load("a: {extends: .b}");
    assert!(render(&loaded.diagnostics, &loaded.sources, true).contains('\u{1b}'), "requested colors must be used");
}

#[test]
fn source_of_long_line_is_not_shown() {
    let text = render_diagnostics(&project(), &format!("a: {{extends: .b, x: {}}}\n", "y".repeat(5000)));
    assert!(text.contains(".gitlab-ci.yml:1:14") && text.len() < 500, "{text}");
}
