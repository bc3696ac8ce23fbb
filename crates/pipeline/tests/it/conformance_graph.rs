//! Cases C051 to C072: parallel, needs, dependencies; C191, C192 and C196: trigger jobs (docs/spec/pipeline-yaml.md,
//! sections 8.2 and 8.7).

use muster_pipeline::model::{BridgeTarget, ChildInclude, Need, Work};

use crate::case::{Case, assert_fails, job, jobs, needs, value};

/// Job `a` in the stage `build`, with the matrix of case C053.
const MATRIX_JOB: &str =
    "a: {S, stage: build, parallel: {matrix: [{OS: [l, w], V: \"1\"}, {OS: m, V: [\"1\", \"2\"]}]}}";

#[test]
fn c051_parallel_makes_numbered_jobs() {
    let pipeline = Case::new("a: {S, parallel: 3}").pipeline();
    let found: Vec<_> = pipeline.jobs.iter().map(|job| (job.name.as_str(), job.node)).collect();
    assert_eq!(found, [("a 1/3", Some((1, 3))), ("a 2/3", Some((2, 3))), ("a 3/3", Some((3, 3)))]);
    assert!(pipeline.jobs.iter().all(|job| job.group_name == "a"));
}

#[test]
fn c052_parallel_is_1_to_200() {
    assert_fails("a: {S, parallel: 0}", "jobs:a:parallel must be between 1 and 200");
    assert_fails("a: {S, parallel: 201}", "jobs:a:parallel must be between 1 and 200");
    assert_eq!(jobs("a: {S, parallel: 200}").len(), 200);
}

#[test]
fn c053_a_matrix_makes_a_job_for_each_cell() {
    let pipeline = Case::new(&format!("{{{MATRIX_JOB}}}")).pipeline();
    let names: Vec<&str> = pipeline.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["a: [l, 1]", "a: [w, 1]", "a: [m, 1]", "a: [m, 2]"]);
    let last = &pipeline.jobs[3];
    assert_eq!((value(last, "OS").as_deref(), value(last, "V").as_deref()), (Some("m"), Some("2")));
    assert_eq!(last.node, Some((4, 4)));
}

#[test]
fn c054_a_matrix_has_at_most_200_cells() {
    let values = |from: usize| (from..from + 15).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let yaml = format!("a: {{S, parallel: {{matrix: [{{A: [{}], B: [{}]}}]}}}}", values(0), values(20));
    assert_fails(&yaml, "too many jobs");
}

#[test]
fn c055_need_selects_all_parallel_jobs() {
    let b = job("{a: {S, stage: build, parallel: 2}, b: {S, needs: [a]}}", "b");
    assert_eq!(needs(&b), Some(vec!["a 1/2".into(), "a 2/2".into()]));
}

#[test]
fn c056_need_can_select_cells() {
    let b = format!("{{{MATRIX_JOB}, b: {{S, needs: [{{job: a, parallel: {{matrix: [{{OS: m, V: \"2\"}}]}}}}]}}}}");
    assert_eq!(needs(&job(&b, "b")), Some(vec!["a: [m, 2]".into()]));
}

#[test]
fn c057_matrix_keys_must_have_the_order_of_the_needed_job() {
    let b = format!("{{{MATRIX_JOB}, b: {{S, needs: [{{job: a, parallel: {{matrix: [{{V: \"2\", OS: m}}]}}}}]}}}}");
    assert_fails(&b, "b job: undefined need: a: [2, m]");
}

/// Returns two jobs. `a` has a matrix over `OS`. `b` needs the cell of `a` whose `OS` is the block `$[[ ... ]]` with
/// this content. `keys` are additional keys of `b`.
fn need_with_block(keys: &str, content: &str) -> String {
    format!(
        "{{a: {{S, stage: build, parallel: {{matrix: [{{OS: [l, w]}}]}}}}, \
         b: {{S, {keys} needs: [{{job: a, parallel: {{matrix: [{{OS: ['$[[ {content} ]]']}}]}}}}]}}}}"
    )
}

#[test]
fn c058_need_can_use_the_matrix_values_of_the_job_that_has_it() {
    let case = Case::new(&need_with_block("parallel: {matrix: [{OS: [l, w]}]},", "matrix.OS"));
    assert_eq!(needs(&case.job("b: [l]")), Some(vec!["a: [l]".into()]));
    assert_eq!(needs(&case.job("b: [w]")), Some(vec!["a: [w]".into()]));
}

#[test]
fn c059_matrix_block_requires_a_matrix_job() {
    assert_fails(&need_with_block("", "matrix.OS"), "only in a job with `parallel:matrix`");
    assert_fails(&need_with_block("parallel: {matrix: [{OS: [l, w]}]},", "matrix.CPU"), "`CPU` is not an identifier");
}

#[test]
fn c060_need_in_a_later_stage_is_rejected() {
    assert_fails(
        "{a: {S, stage: build, needs: [b]}, b: {S, stage: test}}",
        "a job: need b is not defined in current or prior",
    );
}

#[test]
fn c061_a_need_may_be_in_the_same_stage() {
    let case = Case::new("{a: {S, needs: [b]}, b: {S}}");
    assert_eq!(needs(&case.job("a")), Some(vec!["b".into()]));
    assert_eq!(case.jobs(), ["a", "b"]);
}

#[test]
fn c062_circular_needs_are_reported_with_their_path() {
    assert_fails("a: {S, needs: [a]}", "circular dependencies: a needs a");
    assert_fails("{a: {S, needs: [b]}, b: {S, needs: [a]}}", "circular dependencies: a needs b needs a");
    assert_fails(
        "{a: {S, needs: [b]}, b: {S, needs: [c]}, c: {S, needs: [b]}}",
        "circular dependencies: b needs c needs b",
    );
}

#[test]
fn c063_undefined_need_is_rejected_unless_optional() {
    assert_fails("a: {S, needs: [zz]}", "a job: undefined need: zz");
    assert_eq!(needs(&job("a: {S, needs: [{job: zz, optional: true}]}", "a")), Some(Vec::new()));
}

#[test]
fn c064_duplicate_needs_are_rejected() {
    assert_fails("{b: {S, stage: build}, a: {S, needs: [b, b]}}", "a has the following needs duplicated: b.");
}

#[test]
fn c065_job_has_at_most_50_needs() {
    let yaml = |count: usize| {
        let producers: Vec<String> = (0..count).map(|n| format!("p{n}: {{S, stage: build}}")).collect();
        let names: Vec<String> = (0..count).map(|n| format!("p{n}")).collect();
        format!("{{{}, a: {{S, needs: [{}]}}}}", producers.join(", "), names.join(", "))
    };
    assert_eq!(needs(&job(&yaml(50), "a")).map(|needs| needs.len()), Some(50));
    assert_fails(&yaml(51), "can have at most 50 entries");
}

#[test]
fn c066_need_for_an_excluded_job_is_rejected() {
    let yaml = "{b: {S, stage: build, rules: [{if: $NOPE}]}, a: {S, needs: [b]}}";
    assert_fails(yaml, "'a' job needs 'b' job, but 'b' does not exist in the pipeline");
}

#[test]
fn c067_an_optional_need_is_dropped() {
    let yaml = "{b: {S, stage: build, rules: [{if: $NOPE}]}, c: {S, stage: build}, \
                a: {S, needs: [{job: b, optional: true}, c]}}";
    let a = job(yaml, "a");
    assert_eq!(needs(&a), Some(vec!["c".into()]));
    assert!(a.decisions.iter().any(|decision| decision.text.contains("need for `b` was dropped")));
}

#[test]
fn c068_dependency_that_is_not_in_needs_is_rejected() {
    let yaml = "{b: {S, stage: build}, c: {S, stage: build}, a: {S, needs: [b], dependencies: [c]}}";
    assert_fails(yaml, "the c should be part of needs");
}

#[test]
fn c069_undefined_or_later_dependency_is_rejected() {
    assert_fails("a: {S, dependencies: [zz]}", "a job: undefined dependency: zz");
    let later = "{a: {S, stage: build, dependencies: [b]}, b: {S, stage: test}}";
    assert_fails(later, "a job: dependency b is not defined in current or prior stages");
}

/// The coordinator creates the payload. This test checks the names from which the coordinator selects the jobs.
#[test]
fn c070_dependencies_select_jobs_by_name() {
    let with = |a: &str| {
        let producer = "{S, stage: build, artifacts: {paths: [o]}}";
        job(&format!("{{p: {producer}, q: {producer}, a: {{S{a}}}}}"), "a").dependencies
    };
    assert_eq!(with(", dependencies: [p]"), Some(vec!["p".into()]));
    assert_eq!(with(", dependencies: []"), Some(Vec::new()));
    assert_eq!(with(""), None);
}

#[test]
fn c071_need_can_exclude_artifacts() {
    let producer = "{S, stage: build, artifacts: {paths: [o]}}";
    let yaml = format!("{{p: {producer}, q: {producer}, a: {{S, needs: [{{job: p, artifacts: false}}, q]}}}}");
    let a = job(&yaml, "a");
    let found: Vec<(String, bool)> = a
        .needs
        .iter()
        .flatten()
        .filter_map(|need| match need {
            Need::Job { name, artifacts, .. } => Some((name.clone(), *artifacts)),
            Need::Project { .. } | Need::Pipeline { .. } => None,
        })
        .collect();
    assert_eq!(found, [("p".to_owned(), false), ("q".to_owned(), true)]);
}

#[test]
fn c072_job_with_empty_needs_starts_immediately() {
    let a = job("{p: {S, stage: build}, a: {S, stage: deploy, needs: []}}", "a");
    assert_eq!(a.needs, Some(Vec::new()));
}

#[test]
fn c191_child_configuration_can_come_from_an_artifact() {
    let yaml = "{gen: {S, stage: build, artifacts: {paths: [g.yml]}}, \
                c: {stage: test, trigger: {include: [{artifact: g.yml, job: gen}]}}}";
    let Work::Bridge(bridge) = job(yaml, "c").work else { panic!("c must be a bridge") };
    let include = ChildInclude::Artifact { path: "g.yml".into(), job: "gen".into(), inputs: Vec::new() };
    assert_eq!(bridge.target, BridgeTarget::Child(vec![include]));
}

#[test]
fn c192_producer_of_a_child_pipeline_must_not_be_in_a_later_stage() {
    let child =
        |include: &str| format!("{{gen: {{S, stage: deploy}}, c: {{stage: build, trigger: {{include: {include}}}}}}}");
    assert_fails(
        &child("[{artifact: g.yml, job: gen}]"),
        "c job: dependency gen is not defined in current or prior stages",
    );
    assert_fails(&child("[{artifact: g.yml}]"), "must specify the job where to fetch the artifact from");
    assert_fails(&child("[a.yml, b.yml, c.yml, d.yml]"), "jobs:c:trigger:include config is too long");
}

#[test]
fn c196_trigger_job_cannot_have_a_script() {
    assert_fails("c: {trigger: {include: x.yml}, script: [y]}", "jobs:c config contains unknown keys: `script`");
}
