use std::path::PathBuf;

use crate::config_file::ConfigArg;
use crate::flags::{go_bool, go_int};
use crate::runner::entry::EntryFlags;

/// Arguments of `gitlab-runner register`.
#[derive(Debug, clap::Args)]
#[command(after_help = "`--help` lists all flags, including those of executors; `-h` lists the common flags.")]
pub(crate) struct RegisterArgs {
    #[command(flatten)]
    pub(super) config: ConfigArg,
    /// Use the only [[runners]] entry of this file for settings that the flags do not set.
    #[arg(long, value_name = "FILE", env = "TEMPLATE_CONFIG_FILE", value_parser = crate::flags::path())]
    pub(super) template_config: Option<PathBuf>,
    /// Do not prompt. Missing required settings are errors.
    #[arg(short, long, env = "REGISTER_NON_INTERACTIVE", value_parser = go_bool, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    #[arg(value_name = "BOOL")]
    pub(super) non_interactive: bool,
    /// Do not delete the runner on the server if the registration fails later.
    #[arg(long, env = "REGISTER_LEAVE_RUNNER", value_parser = go_bool, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    #[arg(value_name = "BOOL")]
    pub(super) leave_runner: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) entry: EntryFlags,
}

/// Settings that only the server stores. A runner that was created on the server does not accept them.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Registration with a registration token (deprecated)")]
pub(super) struct ServerArgs {
    /// Registration token. Deprecated: create the runner on the server, and set --token to its authentication token.
    #[arg(short, long, env = "REGISTRATION_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(super) registration_token: Option<String>,
    /// Comma-separated tags.
    #[arg(long, env = "RUNNER_TAG_LIST", value_name = "TAGS", default_value = "", hide_default_value = true)]
    pub(super) tag_list: String,
    /// Run jobs without tags. [default: true if --tag-list is empty]
    #[arg(long, env = "REGISTER_RUN_UNTAGGED", value_parser = go_bool, num_args = 0..=1, value_name = "BOOL")]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    pub(super) run_untagged: bool,
    /// Lock the runner to its project.
    #[arg(long, env = "REGISTER_LOCKED", value_parser = go_bool, num_args = 0..=1, value_name = "BOOL")]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "true")]
    pub(super) locked: bool,
    /// Access level of the runner: not_protected or ref_protected.
    #[arg(long, env = "REGISTER_ACCESS_LEVEL", value_name = "LEVEL", default_value = "", hide_default_value = true)]
    #[arg(value_parser = access_level)]
    pub(super) access_level: String,
    /// Maximum duration of jobs in seconds; 0 uses the project's setting.
    #[arg(long, env = "REGISTER_MAXIMUM_TIMEOUT", value_name = "SECONDS", default_value = "0", value_parser = go_int)]
    pub(super) maximum_timeout: i64,
    /// Pause the runner, so that it gets no jobs.
    #[arg(long, env = "REGISTER_PAUSED", value_parser = go_bool, num_args = 0..=1, value_name = "BOOL")]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    pub(super) paused: bool,
    /// Maintenance note for administrators.
    #[arg(long, env = "REGISTER_MAINTENANCE_NOTE", value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) maintenance_note: String,
}

impl ServerArgs {
    /// Returns the flags whose value is not the default.
    pub(super) fn changed_flags(&self) -> Vec<&'static str> {
        let all = [
            ("--tag-list", !self.tag_list.is_empty()),
            ("--run-untagged", self.run_untagged),
            ("--locked", !self.locked),
            ("--access-level", !self.access_level.is_empty()),
            ("--maximum-timeout", self.maximum_timeout != 0),
            ("--paused", self.paused),
            ("--maintenance-note", !self.maintenance_note.is_empty()),
        ];
        all.into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("expected not_protected or ref_protected")]
struct AccessLevelError;

fn access_level(text: &str) -> Result<String, AccessLevelError> {
    match text {
        "" | "not_protected" | "ref_protected" => Ok(text.to_owned()),
        _ => Err(AccessLevelError),
    }
}
