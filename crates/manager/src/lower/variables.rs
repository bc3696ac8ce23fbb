//! The job's variables: layers, of which the later win, and one pass of expansion (job-execution 3.1, 3.2).

use muster_job::Variable;
use muster_runner_api::payload::JobPayload;

use super::expand::expand;
use super::paths::{Paths, short_token};
use super::settings::{job_timeout, parse_bool};
use super::{Placement, flags};

/// The joined and expanded variables.
#[derive(Debug)]
pub(super) struct Variables {
    list: Vec<Variable>,
    temp_dir: String,
}

impl Variables {
    /// Joins the layers of job-execution 3.1 and expands them once.
    pub(super) fn join(payload: &JobPayload, placement: &Placement, paths: &Paths) -> Self {
        let mut joined = Self { list: Vec::new(), temp_dir: paths.temp_dir.clone() };
        for (name, default) in flags::all() {
            let given = payload.variables.iter().rev().find(|variable| variable.key == name);
            let on = given.and_then(|variable| parse_bool(&variable.value)).unwrap_or(default);
            joined.set(name, on.to_string());
        }
        if let Some(image) = payload.image.as_ref().filter(|image| !image.name.is_empty()) {
            joined.set("CI_JOB_IMAGE", &image.name);
        }
        joined.set("CI_RUNNER_SHORT_TOKEN", short_token(placement.runner.token.expose()));
        joined.set("CI_BUILDS_DIR", &paths.builds_dir);
        joined.set("CI_PROJECT_DIR", &paths.project_dir);
        joined.set("CI_CONCURRENT_ID", placement.slot.id.to_string());
        joined.set("CI_CONCURRENT_PROJECT_ID", placement.slot.project_slot.to_string());
        joined.set("CI_SERVER", "yes");
        joined.set("CI_JOB_STATUS", "running");
        joined.set("CI_JOB_TIMEOUT", job_timeout(payload).as_secs().to_string());
        for variable in payload.variables.iter().filter(|variable| !flags::is_flag(&variable.key)) {
            joined.put(variable.clone());
        }
        let kind = if placement.directories.shared { "CI_SHARED_ENVIRONMENT" } else { "CI_DISPOSABLE_ENVIRONMENT" };
        joined.set(kind, "true");
        joined.set("CI_RUNNER_VERSION", env!("CARGO_PKG_VERSION"));
        joined.set("CI_RUNNER_REVISION", "");
        joined.set("CI_RUNNER_EXECUTABLE_ARCH", format!("{}/{}", std::env::consts::OS, go_architecture()));
        joined.set("RUNNER_TEMP_PROJECT_DIR", &paths.temp_dir);
        joined.expand_all();
        joined
    }

    fn set(&mut self, key: &str, value: impl Into<String>) {
        self.put(Variable::public(key, value));
    }

    /// Takes the place of an earlier one of the same name, at the end: the order of export.
    fn put(&mut self, variable: Variable) {
        self.list.retain(|other| other.key != variable.key);
        self.list.push(variable);
    }

    /// Each value sees the others as they are before the expansion: one pass, not a fixed point.
    fn expand_all(&mut self) {
        let expanded = self.list.iter().map(|variable| {
            let mut variable = variable.clone();
            if !variable.raw {
                variable.value = self.expand(&variable.value);
            }
            variable
        });
        self.list = expanded.collect();
    }

    /// The value of a variable; of a file variable, its path.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let variable = self.list.iter().rev().find(|variable| variable.key == name)?;
        if variable.file { Some(format!("{}/{name}", self.temp_dir)) } else { Some(variable.value.clone()) }
    }

    /// Expands the references of a text; unknown names are empty.
    pub(super) fn expand(&self, text: &str) -> String {
        expand(text, |name| self.get(name).unwrap_or_default())
    }

    pub(super) fn into_list(self) -> Vec<Variable> {
        self.list
    }
}

/// Go's name of this machine's architecture.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
