//! The numbers of problems, their usual severity and the mistake behind each. C001 to C110 are those of the
//! documentation's list of what users get wrong most; C000, C006, C008, C009, C019, C084 to C088 are our own. C077 (sshd allows too
//! few sessions for many slots) cannot happen: all jobs of an instance share one session. C078 (instances start slower than jobs
//! wait) needs no check: the failed job's error names the limit and what the scaler waited for. C093 (a service account lacks
//! rights) and the half of C056 about `mac_address` need facts of executors that Muster does not have yet.

use Severity::{Error, Fatal, Info, Warning};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used: nothing starts, a reload keeps what there was.
    Fatal,
    /// A part of it cannot work: that runner or setting is out of use.
    Error,
    /// It works, but hardly as meant.
    Warning,
    /// Good to know.
    Info,
}

impl Severity {
    /// `fatal`, `error`, `warning` or `info`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Number, usual severity, mistake.
pub const CODES: &[(&str, Severity, &str)] = &[
    ("C000", Fatal, "The file cannot be read, or is no TOML"),
    ("C001", Fatal, "`concurrent` is 0 or negative"),
    ("C002", Warning, "`concurrent` is smaller than the number of runners"),
    ("C003", Info, "`request_concurrency` is 1 with long polling"),
    ("C004", Warning, "`limit` of 1 or 2 together with `request_concurrency = 1`"),
    ("C005", Warning, "`limit` or `request_concurrency` exceeds `concurrent`"),
    ("C006", Fatal, "A label does not keep the rules of labels"),
    ("C007", Warning, "`check_interval` is very small for many runners"),
    ("C008", Error, "The executor is unknown, or not built yet"),
    ("C009", Info, "A key that Muster knows and does not act on"),
    ("C010", Warning, "Unknown or misspelled key or table"),
    ("C011", Warning, "A key that was removed"),
    ("C012", Warning, "A feature flag that was removed or never was"),
    ("C013", Warning, "A bare integer for a duration: it counts nanoseconds"),
    ("C014", Fatal, "A value of the wrong kind, or a duration that is none"),
    ("C015", Fatal, "A cron pattern with the wrong number of fields"),
    ("C016", Fatal, "A time zone that is not there"),
    ("C017", Warning, "A period that a later one always overrides"),
    ("C018", Warning, "A key in the wrong table, because of TOML's order"),
    ("C019", Fatal, "A regular expression that is none"),
    ("C020", Error, "A runner without a token"),
    ("C021", Error, "White space around token or URL"),
    ("C022", Error, "`$VAR` in token or URL is not set"),
    ("C023", Warning, "A `$VAR` token is replaced by its value when it is saved"),
    ("C024", Warning, "The URL ends with `/ci`"),
    ("C025", Warning, "Two runners share a token"),
    ("C026", Fatal, "A flag of registration together with an authentication token"),
    ("C027", Warning, "Two managers report one system id"),
    ("C028", Error, "The token expires, and is not renewed"),
    ("C030", Fatal, "Two processes on one config.toml"),
    ("C031", Warning, "A start without root rights takes the user's own config.toml"),
    ("C032", Warning, "config.toml is missing"),
    ("C033", Warning, "Others may read config.toml"),
    ("C034", Info, "The file changed, but its time did not"),
    ("C035", Warning, "A key changed that needs a restart"),
    ("C037", Warning, "Metrics on a public address, or debug logs"),
    ("C038", Warning, "`[session_server]` with an address that users cannot reach"),
    ("C040", Warning, "A stop that aborts jobs where a drain was wanted"),
    ("C041", Warning, "`shutdown_timeout` is too short for the clean-up"),
    ("C042", Warning, "A stage's timeout that is no timeout"),
    ("C050", Warning, "Jobs can gain root on the host"),
    ("C052", Warning, "Jobs can use private images of others"),
    ("C053", Warning, "A job's pull policy that is not allowed"),
    ("C054", Warning, "`*` in an image pattern does not match a slash"),
    ("C055", Warning, "A helper image of one's own"),
    ("C056", Warning, "`volume_keep`"),
    ("C058", Warning, "`cache_dir` is not on a volume"),
    ("C059", Info, "`disable_cache` is not about the cache of jobs"),
    ("C060", Error, "Cache storage without what it needs"),
    ("C070", Info, "`idle_count` counts job slots"),
    ("C071", Error, "Two runners share a group of instances"),
    ("C072", Info, "GitLab Runner would remove every instance at a restart"),
    ("C073", Warning, "Instances cannot hold as many jobs as the limit allows"),
    ("C074", Info, "Nothing is kept idle"),
    ("C075", Warning, "No limit of instances"),
    ("C076", Info, "The provider scales the group by itself"),
    ("C079", Warning, "`use_common_build_dir` without isolation"),
    ("C080", Warning, "`limit` leaves no room for idle machines"),
    ("C081", Warning, "A machine's name without `%s`, or too long"),
    ("C082", Warning, "Docker Machine is deprecated"),
    ("C083", Warning, "All slots share one cgroup"),
    ("C084", Warning, "Jobs that share an instance are one user"),
    ("C085", Error, "`vm_isolation` without what it needs"),
    ("C086", Error, "A plugin that is not there, or cannot be run"),
    ("C087", Warning, "A period that never comes"),
    ("C088", Error, "A count, an amount or a duration that is out of its range"),
    ("C090", Warning, "`poll_timeout` is too short for new nodes"),
    ("C091", Warning, "No namespace"),
    ("C092", Info, "Overwrites by jobs are not allowed"),
    ("C095", Warning, "A user or group that is no number"),
    ("C096", Warning, "`pod_spec` without its feature flag"),
    ("C097", Warning, "Suspending without the runner's id"),
    ("C100", Error, "The custom executor without what it needs"),
    ("C101", Warning, "SSH host keys are not verified, or not known"),
    ("C102", Warning, "Jobs run as the manager's user"),
    ("C103", Info, "`output_limit` counts KiB"),
    ("C105", Info, "A job's `FF_` variable has no effect"),
    ("C106", Warning, "An `environment` entry without `=`"),
    ("C107", Warning, "A proxy for the manager, not for jobs"),
    ("C108", Info, "A private authority that jobs do not know"),
    ("C109", Warning, "`clone_url` is no plain scheme and host"),
    ("C110", Warning, "Many runners with metrics of each job stage"),
];

/// The usual severity of a number.
pub(super) fn severity(code: &str) -> Severity {
    let known = CODES.iter().find(|(known, ..)| *known == code);
    debug_assert!(known.is_some(), "{code} is not listed");
    known.map_or(Warning, |(_, severity, _)| *severity)
}
