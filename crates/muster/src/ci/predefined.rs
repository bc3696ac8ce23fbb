//! Predefined variables of the pipeline, which exist before its jobs do.
//!
//! A variable that does not apply to the event is absent, because rules test for it: `if: $CI_COMMIT_TAG`.

use muster_job::Variable;
use muster_pipeline::slug::slug;
use muster_source::Snapshot;

use super::context::{EventFacts, Facts};
use super::git_facts::ProjectIdentity;

/// Version of GitLab whose behavior Muster follows. Jobs see it in `CI_SERVER_VERSION`.
const GITLAB_VERSION: (&str, &str, &str) = ("18", "9", "0");
const MAX_DESCRIPTION_CHARS: usize = 2700;
const MAX_MESSAGE_BYTES: usize = 100_000;

#[derive(Default)]
struct List(Vec<Variable>);

impl List {
    fn set(&mut self, key: &str, value: impl Into<String>) {
        self.0.push(Variable::public(key, value));
    }

    fn set_some(&mut self, key: &str, value: Option<impl Into<String>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }
}

pub(super) fn predefined(facts: &Facts<'_>) -> Vec<Variable> {
    let mut list = List::default();
    list.set("CI", "true");
    list.set("GITLAB_CI", "true");
    add_server(&mut list, facts);
    add_project(&mut list, facts);
    add_commit(&mut list, facts);
    add_event(&mut list, facts);
    add_user(&mut list, facts.identity);
    list.0
}

fn add_server(list: &mut List, facts: &Facts<'_>) {
    let url = facts.identity.server_or(facts.server_url);
    let (protocol, fqdn) = url.split_once("://").unwrap_or(("http", url));
    let (host, port) = fqdn.rsplit_once(':').unwrap_or((fqdn, if protocol == "https" { "443" } else { "80" }));
    list.set("CI_SERVER_URL", url);
    list.set("CI_SERVER_PROTOCOL", protocol);
    list.set("CI_SERVER_HOST", host);
    list.set("CI_SERVER_PORT", port);
    list.set("CI_SERVER_FQDN", fqdn);
    list.set("CI_SERVER_NAME", "Muster");
    let (major, minor, patch) = GITLAB_VERSION;
    list.set("CI_SERVER_VERSION", format!("{major}.{minor}.{patch}"));
    list.set("CI_SERVER_VERSION_MAJOR", major);
    list.set("CI_SERVER_VERSION_MINOR", minor);
    list.set("CI_SERVER_VERSION_PATCH", patch);
    list.set("CI_SERVER_REVISION", env!("CARGO_PKG_VERSION"));
    if let Some((host, port)) = &facts.identity.ssh {
        list.set("CI_SERVER_SHELL_SSH_HOST", host);
        list.set("CI_SERVER_SHELL_SSH_PORT", port.to_string());
    }
    // Jobs use the coordinator's API, because the project's server does not know them or their tokens.
    list.set("CI_API_V4_URL", format!("{}/api/v4", facts.server_url.trim_end_matches('/')));
    list.set("CI_TEMPLATE_REGISTRY_HOST", "registry.gitlab.com");
    list.set("GITLAB_FEATURES", "");
}

fn add_project(list: &mut List, facts: &Facts<'_>) {
    let identity = facts.identity;
    let namespace = identity.namespace();
    list.set("CI_PROJECT_ID", facts.project_id.to_string());
    list.set("CI_PROJECT_NAMESPACE_ID", "1");
    list.set("CI_PROJECT_NAME", identity.name());
    list.set("CI_PROJECT_TITLE", identity.name());
    list.set("CI_PROJECT_DESCRIPTION", "");
    list.set("CI_PROJECT_PATH", &identity.path);
    list.set("CI_PROJECT_PATH_SLUG", slug(&identity.path));
    list.set("CI_PROJECT_NAMESPACE", namespace);
    list.set("CI_PROJECT_NAMESPACE_SLUG", slug(namespace));
    list.set("CI_PROJECT_ROOT_NAMESPACE", namespace.split('/').next().unwrap_or_default());
    let url = format!("{}/{}", identity.server_or(facts.server_url), identity.path);
    list.set("CI_PROJECT_URL", url);
    list.set("CI_PROJECT_VISIBILITY", "private");
    list.set("CI_PROJECT_REPOSITORY_LANGUAGES", "");
    list.set("CI_PROJECT_CLASSIFICATION_LABEL", "");
    list.set("CI_CONFIG_PATH", facts.config_path);
    list.set("CI_DEFAULT_BRANCH", &identity.default_branch);
    list.set("CI_DEFAULT_BRANCH_SLUG", slug(&identity.default_branch));
}

fn add_commit(list: &mut List, facts: &Facts<'_>) {
    let Snapshot { head, .. } = facts.snapshot;
    let (title, rest) = head.message.split_once('\n').unwrap_or((&head.message, ""));
    // As on GitLab, the description repeats a title of 100 or more characters.
    let description = if title.chars().count() < 100 { rest.trim_start_matches('\n') } else { &head.message };
    let message = truncated(&head.message, MAX_MESSAGE_BYTES);
    list.set("CI_COMMIT_SHA", &head.sha);
    list.set("CI_COMMIT_SHORT_SHA", head.sha.get(..8).unwrap_or(&head.sha));
    list.set("CI_COMMIT_BEFORE_SHA", &facts.event.before_sha);
    list.set("CI_COMMIT_REF_NAME", &facts.event.ref_name);
    list.set("CI_COMMIT_REF_SLUG", slug(&facts.event.ref_name));
    list.set("CI_COMMIT_REF_PROTECTED", facts.event.protected.to_string());
    list.set("CI_COMMIT_MESSAGE", message);
    list.set("CI_COMMIT_MESSAGE_IS_TRUNCATED", (message.len() < head.message.len()).to_string());
    list.set("CI_COMMIT_TITLE", title);
    list.set("CI_COMMIT_DESCRIPTION", description);
    list.set("CI_COMMIT_AUTHOR", &head.author);
    list.set("CI_COMMIT_TIMESTAMP", &head.committed_at);
}

fn add_event(list: &mut List, facts: &Facts<'_>) {
    let EventFacts { ref_name, tag, merge_request, source, .. } = facts.event;
    list.set("CI_PIPELINE_SOURCE", source.as_str());
    list.set("CI_PIPELINE_IID", facts.iid.to_string());
    list.set("CI_PIPELINE_CREATED_AT", facts.created_at);
    match (tag, merge_request) {
        (Some(tag), _) => {
            list.set("CI_COMMIT_TAG", tag);
            list.set_some("CI_COMMIT_TAG_MESSAGE", facts.snapshot.tag_message(tag));
        }
        (None, Some(_)) => add_merge_request(list, facts),
        (None, None) => list.set("CI_COMMIT_BRANCH", ref_name),
    }
    use muster_pipeline::context::PipelineSource as S;
    match source {
        S::Trigger => list.set("CI_PIPELINE_TRIGGERED", "true"),
        S::Schedule => list.set("CI_PIPELINE_SCHEDULE_DESCRIPTION", "started by hand"),
        _ => {}
    }
}

fn add_merge_request(list: &mut List, facts: &Facts<'_>) {
    let Some(request) = &facts.event.merge_request else { return };
    let (identity, source) = (facts.identity, &facts.event.ref_name);
    let url = format!("{}/{}", identity.server_or(facts.server_url), identity.path);
    let (title, rest) = facts.snapshot.head.message.split_once('\n').unwrap_or((&facts.snapshot.head.message, ""));
    let rest = rest.trim();
    let description: String = rest.chars().take(MAX_DESCRIPTION_CHARS).collect();
    let id = facts.project_id.to_string();
    let protected = |branch: &str| (facts.is_protected)(branch).to_string();
    list.set("CI_OPEN_MERGE_REQUESTS", format!("{}!1", identity.path));
    list.set("CI_MERGE_REQUEST_ID", "1");
    list.set("CI_MERGE_REQUEST_IID", "1");
    list.set("CI_MERGE_REQUEST_REF_PATH", "refs/merge-requests/1/head");
    list.set("CI_MERGE_REQUEST_PROJECT_ID", &id);
    list.set("CI_MERGE_REQUEST_PROJECT_PATH", &identity.path);
    list.set("CI_MERGE_REQUEST_PROJECT_URL", &url);
    list.set("CI_MERGE_REQUEST_TITLE", title);
    list.set("CI_MERGE_REQUEST_DESCRIPTION_IS_TRUNCATED", (description.len() < rest.len()).to_string());
    list.set("CI_MERGE_REQUEST_DESCRIPTION", description);
    list.set("CI_MERGE_REQUEST_DRAFT", title.to_lowercase().starts_with("draft:").to_string());
    list.set("CI_MERGE_REQUEST_EVENT_TYPE", "detached");
    list.set_some("CI_MERGE_REQUEST_DIFF_BASE_SHA", request.base.as_ref().map(|base| &base.commit));
    list.set("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", source);
    list.set("CI_MERGE_REQUEST_SOURCE_BRANCH_SHA", "");
    list.set("CI_MERGE_REQUEST_SOURCE_BRANCH_PROTECTED", protected(source));
    list.set("CI_MERGE_REQUEST_SOURCE_PROJECT_ID", &id);
    list.set("CI_MERGE_REQUEST_SOURCE_PROJECT_PATH", &identity.path);
    list.set("CI_MERGE_REQUEST_SOURCE_PROJECT_URL", &url);
    list.set("CI_MERGE_REQUEST_TARGET_BRANCH_NAME", &request.target);
    list.set("CI_MERGE_REQUEST_TARGET_BRANCH_SHA", "");
    list.set("CI_MERGE_REQUEST_TARGET_BRANCH_PROTECTED", protected(&request.target));
    list.set("CI_MERGE_REQUEST_SQUASH_ON_MERGE", "false");
    list.set("CI_MERGE_REQUEST_APPROVED", "false");
}

fn add_user(list: &mut List, identity: &ProjectIdentity) {
    let login = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).ok().filter(|name| !name.is_empty());
    list.set("GITLAB_USER_ID", user_id());
    list.set_some("GITLAB_USER_LOGIN", login.clone());
    list.set_some("GITLAB_USER_EMAIL", identity.user_email.clone());
    list.set_some("GITLAB_USER_NAME", identity.user_name.clone().or(login));
}

#[cfg(unix)]
fn user_id() -> String {
    rustix::process::getuid().as_raw().to_string()
}

#[cfg(not(unix))]
fn user_id() -> String {
    "1".to_owned()
}

/// Returns the longest prefix of `text` with at most `max_bytes` bytes.
fn truncated(text: &str, max_bytes: usize) -> &str {
    let end = (0..=max_bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    end.and_then(|end| text.get(..end)).unwrap_or(text)
}
