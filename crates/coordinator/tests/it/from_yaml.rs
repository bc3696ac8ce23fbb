//! Conformance cases of variables and payload, from the YAML to the payload that a runner gets.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_job::Variable;
use muster_pipeline::context::{Changes, IncludeTarget, IncludedFile, Origin, SourceError, Sources};
use muster_pipeline::slug::slug;

use crate::assignments::JobFixture;

struct Repository {
    has_lock_file: bool,
}

const BLOB: &str = "1111111111111111111111111111111111111111";

impl Sources for Repository {
    fn read(&self, _: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        Err(SourceError::NotFound("the file does not exist".to_owned()))
    }

    fn paths(&self, _: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        Ok(Arc::default())
    }

    fn changed_since(&self, _: &str) -> Option<Changes> {
        None
    }

    fn object_ids(&self, _: &[String], _: bool) -> Vec<String> {
        if self.has_lock_file { vec![BLOB.to_owned()] } else { Vec::new() }
    }
}

impl JobFixture {
    /// Replaces the job with job `a` of a configuration (or its first instance).
    #[track_caller]
    fn with_yaml(self, yaml: &str) -> Self {
        self.with_yaml_and_sources(yaml, &Repository { has_lock_file: true })
    }

    #[track_caller]
    fn with_yaml_and_sources(mut self, yaml: &str, sources: &dyn Sources) -> Self {
        let compiled = muster_pipeline::compile(yaml.as_bytes(), &self.context, sources);
        let job = compiled.pipeline.and_then(|pipeline| pipeline.jobs.into_iter().find(|job| job.group_name == "a"));
        match job {
            Some(job) => self.job = job,
            None => panic!("no job `a`: {:?}", compiled.diagnostics),
        }
        self
    }
}

fn on_branch(name: &str) -> JobFixture {
    let mut fixture = JobFixture::new();
    fixture.context.ref_name = name.to_owned();
    fixture.context.predefined = vec![
        Variable::public("CI_COMMIT_BRANCH", name),
        Variable::public("CI_COMMIT_REF_NAME", name),
        Variable::public("CI_COMMIT_REF_SLUG", slug(name)),
    ];
    fixture
}

#[test]
fn c024_before_script_and_script_are_one_step_from_yaml() {
    let fixture = JobFixture::new().with_yaml("a: {script: [x], before_script: [p], after_script: [q]}");
    let steps = fixture.payload().steps;
    assert_eq!(steps[0].script, ["p", "x"]);
    assert_eq!((steps[1].script.as_slice(), steps[1].when.as_str()), (&["q".to_owned()][..], "always"));
}

#[test]
fn c046_variable_values_are_strings() {
    let fixture = JobFixture::new().with_yaml("a: {script: [x], variables: {N: 12, B: true}}");
    assert_eq!(fixture.value("N").as_deref(), Some("12"));
    assert_eq!(fixture.value("B").as_deref(), Some("true"));
}

#[test]
fn c154_variable_precedence_from_yaml() {
    let yaml = "variables: {X: g}\na: {script: [x], variables: {X: j}}";
    let mut fixture = JobFixture::new().with_project_variable("X", "p");
    fixture.context.pipeline_variables = vec![Variable::public("X", "r")];
    let mut fixture = fixture.with_yaml(yaml);
    assert_eq!(fixture.value("X").as_deref(), Some("r"));
    fixture.context.pipeline_variables.clear();
    assert_eq!(fixture.value("X").as_deref(), Some("p"));
    fixture.context.project_variables.clear();
    assert_eq!(fixture.value("X").as_deref(), Some("j"));
    let fixture = JobFixture::new().with_yaml("variables: {X: g}\na: {script: [x]}");
    assert_eq!(fixture.value("X").as_deref(), Some("g"));
}

#[test]
fn c155_rule_overrides_matrix_and_matrix_overrides_job() {
    let matrix = "a: {script: [x], variables: {X: j}, parallel: {matrix: [{X: m}]}";
    assert_eq!(JobFixture::new().with_yaml(&format!("{matrix}}}")).value("X").as_deref(), Some("m"));
    let rule = format!("{matrix}, rules: [{{if: $CI_COMMIT_BRANCH, variables: {{X: r}}}}]}}");
    assert_eq!(JobFixture::new().with_yaml(&rule).value("X").as_deref(), Some("r"));
}

#[test]
fn c156_dotenv_overrides_job_variables_from_yaml() {
    let mut fixture = JobFixture::new().with_yaml("a: {script: [x], variables: {X: j}}");
    fixture.dotenv = vec![("X".to_owned(), "d".to_owned())];
    assert_eq!(fixture.value("X").as_deref(), Some("d"));
}

#[test]
fn c157_variables_from_yaml_are_expanded() {
    let fixture = JobFixture::new().with_yaml(
        "variables: {A: '1', B: '$A-2', C: {value: '$A', expand: false}, D: '$$A', E: '${U}x'}\na: {script: [x]}",
    );
    for (name, expected) in [("B", "1-2"), ("C", "$A"), ("D", "$$A"), ("E", "${U}x")] {
        assert_eq!(fixture.value(name).as_deref(), Some(expected), "{name}");
    }
    assert!(fixture.payload().variables.iter().any(|variable| variable.key == "C" && variable.raw));
}

#[test]
fn c161_scoped_variable_depends_on_the_environment() {
    let value_of_k = |yaml: &str| {
        let mut fixture = JobFixture::new();
        fixture.context.project_variables = vec![crate::assignments::scoped(Variable::public("K", "v"), "review/*")];
        fixture.with_yaml(yaml).value("K")
    };
    assert_eq!(value_of_k("a: {script: [x], environment: review/x}").as_deref(), Some("v"));
    assert_eq!(value_of_k("a: {script: [x]}"), None);
}

#[test]
fn c162_environment_name_contains_the_branch_slug() {
    let fixture = on_branch("Feat/A_1").with_yaml("a: {script: [x], environment: review/$CI_COMMIT_REF_SLUG}");
    assert_eq!(fixture.value("CI_COMMIT_REF_SLUG").as_deref(), Some("feat-a-1"));
    assert_eq!(fixture.value("CI_ENVIRONMENT_NAME").as_deref(), Some("review/feat-a-1"));
    let slug = fixture.value("CI_ENVIRONMENT_SLUG").unwrap_or_default();
    assert!(slug.len() <= 24 && slug.starts_with(|char: char| char.is_ascii_lowercase()), "{slug}");
}

#[test]
fn c201_to_c203_artifacts_from_yaml() {
    let sent = |artifacts: &str| {
        let fixture = JobFixture::new().with_yaml(&format!("a: {{script: [x], artifacts: {artifacts}}}"));
        let entries = fixture.payload().artifacts.into_iter();
        entries.map(|entry| [entry.artifact_type, entry.artifact_format, entry.when].join("/")).collect::<Vec<_>>()
    };
    assert_eq!(
        sent("{paths: [o], reports: {junit: r.xml, dotenv: e}}"),
        ["archive/zip/on_success", "junit/gzip/always", "dotenv/gzip/always"]
    );
    assert!(sent("{expire_in: 1 day}").is_empty());
    assert_eq!(
        sent("{reports: {coverage_report: {coverage_format: cobertura, path: c.xml}}}"),
        ["cobertura/gzip/always"]
    );
}

#[test]
fn c204_cache_key_from_files() {
    let key = |files: &str, has_lock_file| {
        let yaml = format!("a: {{script: [x], cache: {{key: {files}, paths: [v]}}}}");
        let fixture = JobFixture::new().with_yaml_and_sources(&yaml, &Repository { has_lock_file });
        fixture.payload().cache.remove(0).key
    };
    let without_prefix = "{files: [Gemfile.lock]}";
    let with_prefix = "{files: [Gemfile.lock], prefix: p}";
    assert!(key(without_prefix, false).ends_with("default-non_protected"), "{}", key(without_prefix, false));
    assert_eq!(key(with_prefix, false), "p-default-non_protected");
    let digest = key(with_prefix, true);
    let digest = digest.strip_prefix("p-").and_then(|rest| rest.strip_suffix("-non_protected")).unwrap_or_default();
    assert!(digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    assert_eq!(key(with_prefix, true), key(with_prefix, true), "the same content must have the same key");
}

#[test]
fn c205_cache_defaults_from_yaml() {
    let cache = JobFixture::new().with_yaml("a: {script: [x], cache: {paths: [v]}}").payload().cache.remove(0);
    assert_eq!(
        [cache.key, cache.policy, cache.when],
        ["default-non_protected", "pull-push", "on_success"].map(str::to_owned)
    );
}

#[test]
fn c206_git_depth_from_yaml() {
    let fixture = JobFixture::new().with_yaml("a: {script: [x], variables: {GIT_DEPTH: '0'}}");
    assert_eq!(fixture.payload().git_info.depth, 0);
}

#[test]
fn c208_to_c211_services_hooks_images_and_run_from_yaml() {
    let fixture = JobFixture::new().with_yaml(
        "a:\n  script: [x]\n  hooks: {pre_get_sources_script: [h]}\n  \
         services: [{name: pg, alias: 'db,sql', variables: {P: x}}]\n  \
         image: {name: i, pull_policy: always, docker: {user: u}}\n",
    );
    let payload = fixture.payload();
    assert_eq!(payload.services[0].alias.as_deref(), Some("db,sql"));
    assert_eq!(payload.services[0].variables, [Variable::public("P", "x")]);
    assert_eq!(payload.hooks[0].script, ["h"]);
    let image = payload.image.unwrap_or_default();
    assert_eq!(image.pull_policy, ["always"]);
    assert_eq!(serde_json::json!(image.executor_opts), serde_json::json!({"docker": {"user": "u"}}));

    let fixture = JobFixture::new().with_yaml("a: {run: [{name: s, script: y}]}");
    let payload = fixture.payload();
    assert!(payload.steps.is_empty());
    let run: serde_json::Value = payload.run.and_then(|run| serde_json::from_str(&run).ok()).unwrap_or_default();
    assert_eq!(run, serde_json::json!([{"name": "s", "script": "y"}]));
}

#[test]
fn c212_id_token_is_not_visible_to_rules() {
    let yaml = "a: {script: [x], id_tokens: {T: {aud: https://x}}, rules: [{if: $T == null}]}";
    let payload = JobFixture::new().with_yaml(yaml).payload();
    assert!(payload.variables.iter().any(|variable| variable.key == "T" && variable.masked));
}

#[test]
fn c214_empty_after_script_overrides_the_default() {
    let fixture = JobFixture::new().with_yaml("default: {after_script: [d]}\na: {script: [x], after_script: []}");
    assert_eq!(fixture.payload().steps.len(), 1);
}
