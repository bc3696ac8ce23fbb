//! What `register` takes beside the flags of an entry.

use std::path::PathBuf;

use crate::config_file::ConfigArg;
use crate::flags::{go_bool, go_int};
use crate::runner::entry::EntryFlags;

/// Arguments of `register`.
#[derive(Debug, clap::Args)]
#[command(after_help = "`--help` lists all flags, also those of the executors; `-h` the common ones.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) config: ConfigArg,
    /// Take what the flags do not say from the one [[runners]] entry of this file.
    #[arg(long, value_name = "FILE", env = "TEMPLATE_CONFIG_FILE", value_parser = crate::flags::path())]
    pub(super) template_config: Option<PathBuf>,
    /// Ask nothing: what is needed and missing is an error.
    #[arg(short, long, env = "REGISTER_NON_INTERACTIVE", value_parser = go_bool, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    #[arg(value_name = "BOOL")]
    pub(super) non_interactive: bool,
    /// Keep the runner at the server if the registration fails after it was made.
    #[arg(long, env = "REGISTER_LEAVE_RUNNER", value_parser = go_bool, num_args = 0..=1)]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    #[arg(value_name = "BOOL")]
    pub(super) leave_runner: bool,
    #[command(flatten)]
    pub(super) server: ServerArgs,
    #[command(flatten)]
    pub(super) entry: EntryFlags,
}

/// What only the server keeps. It is fixed there for runners that were made at the server.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Registration with a registration token (deprecated)")]
pub(super) struct ServerArgs {
    /// Registration token; deprecated: make the runner at the server, and pass its token with --token.
    #[arg(short, long, env = "REGISTRATION_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(super) registration_token: Option<String>,
    /// Tags, comma separated.
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
    /// Which refs the runner's jobs may have: not_protected or ref_protected.
    #[arg(long, env = "REGISTER_ACCESS_LEVEL", value_name = "LEVEL", default_value = "", hide_default_value = true)]
    #[arg(value_parser = access_level)]
    pub(super) access_level: String,
    /// Longest time of a job in seconds; 0 is the project's.
    #[arg(long, env = "REGISTER_MAXIMUM_TIMEOUT", value_name = "SECONDS", default_value = "0", value_parser = go_int)]
    pub(super) maximum_timeout: i64,
    /// Take no jobs yet.
    #[arg(long, env = "REGISTER_PAUSED", value_parser = go_bool, num_args = 0..=1, value_name = "BOOL")]
    #[arg(require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true)]
    pub(super) paused: bool,
    /// Note for those who keep the runner.
    #[arg(long, env = "REGISTER_MAINTENANCE_NOTE", value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) maintenance_note: String,
}

impl ServerArgs {
    /// Those that are set: for a runner that was made at the server, it alone decides them.
    pub(super) fn set(&self) -> Vec<&'static str> {
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

fn access_level(text: &str) -> Result<String, String> {
    match text {
        "" | "not_protected" | "ref_protected" => Ok(text.to_owned()),
        _ => Err("the access level is not_protected or ref_protected".to_owned()),
    }
}
