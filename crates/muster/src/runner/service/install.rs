//! `install` and `uninstall`: the unit's file, and systemd's knowledge of it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::systemctl::{Scope, Systemctl};
use super::unit::{Unit, temporary_unit, temporary_unit_name};
use super::{Args, ServiceError, unit_name};
use crate::paths;

/// What a new configuration file says.
const NEW_CONFIG: &str = "\
# Configuration of the runner; `gitlab-runner register` adds runners.

# Jobs at the same time, over all runners.
concurrent = 1
";

/// Arguments of `install`.
#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    service: Args,
    /// Configuration file of the service; it is made if it is not there. [default: that of the user it runs as]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder in which the service works. [default: the present one]
    #[arg(short = 'd', long, value_name = "DIR")]
    working_directory: Option<PathBuf>,
    /// Log to syslog too; with systemd, the journal has the log anyway.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(value_parser = crate::flags::go_bool, hide_default_value = true, value_name = "BOOL")]
    syslog: bool,
    /// Run the manager as root, and the commands of jobs as this user.
    #[arg(short, long, value_name = "NAME", conflicts_with = "init_user")]
    user: Option<String>,
    /// Run all of it as this user.
    #[arg(short, long, value_name = "NAME")]
    init_user: Option<String>,
    /// Install into the system below this folder, for the build of an image.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Arguments of `uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct UninstallArgs {
    #[command(flatten)]
    service: Args,
    /// Uninstall from the system below this folder.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Runs `install`.
pub(in crate::runner) fn install(args: &InstallArgs) -> ExitCode {
    crate::runner::error::ended(try_install(args))
}

/// Runs `uninstall`.
pub(in crate::runner) fn uninstall(args: &UninstallArgs) -> ExitCode {
    crate::runner::error::ended(try_uninstall(args))
}

fn try_install(args: &InstallArgs) -> Result<(), ServiceError> {
    let scope = Scope::of(args.service.user_service);
    let (user, init_user) = (filled(args.user.as_deref()), filled(args.init_user.as_deref()));
    if scope == Scope::System {
        check_root(args.root.as_deref())?;
        if user.is_none() && init_user.is_none() {
            return Err(ServiceError::NoUser);
        }
    }
    let file = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ServiceError::File { action, path, source }
    };
    let absolute = |path: &Path| std::path::absolute(path).map_err(file("find", path));
    let config = match (&args.config, init_user) {
        (Some(config), _) => absolute(config)?,
        (None, Some(user)) => {
            let home = paths::home_of_user(user).ok_or_else(|| ServiceError::NoHome { user: user.to_owned() })?;
            home.join("config.toml")
        }
        (None, None) => paths::default_config_file(),
    };
    let work = absolute(args.working_directory.as_deref().unwrap_or(Path::new(".")))?;
    let executable = std::env::current_exe().map_err(file("find the program", Path::new("/proc/self/exe")))?;
    let mut arguments = program_words(&executable);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    arguments.extend(["--config".into(), text(&config), "--working-directory".into(), text(&work)]);
    arguments.extend(["--service".into(), args.service.service.clone()]);
    if args.syslog {
        arguments.push("--syslog".into());
    }
    if let Some(user) = user {
        arguments.extend(["--user".into(), user.to_owned()]);
    }
    let unit =
        Unit { service: &args.service.service, executable: &executable, arguments: &arguments, user: init_user, scope };
    let unit = unit.render()?;

    let in_root = |path: &Path| below(args.root.as_deref(), path);
    let config = in_root(&config);
    let is_new = new_config(&config).map_err(file("write", &config))?;
    if is_new {
        tracing::info!(path = %config.display(), "Created the configuration file");
    }
    let folder = in_root(&scope.units()?);
    fs::create_dir_all(&folder).map_err(file("make the folder", &folder))?;
    let path = folder.join(unit_name(&args.service.service));
    match OpenOptions::new().create_new(true).write(true).mode(0o644).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(ServiceError::Installed { path }),
        opened => opened.and_then(|mut new| new.write_all(unit.as_bytes())).map_err(file("write", &path))?,
    }
    let temporary = (scope == Scope::System).then(|| folder.join(temporary_unit_name(&args.service.service)));
    let written = match &temporary {
        Some(path) => fs::write(path, temporary_unit(&args.service.service)).map_err(file("write", path)),
        None => Ok(()),
    };
    let systemctl = Systemctl::new(scope, args.root.as_deref());
    let known = written.and_then(|()| register(&systemctl, args.root.is_none(), &args.service.service));
    if known.is_err() {
        // What systemd does not know is not installed: the next attempt starts afresh.
        for path in [Some(&path), temporary.as_ref()].into_iter().flatten() {
            let _ = fs::remove_file(path);
        }
        if is_new {
            let _ = fs::remove_file(&config);
        }
    }
    known?;
    tracing::info!(unit = %path.display(), "Installed; `gitlab-runner start` starts it");
    Ok(())
}

fn register(systemctl: &Systemctl, running: bool, service: &str) -> Result<(), ServiceError> {
    if running {
        systemctl.run(&["daemon-reload"])?;
    }
    systemctl.run(&["enable", &unit_name(service)])
}

fn try_uninstall(args: &UninstallArgs) -> Result<(), ServiceError> {
    let scope = Scope::of(args.service.user_service);
    if scope == Scope::System {
        check_root(args.root.as_deref())?;
    }
    let unit = unit_name(&args.service.service);
    let folder = below(args.root.as_deref(), &scope.units()?);
    let path = folder.join(&unit);
    if !path.exists() {
        return Err(ServiceError::NotInstalled { path });
    }
    let systemctl = Systemctl::new(scope, args.root.as_deref());
    systemctl.run(&["disable", &unit])?;
    let temporary = folder.join(temporary_unit_name(&args.service.service));
    for path in [&path, &temporary] {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed.map_err(|source| ServiceError::File { action: "delete", path: path.clone(), source })?,
        }
    }
    if args.root.is_none() {
        systemctl.run(&["daemon-reload"])?;
    }
    tracing::info!(unit = %path.display(), "Uninstalled");
    Ok(())
}

/// Who may write there is left to the system where the service is for another one.
fn check_root(other_system: Option<&Path>) -> Result<(), ServiceError> {
    if other_system.is_none() && !paths::is_root() { Err(ServiceError::NotRoot) } else { Ok(()) }
}

/// The words that make the program run jobs: under its own name it has the commands below `runner`.
fn program_words(executable: &Path) -> Vec<String> {
    let own = !crate::runner::is_called(Some(&executable.as_os_str().to_owned()));
    let words = if own { &["runner", "run"][..] } else { &["run"][..] };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn below(root: Option<&Path>, path: &Path) -> PathBuf {
    match root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// Makes a configuration file where there is none.
fn new_config(path: &Path) -> io::Result<bool> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        opened => opened?.write_all(NEW_CONFIG.as_bytes()).map(|()| true),
    }
}

fn filled(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty())
}
