//! Commands that inspect a pipeline without running it.

use super::Project;

const CONFIGURATION: &str = "
stages: [build, test]
include: ci/more.yml
compile:
  stage: build
  script: [make]
# only for tags
publish:
  rules: [{if: $CI_COMMIT_TAG}]
  script: [publish]
unit:
  extends: .base
  needs: [compile]
  parallel: {matrix: [{OS: [linux, mac]}]}
  script: [test]
approve:
  stage: test
  when: manual
  allow_failure: false
  script: [approve]
";

fn project() -> Project {
    let project = Project::new(CONFIGURATION);
    project.write("ci/more.yml", ".base:\n  stage: test\n  variables: {FROM: more}\n");
    project.commit("More");
    project
}

#[test]
fn graph_has_three_formats() {
    let project = project();
    insta::assert_snapshot!(project.ci(&["graph"]).code(0).out, @r"
    build
    └─ compile
    test
    ├─ unit: [linux]  ← compile
    ├─ unit: [mac]    ← compile
    └─ approve        manual
    ");
    insta::assert_snapshot!(project.ci(&["graph", "--format", "dot"]).code(0).out, @r#"
    digraph pipeline {
      rankdir=LR;
      node [shape=box, style=rounded];
      subgraph cluster_0 {
        label="build";
        "compile";
      }
      subgraph cluster_1 {
        label="test";
        "unit: [linux]";
        "unit: [mac]";
        "approve" [style="rounded,dashed"];
      }
      gate_1 [shape=point, label=""];
      "compile" -> gate_1 [arrowhead=none];
      gate_1 -> "approve";
      "compile" -> "unit: [linux]";
      "compile" -> "unit: [mac]";
    }
    "#);
    let svg = project.ci(&["graph", "--format", "svg"]).code(0).out;
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
    assert_eq!(svg.matches("<rect").count(), 4, "each job must have a box");
}

#[test]
fn explain_shows_the_origin_of_settings() {
    let project = project();
    let output = project.ci(&["explain", "unit: [mac]", "--var", "FROM=flag"]).code(0);
    output
        .prints("extends `.base`")
        .prints("OS=mac  from the matrix")
        .prints("needs   compile")
        .prints("which overrides");
    project.ci(&["explain", "publish"]).code(0).prints("not in this pipeline").prints("if $CI_COMMIT_TAG");
    project.ci(&["explain", "publish", "--tag", "v1"]).code(0).lacks("not in this pipeline");
    project.ci(&["explain", "compil"]).code(2).warns("did you mean `compile`?");
}

#[test]
fn lint_shows_all_errors_with_their_lines() {
    let project = Project::new("a:\n  scirpt: [x]\nb:\n  script: [x]\n  needs: [nope]\n");
    let output = project.ci(&["lint"]).code(2);
    output.warns(".gitlab-ci.yml:2").warns("script");
    let output = project.ci(&["lint", "--json"]).code(2);
    let report: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(report["valid"], false);
    assert_eq!(report["findings"][0]["location"]["file"], ".gitlab-ci.yml");
    project.ci(&[]).code(2).warns("no pipeline was created");
    project.ci(&["show"]).code(0).warns("no past runs");
}

#[test]
fn completions_exist_for_bash_zsh_and_fish() {
    for shell in ["bash", "zsh", "fish"] {
        let output =
            std::process::Command::new(assert_cmd::cargo::cargo_bin!("muster")).args(["completions", shell]).output();
        let output = output.unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("muster"), "{shell}");
    }
}

#[test]
fn explain_shows_the_origin_of_variables() {
    let project = Project::new(
        "variables: {G: g, X: global}\nworkflow: {rules: [{if: $CI, variables: {W: w}}]}\na:\n  variables: {J: j, X: job}\n  \
         parallel: {matrix: [{CELL: [one]}]}\n  rules: [{if: $CI, variables: {R: r}}]\n  script: ['true']\n",
    );
    let output = project.ci(&["explain", "a", "--var", "C=c"]).code(0);
    output.prints("G=g  from the global variables").prints("W=w  from the workflow's rules");
    output.prints("J=j  from the job's variables").prints("X=job  from the job's variables");
    output.prints("CELL=one  from the matrix").prints("R=r  from the job's rules").prints("C=c  from the command line");
}
