//! Conformance cases C216-C222 of pipeline-yaml 8.9: what people know from gitlab-ci-local.

use super::Project;

const JOBS: &str = "
stages: [build, test, deploy]
compile:
  stage: build
  script: ['true']
# @Description Runs the tests
unit:
  stage: test
  script: ['true']
lint:
  stage: test
  needs: []
  script: ['true']
  allow_failure: {exit_codes: [3]}
ship:
  stage: deploy
  when: manual
  environment: prod
  needs: [unit]
  script: ['true']
never-here:
  stage: test
  rules: [{when: never}]
  script: ['true']
";

#[test]
fn c216_list_has_all_columns_and_excluded_jobs_only_when_asked() {
    let project = Project::new(JOBS);
    insta::assert_snapshot!(project.ci(&["list"]).code(0).out, @r"
    NAME     STAGE   WHEN        ALLOW FAILURE  ENVIRONMENT  NEEDS        DESCRIPTION
    compile  build   on_success  false                       stage order
    unit     test    on_success  false                       stage order  Runs the tests
    lint     test    on_success  [3]                         none
    ship     deploy  manual      true           prod         unit
    ");
    let all = project.ci(&["list", "--all"]).code(0);
    let row = all.out.lines().find(|line| line.starts_with("never-here")).unwrap();
    assert!(row.contains("never") && row.ends_with("rules[0] matched: no clause; when: never"), "{row}");
    project.ci(&["list"]).code(0).lacks("never-here");
    let said = project.ci(&["list", "--output", "json"]).code(0);
    let jobs: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let job = |name: &str| jobs.as_array().unwrap().iter().find(|job| job["name"] == name).unwrap().clone();
    assert_eq!(job("unit").get("needs"), None, "stage order");
    assert_eq!(job("lint")["needs"], serde_json::json!([]), "no needs");
    assert_eq!(job("lint")["allow_failure"], true);
    assert_eq!(job("lint")["allow_failure_exit_codes"], serde_json::json!([3]));
    assert_eq!(job("ship")["environment"], "prod");
}

#[test]
fn c217_a_named_job_runs_alone_or_with_its_needs() {
    let project = Project::new(JOBS);
    assert_eq!(project.ci(&["run", "unit", "--output", "json"]).code(0).started(), ["unit"]);
    let with_needs = project.ci(&["run", "unit", "--needs", "--output", "json"]).code(0);
    assert_eq!(with_needs.started(), ["compile", "unit"], "all earlier stages, as it has no `needs`");
    let ship = project.ci(&["run", "ship", "--needs", "--output", "json"]).code(0);
    assert_eq!(ship.started(), ["compile", "unit", "ship"], "transitive");
}

#[test]
fn c218_manual_jobs_run_only_when_named() {
    let project = Project::new(JOBS);
    let said = project.ci(&["--output", "json"]).code(0);
    assert!(!said.started().contains(&"ship".to_owned()), "{said:#?}");
    project.ci(&[]).code(0).says("manual, not run: ship");
    assert_eq!(project.ci(&["run", "ship", "--output", "json"]).code(0).started(), ["ship"]);
}

/// Decided: a configuration of gitlab-ci-local is never read by itself, since it would change without a word what a pipeline
/// is. Its files of variables are read, as it reads them, and that is said.
#[test]
fn c219_files_of_gitlab_ci_local_are_read_for_variables_only_and_named() {
    let project = Project::new("a: {script: ['echo \"[$V]\"']}\n");
    project.write(".gitlab-ci-local.yml", "extra: {script: ['true']}\n");
    project.ci(&["list"]).code(0).lacks("extra");
    project.write(".gitlab-ci-local-variables.yml", "V: from-file\n");
    project.ci(&[]).code(0).says("[from-file]").warns(".gitlab-ci-local-variables.yml");
    project.write("v.env", "V=from-env\n");
    project.ci(&["--var-file", "v.env"]).code(0).says("[from-env]");
    project.ci(&["--var-file", "v.env", "--var", "V=flag"]).code(0).says("[flag]");
}

/// Decided: untracked files that are not ignored are seen too. The issue asks for it, and people expect a run to test
/// what lies before them (gitlab-ci-local issues 271, 1351).
#[test]
fn c220_dirty_and_untracked_files_are_seen() {
    let project = Project::new("a: {script: ['cat tracked untracked']}\n");
    project.write("tracked", "clean");
    project.commit("Tracked");
    project.write("tracked", "dirty\n");
    project.write("untracked", "new\n");
    project.ci(&[]).code(0).says("dirty").says("new");
}

#[test]
fn c221_preview_is_the_tree_without_hidden_keys() {
    let project = Project::new(
        ".base: {image: one}\ndefault: {tags: [t]}\na:\n  extends: .base\n  script: [!reference [.lines, script]]\n.lines: {script: [x, y]}\n",
    );
    let said = project.ci(&["lint", "--preview"]).code(0);
    said.lacks("\n.base:").lacks("\n.lines:").lacks("!reference").says("image: one").says("x\n").says("- t");
}

#[test]
fn c222_exit_status_is_0_only_if_nothing_failed_that_may_not() {
    let failing = "bad: {script: ['exit 1']}\n";
    for (configuration, code) in [
        ("a: {script: ['exit 1'], allow_failure: true}\n", 0),
        ("a: {script: ['exit 3'], allow_failure: {exit_codes: [3]}}\n", 0),
        ("a: {script: ['exit 4'], allow_failure: {exit_codes: [3]}}\n", 1),
        ("c: {trigger: {include: child.yml, strategy: depend}}\n", 1),
        ("c: {trigger: {include: child.yml, strategy: depend}, allow_failure: true}\n", 0),
        // On GitLab the parent is green here, but nobody looks at another page: a failure anywhere is one.
        ("c: {trigger: {include: child.yml}}\n", 1),
    ] {
        let project = Project::new(configuration);
        project.write("child.yml", failing);
        project.commit("Child");
        let said = project.ci(&[]);
        assert_eq!(said.code, Some(code), "{configuration}: {said:#?}");
    }
}
