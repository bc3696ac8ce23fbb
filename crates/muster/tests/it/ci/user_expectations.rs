//! Conformance cases C216 to C222: what users of gitlab-ci-local expect.

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
fn c216_list_shows_excluded_jobs_only_with_all() {
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
    assert!(row.contains("never") && row.ends_with("rules[0] matched: it has no condition; when: never"), "{row}");
    project.ci(&["list"]).code(0).lacks("never-here");
    let output = project.ci(&["list", "--output", "json"]).code(0);
    let jobs: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let job = |name: &str| jobs.as_array().unwrap().iter().find(|job| job["name"] == name).unwrap().clone();
    assert_eq!(job("unit").get("needs"), None, "a job in stage order must have no `needs`");
    assert_eq!(job("lint")["needs"], serde_json::json!([]), "an empty `needs` must not be omitted");
    assert_eq!(job("lint")["allow_failure"], true);
    assert_eq!(job("lint")["allow_failure_exit_codes"], serde_json::json!([3]));
    assert_eq!(job("ship")["environment"], "prod");
}

#[test]
fn c217_named_job_runs_alone_or_with_its_needs() {
    let project = Project::new(JOBS);
    assert_eq!(project.ci(&["run", "unit", "--output", "json"]).code(0).started(), ["unit"]);
    let with_needs = project.ci(&["run", "unit", "--needs", "--output", "json"]).code(0);
    assert_eq!(
        with_needs.started(),
        ["compile", "unit"],
        "the jobs of earlier stages must run, because `unit` has no `needs`"
    );
    let ship = project.ci(&["run", "ship", "--needs", "--output", "json"]).code(0);
    assert_eq!(ship.started(), ["compile", "unit", "ship"], "the needs of `unit` must run before `unit` and `ship`");
}

#[test]
fn c218_manual_jobs_run_only_when_named() {
    let project = Project::new(JOBS);
    let output = project.ci(&["--output", "json"]).code(0);
    assert!(!output.started().contains(&"ship".to_owned()), "{output:#?}");
    project.ci(&[]).code(0).prints("manual, not run: ship");
    assert_eq!(project.ci(&["run", "ship", "--output", "json"]).code(0).started(), ["ship"]);
}

/// `.gitlab-ci-local.yml` is never read, because it would silently change a pipeline.
#[test]
fn c219_gitlab_ci_local_files_supply_variables_but_no_jobs() {
    let project = Project::new("a: {script: ['echo \"[$V]\"']}\n");
    project.write(".gitlab-ci-local.yml", "extra: {script: ['true']}\n");
    project.ci(&["list"]).code(0).lacks("extra");
    project.write(".gitlab-ci-local-variables.yml", "V: from-file\n");
    project.ci(&[]).code(0).prints("[from-file]").warns(".gitlab-ci-local-variables.yml");
    project.write("v.env", "V=from-env\n");
    project.ci(&["--var-file", "v.env"]).code(0).prints("[from-env]");
    project.ci(&["--var-file", "v.env", "--var", "V=flag"]).code(0).prints("[flag]");
}

/// Users expect a run to test the files they see (gitlab-ci-local issues 271 and 1351).
#[test]
fn c220_dirty_and_untracked_files_are_seen() {
    let project = Project::new("a: {script: ['cat tracked untracked']}\n");
    project.write("tracked", "clean");
    project.commit("Tracked");
    project.write("tracked", "dirty\n");
    project.write("untracked", "new\n");
    project.ci(&[]).code(0).prints("dirty").prints("new");
}

#[test]
fn c221_preview_prints_expanded_configuration_without_hidden_keys() {
    let project = Project::new(
        ".base: {image: one}\ndefault: {tags: [t]}\na:\n  extends: .base\n  script: [!reference [.lines, script]]\n.lines: {script: [x, y]}\n",
    );
    let output = project.ci(&["lint", "--preview"]).code(0);
    output.lacks("\n.base:").lacks("\n.lines:").lacks("!reference").prints("image: one").prints("x\n").prints("- t");
}

#[test]
fn c222_exit_status_is_0_unless_a_required_job_failed() {
    let failing = "bad: {script: ['exit 1']}\n";
    for (configuration, code) in [
        ("a: {script: ['exit 1'], allow_failure: true}\n", 0),
        ("a: {script: ['exit 3'], allow_failure: {exit_codes: [3]}}\n", 0),
        ("a: {script: ['exit 4'], allow_failure: {exit_codes: [3]}}\n", 1),
        ("c: {trigger: {include: child.yml, strategy: depend}}\n", 1),
        ("c: {trigger: {include: child.yml, strategy: depend}, allow_failure: true}\n", 0),
        // Unlike on GitLab, a local run has one result, so any failure of a child counts.
        ("c: {trigger: {include: child.yml}}\n", 1),
    ] {
        let project = Project::new(configuration);
        project.write("child.yml", failing);
        project.commit("Child");
        let output = project.ci(&[]);
        assert_eq!(output.code, Some(code), "{configuration}: {output:#?}");
    }
}
