//! `install`, `uninstall`, `start`, `stop`, `restart`, `status`: the runner as a service of systemd.

mod install;
mod systemctl;
mod unit;

use std::path::PathBuf;
use std::process::ExitCode;

pub(super) use install::{InstallArgs, UninstallArgs, install, uninstall};
use systemctl::{Scope, Systemctl};

/// Which service.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the service.
    #[arg(short = 'n', long, default_value = "gitlab-runner", value_name = "NAME", value_parser = service_name)]
    service: String,
    /// A service of this user, not of the system.
    #[arg(long)]
    user_service: bool,
}

/// What is to be done with a service that is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Start,
    Stop,
    Restart,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

/// Why a service cannot be handled. What `systemctl` says itself is told in its own words.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error(
        "no `systemctl` on the PATH: services are handled by systemd only; on this machine let its own init system \
         start `gitlab-runner run`"
    )]
    NoSystemd,
    #[error("`systemctl {arguments}` cannot be run")]
    Spawn { arguments: String, source: std::io::Error },
    #[error("`systemctl {arguments}` failed with exit code {code}: {message}")]
    Systemctl { arguments: String, code: i32, message: String },
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the service is already installed in {}: uninstall it first, or choose another --service", path.display())]
    Installed { path: PathBuf },
    #[error("the service is not installed: there is no {}", path.display())]
    NotInstalled { path: PathBuf },
    #[error(
        "please specify the user of the service: --user NAME, whose jobs' commands run as that user, or --init-user NAME, as whom all of it runs"
    )]
    NoUser,
    #[error("the home of the user {user} is not in /etc/passwd; say with --config where its configuration is")]
    NoHome { user: String },
    #[error("neither HOME nor /etc/passwd says where the home of this user is")]
    NoOwnHome,
    #[error("a service of the system needs root: run it with sudo, or use --user-service")]
    NotRoot,
    #[error("{what} holds a line end, which a unit of systemd cannot")]
    LineEnd { what: &'static str },
}

/// Runs `start`, `stop` or `restart`.
pub(super) fn control(verb: Verb, args: &Args) -> ExitCode {
    let systemctl = Systemctl::new(Scope::of(args.user_service), None);
    super::error::ended(systemctl.run(&[verb.word(), &unit_name(&args.service)]))
}

/// Runs `status`: 0 and a line on standard output where the service runs, else 1 and a line on standard error.
pub(super) fn status(args: &Args) -> ExitCode {
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

/// The names that systemd takes.
fn service_name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b":_.@-".contains(&byte);
    if !text.is_empty() && !text.starts_with(['-', '.']) && text.len() <= 200 && text.bytes().all(fits) {
        return Ok(text.to_owned());
    }
    Err("a service's name has letters, digits and :_.@- only".to_owned())
}
