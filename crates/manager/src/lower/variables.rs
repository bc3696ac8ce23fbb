//! Joins the layers of the job's variables, and expands the variables once. Later layers take precedence.

use std::cell::Cell;
use std::collections::HashMap;

use muster_agent_api::builtin::{GLOBAL_GIT_CONFIG, Tls};

use muster_job::{Variable, expand_within, go_architecture, go_os, short_token};
use muster_runner_api::payload::JobPayload;

use super::flags::{Flags, is_flag};
use super::paths::Paths;
use super::settings::job_timeout;
use super::{Certificates, JobContext, LowerError, MAX_EXPANDED_BYTES};

// File variables that contain certificates.
const TLS_CA: &str = "CI_SERVER_TLS_CA_FILE";
const TLS_CERTIFICATE: &str = "CI_SERVER_TLS_CERT_FILE";
const TLS_KEY: &str = "CI_SERVER_TLS_KEY_FILE";

#[derive(Debug)]
pub(super) struct Variables {
    list: Vec<Variable>,
    indexes: HashMap<String, usize>,
    temp_dir: String,
    /// Bytes that expansions may still produce. `None` if the limit was exceeded.
    remaining: Cell<Option<usize>>,
}

impl Variables {
    /// Joins the layers in gitlab-runner's order.
    pub(super) fn join(payload: &JobPayload, context: &JobContext, paths: &Paths, flags: &Flags) -> Self {
        let (list, indexes, remaining) = (Vec::new(), HashMap::new(), Cell::new(Some(MAX_EXPANDED_BYTES)));
        let mut joined = Self { list, indexes, temp_dir: paths.temp_dir.clone(), remaining };
        for (flag, value) in flags.all() {
            joined.set(flag.name, value.to_string());
        }
        if let Some(image) = payload.image.as_ref().filter(|image| !image.name.is_empty()) {
            joined.set("CI_JOB_IMAGE", &image.name);
        }
        joined.set("CI_RUNNER_SHORT_TOKEN", short_token(context.runner.token.expose()));
        for variable in context.runner.environment.iter().filter(|variable| !is_flag(&variable.key)) {
            joined.put(variable.clone());
        }
        joined.set("CI_BUILDS_DIR", &paths.builds_dir);
        joined.set("CI_PROJECT_DIR", &paths.project_dir);
        joined.set("CI_CONCURRENT_ID", context.slot.id.to_string());
        joined.set("CI_CONCURRENT_PROJECT_ID", context.slot.project_slot.to_string());
        joined.set("CI_SERVER", "yes");
        joined.set("CI_JOB_STATUS", "running");
        joined.set("CI_JOB_TIMEOUT", job_timeout(payload).as_secs().to_string());
        joined.add_certificates(&context.certificates);
        for variable in payload.variables.iter().filter(|variable| !is_flag(&variable.key)) {
            joined.put(variable.clone());
        }
        // The custom driver does not report whether its environment is deleted.
        let is_shared =
            super::driver::runs_job(context) || context.directories.shared && !context.runner.uses_containers();
        let kind = if is_shared { "CI_SHARED_ENVIRONMENT" } else { "CI_DISPOSABLE_ENVIRONMENT" };
        joined.set(kind, "true");
        joined.set("CI_RUNNER_VERSION", env!("CARGO_PKG_VERSION"));
        joined.set("CI_RUNNER_REVISION", "");
        joined.set("CI_RUNNER_EXECUTABLE_ARCH", format!("{}/{}", go_os(), go_architecture()));
        for secret in &context.secrets {
            joined.put(secret.clone());
        }
        if let Some(cgroup) = super::share::cgroup(context) {
            joined.set("GITLAB_RUNNER_SLOT_CGROUP", cgroup);
        }
        joined.set("RUNNER_TEMP_PROJECT_DIR", &paths.temp_dir);
        if let Some(network) = super::docker::job_network_name(payload, context, flags.is_on("FF_NETWORK_PER_BUILD")) {
            joined.set("CI_BUILD_NETWORK_NAME", network);
        }
        if flags.is_on("FF_GIT_URLS_WITHOUT_TOKENS") {
            joined.set("GIT_CONFIG_GLOBAL", format!("{}/{GLOBAL_GIT_CONFIG}", paths.temp_dir));
        }
        joined.keep_last();
        joined.expand_all();
        joined
    }

    /// Keeps only the last variable of each name.
    fn keep_last(&mut self) {
        let last: HashMap<&str, usize> =
            self.list.iter().enumerate().map(|(index, variable)| (variable.key.as_str(), index)).collect();
        let last: Vec<bool> = self
            .list
            .iter()
            .enumerate()
            .map(|(index, variable)| last.get(variable.key.as_str()) == Some(&index))
            .collect();
        let mut last = last.into_iter();
        self.list.retain(|_| last.next().unwrap_or_default());
        let indexes = self.list.iter().enumerate().map(|(index, variable)| (variable.key.clone(), index));
        self.indexes = indexes.collect();
    }

    /// Adds the variables of the certificates. Services do not get the private key.
    fn add_certificates(&mut self, certificates: &Certificates) {
        let all = [
            (TLS_CA, &certificates.ca, true),
            (TLS_CERTIFICATE, &certificates.certificate, true),
            (TLS_KEY, &certificates.key, false),
        ];
        for (key, text, public) in all {
            if let Some(text) = text {
                let variable = Variable::public(key, text.expose());
                self.put(Variable { file: true, raw: true, public, ..variable });
            }
        }
    }

    pub(super) fn tls(&self) -> Tls {
        let existing = |name: &str| self.get(name).map(|_| name.to_owned());
        Tls { ca: existing(TLS_CA), certificate: existing(TLS_CERTIFICATE), key: existing(TLS_KEY) }
    }

    fn set(&mut self, key: &str, value: impl Into<String>) {
        self.put(Variable::public(key, value));
    }

    fn put(&mut self, variable: Variable) {
        self.list.push(variable);
    }

    /// A reference is replaced with the unexpanded value of its variable.
    fn expand_all(&mut self) {
        let has_references = |variable: &Variable| !variable.raw && variable.value.contains('$');
        let expanded: Vec<Option<String>> =
            self.list.iter().map(|variable| has_references(variable).then(|| self.expand(&variable.value))).collect();
        for (variable, value) in self.list.iter_mut().zip(expanded) {
            if let Some(value) = value {
                variable.value = value;
            }
        }
    }

    /// For a file variable, returns the path of the file.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let variable = self.list.get(*self.indexes.get(name)?)?;
        if variable.file { Some(format!("{}/{name}", self.temp_dir)) } else { Some(variable.value.clone()) }
    }

    /// For a file variable, returns the content of the file.
    pub(super) fn content(&self, name: &str) -> Option<String> {
        Some(self.list.get(*self.indexes.get(name)?)?.value.clone())
    }

    /// Returns each variable with its value as the job sees it. For a file variable, that is the path of the file.
    pub(super) fn resolved(&self) -> impl Iterator<Item = (&Variable, String)> {
        self.list.iter().map(|variable| {
            let path = || format!("{}/{}", self.temp_dir, variable.key);
            (variable, if variable.file { path() } else { variable.value.clone() })
        })
    }

    /// Unknown names are empty. Beyond the limit, the result is empty, and [`Self::check`] fails.
    pub(super) fn expand(&self, text: &str) -> String {
        let Some(remaining) = self.remaining.get() else { return String::new() };
        let expanded = expand_within(text, remaining, |name| self.get(name).unwrap_or_default());
        self.remaining.set(expanded.as_ref().and_then(|expanded| remaining.checked_sub(expanded.len())));
        expanded.unwrap_or_default()
    }

    /// Fails if all expansions together exceeded the limit.
    pub(super) fn check(&self) -> Result<(), LowerError> {
        self.remaining.get().map(drop).ok_or_else(|| LowerError::too_long("variables"))
    }

    pub(super) fn into_list(self) -> Vec<Variable> {
        self.list
    }
}
