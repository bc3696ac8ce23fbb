//! Cases C001 to C050 and C114 to C118: keywords, stages, default, inherit (docs/spec/pipeline-yaml.md, sections 8.1
//! and 8.4).

use std::time::Duration;

use muster_pipeline::NotCreatedReason;
use muster_pipeline::model::{AllowFailure, When};

use crate::case::{Case, assert_fails, job, jobs, script, value};
use crate::harness::{assert_rejected, project, warnings};

fn list(count: usize) -> String {
    let items: Vec<String> = (0..count).map(|number| format!("t{number}")).collect();
    format!("[{}]", items.join(", "))
}

#[test]
fn c001_empty_file_is_rejected() {
    for text in ["", "\n\n", "# nothing\n", "---\n"] {
        let compiled = project().compile(text);
        assert_rejected(&compiled.diagnostics, "please provide content of `.gitlab-ci.yml`");
        assert!(compiled.pipeline.is_none() && compiled.not_created.is_none());
    }
}

/// The wording of GitLab's error is not confirmed. In any case, a pipeline without jobs cannot be created.
#[test]
fn c002_hidden_jobs_alone_are_rejected() {
    assert_fails(".h: {S}", "jobs config should contain at least one visible job");
}

#[test]
fn c003_job_with_only_a_script_uses_defaults() {
    let a = job("a: {S}", "a");
    assert_eq!((a.stage.as_str(), a.when, a.allow_failure), ("test", When::OnSuccess, AllowFailure::No));
    assert!(a.tags.is_empty() && a.needs.is_none() && a.environment.is_none());
}

#[test]
fn c004_a_script_may_be_one_text() {
    assert_eq!(script(&job("a: {script: x}", "a")).script, ["x"]);
}

#[test]
fn c005_blank_script_is_rejected() {
    assert_fails("a: {script: []}", "jobs:a:script can't be blank");
}

#[test]
fn c006_job_with_neither_script_nor_run_nor_trigger_is_rejected() {
    assert_fails("a: {stage: build}", "jobs:a config should implement a script:, run:, or trigger: keyword");
}

#[test]
fn c007_job_that_is_not_a_map_is_rejected() {
    assert_fails("a: hello", "jobs:a config should be a map");
}

#[test]
fn c008_unknown_key_is_rejected() {
    assert_fails("a: {S, colour: red}", "jobs:a config contains unknown keys: `colour`");
    let compiled = Case::new("a: {S, scrpt: y}").compile();
    assert_eq!(compiled.diagnostics[0].help.as_deref(), Some("did you mean `script`?"));
}

#[test]
fn c009_script_and_run_are_mutually_exclusive() {
    assert_fails("a: {S, run: [{name: s, script: y}]}", "uses both `run` and `script`");
}

#[test]
fn c010_step_requires_exactly_one_kind_of_work() {
    assert_fails("a: {run: [{name: s, script: y, step: z}]}", "exactly one of: script, step, func");
}

#[test]
fn c011_unknown_stage_is_rejected() {
    assert_fails("a: {S, stage: qa}", "available stages are .pre, build, test, deploy, .post");
}

#[test]
fn c012_default_stage_must_be_declared() {
    assert_fails("{stages: [one], a: {S}}", "chosen stage test does not exist");
}

#[test]
fn c013_nested_stages_are_flattened() {
    let pipeline = Case::new("{stages: [b, [c, [d]]], a: {S, stage: d}}").pipeline();
    assert_eq!(pipeline.stages, [".pre", "b", "c", "d", ".post"]);
    assert_eq!(pipeline.jobs[0].stage_index, 3);
}

#[test]
fn c014_duplicate_stages_are_merged() {
    let pipeline = Case::new("{stages: [b, b, c], a: {S, stage: c}, z: {S, stage: b}}").pipeline();
    assert_eq!(pipeline.stages, [".pre", "b", "c", ".post"]);
    let names: Vec<&str> = pipeline.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["z", "a"]);
}

#[test]
fn c015_pre_is_always_first() {
    let pipeline = Case::new("{stages: [build, .pre], a: {S, stage: .pre}, b: {S, stage: build}}").pipeline();
    assert_eq!(pipeline.stages, [".pre", "build", ".post"]);
    assert_eq!(pipeline.jobs[0].name, "a");
}

#[test]
fn c016_no_pipeline_is_created_if_all_jobs_are_in_the_pre_stage() {
    assert_eq!(Case::new("a: {S, stage: .pre}").not_created_reason(), NotCreatedReason::NoJobs);
}

#[test]
fn c017_no_pipeline_is_created_if_all_jobs_are_in_the_post_stage() {
    let case = Case::new("{a: {S, stage: .post}, b: {S, rules: [{when: never}]}}");
    assert_eq!(case.not_created_reason(), NotCreatedReason::NoJobs);
    let not_created = case.compile().not_created.expect("no reason");
    assert_eq!(not_created.excluded[0].name, "b");
}

#[test]
fn c018_a_name_has_at_most_255_characters() {
    assert_eq!(jobs(&format!("{}: {{S}}", "n".repeat(255))).len(), 1);
    assert_fails(&format!("? {}\n: {{S}}", "n".repeat(256)), "name is too long");
}

fn nested(levels: usize) -> String {
    format!("a: {{script: {}x{}}}", "[".repeat(levels), "]".repeat(levels))
}

#[test]
fn c019_nested_lists_are_flattened() {
    assert_eq!(script(&job("a: {script: [p, [q, [r]]]}", "a")).script, ["p", "q", "r"]);
}

#[test]
fn c020_lists_nest_at_most_ten_deep() {
    assert_eq!(script(&job(&nested(10), "a")).script, ["x"]);
    assert_fails(&nested(11), "nested at most 10 levels deep");
}

#[test]
fn c021_script_line_that_yaml_reads_as_a_map_is_rejected() {
    assert_fails("a: {script: [{echo: hi}]}", "nested array of strings");
    let help = Case::new("a: {script: [{echo: hi}]}").compile().diagnostics[0].help.clone();
    assert!(help.is_some_and(|help| help.contains("put it into quotes")));
}

#[test]
fn c022_script_element_can_have_several_lines() {
    assert_eq!(script(&job("a: {script: [\"l1\\nl2\", l3]}", "a")).script, ["l1\nl2", "l3"]);
}

#[test]
fn c023_a_repeated_key_replaces_the_earlier_one() {
    let case = Case::new("a: {script: [x]}\na: {script: [y]}\n");
    assert_eq!((case.jobs(), &script(&case.job("a")).script[..]), (vec!["a".into()], &["y".to_owned()][..]));
    assert_eq!(warnings(&case.compile().diagnostics), ["duplicate key `a`; the last one is used"]);
}

#[test]
fn c024_job_can_have_three_scripts() {
    let a = job("a: {S, before_script: [p], after_script: [q]}", "a");
    let work = script(&a);
    assert_eq!((&work.before_script[..], &work.script[..]), (&["p".to_owned()][..], &["x".to_owned()][..]));
    assert_eq!(work.after_script, ["q"]);
}

#[test]
fn c025_when_never_is_allowed_only_in_rules() {
    assert_fails("a: {S, when: never}", "jobs:a:when should be one of");
}

#[test]
fn c026_delayed_requires_start_in() {
    assert_fails("a: {S, when: delayed}", "start in should be a duration");
}

#[test]
fn c027_start_in_requires_delayed() {
    assert_fails("a: {S, start_in: 5 minutes}", "start in must be blank");
}

#[test]
fn c028_start_in_is_at_most_a_week() {
    assert_fails("a: {S, when: delayed, start_in: 8 days}", "should be 1 second to 1 week");
    let a = job("a: {S, when: delayed, start_in: 1 week}", "a");
    assert_eq!((a.when, a.start_in), (When::Delayed, Some(Duration::from_secs(604_800))));
}

#[test]
fn c029_retry_is_0_to_2_for_known_reasons() {
    assert_fails("a: {S, retry: 3}", "jobs:a:retry must be between 0 and 2");
    assert_fails("a: {S, retry: {max: 2, when: sunspots}}", "jobs:a:retry:when config should be one of");
}

/// `{max: 1}` alone retries after any failure, as `retry: 1` does (docs/spec/pipeline-yaml.md, section 9, point 4).
#[test]
fn c029_retry_without_conditions_is_for_any_reason() {
    let retry = job("a: {S, retry: {max: 1}}", "a").retry;
    assert!(retry.always && retry.max == 1);
    let retry = job("a: {S, retry: {max: 1, exit_codes: 137}}", "a").retry;
    assert!(!retry.always && retry.exit_codes == [137]);
}

#[test]
fn c030_a_timeout_is_a_duration() {
    assert_eq!(job("a: {S, timeout: 3h 30m}", "a").timeout, Some(Duration::from_secs(12_600)));
    assert_eq!(job("a: {S, timeout: '3600'}", "a").timeout, Some(Duration::from_secs(3600)));
    assert_fails(
        "a: {S, timeout: 3600}",
        "jobs:a:timeout config should be a duration, not a number: write `3600 seconds`",
    );
    assert_fails("a: {S, timeout: soon}", "jobs:a:timeout config should be a duration");
}

#[test]
fn c031_job_has_fewer_than_50_tags() {
    assert_eq!(job(&format!("a: {{S, tags: {}}}", list(49)), "a").tags.len(), 49);
    assert_fails(&format!("a: {{S, tags: {}}}", list(50)), "limit of 50 tags");
}

#[test]
fn c032_image_without_a_name_is_rejected() {
    assert_fails("a: {S, image: {entrypoint: [\"\"]}}", "jobs:a:image name can't be blank");
}

#[test]
fn c033_coverage_must_be_enclosed_in_slashes() {
    assert_fails("a: {S, coverage: 'TOTAL \\d+'}", "enclosed in slashes");
    assert_eq!(script(&job("a: {S, coverage: '/TOTAL \\d+/'}", "a")).coverage.as_deref(), Some("TOTAL \\d+"));
}

#[test]
fn c034_id_token_without_an_audience_is_rejected() {
    assert_fails("a: {S, id_tokens: {T: {}}}", "jobs:a:id_tokens:T config should have the key `aud`");
}

#[test]
fn c035_empty_list_of_exit_codes_is_rejected() {
    assert_fails("a: {S, allow_failure: {exit_codes: []}}", "non-empty array of unique integers");
    let a = job("a: {S, allow_failure: {exit_codes: 3}}", "a");
    assert_eq!(a.allow_failure, AllowFailure::ExitCodes(vec![3]));
}

#[test]
fn c036_cache_key_must_not_be_a_path() {
    assert_fails("a: {S, cache: {key: a/b, paths: [p]}}", "jobs:a:cache:key cannot contain the \"/\" character");
    assert_fails("a: {S, cache: {key: \"..\", paths: [p]}}", "cannot be only");
    assert_fails("a: {S, cache: {key: \"%2e%2E\", paths: [p]}}", "cannot be only");
    assert_fails("a: {S, cache: {key: \"a%2fb\", paths: [p]}}", "cannot contain the \"/\" character");
}

#[test]
fn c037_at_most_four_caches() {
    let caches = |count: usize| {
        let items: Vec<String> = (0..count).map(|number| format!("{{key: k{number}, paths: [p]}}")).collect();
        format!("a: {{S, cache: [{}]}}", items.join(", "))
    };
    assert_fails(&caches(5), "maximum is 4");
    let a = job(&caches(4), "a");
    let keys: Vec<&str> = script(&a).cache.iter().map(|cache| cache.key.as_str()).collect();
    assert_eq!(keys, ["k0", "k1", "k2", "k3"]);
}

#[test]
fn c038_cache_key_uses_at_most_two_files() {
    assert_fails("a: {S, cache: {key: {files: [a, b, c]}, paths: [p]}}", "1 to 2 entries");
    assert_fails("a: {S, cache: {key: {files: [a], files_commits: [a]}, paths: [p]}}", "mutually exclusive");
}

#[test]
fn c039_public_and_access_are_mutually_exclusive() {
    assert_fails("a: {S, artifacts: {public: false, access: all, paths: [p]}}", "uses both `public` and `access`");
}

#[test]
fn c040_publish_requires_a_pages_job() {
    assert_fails("a: {S, publish: dist}", "`publish` can only be used within a `pages` job");
    let pages = job("pages: {S, publish: dist}", "pages");
    assert_eq!(script(&pages).artifacts.as_ref().map(|artifacts| artifacts.paths.clone()), Some(vec!["dist".into()]));
}

#[test]
fn c041_pages_publishes_the_public_directory() {
    let a = job("a: {S, pages: true, artifacts: {paths: [o]}}", "a");
    let work = script(&a);
    assert_eq!(work.pages.as_deref(), Some("public"));
    assert_eq!(work.artifacts.as_ref().map(|artifacts| artifacts.paths.len()), Some(2));
}

#[test]
fn c042_on_stop_requires_a_job_that_stops_the_environment() {
    let start = "d: {S, environment: {name: p, on_stop: s}}";
    assert_fails(&format!("{{{start}}}"), "on_stop job s is not defined");
    assert_eq!(jobs(&format!("{{{start}, s: {{S, environment: {{name: p, action: stop}}}}}}")), ["d", "s"]);
    let other = format!("{{{start}, s: {{S, environment: {{name: q, action: stop}}}}}}");
    assert_fails(&other, "on_stop job s have different environment name");
    assert_fails(&format!("{{{start}, s: {{S, environment: p}}}}"), "on_stop job s needs to have action stop defined");
    assert_fails(&format!("{{{start}, s: {{S}}}}"), "on_stop job s does not have environment defined");
}

#[test]
fn c043_default_rejects_keys_that_only_jobs_have() {
    assert_fails("{default: {stage: build}, a: {S}}", "default config contains unknown keys: `stage`");
}

#[test]
fn c044_job_variables_cannot_have_a_description() {
    assert_fails("a: {S, variables: {X: {value: v, description: d}}}", "unknown keys: `description`");
    let a = job("a: {S, variables: {X: {value: v, expand: false}}}", "a");
    assert!(a.variables.iter().any(|variable| variable.key == "X" && variable.raw));
}

#[test]
fn c045_value_that_is_not_an_option_is_rejected() {
    assert_fails("{variables: {X: {value: a, options: [b]}}, a: {S}}", "value `a` should be one of the options: b");
}

#[test]
fn c046_scalar_values_become_strings() {
    let a = job("a: {S, variables: {N: 12, B: true, E: ~, F: 1.5e+20, I: -.inf}}", "a");
    assert_eq!(value(&a, "N").as_deref(), Some("12"));
    assert_eq!(value(&a, "F").as_deref(), Some("1.5e+20"));
    assert_eq!(value(&a, "I").as_deref(), Some("-Infinity"));
    assert_eq!(value(&a, "B").as_deref(), Some("true"));
    assert_eq!(value(&a, "E").as_deref(), Some(""));
}

#[test]
fn c047_service_without_a_name_is_rejected() {
    assert_fails("a: {S, services: [{alias: db}]}", "name can't be blank");
}

#[test]
fn c048_a_google_secret_needs_a_token() {
    assert_fails("a: {S, secrets: {P: {gcp_secret_manager: {name: n}}}}", "needs the key `token`");
    let with_token = "a: {S, secrets: {P: {token: $T, gcp_secret_manager: {name: n}}}}";
    assert_eq!(script(&job(with_token, "a")).secrets.len(), 1);
}

/// GitLab rejects an empty list, because it would exclude the job from every pipeline.
#[test]
fn c049_empty_rules_are_rejected() {
    assert_fails("a: {S, rules: []}", "jobs:a:rules can't be blank");
}

#[test]
fn c050_only_and_rules_are_mutually_exclusive() {
    assert_fails("a: {S, only: [main], rules: [{if: $X}]}", "config key may not be used with `rules`: only");
    assert_fails("a: {S, except: [main], rules: [{if: $X}]}", "config key may not be used with `rules`: except");
}

#[test]
fn c114_job_overrides_default() {
    let a = job("{default: {image: i, retry: 1}, a: {S, image: j}}", "a");
    assert_eq!(script(&a).image.as_ref().map(|image| image.name.as_str()), Some("j"));
    assert_eq!(a.retry.max, 1);
}

#[test]
fn c115_empty_list_overrides_default() {
    let a = job("{default: {before_script: [p]}, a: {S, before_script: []}}", "a");
    assert!(script(&a).before_script.is_empty());
}

#[test]
fn c116_inherit_selects_defaults() {
    let with = |inherit: &str| job(&format!("{{default: {{image: i, tags: [t]}}, a: {{S, inherit: {inherit}}}}}"), "a");
    let a = with("{default: [tags]}");
    assert_eq!((a.tags.len(), script(&a).image.is_none()), (1, true));
    let a = with("{default: false}");
    assert_eq!((a.tags.len(), script(&a).image.is_none()), (0, true));
    assert_fails("a: {S, inherit: {default: [tag]}}", "jobs:a:inherit:default config should be one of");
}

#[test]
fn c117_inherit_selects_global_variables() {
    let case = Case::new("{variables: {A: 1, B: 2}, a: {S, inherit: {variables: [B]}, rules: [{if: $A}]}}");
    let a = case.clone().var("A", "project").job("a");
    assert_eq!((value(&a, "A"), value(&a, "B").as_deref()), (None, Some("2")));
    assert_eq!(case.not_created_reason(), NotCreatedReason::NoJobs);
}

#[test]
fn c118_empty_list_of_caches_overrides_default() {
    let a = job("{default: {cache: {key: k, paths: [p]}}, a: {S, cache: []}}", "a");
    assert!(script(&a).cache.is_empty());
}
