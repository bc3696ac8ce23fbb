//! `install`, `uninstall`, `start`, `stop`, `restart` and `status`: the runner as a systemd service.

mod install;
mod systemctl;
mod unit;

use std::path::PathBuf;
use std::process::ExitCode;

pub(super) use install::{ServiceInstallArgs, ServiceUninstallArgs, install, uninstall};
use systemctl::{Scope, Systemctl};

#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Name of the service.
    #[arg(short = 'n', long, default_value = "gitlab-runner", value_name = "NAME", value_parser = service_name)]
    service: String,
    /// Use a service of this user instead of a system service.
    #[arg(long)]
    user_service: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Start,
    Stop,
    Restart,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error(
        "no `systemctl` on PATH; only systemd services are supported; use the init system of this machine to start \
             `gitlab-runner run`"
    )]
    NoSystemd,
    #[error("failed to run `systemctl {arguments}`")]
    Spawn { arguments: String, source: std::io::Error },
    #[error("`systemctl {arguments}` failed with exit code {code}: {message}")]
    Systemctl { arguments: String, code: i32, message: String },
    #[error("failed to {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the service is already installed in {}; uninstall it first, or set another --service", path.display())]
    Installed { path: PathBuf },
    #[error("the service is not installed: {} does not exist; check --service, --user-service and --root", path.display())]
    NotInstalled { path: PathBuf },
    #[error(
        "please specify the user of the service: --user NAME runs the commands of jobs as that user, --init-user NAME runs everything as that user"
    )]
    NoUser,
    #[error("user {user} has no entry in /etc/passwd; set --config to its configuration")]
    NoHome { user: String },
    #[error("this user has no home directory: HOME is not set, and /etc/passwd has no entry; set HOME")]
    NoOwnHome,
    #[error("a system service requires root; run the command with sudo, or use --user-service")]
    NotRoot,
    #[error("{value} contains a line break, which is not allowed in a systemd unit")]
    LineEnd { value: &'static str },
}

pub(super) fn control(verb: Verb, args: &ServiceArgs) -> ExitCode {
    let systemctl = Systemctl::new(Scope::of(args.user_service), None);
    super::error::exit_code(systemctl.run(&[verb.as_str(), &unit_name(&args.service)]))
}

/// If the service is running, returns 0 and prints to standard output. Otherwise, returns 1 and prints to standard
/// error.
pub(super) fn status(args: &ServiceArgs) -> ExitCode {
    let systemctl = Systemctl::new(Scope::of(args.user_service), None);
    let name = &args.service;
    match systemctl.state(&unit_name(name)) {
        Ok(state) if state == "active" || state == "reloading" => {
            anstream::println!("{name}: Service is running");
            return ExitCode::SUCCESS;
        }
        Ok(state) => {
            let text = match state.as_str() {
                "inactive" | "failed" | "deactivating" => "Service has stopped",
                "not-found" => "the service is not installed",
                "activating" => "Service is starting",
                _ => "Service status unknown",
            };
            anstream::eprintln!("{name}: {text}");
        }
        Err(error) => anstream::eprintln!("{name}: {}", muster_job::error_chain(&error)),
    }
    ExitCode::FAILURE
}

fn unit_name(service: &str) -> String {
    format!("{service}.service")
}

#[derive(Debug, thiserror::Error)]
#[error("invalid service name; use at most 200 letters, digits and the characters :_.@-")]
struct ServiceNameError;

/// Accepts a name of at most 200 letters, digits and `:_.@-` that does not begin with `-` or `.`.
fn service_name(text: &str) -> Result<String, ServiceNameError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":_.@-".contains(&byte);
    if !text.is_empty() && !text.starts_with(['-', '.']) && text.len() <= 200 && text.bytes().all(is_allowed) {
        return Ok(text.to_owned());
    }
    Err(ServiceNameError)
}
