//! Conformance cases of variables and payload, from the YAML to the payload that a runner gets.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_job::Variable;
use muster_pipeline::context::{Changes, IncludeTarget, IncludedFile, Origin, SourceError, Sources};
use muster_pipeline::slug::slug;

use crate::assignments::JobFixture;

/// A repository with the file `Gemfile.lock`, whose content has not changed since its commit.
struct Repository {
    has_lock_file: bool,
}

const BLOB: &str = "1111111111111111111111111111111111111111";

impl Sources for Repository {
    fn read(&self, _: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        Err(SourceError::NotFound("there is no such file".to_owned()))
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
    /// Sets job `a` (or its first instance) as defined by `yaml`, compiled in the same context.
    #[track_caller]
    fn compiled(self, yaml: &str) -> Self {
        self.compiled_in(yaml, &Repository { has_lock_file: true })
    }

    #[track_caller]
    fn compiled_in(mut self, yaml: &str, sources: &dyn Sources) -> Self {
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
fn c024_scripts_of_a_job() {
    let fixture = JobFixture::new().compiled("a: {script: [x], before_script: [p], after_script: [q]}");
    let steps = fixture.payload().steps;
    assert_eq!(steps[0].script, ["p", "x"]);
    assert_eq!((steps[1].script.as_slice(), steps[1].when.as_str()), (&["q".to_owned()][..], "always"));
}

#[test]
fn c046_values_are_text() {
    let fixture = JobFixture::new().compiled("a: {script: [x], variables: {N: 12, B: true}}");
    assert_eq!(fixture.value("N").as_deref(), Some("12"));
    assert_eq!(fixture.value("B").as_deref(), Some("true"));
}

#[test]
fn c154_the_order_of_precedence() {
    let yaml = "variables: {X: g}\na: {script: [x], variables: {X: j}}";
    let mut fixture = JobFixture::new().project_variable("X", "p");
    fixture.context.pipeline_variables = vec![Variable::public("X", "r")];
    let mut fixture = fixture.compiled(yaml);
    assert_eq!(fixture.value("X").as_deref(), Some("r"));
    fixture.context.pipeline_variables.clear();
    assert_eq!(fixture.value("X").as_deref(), Some("p"));
    fixture.context.project_variables.clear();
    assert_eq!(fixture.value("X").as_deref(), Some("j"));
    let fixture = JobFixture::new().compiled("variables: {X: g}\na: {script: [x]}");
    assert_eq!(fixture.value("X").as_deref(), Some("g"));
}

#[test]
fn c155_matrix_beats_job_and_rule_beats_matrix() {
    let matrix = "a: {script: [x], variables: {X: j}, parallel: {matrix: [{X: m}]}";
    assert_eq!(JobFixture::new().compiled(&format!("{matrix}}}")).value("X").as_deref(), Some("m"));
    let rule = format!("{matrix}, rules: [{{if: $CI_COMMIT_BRANCH, variables: {{X: r}}}}]}}");
    assert_eq!(JobFixture::new().compiled(&rule).value("X").as_deref(), Some("r"));
}

#[test]
fn c156_dotenv_of_an_upstream_job() {
    let mut fixture = JobFixture::new().compiled("a: {script: [x], variables: {X: j}}");
    fixture.dotenv = vec![("X".to_owned(), "d".to_owned())];
    assert_eq!(fixture.value("X").as_deref(), Some("d"));
}

#[test]
fn c157_expansion_from_yaml() {
    let fixture = JobFixture::new().compiled(
        "variables: {A: '1', B: '$A-2', C: {value: '$A', expand: false}, D: '$$A', E: '${U}x'}\na: {script: [x]}",
    );
    for (name, expected) in [("B", "1-2"), ("C", "$A"), ("D", "$$A"), ("E", "${U}x")] {
        assert_eq!(fixture.value(name).as_deref(), Some(expected), "{name}");
    }
    assert!(fixture.payload().variables.iter().any(|variable| variable.key == "C" && variable.raw));
}

#[test]
fn c161_the_scope_follows_the_environment() {
    let k = |yaml: &str| {
        let mut fixture = JobFixture::new();
        fixture.context.project_variables = vec![crate::assignments::scoped(Variable::public("K", "v"), "review/*")];
        fixture.compiled(yaml).value("K")
    };
    assert_eq!(k("a: {script: [x], environment: review/x}").as_deref(), Some("v"));
    assert_eq!(k("a: {script: [x]}"), None);
}

#[test]
fn c162_the_environment_of_a_branch() {
    let fixture = on_branch("Feat/A_1").compiled("a: {script: [x], environment: review/$CI_COMMIT_REF_SLUG}");
    assert_eq!(fixture.value("CI_COMMIT_REF_SLUG").as_deref(), Some("feat-a-1"));
    assert_eq!(fixture.value("CI_ENVIRONMENT_NAME").as_deref(), Some("review/feat-a-1"));
    let slug = fixture.value("CI_ENVIRONMENT_SLUG").unwrap_or_default();
    assert!(slug.len() <= 24 && slug.starts_with(|char: char| char.is_ascii_lowercase()), "{slug}");
}

#[test]
fn c201_to_c203_artifacts() {
    let sent = |artifacts: &str| {
        let fixture = JobFixture::new().compiled(&format!("a: {{script: [x], artifacts: {artifacts}}}"));
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
fn c204_the_key_of_a_cache_by_files() {
    let key = |files: &str, has_lock_file| {
        let yaml = format!("a: {{script: [x], cache: {{key: {files}, paths: [v]}}}}");
        let fixture = JobFixture::new().compiled_in(&yaml, &Repository { has_lock_file });
        fixture.payload().cache.remove(0).key
    };
    let bare = "{files: [Gemfile.lock]}";
    let prefixed = "{files: [Gemfile.lock], prefix: p}";
    assert!(key(bare, false).ends_with("default-non_protected"), "{}", key(bare, false));
    assert_eq!(key(prefixed, false), "p-default-non_protected");
    let digest = key(prefixed, true);
    let digest = digest.strip_prefix("p-").and_then(|rest| rest.strip_suffix("-non_protected")).unwrap_or_default();
    assert!(digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()), "{digest}");
    assert_eq!(key(prefixed, true), key(prefixed, true));
}

#[test]
fn c205_a_cache_of_defaults() {
    let cache = JobFixture::new().compiled("a: {script: [x], cache: {paths: [v]}}").payload().cache.remove(0);
    assert_eq!(
        [cache.key, cache.policy, cache.when],
        ["default-non_protected", "pull-push", "on_success"].map(str::to_owned)
    );
}

#[test]
fn c206_depth_from_yaml() {
    let fixture = JobFixture::new().compiled("a: {script: [x], variables: {GIT_DEPTH: '0'}}");
    assert_eq!(fixture.payload().git_info.depth, 0);
}

#[test]
fn c208_to_c211_other_keywords() {
    let fixture = JobFixture::new().compiled(
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

    let fixture = JobFixture::new().compiled("a: {run: [{name: s, script: y}]}");
    let payload = fixture.payload();
    assert!(payload.steps.is_empty());
    let run: serde_json::Value = payload.run.and_then(|run| serde_json::from_str(&run).ok()).unwrap_or_default();
    assert_eq!(run, serde_json::json!([{"name": "s", "script": "y"}]));
}

#[test]
fn c212_id_token_is_not_visible_to_rules() {
    let yaml = "a: {script: [x], id_tokens: {T: {aud: https://x}}, rules: [{if: $T == null}]}";
    let payload = JobFixture::new().compiled(yaml).payload();
    assert!(payload.variables.iter().any(|variable| variable.key == "T" && variable.masked));
}

#[test]
fn c214_an_empty_after_script() {
    let fixture = JobFixture::new().compiled("default: {after_script: [d]}\na: {script: [x], after_script: []}");
    assert_eq!(fixture.payload().steps.len(), 1);
}
