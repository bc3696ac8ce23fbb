//! Tests beyond the conformance cases: rare keywords, limits, hints, decisions, the preview.

use muster_pipeline::context::{ChildSource, PipelineSource};
use muster_pipeline::model::{BridgeTarget, DecisionKind, Need, OnNewCommit, Strategy, When, Work};
use muster_pipeline::{NotCreatedReason, preview};

use crate::case::{Case, assert_fails, job, jobs, script};
use crate::harness::{TestProject, assert_rejected, errors, project, warnings};

const FULL: &str = "
stages: [build, test]
variables:
  LEVEL: {value: high, description: How much, options: [high, low]}
workflow:
  name: all of it
  auto_cancel: {on_new_commit: interruptible, on_job_failure: all}
  rules:
    - if: $CI_COMMIT_BRANCH
      auto_cancel: {on_new_commit: none}
default:
  interruptible: true
  timeout: 1 hour
producer:
  stage: build
  script: [p]
  environment: {name: review/x, on_stop: stopper, auto_stop_in: 1 day, url: 'https://x.example', deployment_tier: testing}
stopper: {stage: build, script: [s], when: manual, environment: {name: review/x, action: stop}}
full:
  image: {name: i, entrypoint: [''], pull_policy: always, docker: {user: 1000, platform: linux/arm64}}
  services: [{name: pg, alias: 'db,sql', command: [c], variables: {P: x}}, redis]
  hooks: {pre_get_sources_script: [h]}
  before_script: [b]
  script: [s]
  after_script: [t]
  artifacts:
    name: n
    paths: [out/]
    exclude: [out/tmp]
    untracked: true
    when: always
    expire_in: 1 week
    public: false
    reports: {junit: [r.xml], dotenv: e, coverage_report: {coverage_format: cobertura, path: c.xml}}
  cache: [{key: k, paths: [p], policy: pull, fallback_keys: [f]}, {key: empty}]
  coverage: '/(\\d+)%/'
  retry: {max: 2, when: [runner_system_failure, always], exit_codes: [1, 2]}
  resource_group: prod/$LEVEL
  needs: [{job: producer, artifacts: false}, {project: g/p, job: j, ref: main, artifacts: true}, {pipeline: $UP, job: k}]
  manual_confirmation: sure?
  id_tokens: {T: {aud: [a, b]}}
  secrets: {DB: {vault: production/db/password@ops, file: false}}
  release: {tag_name: v1, description: d, assets: {links: [{name: n, url: u, link_type: other}]}}
  inputs: {size: {type: number, default: 3}}
  identity: google_cloud
  dast_configuration: {site_profile: a, scanner_profile: b}
  parallel: 1
";

#[test]
fn configuration_with_many_keywords_is_compiled() {
    let case = Case::new(FULL);
    let pipeline = case.pipeline();
    assert_eq!(pipeline.name.as_deref(), Some("all of it"));
    assert_eq!((pipeline.auto_cancel.on_new_commit, pipeline.auto_cancel.on_job_failure), (OnNewCommit::None, true));
    let full = case.job("full 1/1");
    let work = script(&full);
    let image = work.image.as_ref().expect("no image");
    assert_eq!(
        (image.docker_user.as_deref(), image.pull_policy.as_slice()),
        (Some("1000"), &["always".to_owned()][..])
    );
    assert_eq!(work.services[0].alias.as_deref(), Some("db,sql"));
    assert_eq!(work.cache.len(), 1, "a cache without paths must be ignored");
    let artifacts = work.artifacts.as_ref().expect("no artifacts");
    let kinds: Vec<&str> = artifacts.reports.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["junit", "dotenv", "cobertura"]);
    assert_eq!(artifacts.access, "developer", "`public: false` must become `access: developer`");
    assert!(full.retry.always && full.interruptible && full.retry.when.len() == 1);
    assert_eq!(full.resource_group.as_deref(), Some("prod/high"));
    assert_eq!(full.timeout.map(|timeout| timeout.as_secs()), Some(3600));
    assert_eq!(full.needs.as_ref().map(Vec::len), Some(3));
    assert!(matches!(&full.needs.as_deref(), Some([_, Need::Project { .. }, Need::Pipeline { .. }])));
    assert_eq!(work.id_tokens, [("T".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
}

#[test]
fn all_errors_of_a_file_are_reported_with_their_lines() {
    let text = "stages: [build]\na:\n  stage: build\n  script: [x]\n  retry: 9\nb:\n  stage: biuld\n  script: [x]\n  \
                needs: [a, zz]\n  onyl: [main]\nc:\n  script: 5\n";
    let compiled = project().compile(text);
    let lines: Vec<u32> = compiled.diagnostics.iter().filter_map(|d| Some(d.span?.line)).collect();
    assert_eq!(errors(&compiled.diagnostics).len(), 6, "{:#?}", compiled.diagnostics);
    assert_eq!(lines, [5, 7, 9, 10, 11, 12]);
    assert!(compiled.diagnostics[3].help.as_deref().is_some_and(|help| help.contains("`only`")));
}

#[test]
fn all_errors_of_a_keyword_are_reported() {
    for (yaml, count) in [
        ("a: {script: [x], environment: {name: '/', action: go, url: x, on_stop: 3}}", 4),
        ("a: {script: [x], image: {entrypoint: sh, pull_policy: x, docker: {user: []}}}", 4),
        ("a: {trigger: {project: [], branch: [], strategy: x}}", 3),
        ("a: {trigger: {include: [], strategy: x, forward: {yaml_variables: x}}}", 3),
    ] {
        let found = errors(&project().compile(yaml).diagnostics);
        assert_eq!(found.len(), count, "{yaml}: {found:#?}");
    }
}

#[test]
fn no_follow_up_errors_are_reported() {
    for yaml in [
        "{a: {stage: qa, script: [x], needs: [b], dependencies: [b]}, b: {stage: build, script: [x]}}",
        "{a: {stage: build, script: [x]}, b: {stage: qa, script: [x], needs: [a]}, c: {script: [x], needs: [b]}}",
        "{a: {script: [x], retry: 9, parallel: {matrix: [{A: [1, 2]}]}}, b: {script: [x], needs: [{job: a, parallel: \
         {matrix: [{A: 3}]}}]}}",
        "{a: {script: [x], parallel: {matrix: [{A: []}]}, needs: [{job: b, parallel: {matrix: [{A: '$[[ matrix.A \
         ]]'}]}}]}, b: {script: [x], parallel: {matrix: [{A: [1]}]}}}",
        "{stages: [one], a: {script: [x], stage: 3, needs: [b]}, b: {script: [x], stage: one}}",
        "{a: {script: [x], environment: {name: p, on_stop: b}}, b: {script: [x], environment: {action: stop}}}",
        "{a: {script: [x], needs: [[b], 3], dependencies: [c]}, b: {script: [x]}, c: {script: [x]}}",
        "{stages: build, a: {stage: build, script: [x]}}",
        "{stages: [], a: {script: [x]}}",
        "{.x: {y: ~}, a: {script: [!reference [.x, y]]}}",
        "{a: {script: [x], rules: [!reference [.x, rules]]}}",
    ] {
        let found = errors(&project().compile(yaml).diagnostics);
        assert_eq!(found.len(), 1, "{yaml}: {found:#?}");
    }
}

/// The missing file could contain the parent, the stages, the need and the script that the jobs lack, so their absence
/// is not reported.
#[test]
fn missing_file_is_the_only_reported_error() {
    let text = "include: nope.yml\na: {extends: .in_nope, stage: in_nope, needs: [in_nope]}\nb: {stage: also}\n";
    assert_rejected(&project().compile(text).diagnostics, "local file `nope.yml` does not exist");
}

#[test]
fn unknown_top_level_keys_have_a_hint() {
    let help = |yaml: &str| project().compile(yaml).diagnostics[0].help.clone().unwrap_or_default();
    assert_eq!(help("{a: {script: [x]}, stagse: [b]}"), "did you mean `stages`?");
    assert_eq!(
        help("{a: {script: [x]}, tags: [b]}"),
        "`tags` is a keyword of jobs: move it into a job or under `default`"
    );
    assert_fails("{a: {S}, services: {trigger: {include: x.yml}}}", "jobs cannot be named `services`");
    assert_fails("{a: {S}, types: [b]}", "`types` is not supported");
    assert_fails("{a: {S}, nil: {S}}", "jobs:nil is a reserved name");
    assert_fails("{a: {S}, \"true\": {S}}", "jobs:true is a reserved name");
}

#[test]
fn deprecated_globals_act_as_default() {
    let a = job("{image: i, before_script: [b], a: {S}}", "a");
    assert_eq!(script(&a).before_script, ["b"]);
    assert!(script(&a).image.is_some());
    assert_fails("{image: i, default: {image: j}, a: {S}}", "`image` is defined in top-level and `default:` entry");
}

#[test]
fn null_keyword_counts_as_missing() {
    let a = job("{default: {image: i}, a: {S, image: ~, needs: ~, rules: ~, when: ~}}", "a");
    assert!(script(&a).image.is_some() && a.needs.is_none() && a.when == When::OnSuccess);
}

#[test]
fn trigger_jobs_are_bridges() {
    let Work::Bridge(bridge) = job("c: {trigger: {project: g/p, branch: main, strategy: depend}}", "c").work else {
        panic!("the job must be a bridge")
    };
    assert_eq!(bridge.strategy, Strategy::Depend);
    assert!(bridge.forward_yaml_variables && !bridge.forward_pipeline_variables);
    let Work::Bridge(mirror) = job("c: {needs: {pipeline: g/p}}", "c").work else { panic!("the job must be a bridge") };
    assert_eq!(mirror.target, BridgeTarget::Mirror { project: "g/p".into() });
    assert_eq!(jobs("c: {trigger: {include: x.yml}, parallel: {matrix: [{A: [1, 2]}]}}"), ["c: [1]", "c: [2]"]);
    assert_fails(
        "c: {trigger: g/p, start_in: 1 day, when: delayed}",
        "jobs:c config contains unknown keys: `start_in`",
    );
    assert_eq!(job("c: {trigger: g/p, rules: [{when: delayed, start_in: 1 day}]}", "c").when, When::Delayed);
    assert_fails(
        "c: {trigger: g/p, when: delayed}",
        "jobs:c:when should be one of: on_success, on_failure, always, manual",
    );
    let image = Case::new("c: {trigger: g/p, image: i}").compile().diagnostics[0].help.clone();
    assert_eq!(
        image.as_deref(),
        Some("remove `image`: a job that starts or mirrors a pipeline does not run on a runner")
    );
    assert_fails("c: {trigger: {project: g/p, include: x.yml}}", "uses both `project` and `include`");
    for needs in ["{pipeline: g/p}", "[{pipeline: g/p}]", "[a, {pipeline: g/p}]", "[[{pipeline: g/p}], a]"] {
        let text = format!("{{a: {{S}}, c: {{trigger: g/q, needs: {needs}}}}}");
        assert_fails(&text, "jobs:c config uses both `trigger` and `needs:pipeline`");
    }
    assert_fails("c: {trigger: {include: [{local: x.yml, remote: y}]}}", "exactly one accessor");
    assert_fails(
        "c: {trigger: g/p, needs: [{project: g, job: j, ref: r, artifacts: true}]}",
        "unknown keys: `project`",
    );
    for work in ["trigger: g/p", "needs: {pipeline: g/p}"] {
        let c = job(&format!("{{default: {{image: i, interruptible: true}}, c: {{{work}}}}}"), "c");
        assert!(c.interruptible, "a trigger job must inherit `interruptible`, but not `image`");
    }
}

#[test]
fn child_pipeline_is_compiled_from_an_artifact() {
    let text = "a: {script: [x], rules: [{if: '$CI_PIPELINE_SOURCE == \"parent_pipeline\"'}]}\n";
    let child = [ChildSource::Artifact { name: "g.yml from gen".into(), bytes: text.into(), inputs: Vec::new() }];
    let compiled = project().source(PipelineSource::ParentPipeline).compile_child(&child);
    assert_eq!(compiled.pipeline.map(|pipeline| pipeline.jobs.len()), Some(1), "{:#?}", compiled.diagnostics);
    let pushed = project().compile_child(&child).not_created.map(|not_created| not_created.reason);
    assert_eq!(pushed, Some(NotCreatedReason::NoJobs));
}

#[test]
fn rejects_invalid_values() {
    for (keywords, part) in [
        ("environment: {url: x}", "config should have the key `name`"),
        ("environment: {name: '/a'}", "cannot start or end with '/'"),
        ("environment: {name: p, url: 'ftp://x'}", "HTTP or HTTPS"),
        ("environment: {name: p, action: go}", "should be one of"),
        ("environment: {name: p, action: stop, auto_stop_in: 1 day}", "can't be used with `action: stop`"),
        ("environment: {name: p, deployment_tier: moon}", "must be one of"),
        ("resource_group: 'a/'", "cannot start or end with '/'"),
        ("artifacts: {expose_as: x}", "needs `paths`"),
        ("artifacts: {reports: {junti: x}}", "unknown keys: `junti`"),
        ("artifacts: {expire_in: soon}", "duration"),
        ("image: {name: i, pull_policy: sometimes}", "should be one of"),
        ("needs: [{project: g/p, job: j}]", "config should have the key `ref`"),
        ("needs: {pipeline: g/p}", "mirrors a pipeline, so the job cannot have a script"),
        ("needs: [{pipeline: g/p}, {job: b, optional: true}]", "mirrors a pipeline, so the job cannot have a script"),
        ("needs: 5", "can only be a hash or an array"),
        ("needs: b", "can only be a hash or an array"),
        ("only: {}", "can't be blank"),
        ("timeout: []", "should be a duration such as `3h 30m`, but it is a list"),
        ("retry: 1.0", "should be a whole number, but it is 1.0"),
        ("pages: {expire_in: soon}", "duration"),
        ("release: {tag_name: v1, description: d, assets: {links: {name: a}}}", "should be an array"),
        ("inputs: {a: {default: b, options: b}}", "should be an array"),
        ("only: main", "should be an array of conditions or a hash"),
        ("artifacts: {paths: o}", "should be an array"),
        ("cache: {paths: o}", "should be an array"),
        ("cache: {key: {files: o}, paths: [o]}", "should be an array"),
        ("image: {name: i, entrypoint: sh}", "should be an array"),
        ("parallel: {matrix: [a]}", "array of hashes"),
        ("parallel: {matrix: []}", "can't be blank"),
        ("variables: {a.b: c}", "letters, digits, `_` and `-`"),
        ("variables: {A: [b]}", "scalar value"),
        ("rules: [{}]", "can't be blank"),
        ("rules: [{if: '$A &&'}]", "invalid expression syntax"),
        ("rules: [{when: sometimes}]", "should be one of"),
        ("rules: [{exists: {paths: [a], ref: main}}]", "`ref` without `project`"),
        ("rules: [{variables: {A: {value: b}}}]", "scalar value"),
        ("release: {tag_name: v1}", "config should have the key `description`"),
        ("secrets: {A: {file: true}}", "exactly one of"),
        ("inputs: {a: {type: number}}", "config should have the key `default`"),
        ("inputs: {a: {type: number, default: b}}", "the type is number"),
        ("hooks: {post: [x]}", "unknown keys: `post`"),
        ("interruptible: maybe", "boolean"),
        ("tags: x", "should be an array"),
        ("only: [/(/]", "invalid regular expression"),
        ("coverage: '/(/'", "invalid regular expression"),
        ("start_in: 5", "start in must be blank"),
        ("when: delayed, start_in: 1 day, rules: [{when: always}]", "may not be used with `rules`: start_in"),
    ] {
        assert_fails(&format!("a: {{S, {keywords}}}"), part);
    }
}

#[test]
fn needs_of_a_rule_can_close_a_cycle() {
    let yaml = "{a: {S, rules: [{when: always, needs: [b]}]}, b: {S, needs: [a]}}";
    assert_fails(yaml, "circular dependencies: a needs b needs a");
}

#[test]
fn rejects_duplicate_and_long_names_of_instances() {
    let long = "l".repeat(251);
    assert_fails(&format!("a: {{S, parallel: {{matrix: [{{A: [{long}, b]}}]}}}}"), "name is too long");
    assert_fails("{a: {S, parallel: 2}, a 1/2: {S}}", "two jobs have the name `a 1/2`");
    assert_eq!(jobs("a: {S, parallel: {matrix: [{A: [1, 1]}]}}"), ["a: [1]"], "equal cells must create one job");
}

#[test]
fn warns_about_rule_without_condition_if_the_workflow_has_no_rules() {
    let warning_count = |yaml: &str| warnings(&Case::new(yaml).compile().diagnostics).len();
    assert_eq!(warning_count("a: {S, rules: [{if: $X}, {when: always}]}"), 1);
    assert_eq!(warning_count("a: {S, rules: [{if: $X}, {when: never}]}"), 0);
    assert_eq!(warning_count("{workflow: {rules: [{when: always}]}, a: {S, rules: [{when: always}]}}"), 0);
}

#[test]
fn decisions_of_a_job_have_locations() {
    let text = "include: ci/base.yml\ndefault: {image: i}\nworkflow:\n  rules:\n    - if: $CI_COMMIT_BRANCH\n\
                # @Description Tests it\ntest:\n  extends: .base\n  parallel: {matrix: [{OS: [l, w]}]}\n  rules:\n    \
                - if: $NOPE\n    - if: $CI\n";
    let project: TestProject = project().file("ci/base.yml", "other: {script: [o]}\n.base: {script: [x]}\n");
    let pipeline = project.compile(text).pipeline.expect("no pipeline");
    let test = pipeline.jobs.iter().find(|job| job.name == "test: [w]").expect("no job");
    assert_eq!(test.description.as_deref(), Some("Tests it"));
    let decisions: Vec<(DecisionKind, &str, u32)> = test
        .decisions
        .iter()
        .map(|decision| {
            (decision.kind, decision.text.as_str(), decision.location.as_ref().map_or(0, |location| location.line))
        })
        .collect();
    assert_eq!(
        decisions,
        [
            (DecisionKind::Extends, "extends `.base`", 8),
            (DecisionKind::Default, "inherits `image` from `default`", 2),
            (DecisionKind::Matrix, "is cell 2 of 2 of the matrix of `test`: OS=w", 7),
            (DecisionKind::Workflow, "workflow:rules[0] matched: if $CI_COMMIT_BRANCH", 5),
            (DecisionKind::RuleNotMatched, "rules[0] did not match: if $NOPE", 11),
            (DecisionKind::RuleMatched, "rules[1] matched: if $CI", 12),
        ]
    );
    let other = pipeline.jobs.iter().find(|job| job.name == "other").expect("no job");
    assert_eq!(other.decisions[0].kind, DecisionKind::Include);
    assert!(other.decisions[0].text.contains("ci/base.yml"), "{:?}", other.decisions[0]);
    assert_eq!(other.defined_at.file, "ci/base.yml");
}

#[test]
fn preview_has_defaults_and_no_hidden_keys() {
    let text =
        "default: {image: i}\n.h: {script: [x]}\na:\n  extends: .h\n  variables: {A: '1', B: 'on', C: \"l1\\nl2\"}\n";
    let merged = project().compile(text).merged.expect("no tree");
    let expected = "default:\n  image: i\na:\n  script:\n    - x\n  extends: .h\n  variables:\n    A: \"1\"\n    B: \
                    \"on\"\n    C: |-\n      l1\n      l2\n  image: i\n";
    assert_eq!(preview(&merged), expected);
}

#[test]
fn preview_preserves_special_numbers() {
    let text = "a:\n  - .inf\n  - -.inf\n  - .nan\n  - 1.5e+20\n  - 1.0e-07\n";
    assert_eq!(preview(&project().load(text).root), text);
}

#[test]
fn unknown_key_of_changes_and_exists_is_reported_once() {
    for (clause, key) in [("changes: {pats: [a]}", "pats"), ("exists: {regex: a}", "regex")] {
        let compiled = project().compile(format!("{{a: {{script: [x], rules: [{{{clause}}}]}}}}"));
        assert_rejected(&compiled.diagnostics, &format!("config contains unknown keys: `{key}`"));
    }
    let compiled = project().compile("{a: {script: [x], rules: [{changes: {}}]}}");
    assert_rejected(&compiled.diagnostics, "exactly one of: paths, regexp");
}
