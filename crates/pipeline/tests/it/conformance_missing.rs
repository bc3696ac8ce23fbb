//! Missing includes and references are reported first and only once. Errors that only result from them are not
//! reported. With `Context::stubs_includes`, includes that cannot be reached are skipped.

use muster_pipeline::diagnostic::Severity;
use muster_pipeline::model::{DecisionKind, Pipeline};

use crate::harness::{TestProject, assert_rejected, errors, project, warnings};

const JOBS_WITH_A_LIBRARY: &str = "
a:
  extends: .base
  script: [x]
  stage: verify
b:
  extends: [.base, .other]
  environment: {action: stop}
c:
  script: [!reference [.lines, script], x]
  rules: !reference [.rules, on-main]
  needs: [build-of-the-library]
d:
  before_script: !reference [b, before_script]
include: {project: grp/library, file: all.yml}
";

#[test]
fn c235_only_the_missing_include_is_reported() {
    assert_rejected(&project().compile(JOBS_WITH_A_LIBRARY).diagnostics, "`grp/library:all.yml` cannot be reached");
    let local = JOBS_WITH_A_LIBRARY.replace("{project: grp/library, file: all.yml}", "all.yml");
    assert_rejected(&project().compile(local).diagnostics, "local file `all.yml` does not exist");
}

#[test]
fn c235_missing_include_is_reported_before_other_errors() {
    let text = "a: {script: [x], colour: red}\ninclude: nope.yml\n";
    let found = errors(&project().compile(text).diagnostics);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].contains("nope.yml") && found[1].contains("colour"), "{found:#?}");
}

#[test]
fn c235_only_the_unresolved_reference_or_parent_is_reported() {
    let text = "stages: !reference [.shared, stages]\na: {stage: verify, script: [x]}\nb: {stage: ship, script: [x], needs: [a]}\n";
    assert_rejected(&project().compile(text).diagnostics, "!reference [.shared, stages]");
    let text = "a: {extends: .nope, environment: {action: stop}}\nb: {script: [!reference [a, script]]}\n\
                c: {script: [x], needs: [{job: a, parallel: {matrix: [{X: 1}]}}]}\n";
    assert_rejected(&project().compile(text).diagnostics, "unknown keys in `extends` (.nope)");
}

fn compile_with_stubs(project: TestProject, text: &str) -> (Pipeline, Vec<String>) {
    let mut project = project;
    project.context.stubs_includes = true;
    let compiled = project.compile(text);
    assert_eq!(errors(&compiled.diagnostics), [""; 0]);
    (compiled.pipeline.unwrap_or_else(|| panic!("no pipeline from\n{text}")), warnings(&compiled.diagnostics))
}

#[test]
fn c241_unreachable_includes_are_skipped_and_jobs_marked() {
    let (pipeline, warnings) = compile_with_stubs(project(), JOBS_WITH_A_LIBRARY);
    let jobs: Vec<_> = pipeline.jobs.iter().map(|job| (job.name.as_str(), job.lacks_parts())).collect();
    assert_eq!(jobs, [("b", true), ("c", true), ("d", true), ("a", true)]);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains("skipped project grp/library:all.yml: "), "{warnings:#?}");
    let text = "a: {script: [x]}\nb: {script: [x]}\ninclude: {template: T.yml}\n";
    let (pipeline, _) = compile_with_stubs(project(), text);
    assert!(pipeline.jobs.iter().all(|job| !job.lacks_parts()), "complete jobs must not be marked");
}

#[test]
fn c241_stubs_do_not_hide_errors_of_the_project() {
    let mut project = project();
    project.context.stubs_includes = true;
    for (text, part) in [
        ("include: nope.yml\na: {script: [x]}", "local file `nope.yml` does not exist"),
        ("include: {template: T.yml}\na: {script: [x], colour: red}", "colour"),
        ("a: {extends: .nope, script: [x]}", "unknown keys in `extends` (.nope)"),
    ] {
        assert_rejected(&project.compile(text).diagnostics, part);
    }
}

#[test]
fn c241_skipped_include_is_a_warning_at_its_position() {
    let mut project = project();
    project.context.stubs_includes = true;
    let compiled = project.compile("a: {script: [x]}\ninclude:\n  - remote: https://git.example.org/x.yml\n");
    let warning = compiled.diagnostics.iter().find(|found| found.severity == Severity::Warning).expect("no warning");
    assert_eq!(warning.span.map(|span| span.line), Some(3));
    let marked = |job: &muster_pipeline::model::Job| job.decisions.iter().any(|d| d.kind == DecisionKind::LacksParts);
    assert!(!compiled.pipeline.expect("no pipeline").jobs.iter().any(marked));
}
