//! `explain` and errors name why a job is excluded or waits, with the values that decided it.

use super::Project;

#[test]
fn c229_changes_are_compared_with_the_upstream_branch_if_it_is_newer() {
    let project = Project::new(
        "docs: {script: ['true'], rules: [{changes: [docs/**]}]}\n\
         code: {script: ['true'], rules: [{changes: [src/**]}]}\n\
         to: {script: ['true'], rules: [{changes: {paths: [docs/**], compare_to: main}}]}\n",
    );
    project.git(&["checkout", "-q", "-b", "upstream-main"]);
    project.write("docs/a.md", "merged by somebody else");
    project.commit("Docs");
    let upstream = project.git(&["rev-parse", "HEAD"]);
    project.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    project.git(&["checkout", "-q", "-b", "feature"]);
    project.write("src/a.rs", "mine");
    project.commit("Code");
    // The local branch `main` is still at the first commit.
    let output = project.ci(&["list", "--mr-target", "main"]).code(0);
    output.prints("code").lacks("docs").lacks("to ");
    let compared = format!("{}, the merge base with `origin/main`", &upstream[..8]);
    project.ci(&["explain", "code", "--mr-target", "main"]).code(0).prints(&compared).prints("src/a.rs");
    project
        .ci(&["explain", "to", "--mr-target", "main"])
        .code(0)
        .prints("docs/** (1 file differs from")
        .prints(&compared);
}

#[test]
fn c229_changes_are_compared_with_the_local_branch_if_it_has_all_upstream_commits() {
    let project = Project::new("docs: {script: ['true'], rules: [{changes: [docs/**]}]}\n");
    project.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    project.write("docs/a.md", "not pushed yet");
    project.commit("Docs");
    project.git(&["checkout", "-q", "-b", "feature"]);
    project.write("src/a.rs", "mine");
    project.commit("Code");
    project.ci(&["list", "--mr-target", "main"]).code(0).lacks("docs");
    project.ci(&["explain", "docs", "--mr-target", "main"]).code(0).prints("the merge base with `main`");
}

const MANUAL_NEED: &str = "
build: {stage: build, script: ['true']}
approve: {stage: test, when: manual, script: ['true'], needs: [build]}
the ship: {stage: deploy, script: ['true'], needs: [approve]}
";

#[test]
fn c234_error_about_a_needed_manual_job_has_the_command_for_both_jobs() {
    let project = Project::new(MANUAL_NEED);
    let output = project.ci(&["run", "the ship", "--needs"]).code(1);
    output.warns("the manual job `approve`").warns("`muster ci run approve 'the ship' --needs`");
    project.ci(&["show"]).code(0).warns("no past runs");
    let output = project.ci(&["run", "approve", "the ship", "--needs", "--output", "json"]).code(0);
    assert_eq!(output.started(), ["build", "approve", "the ship"]);
    // An optional manual job does not block jobs of later stages.
    let project = Project::new("a: {stage: build, when: manual, script: ['true']}\nb: {script: ['true']}\n");
    assert_eq!(project.ci(&["run", "b", "--needs", "--output", "json"]).code(0).started(), ["b"]);
}

const RULES: &str = "
unit:
  parallel: {matrix: [{OS: [linux, mac]}]}
  rules:
    - if: $OS == \"mac\" && $CI_COMMIT_BRANCH == \"main\"
    - if: $CI
      changes: [src/**, '*.rs']
  script: ['true']
once: {script: ['true']}
";

/// Creates a repository whose next push changes one file, `docs/a.md`.
fn project_with_unpushed_file(configuration: &str) -> Project {
    let project = Project::new(configuration);
    project.git(&["update-ref", "refs/remotes/origin/main", "HEAD"]);
    project.git(&["config", "branch.main.remote", "origin"]);
    project.git(&["config", "branch.main.merge", "refs/heads/main"]);
    project.git(&["config", "remote.origin.url", "https://git.example.org/group/app.git"]);
    project.git(&["config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"]);
    project.write("docs/a.md", "words");
    project.commit("Docs");
    project
}

#[test]
fn c236_explain_shows_the_unmatched_clause_with_its_values() {
    let output = project_with_unpushed_file(RULES).ci(&["explain", "unit: [linux]"]).code(0);
    output.prints("not in this pipeline");
    output.prints("(OS is \"linux\", CI_COMMIT_BRANCH is \"main\")");
    output.prints("changes src/**, *.rs (1 file differs from ").prints(": docs/a.md)");
    output.lacks("did not match: if $CI ");
}

#[test]
fn c236_masked_value_is_hidden() {
    let project = Project::new("a: {script: ['true'], rules: [{if: '$TOKEN == \"other\"'}]}\nb: {script: ['true']}\n");
    project.configure("[[variables]]\nkey = \"TOKEN\"\nvalue = \"hunter22\"\nmasked = true\n");
    project.ci(&["explain", "a"]).code(0).prints("TOKEN is \"[MASKED]\"").lacks("hunter22");
}

#[test]
fn c237_explain_covers_each_matrix_cell() {
    let output = project_with_unpushed_file(RULES).ci(&["explain", "unit"]).code(0);
    output.prints("unit: [linux]  not in this pipeline").prints("unit: [mac]  ").prints("OS=mac  from the matrix");
}

#[test]
fn c238_list_all_shows_jobs_excluded_by_workflow() {
    let project = Project::new(
        "workflow: {rules: [{if: $CI_COMMIT_TAG}]}\na: {script: ['true']}\nb: {stage: deploy, script: ['true']}\n",
    );
    project.ci(&["list"]).code(0).lacks("a ");
    let output = project.ci(&["list", "--all"]).code(0);
    output.prints("a     test    never").prints("b     deploy  never").prints("no rule of `workflow` matched");
    let output = project.ci(&["list", "--all", "--output", "json"]).code(0);
    let jobs: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(jobs[0]["reason"], "no rule of `workflow` matched");
    let output = project.ci(&["explain", "a"]).code(0);
    output.prints("pipeline filtered out by workflow rules").prints("CI_COMMIT_TAG is not set");
}

#[test]
fn c239_allow_failure_is_always_boolean_in_json() {
    let project = Project::new(
        "a: {script: ['true'], allow_failure: {exit_codes: [3]}}\nb: {script: ['true'], allow_failure: true}\n\
         c: {script: ['true']}\n",
    );
    let output = project.ci(&["list", "--output", "json"]).code(0);
    let jobs: Vec<serde_json::Value> = serde_json::from_str(&output.out).unwrap();
    let flags: Vec<_> = jobs.iter().map(|job| job["allow_failure"].as_bool()).collect();
    assert_eq!(flags, [Some(true), Some(true), Some(false)]);
    assert_eq!(jobs[0]["allow_failure_exit_codes"], serde_json::json!([3]));
    assert_eq!(jobs[1].get("allow_failure_exit_codes"), None);
}

#[test]
fn explanation_sends_no_commands_to_the_terminal() {
    let project = Project::new(
        r#"
stages: ["s\e[2J"]
build:
  stage: "s\e[2J"
  image: "i\e[2J"
  cache: {key: "k\e[2J", paths: ["p\e[2J"]}
  artifacts: {paths: ["a\e[2J"]}
  script: ["echo \e[2J"]
left out: {stage: "s\e[2J", rules: [{if: $NONE}], script: ['true']}
"#,
    );
    project.ci(&["explain", "left out"]).code(0).prints("s\u{fffd}[2J");
    let output = project.ci(&["explain", "build"]).code(0);
    for name in ["s", "i", "k", "p", "a", "echo "] {
        output.prints(&format!("{name}\u{fffd}[2J"));
    }
}
