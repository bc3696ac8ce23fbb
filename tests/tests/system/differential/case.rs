//! Cases of the comparison. Each case is one job.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    /// Without `after`, also the name of the project, so that cases do not share files.
    pub(super) name: String,
    /// Case that must end before this case starts. This case uses the project of that case.
    pub(super) after: Option<String>,
    /// Whether to download the artifacts of the case in `after`.
    #[serde(default)]
    downloads: bool,
    #[serde(default)]
    script: Vec<String>,
    #[serde(default)]
    after_script: Vec<String>,
    /// Whether to get the sources. Otherwise `GIT_STRATEGY` is `none`.
    #[serde(default)]
    git: bool,
    /// In seconds.
    #[serde(default = "ten_minutes")]
    timeout: i64,
    /// Variables that are neither masked, raw nor of type file.
    #[serde(default)]
    variables: toml::Table,
    /// Replaces members of the payload. Variables and members of `git_info` are added instead.
    #[serde(default)]
    payload: toml::Table,
    /// Text in the trace after which the coordinator cancels the job gracefully.
    pub(super) cancel_at: Option<String>,
    /// Text in the trace after which the coordinator ends the job.
    pub(super) abort_at: Option<String>,
}

fn ten_minutes() -> i64 {
    600
}

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

/// Base URL of the repositories, and the newest two commits.
pub(super) struct Sources {
    pub(super) url: String,
    pub(super) sha: String,
    pub(super) before_sha: String,
}

impl Case {
    /// Returns the cases of all files, sorted by file name.
    pub(super) fn all(directory: &Path) -> Vec<Self> {
        let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let read = |path: &std::path::PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            toml::from_str::<File>(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())).case
        };
        files.iter().flat_map(read).collect()
    }

    /// Returns the name of the project, which is the name of the first case of the chain.
    pub(super) fn project<'a>(&'a self, all: &'a [Self]) -> &'a str {
        let previous = self.after.as_ref().map(|name| find(all, name));
        previous.map_or(&self.name, |case| case.project(all))
    }

    pub(super) fn id(&self, all: &[Self]) -> i64 {
        let index = all.iter().position(|case| case.name == self.name).unwrap();
        1000 + i64::try_from(index).unwrap()
    }

    fn project_id(&self, all: &[Self]) -> i64 {
        find(all, self.project(all)).id(all)
    }

    /// Returns the payload of the job, which is the same for both runners.
    pub(super) fn payload(&self, all: &[Self], sources: &Sources) -> Value {
        let id = self.id(all);
        let mut variables = vec![
            json!({ "key": "CI_JOB_ID", "value": id.to_string(), "public": true }),
            json!({ "key": "CI_JOB_NAME", "value": self.name, "public": true }),
            // gitlab-runner v16.6.0 does not support timestamps.
            json!({ "key": "FF_TIMESTAMPS", "value": "false", "public": true }),
        ];
        if !self.git {
            variables.push(json!({ "key": "GIT_STRATEGY", "value": "none", "public": true }));
        }
        for (key, value) in &self.variables {
            variables.push(json!({ "key": key, "value": value.as_str().unwrap(), "public": true }));
        }
        let mut steps = vec![json!({ "name": "script", "script": self.script, "timeout": self.timeout,
            "when": "on_success", "allow_failure": false })];
        if !self.after_script.is_empty() {
            steps.push(json!({ "name": "after_script", "script": self.after_script, "timeout": self.timeout,
                "when": "always", "allow_failure": true }));
        }
        let token = token(id);
        let dependencies: Vec<Value> = (self.downloads.then_some(self.after.as_deref()).flatten().into_iter())
            .map(|name| {
                json!({ "id": find(all, name).id(all), "token": token, "name": name,
                    "artifacts_file": { "filename": "artifacts.zip", "size": 100 } })
            })
            .collect();
        let mut payload = json!({
            "id": id, "token": token, "allow_git_fetch": true,
            "job_info": { "id": id, "name": self.name, "stage": "test", "project_id": self.project_id(all),
                "project_name": self.project(all) },
            "git_info": { "repo_url": format!("{}/{}.git", sources.url, self.project(all)), "ref": "main",
                "sha": sources.sha, "before_sha": sources.before_sha, "ref_type": "branch", "depth": 0,
                "refspecs": ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"] },
            "runner_info": { "timeout": self.timeout },
            "variables": variables, "steps": steps, "dependencies": dependencies, "credentials": [],
            "features": { "trace_sections": true, "failure_reasons": ["unknown_failure", "script_failure",
                "runner_system_failure", "job_execution_timeout", "runner_configuration_error", "job_canceled"] },
            "muster": { "trace_interval_ms": 20 },
        });
        for (key, value) in serde_json::to_value(&self.payload).unwrap().as_object().unwrap() {
            match (payload[key].as_array_mut(), value.as_array()) {
                (Some(list), Some(additional)) if key == "variables" => list.extend(additional.iter().cloned()),
                _ if key == "git_info" => {
                    for (key, value) in value.as_object().unwrap() {
                        payload["git_info"][key] = value.clone();
                    }
                }
                _ => payload[key] = value.clone(),
            }
        }
        payload
    }
}

/// Returns the token of a job. No masking rule may match it.
pub(super) fn token(id: i64) -> String {
    format!("jobtoken{id}jobtoken")
}

pub(super) fn find<'a>(all: &'a [Case], name: &str) -> &'a Case {
    all.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case `{name}`"))
}
