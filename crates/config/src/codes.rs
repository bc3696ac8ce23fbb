//! The codes of problems, with their default severity and title.
//!
//! A code is the number of a check. The conformance cases C001 to C222 of docs/spec/pipeline-yaml.md look
//! like codes, but have nothing to do with them.
//!
//! Some codes have no check:
//!
//! - C077 cannot happen, because all jobs of an instance share one session.
//! - C078 is described by the error of the job that fails because of it.
//! - C093 and the `mac_address` part of C056 need facts that Muster does not collect.

use Severity::{Error, Fatal, Info, Warning};

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used. Nothing starts, and a reload keeps the previous configuration.
    Fatal,
    /// A runner or a setting cannot work. The rest of the configuration is used.
    Error,
    /// The configuration works, but probably not as intended.
    Warning,
    /// Information only.
    Info,
}

impl Severity {
    /// Returns `fatal`, `error`, `warning` or `info`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Code, default severity and title of each kind of problem.
pub const CODES: &[(&str, Severity, &str)] = &[
    ("C000", Fatal, "The file cannot be read, or is not valid TOML"),
    ("C001", Fatal, "`concurrent` is 0 or negative"),
    ("C002", Warning, "`concurrent` is smaller than the number of runners"),
    ("C003", Info, "`request_concurrency` is 1 with long polling"),
    ("C004", Warning, "`limit` of 1 or 2 together with `request_concurrency = 1`"),
    ("C005", Warning, "`limit` or `request_concurrency` exceeds `concurrent`"),
    ("C006", Fatal, "Invalid label"),
    ("C007", Warning, "`check_interval` is very small for many runners"),
    ("C008", Error, "The executor is unknown or not supported yet"),
    ("C009", Info, "A key that Muster does not support"),
    ("C010", Warning, "Unknown or misspelled key or table"),
    ("C011", Warning, "Removed key"),
    ("C012", Warning, "Removed or unknown feature flag"),
    ("C013", Warning, "A duration without a unit is in nanoseconds"),
    ("C014", Fatal, "Invalid value, or invalid duration"),
    ("C015", Fatal, "Cron pattern with the wrong number of fields"),
    ("C016", Fatal, "Unknown time zone"),
    ("C017", Warning, "Period that a later one always overrides"),
    ("C018", Warning, "Key in the wrong table because of TOML's order"),
    ("C019", Fatal, "Invalid regular expression"),
    ("C020", Error, "A runner without a token"),
    ("C021", Error, "Whitespace around token or URL, or invalid URL"),
    ("C022", Error, "`$VAR` in token or URL is not set"),
    ("C023", Warning, "A new token replaces a `$VAR` reference in the file"),
    ("C024", Warning, "The URL ends with `/ci`"),
    ("C025", Warning, "Two runners share a token"),
    ("C026", Fatal, "Registration flag together with an authentication token"),
    ("C027", Warning, "Two managers report the same system ID"),
    ("C028", Error, "The token expires and is not renewed"),
    ("C030", Fatal, "Two processes use one config.toml"),
    ("C031", Warning, "Started without root privileges, so the user's own config.toml is used"),
    ("C032", Warning, "config.toml is missing"),
    ("C033", Warning, "Other users can read config.toml"),
    ("C034", Info, "The file changed, but its modification time did not"),
    ("C035", Warning, "A changed key needs a restart"),
    ("C037", Warning, "Metrics on a public address, or debug logging"),
    ("C038", Warning, "`[session_server]` has an address that users cannot reach"),
    ("C040", Warning, "The shutdown aborts running jobs instead of waiting for them"),
    ("C041", Warning, "`shutdown_timeout` is too short for cleaning up"),
    ("C042", Warning, "Stage timeout has no effect"),
    ("C050", Warning, "Jobs can gain root on the host"),
    ("C052", Warning, "Jobs can use private images of others"),
    ("C053", Warning, "Pull policy of the runner is not in `allowed_pull_policies`"),
    ("C054", Warning, "`*` in an image pattern does not match a slash"),
    ("C055", Warning, "Custom helper image"),
    ("C056", Warning, "`volume_keep` keeps volumes after jobs"),
    ("C057", Error, "Docker settings that make every job fail"),
    ("C058", Warning, "`cache_dir` is not on a volume"),
    ("C059", Info, "`disable_cache` does not disable the cache in object storage"),
    ("C060", Error, "Incomplete cache storage settings"),
    ("C070", Info, "`idle_count` counts job slots"),
    ("C071", Error, "Two runners share an instance group"),
    ("C072", Info, "GitLab Runner would remove every instance at a restart"),
    ("C073", Warning, "Instances cannot hold as many jobs as the limit allows"),
    ("C074", Info, "No idle capacity is configured"),
    ("C075", Warning, "No limit on instances"),
    ("C076", Info, "The provider may scale the group"),
    ("C079", Warning, "`use_common_build_dir` without isolation"),
    ("C080", Warning, "`limit` leaves no capacity for idle machines"),
    ("C081", Warning, "Machine name without `%s`, or too long"),
    ("C082", Warning, "Docker Machine is deprecated"),
    ("C083", Warning, "All slots share one cgroup"),
    ("C084", Warning, "Jobs that share an instance run as the same user"),
    ("C085", Error, "Incomplete `vm_isolation` settings"),
    ("C086", Error, "Plugin is not installed or cannot be run"),
    ("C087", Warning, "Period that never matches"),
    ("C088", Error, "Value out of range"),
    ("C090", Warning, "`poll_timeout` is too short for new nodes"),
    ("C091", Warning, "No namespace"),
    ("C092", Info, "Jobs are not allowed to overwrite pod settings"),
    ("C095", Warning, "User or group is not a number"),
    ("C096", Warning, "`pod_spec` without its feature flag"),
    ("C097", Warning, "Suspending needs the runner's `id`"),
    ("C100", Error, "Incomplete settings of the custom executor"),
    ("C101", Warning, "SSH host keys are not verified, or unknown"),
    ("C102", Warning, "Jobs run as the manager's user"),
    ("C103", Info, "`output_limit` counts KiB"),
    ("C105", Info, "A job's `FF_` variable has no effect"),
    ("C106", Warning, "`environment` entry without `=`"),
    ("C107", Warning, "Proxy for the manager, but not for jobs"),
    ("C108", Info, "Private certificate authority that jobs do not trust"),
    ("C109", Warning, "`clone_url` is not a plain scheme and host"),
    ("C110", Warning, "Many runners export metrics of each job stage"),
    ("C111", Error, "Invalid step of the operator, or invalid step policy"),
    ("C112", Error, "Jobs of a public runner share machines"),
    ("C113", Warning, "Addresses that Muster cannot block, such as those of metadata services"),
];

pub(super) fn severity(code: &str) -> Severity {
    let known = CODES.iter().find(|(known, ..)| *known == code);
    debug_assert!(known.is_some(), "{code} is not listed");
    known.map_or(Warning, |(_, severity, _)| *severity)
}
