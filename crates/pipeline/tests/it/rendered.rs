//! Snapshots of rendered errors, one for each family of errors.

use muster_job::Variable;
use muster_pipeline::render::render;

use crate::harness::{World, world};

/// Returns the errors and warnings of a configuration as text.
fn shown(world: &World, text: &str) -> String {
    let loaded = world.load(text);
    render(&loaded.diagnostics, &loaded.sources, false)
}

#[test]
fn an_unknown_parent() {
    insta::assert_snapshot!(shown(&world(), ".node: {image: n}\n\na:\n  extends: .nope\n  script: [x]\n"));
}

#[test]
fn a_cycle_of_parents() {
    insta::assert_snapshot!(shown(&world(), ".a:\n  extends: .b\n.b:\n  extends: [.c, .a]\n.c: {}\n"));
}

#[test]
fn a_reference_to_nothing() {
    insta::assert_snapshot!(shown(
        &world(),
        ".setup:\n  scripts: [p]\n\na:\n  script:\n    - !reference [.setup, script]\n"
    ));
}

#[test]
fn a_grammar_error() {
    insta::assert_snapshot!(shown(&world(), "a:\n  script:\n    - echo: \"hi\": there\n"));
}

#[test]
fn a_tab() {
    insta::assert_snapshot!(shown(&world(), "a:\n\tscript: [x]\n"));
}

#[test]
fn a_missing_file() {
    insta::assert_snapshot!(shown(
        &world().file("ci/build.yml", "a: {script: [x]}"),
        "include:\n  - local: ci/biuld.yml\n"
    ));
}

#[test]
fn an_unreachable_project() {
    insta::assert_snapshot!(shown(&world(), "include:\n  - project: grp/tools\n    ref: v1\n    file: [lint.yml]\n"));
}

#[test]
fn a_wrong_input() {
    let file = "spec:\n  inputs:\n    count:\n      type: number\n---\na: {script: [x]}\n";
    insta::assert_snapshot!(shown(
        &world().file("c.yml", file),
        "include:\n  local: c.yml\n  inputs:\n    count: many\n    cuont: 1\n"
    ));
}

#[test]
fn a_wrong_block() {
    let text = "spec:\n  inputs:\n    name: {default: x}\n---\na:\n  script:\n    - echo $[[ inputs.name ]] $[[ inputs.nmae ]]\n    - echo $[[ inputs.name | uper ]]\n";
    insta::assert_snapshot!(shown(&world(), text));
}

#[test]
fn a_masked_variable() {
    let world = world().scoped(Variable::secret("TOKEN", "hunter22"), false, "*");
    let text = "spec: {inputs: {v: {default: $TOKEN}}}\n---\na:\n  script: [\"$[[ inputs.v | expand_vars ]]\"]\n";
    insta::assert_snapshot!(shown(&world, text));
}

#[test]
fn an_error_inside_an_included_file() {
    insta::assert_snapshot!(shown(&world().file("c.yml", "a:\n  script: [x\n"), "# main\ninclude: c.yml\n"));
}

#[test]
fn a_repeated_key() {
    insta::assert_snapshot!(shown(&world(), "größe:\n  script: [ü]\nb: {script: [x]}\ngröße:\n  script: [x]\n"));
}

#[test]
fn an_include_rule_with_a_bare_word() {
    insta::assert_snapshot!(shown(
        &world(),
        "include:\n  - local: c.yml\n    rules:\n      - if: $CI_COMMIT_BRANCH == main\n"
    ));
}

/// The label is below the error, for each keyword with expressions and each way to write them.
#[test]
fn an_expression_that_is_wrong_inside() {
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
    let compiled = world().file("d.yml", file).compile(text);
    insta::assert_snapshot!(render(&compiled.diagnostics, &compiled.sources, false));
}

#[test]
fn a_blank_file_and_a_binary_one() {
    insta::assert_snapshot!(shown(&world(), ""));
    insta::assert_snapshot!(shown(&world(), "a: \u{1}\n"));
}

#[test]
fn control_characters_are_removed() {
    let text = shown(&world(), "a:\n  extends: \"\\e[31mred\\a\"\n");
    assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text}");
    let loaded = world().load("a: {extends: .b}");
    assert!(render(&loaded.diagnostics, &loaded.sources, true).contains('\u{1b}'), "colour is used when asked for");
}

#[test]
fn source_of_long_line_is_not_shown() {
    let text = shown(&world(), &format!("a: {{extends: .b, x: {}}}\n", "y".repeat(5000)));
    assert!(text.contains(".gitlab-ci.yml:1:14") && text.len() < 500, "{text}");
}
