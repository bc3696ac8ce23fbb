//! Cases C134 to C153: rules, workflow, only; C161 and C162: environments; C204: cache keys
//! (docs/spec/pipeline-yaml.md, sections 8.5, 8.6 and 8.8).

use std::time::Duration;

use muster_job::Variable;
use muster_pipeline::NotCreatedReason;
use muster_pipeline::context::PipelineSource;
use muster_pipeline::model::{AllowFailure, When};

use crate::case::{Case, assert_fails, job, jobs, needs, script, value};

/// Returns whether job `a` is created if it has these rules. First, `prepare` changes the case.
///
/// `S` stands for `script: [x]` (see `Case::new`). Job `z` keeps the pipeline from being empty.
fn is_created(prepare: impl FnOnce(Case) -> Case, rules: &str) -> bool {
    prepare(Case::new(&format!("{{a: {{S, rules: [{rules}]}}, z: {{S}}}}"))).jobs().iter().any(|name| name == "a")
}

#[test]
fn c134_job_that_is_manual_by_a_rule_blocks_the_pipeline() {
    let a = job("a: {S, rules: [{if: $NOPE}, {if: $CI_COMMIT_BRANCH, when: manual}, {when: always}]}", "a");
    assert_eq!((a.when, a.allow_failure), (When::Manual, AllowFailure::No));
    let texts: Vec<&str> = a.decisions.iter().map(|decision| decision.text.as_str()).collect();
    assert_eq!(texts, ["rules[0] did not match: if $NOPE", "rules[1] matched: if $CI_COMMIT_BRANCH"]);
    assert_eq!(
        a.decisions[1].location.as_ref().map(|location| (location.file.as_str(), location.line)),
        Some((".gitlab-ci.yml", 1))
    );
}

/// The expectation for the second and third configuration is not confirmed on GitLab. GitLab computes `allow_failure`
/// from the job's own `when` before it evaluates rules, and a rule replaces only what it sets. The value therefore remains
/// true even if the rule itself has `when: manual` (docs/spec/pipeline-yaml.md, section 9, point 7).
#[test]
fn c135_own_when_manual_sets_allow_failure() {
    for yaml in [
        "a: {S, when: manual}",
        "a: {S, when: manual, rules: [{if: $CI_COMMIT_BRANCH}]}",
        "a: {S, when: manual, rules: [{if: $CI_COMMIT_BRANCH, when: manual}]}",
    ] {
        let a = job(yaml, "a");
        assert_eq!((a.when, a.allow_failure), (When::Manual, AllowFailure::Yes), "{yaml}");
    }
}

#[test]
fn c136_rule_with_when_never_excludes_the_job() {
    let case = Case::new("{a: {S, rules: [{if: $CI_COMMIT_BRANCH, when: never}, {when: always}]}, b: {S}}");
    assert_eq!(case.jobs(), ["b"]);
    let excluded = case.pipeline().excluded;
    assert!(excluded[0].decisions[0].text.contains("rules[0] matched"), "{excluded:?}");
}

#[test]
fn c137_job_without_a_matching_rule_is_excluded() {
    assert_eq!(Case::new("a: {S, rules: [{if: $CI_COMMIT_TAG}]}").not_created_reason(), NotCreatedReason::NoJobs);
}

#[test]
fn c138_variables_of_a_rule_override_variables_of_the_job() {
    let yaml = "a: {S, variables: {X: j}, rules: [{if: $CI_COMMIT_BRANCH, variables: {X: r, Y: r}}]}";
    let a = job(yaml, "a");
    assert_eq!((value(&a, "X").as_deref(), value(&a, "Y").as_deref()), (Some("r"), Some("r")));
}

#[test]
fn c139_allow_failure_of_a_rule_overrides_allow_failure_of_the_job() {
    let a = job("a: {S, allow_failure: true, rules: [{when: on_success, allow_failure: false}]}", "a");
    assert_eq!(a.allow_failure, AllowFailure::No);
}

#[test]
fn c140_changes_match_by_pattern() {
    for (pattern, expected) in [
        ("src/*", true),
        ("docs/*", false),
        ("\"src/**/*\"", true),
        ("src", false),
        ("\"**/*.rb\"", true),
        ("\"*.rb\"", false),
        ("\"src/*.{rb,py}\"", true),
    ] {
        assert_eq!(is_created(|case| case, &format!("{{changes: [{pattern}]}}")), expected, "{pattern}");
    }
}

#[test]
fn c141_changes_match_if_there_is_no_base_to_compare_with() {
    let rule = "{changes: [docs/*]}";
    assert!(is_created(|case| case.changed_paths(None), rule), "`changes` must match for a new branch");
    assert!(is_created(|case| case.tag("v1"), rule), "`changes` must match for a tag");
    assert!(is_created(|case| case.source(PipelineSource::Schedule), rule), "`changes` must match for a schedule");
    assert!(is_created(|case| case.source(PipelineSource::Web), rule), "`changes` must match for the web form");
    assert!(!is_created(|case| case.changed_paths(Some(&[])), rule), "`changes` must not match an empty difference");
}

#[test]
fn c142_unknown_ref_in_compare_to_is_rejected() {
    let yaml = "{a: {S, rules: [{changes: {paths: [docs/*], compare_to: nope}}]}, z: {S}}";
    assert_fails(yaml, "rules:changes:compare_to is not a valid ref");
    let case = Case::new(&yaml.replace("nope", "$BASE")).var("BASE", "old");
    assert_eq!(case.with(|project| project.git_ref("old", &["docs/x.md"])).jobs(), ["a", "z"]);
}

#[test]
fn c143_exists_matches_by_pattern() {
    for (pattern, expected) in [
        ("Dockerfile", true),
        ("\"**/b.rb\"", true),
        ("src", false),
        ("src/", true),
        ("\"*.rb\"", false),
        ("untracked.txt", false),
    ] {
        assert_eq!(is_created(|case| case, &format!("{{exists: [{pattern}]}}")), expected, "{pattern}");
    }
    assert!(is_created(|case| case.tracked_path("untracked.txt"), "{exists: [untracked.txt]}"));
}

#[test]
fn c144_variables_in_patterns_are_expanded() {
    assert!(is_created(|case| case.var("D", "src"), "{changes: [$D/*]}"));
    assert!(!is_created(|case| case, "{exists: [$UNDEF/x]}"));
    assert!(
        is_created(|case| case.tracked_path("$UNDEF/x"), "{exists: [$UNDEF/x]}"),
        "an unknown reference must not be replaced"
    );
}

#[test]
fn c145_rule_has_at_most_50_patterns() {
    let patterns = vec!["x"; 51].join(", ");
    assert_fails(&format!("a: {{S, rules: [{{changes: [{patterns}]}}]}}"), "is too long (maximum is 50)");
    assert_fails(&format!("a: {{S, rules: [{{exists: [{patterns}]}}]}}"), "is too long (maximum is 50)");
}

#[test]
fn c146_all_clauses_of_a_rule_must_match() {
    assert!(!is_created(|case| case, "{if: $CI_COMMIT_BRANCH, changes: [docs/*]}"));
    assert!(is_created(|case| case, "{if: $CI_COMMIT_BRANCH, changes: [src/*], exists: [Dockerfile]}"));
}

#[test]
fn c147_needs_of_a_rule_replace_needs_of_the_job() {
    let yaml = "{p: {S, stage: build}, q: {S, stage: build}, \
                a: {S, needs: [p], rules: [{if: $CI_COMMIT_BRANCH, needs: [q]}]}}";
    assert_eq!(needs(&job(yaml, "a")), Some(vec!["q".into()]));
}

#[test]
fn c148_workflow_rules_prevent_the_pipeline() {
    let case = Case::new("{workflow: {rules: [{if: $CI_COMMIT_TAG}]}, a: {S}}");
    assert_eq!(case.not_created_reason(), NotCreatedReason::WorkflowRules);
    let not_created = case.compile().not_created.expect("no reason");
    assert_eq!(not_created.decisions[0].text, "workflow:rules[0] did not match: if $CI_COMMIT_TAG");
    assert_eq!(case.tag("v1").jobs(), ["a"]);
}

#[test]
fn c149_workflow_sets_the_name_and_the_variables() {
    let yaml = "{workflow: {name: \"n $X\", rules: [{if: $CI_COMMIT_BRANCH, variables: {X: w}}]}, \
                variables: {X: g}, a: {S}, b: {S, variables: {X: j}}}";
    let case = Case::new(yaml);
    assert_eq!(case.pipeline().name.as_deref(), Some("n w"));
    assert_eq!(value(&case.job("a"), "X").as_deref(), Some("w"));
    assert_eq!(value(&case.job("b"), "X").as_deref(), Some("j"));
}

#[test]
fn c150_jobs_without_rules_need_workflow_rules_to_run_for_merge_requests() {
    let jobs = "a: {S}, b: {S, rules: [{if: $CI_MERGE_REQUEST_ID}]}";
    assert_eq!(Case::new(&format!("{{{jobs}}}")).merge_request().jobs(), ["b"]);
    let with_workflow = format!("{{workflow: {{rules: [{{when: always}}]}}, {jobs}}}");
    assert_eq!(Case::new(&with_workflow).merge_request().jobs(), ["a", "b"]);
}

#[test]
fn c151_tag_pipeline_has_no_branch_variable() {
    let rules = "{if: '$CI_COMMIT_TAG == \"v1\" && $CI_COMMIT_BRANCH == null'}";
    assert!(is_created(|case| case.tag("v1"), rules));
    assert!(!is_created(|case| case, rules));
}

#[test]
fn c152_only_and_except_select_jobs() {
    assert_eq!(jobs("{a: {S, only: [tags]}, b: {S}}"), ["b"]);
    assert_eq!(jobs("{a: {S, except: [main]}, b: {S}}"), ["b"]);
    assert_eq!(Case::new("{a: {S, only: [tags]}, b: {S}}").tag("v1").jobs(), ["a", "b"]);
    assert_eq!(jobs("{a: {S, only: {variables: ['$CI == \"true\"'], changes: [docs/*]}}, b: {S}}"), ["b"]);
    assert_eq!(jobs("{a: {S, except: {variables: ['$CI == \"true\"'], changes: [docs/*]}}, b: {S}}"), ["b"]);
    assert_eq!(jobs("{a: {S, only: {kubernetes: active}}, b: {S, except: {kubernetes: active}}}"), ["b"]);
}

#[test]
fn c153_a_delayed_rule_needs_start_in() {
    assert_fails("a: {S, rules: [{when: delayed}]}", "start in should be a duration");
    let a = job("a: {S, rules: [{when: delayed, start_in: 1 minute}]}", "a");
    assert_eq!((a.when, a.start_in), (When::Delayed, Some(Duration::from_secs(60))));
}

/// Tests the variables that are visible to rules, not the variables of the payload.
#[test]
fn c161_scoped_variable_is_visible_in_its_environment() {
    let rules = "rules: [{if: $K}]";
    let yaml =
        format!("{{a: {{S, environment: review/$X, variables: {{X: x}}, {rules}}}, b: {{S, {rules}}}, z: {{S}}}}");
    let case = Case::new(&yaml).with(|project| project.scoped(Variable::public("K", "1"), false, "review/*"));
    assert_eq!(case.jobs(), ["a", "z"]);
}

#[test]
fn c162_environment_name_is_expanded() {
    let case = Case::new("a: {S, environment: review/$CI_COMMIT_REF_SLUG, resource_group: $R, tags: [$R, $NOPE]}");
    let case = case.with(|project| project.predefined("CI_COMMIT_REF_SLUG", "feat-a-1"));
    let a = case.var("R", "group-$CI_COMMIT_REF_SLUG").job("a");
    assert_eq!(a.environment.map(|environment| environment.name).as_deref(), Some("review/feat-a-1"));
    assert_eq!(a.resource_group.as_deref(), Some("group-feat-a-1"));
    assert_eq!(a.tags, ["group-feat-a-1", "$NOPE"]);
}

#[test]
fn c204_cache_key_depends_on_files() {
    let key = |case: &Case| script(&case.job("a")).cache[0].key.clone();
    let plain = Case::new("a: {S, cache: {key: {files: [Gemfile.lock]}, paths: [v]}}");
    assert_eq!(key(&plain), "0_Gemfile-default");
    let prefixed = Case::new("a: {S, cache: {key: {files: [Gemfile.lock], prefix: p}, paths: [v]}}");
    assert_eq!(key(&prefixed), "p-default");
    let present = key(&prefixed.clone().tracked_path("Gemfile.lock"));
    let digest = present.strip_prefix("p-").expect("the key must begin with the prefix");
    assert!(digest.len() == 40 && digest.chars().all(|c| c.is_ascii_hexdigit()), "{present}");
    assert_eq!(
        present,
        key(&prefixed.tracked_path("Gemfile.lock").tracked_path("other")),
        "an unrelated file must not matter"
    );
    let pattern = Case::new("a: {S, cache: {key: {files: [\"src/*.rb\"], prefix: p}, paths: [v]}}");
    assert_ne!(key(&pattern), "p-default", "a pattern must match tracked paths");
}
