//! Steps with Muster's own keys in a local pipeline.

use super::Project;

const JOB: &str = r#"
build:
  run:
    - name: flaky
      script: 'test -e tried || { touch tried; exit 1; }'
      muster: {retry: {max: 1, delay: 1ms}}
    - name: write
      script: echo "written ${{ matrix.n }}" >out-${{ matrix.n }}
      muster: {parallel: true, matrix: {n: [1, 2]}}
    - name: publish
      script: exit 1
      muster: {if: '${{ vars.CI_JOB_NAME == "other" }}'}
    - name: read
      script: cat out-1 out-2
"#;

#[test]
fn conditions_retries_and_matrix_are_in_the_log_and_the_results() {
    let project = Project::new(JOB);
    let run = project.ci(&["run"]).code(0);
    run.prints("Retrying... flaky").prints("written 1").prints("written 2");
    let shown = project.ci(&["show", "last", "build"]).code(0);
    shown.prints("2 attempts").prints("write: [1]").prints("write: [2]");
    shown.prints("its condition is not met: ${{ vars.CI_JOB_NAME == \"other\" }}");
}

#[test]
fn invalid_value_of_a_key_fails_the_job_and_the_error_names_the_step_and_the_valid_values() {
    let project = Project::new("build: {run: [{name: a, script: 'true', muster: {retry: 100}}]}");
    project.ci(&["run"]).code(1).prints("\"a\": `muster.retry` must be a number from 0 to 9");
}
