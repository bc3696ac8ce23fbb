//! Keys of each part of the configuration, for checks and for suggestions.
//!
//! Source: docs/spec/pipeline-yaml.md, sections 1.1, 1.2, 1.5 and 1.9, which restate GitLab's entry classes and its
//! editor schema. Keys that only a GitLab server can implement (`identity`, `dast_configuration`) are accepted, so that
//! the same file is valid for GitLab and for Muster.

/// Top-level keys that are not jobs.
pub(crate) const TOP_LEVEL: &[&str] = &[
    "default",
    "include",
    "stages",
    "variables",
    "workflow",
    "image",
    "services",
    "cache",
    "before_script",
    "after_script",
];

/// Deprecated top-level keys. Each has the same meaning as the key with this name in `default`.
pub(crate) const GLOBAL_DEFAULTS: &[&str] = &["image", "services", "cache", "before_script", "after_script"];

/// Names that are reserved in addition to the top-level keys.
pub(crate) const FORBIDDEN_JOB_NAMES: &[&str] = &["true", "false", "nil", "pages:deploy"];

/// Keys of `default`. They are also the valid values of `inherit:default`.
pub(crate) const DEFAULT: &[&str] = &[
    "after_script",
    "artifacts",
    "before_script",
    "cache",
    "hooks",
    "id_tokens",
    "identity",
    "image",
    "interruptible",
    "retry",
    "services",
    "tags",
    "timeout",
];

/// Keys of `default` that are inherited by jobs that start or mirror a pipeline.
pub(crate) const DEFAULT_OF_TRIGGER_JOBS: &[&str] = &["interruptible"];

pub(crate) const JOB: &[&str] = &[
    "after_script",
    "allow_failure",
    "artifacts",
    "before_script",
    "cache",
    "coverage",
    "dast_configuration",
    "dependencies",
    "environment",
    "except",
    "extends",
    "hooks",
    "id_tokens",
    "identity",
    "image",
    "inherit",
    "inputs",
    "interruptible",
    "manual_confirmation",
    "needs",
    "only",
    "pages",
    "parallel",
    "publish",
    "release",
    "resource_group",
    "retry",
    "rules",
    "run",
    "script",
    "secrets",
    "services",
    "stage",
    "start_in",
    "tags",
    "timeout",
    "variables",
    "when",
];

/// Keys of a job that starts or mirrors a pipeline.
///
/// `start_in` is not among them, because only a rule can delay such a job.
pub(crate) const TRIGGER_JOB: &[&str] = &[
    "allow_failure",
    "environment",
    "except",
    "extends",
    "inherit",
    "interruptible",
    "needs",
    "only",
    "parallel",
    "resource_group",
    "rules",
    "stage",
    "trigger",
    "variables",
    "when",
];

pub(crate) const JOB_RULE: &[&str] =
    &["if", "changes", "exists", "when", "start_in", "allow_failure", "variables", "needs", "interruptible"];

/// Keys of an entry of `workflow:rules`. `start_in`, `allow_failure` and `needs` are accepted and ignored.
pub(crate) const WORKFLOW_RULE: &[&str] =
    &["if", "changes", "exists", "when", "variables", "auto_cancel", "start_in", "allow_failure", "needs"];

pub(crate) const INCLUDE_RULE: &[&str] = &["if", "changes", "exists", "when"];

pub(crate) const WORKFLOW: &[&str] = &["name", "rules", "auto_cancel"];

pub(crate) const ARTIFACTS: &[&str] =
    &["paths", "exclude", "name", "untracked", "when", "expire_in", "expose_as", "public", "access", "reports"];

/// Keys of `artifacts:reports` (docs/spec/pipeline-yaml.md, section 1.3).
pub(crate) const REPORTS: &[&str] = &[
    "accessibility",
    "annotations",
    "api_fuzzing",
    "browser_performance",
    "codequality",
    "container_scanning",
    "coverage_fuzzing",
    "coverage_report",
    "cyclonedx",
    "dast",
    "dependency_scanning",
    "dotenv",
    "junit",
    "license_management",
    "license_scanning",
    "load_performance",
    "lsif",
    "metrics",
    "repository_xray",
    "requirements",
    "sarif",
    "sast",
    "secret_detection",
    "terraform",
];

pub(crate) const CACHE: &[&str] = &["key", "paths", "untracked", "when", "policy", "unprotect", "fallback_keys"];

pub(crate) const IMAGE: &[&str] = &["name", "entrypoint", "pull_policy", "docker", "kubernetes"];

pub(crate) const SERVICE: &[&str] =
    &["name", "alias", "entrypoint", "command", "variables", "pull_policy", "docker", "kubernetes"];

pub(crate) const ENVIRONMENT: &[&str] =
    &["name", "url", "on_stop", "action", "auto_stop_in", "deployment_tier", "kubernetes"];

pub(crate) const TRIGGER: &[&str] = &["project", "branch", "strategy", "forward", "inputs", "include"];

pub(crate) const TRIGGER_INCLUDE: &[&str] =
    &["local", "project", "file", "ref", "template", "component", "remote", "artifact", "job", "inputs"];

pub(crate) const RELEASE: &[&str] =
    &["tag_name", "description", "name", "tag_message", "ref", "milestones", "released_at", "assets"];

pub(crate) const SECRET: &[&str] = &[
    "vault",
    "gcp_secret_manager",
    "azure_key_vault",
    "aws_secrets_manager",
    "gitlab_secrets_manager",
    "file",
    "token",
];

/// Keys of [`SECRET`] that select a provider of secrets.
pub(crate) const SECRET_PROVIDERS: &[&str] =
    &["vault", "gcp_secret_manager", "azure_key_vault", "aws_secrets_manager", "gitlab_secrets_manager"];

/// Values of `retry:when` (docs/spec/pipeline-yaml.md, section 5.6).
pub(crate) const RETRY_WHEN: &[&str] = &[
    "always",
    "unknown_failure",
    "script_failure",
    "api_failure",
    "stuck_or_timeout_failure",
    "stuck_pending_with_matching_runners",
    "stuck_pending_no_matching_runners",
    "no_updates_running",
    "no_updates_canceling",
    "runner_system_failure",
    "runner_configuration_error",
    "runner_external_dependency_failure",
    "runner_interrupted",
    "runner_unsupported",
    "stale_schedule",
    "job_execution_timeout",
    "server_timeout_running",
    "server_timeout_canceling",
    "archived_failure",
    "unmet_prerequisites",
    "scheduler_failure",
    "data_integrity_failure",
];
