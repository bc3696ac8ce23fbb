//! Settings that a job sets by variables.

use std::time::Duration;

use muster_config::runtime::stage_timeout;
use muster_config::settings::MAX_WAIT;
use muster_job::GoDuration;
use muster_runner_api::payload::JobPayload;

use super::flags::Flags;
use super::variables::Variables;
use super::{JobContext, LowerError};

const DEFAULT_JOB_TIMEOUT: Duration = Duration::from_secs(7200);
const DEFAULT_AFTER_SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);
const MAX_ATTEMPTS: u32 = 10;
const SECRETS_ATTEMPTS: &str = "SECRETS_RETRIEVAL_ATTEMPTS";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobSettings {
    pub(super) strategy: String,
    pub(super) checkout: bool,
    pub(super) submodules: String,
    pub(super) clean_flags: Option<Vec<String>>,
    pub(super) fetch_flags: Vec<String>,
    /// Whether git's configuration and hooks are removed before and after the job.
    pub(super) clean_config: bool,
    pub(super) submodule_paths: Vec<String>,
    pub(super) submodule_depth: i64,
    pub(super) submodule_flags: Vec<String>,
    pub(super) submodule_https: bool,
    pub(super) skip_lfs: bool,
    /// Whether the shell prints the commands that it runs.
    pub(super) debug_trace: bool,
    /// Whether the output of services is copied to the log.
    pub(super) debug_services: bool,
    pub(super) get_sources_attempts: u32,
    /// Zero means the timeout of the job.
    pub(super) get_sources_timeout: Duration,
    pub(super) restore_cache_attempts: u32,
    pub(super) artifact_download_attempts: u32,
    /// Zero means the timeout of the job.
    pub(super) script_timeout: Duration,
    pub(super) after_script_timeout: Duration,
    pub(super) after_script_ignore_errors: bool,
    /// Whether a provenance statement is packed into archives.
    pub(super) artifacts_metadata: bool,
    /// First and longest wait before a stage is retried, in milliseconds.
    pub(super) retry_wait_ms: (u64, u64),
}

impl JobSettings {
    /// Returns whether the project directory has a repository.
    pub(super) fn has_repository(&self) -> bool {
        matches!(self.strategy.as_str(), "clone" | "fetch")
    }

    /// Reads the settings. An invalid value causes a warning, and the default is used.
    pub(super) fn read(
        payload: &JobPayload,
        context: &JobContext,
        variables: &Variables,
        flags: &Flags,
    ) -> (Result<Self, LowerError>, Vec<String>) {
        let mut reader = Reader { variables, warnings: Vec::new() };
        let settings = reader.settings(payload, context, flags);
        (settings, reader.warnings)
    }
}

struct Reader<'a> {
    variables: &'a Variables,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn settings(
        &mut self,
        payload: &JobPayload,
        context: &JobContext,
        flags: &Flags,
    ) -> Result<JobSettings, LowerError> {
        let default = if payload.allow_git_fetch { "fetch" } else { "clone" };
        let strategy = self.choice("GIT_STRATEGY", &["clone", "fetch", "none", "empty"], default);
        let has_repository = matches!(strategy.as_str(), "clone" | "fetch");
        let submodules = match self.text("GIT_SUBMODULE_STRATEGY").unwrap_or_default() {
            text if text.is_empty() || !has_repository => "none".to_owned(),
            text if matches!(text.as_str(), "none" | "normal" | "recursive") => text,
            _ => return Err(LowerError::configuration("unknown GIT_SUBMODULE_STRATEGY")),
        };
        let timeout = job_timeout(payload);
        let [debug_trace, debug_services] = self.debug(context.runner.debug_trace_disabled);
        let clean_config = context.runner.clean_git_config.unwrap_or(context.runner.executor != "shell");
        // Muster never repeats a stage in a new environment. The call only warns about an invalid value.
        self.attempts("EXECUTOR_JOB_SECTION_ATTEMPTS");
        // The secrets have already been fetched. The call only warns about an invalid value.
        self.attempts(SECRETS_ATTEMPTS);
        // The manager enforces this timeout. The call only warns if the timeout has no effect.
        self.effective_timeout("prepare_timeout", context.runner.prepare_timeout, timeout);
        Ok(JobSettings {
            checkout: self.boolean("GIT_CHECKOUT", true) && has_repository,
            submodules,
            clean_flags: self.words("GIT_CLEAN_FLAGS", "-ffdx"),
            fetch_flags: self.words("GIT_FETCH_EXTRA_FLAGS", "--prune --quiet").unwrap_or_default(),
            clean_config: clean_config && strategy != "none",
            submodule_paths: self.submodule_paths()?,
            submodule_depth: self.number("GIT_SUBMODULE_DEPTH", payload.git_info.depth),
            submodule_flags: self.words("GIT_SUBMODULE_UPDATE_FLAGS", "").unwrap_or_default(),
            submodule_https: self.boolean("GIT_SUBMODULE_FORCE_HTTPS", false),
            skip_lfs: self.boolean("GIT_LFS_SKIP_SMUDGE", false),
            debug_trace,
            debug_services,
            get_sources_timeout: self.effective_timeout(
                "get_sources_timeout",
                context.runner.get_sources_timeout,
                timeout,
            ),
            retry_wait_ms: retry_wait_ms(flags),
            get_sources_attempts: self.attempts("GET_SOURCES_ATTEMPTS"),
            restore_cache_attempts: self.attempts("RESTORE_CACHE_ATTEMPTS"),
            artifact_download_attempts: self.attempts("ARTIFACT_DOWNLOAD_ATTEMPTS"),
            script_timeout: self.timeout("RUNNER_SCRIPT_TIMEOUT", Duration::ZERO, timeout),
            after_script_timeout: self.timeout("RUNNER_AFTER_SCRIPT_TIMEOUT", DEFAULT_AFTER_SCRIPT_TIMEOUT, timeout),
            after_script_ignore_errors: self.boolean("AFTER_SCRIPT_IGNORE_ERRORS", true),
            artifacts_metadata: self.artifacts_metadata(),
            strategy,
        })
    }

    fn text(&self, name: &str) -> Option<String> {
        self.variables.get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn choice(&mut self, name: &str, allowed: &[&str], default: &str) -> String {
        match self.text(name) {
            Some(text) if allowed.contains(&text.as_str()) => text,
            Some(text) => {
                self.warnings.push(format!("{name}: expected one of {allowed:?}, got \"{text}\", using \"{default}\""));
                default.to_owned()
            }
            None => default.to_owned(),
        }
    }

    fn boolean(&mut self, name: &str, default: bool) -> bool {
        let Some(text) = self.text(name) else { return default };
        parse_bool(&text).unwrap_or_else(|| {
            self.warnings.push(format!("{name}: expected a boolean, got \"{text}\", using {default}"));
            default
        })
    }

    /// Returns the words of a value. `None` if the value is `none`.
    fn words(&self, name: &str, default: &str) -> Option<Vec<String>> {
        let text = self.text(name).unwrap_or_else(|| default.to_owned());
        (text != "none").then(|| text.split_whitespace().map(str::to_owned).collect())
    }

    fn number(&mut self, name: &str, default: i64) -> i64 {
        let Some(text) = self.text(name) else { return default };
        text.parse().unwrap_or_else(|_| {
            self.warnings.push(format!("{name}: expected a number, got \"{text}\", using {default}"));
            default
        })
    }

    /// Returns the pathspecs of submodules. Fails for an exclusion without a path: git would exclude everything.
    fn submodule_paths(&self) -> Result<Vec<String>, LowerError> {
        let paths = self.words("GIT_SUBMODULE_PATHS", "").unwrap_or_default();
        if paths.iter().any(|path| path == ":(exclude)") {
            return Err(LowerError::configuration(
                "GIT_SUBMODULE_PATHS: `:(exclude)` has no path; add it without a space, for example `:(exclude)lib`",
            ));
        }
        Ok(paths)
    }

    /// Returns whether the shell prints the job's commands, and whether the log has the output of services. The operator may forbid both.
    fn debug(&mut self, disabled: bool) -> [bool; 2] {
        let requested = ["CI_DEBUG_TRACE", "CI_DEBUG_SERVICES"].map(|name| (name, self.boolean(name, false)));
        for (name, _) in requested.iter().filter(|(_, on)| *on && disabled) {
            self.warnings.push(format!("{name}: usage is disabled on this Runner"));
        }
        requested.map(|(_, on)| on && !disabled)
    }

    /// Returns whether a provenance statement is requested. Warns about an unknown schema.
    fn artifacts_metadata(&mut self) -> bool {
        let is_requested = self.boolean("RUNNER_GENERATE_ARTIFACTS_METADATA", false);
        if is_requested {
            self.choice("SLSA_PROVENANCE_SCHEMA_VERSION", &["v1"], "v1");
        }
        is_requested
    }

    fn attempts(&mut self, name: &str) -> u32 {
        let Some(text) = self.text(name) else { return 1 };
        match text.parse::<i64>().ok().map(|number| number.clamp(1, i64::from(MAX_ATTEMPTS))) {
            Some(number) if number.to_string() == text => u32::try_from(number).unwrap_or(1),
            number => {
                let used = number.and_then(|number| u32::try_from(number).ok()).unwrap_or(1);
                self.warnings.push(format!("{name}: expected 1 to {MAX_ATTEMPTS}, got \"{text}\", using {used}"));
                used
            }
        }
    }

    /// Returns the runner's timeout, or zero if it is not shorter than the job's (check C042).
    fn effective_timeout(&mut self, key: &str, limit: Option<Duration>, job: Duration) -> Duration {
        let problem = limit.and_then(|limit| stage_timeout(key, limit, job));
        self.warnings.extend(problem.as_ref().map(|problem| problem.message.clone()));
        limit.filter(|_| problem.is_none()).unwrap_or_default()
    }

    fn timeout(&mut self, name: &str, default: Duration, job: Duration) -> Duration {
        let Some(text) = self.text(name) else { return default };
        match GoDuration::parse(&text) {
            None => self.warnings.push(format!("Ignoring malformed {name} timeout: {text}")),
            Some(GoDuration::Negative) => self.warnings.push(format!("Ignoring relative {name} timeout: {text}")),
            Some(GoDuration::NonNegative(timeout)) if timeout > job => {
                self.warnings.push(format!("{name} timeout: {text} is longer than job timeout. Setting to job timeout"))
            }
            Some(GoDuration::NonNegative(timeout)) if !timeout.is_zero() => return timeout,
            Some(GoDuration::NonNegative(_)) => {}
        }
        default
    }
}

pub(super) fn secrets_attempts(variables: &Variables) -> u32 {
    Reader { variables, warnings: Vec::new() }.attempts(SECRETS_ATTEMPTS)
}

/// Returns the first and the longest wait before a stage is retried, in milliseconds.
pub(super) fn retry_wait_ms(flags: &Flags) -> (u64, u64) {
    if flags.is_on("FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY") { (5_000, 300_000) } else { (1_000, 5_000) }
}

pub(crate) fn job_timeout(payload: &JobPayload) -> Duration {
    match u64::try_from(payload.runner_info.timeout) {
        Ok(seconds) if seconds > 0 => Duration::from_secs(seconds).min(MAX_WAIT),
        _ => DEFAULT_JOB_TIMEOUT,
    }
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
