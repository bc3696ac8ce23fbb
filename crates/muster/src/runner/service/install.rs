//! `install` and `uninstall`: write or delete the systemd unit, and enable or disable it.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::systemctl::{Scope, Systemctl};
use super::unit::{Unit, tmp_unit, tmp_unit_name};
use super::{ServiceArgs, ServiceError, unit_name};
use crate::paths;

const NEW_CONFIG: &str = "\
# Configuration of the runner; `gitlab-runner register` adds runners.

# Maximum number of jobs at the same time, over all runners.
concurrent = 1
";

/// Arguments of `gitlab-runner install`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceInstallArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Configuration file of the service. It is created if it does not exist. [default: `config.toml` of the service's user]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Working directory of the service. [default: the current directory]
    #[arg(short = 'd', long, value_name = "DIR")]
    working_directory: Option<PathBuf>,
    /// Also log to syslog. With systemd, the log is always in the journal.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    #[arg(value_parser = crate::flags::go_bool, hide_default_value = true, value_name = "BOOL")]
    syslog: bool,
    /// Run the manager as root, and the commands of jobs as this user.
    #[arg(short, long, value_name = "NAME", conflicts_with = "init_user")]
    user: Option<String>,
    /// Run the manager and the commands of jobs as this user.
    #[arg(short, long, value_name = "NAME")]
    init_user: Option<String>,
    /// Install into the system below this directory, for example to build an image.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

/// Arguments of `gitlab-runner uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceUninstallArgs {
    #[command(flatten)]
    service: ServiceArgs,
    /// Uninstall from the system below this directory.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

pub(in crate::runner) fn install(args: &ServiceInstallArgs) -> ExitCode {
    crate::runner::error::exit_code(try_install(args))
}

pub(in crate::runner) fn uninstall(args: &ServiceUninstallArgs) -> ExitCode {
    crate::runner::error::exit_code(try_uninstall(args))
}

fn try_install(args: &ServiceInstallArgs) -> Result<(), ServiceError> {
    let scope = Scope::of(args.service.user_service);
    let (user, init_user) = (non_empty(args.user.as_deref()), non_empty(args.init_user.as_deref()));
    if scope == Scope::System {
        check_user_is_root(args.root.as_deref())?;
        if user.is_none() && init_user.is_none() {
            return Err(ServiceError::NoUser);
        }
    }
    let file_error = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ServiceError::File { action, path, source }
    };
    let absolute = |path: &Path| std::path::absolute(path).map_err(file_error("resolve the path", path));
    let init_user_entry = init_user.and_then(|user| paths::user_in(args.root.as_deref(), user));
    let config = match (&args.config, init_user, &init_user_entry) {
        (Some(config), _, _) => absolute(config)?,
        (None, Some(_), Some(entry)) => entry.home.join("config.toml"),
        (None, Some(user), None) => return Err(ServiceError::NoHome { user: user.to_owned() }),
        (None, None, _) => paths::default_config_file(),
    };
    let working_directory = absolute(args.working_directory.as_deref().unwrap_or(Path::new(".")))?;
    let executable = std::env::current_exe().map_err(file_error("find the program", Path::new("/proc/self/exe")))?;
    let mut arguments = program_command(&executable);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    arguments.extend(["--config".into(), text(&config), "--working-directory".into(), text(&working_directory)]);
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

    let in_root = |path: &Path| path_in_root(args.root.as_deref(), path);
    let config = in_root(&config);
    let is_own = init_user_entry.as_ref().is_some_and(|entry| entry.uid == rustix::process::geteuid().as_raw());
    // Only root can change owners.
    let owner = init_user_entry.filter(|_| paths::is_root()).map(|entry| Owner { uid: entry.uid, gid: entry.gid });
    let is_new = create_config(&config, owner).map_err(file_error("write", &config))?;
    if is_new {
        tracing::info!(path = %config.display(), "Created the configuration file");
    }
    if let (true, Some(user), None) = (is_new && !is_own, init_user, owner) {
        let path = config.display();
        tracing::warn!(
            "{path} is not readable for the user of the service; run `chown {user}: {path}`, and do the same for its \
             directory if the directory is new"
        );
    }
    let directory = in_root(&scope.unit_directory()?);
    fs::create_dir_all(&directory).map_err(file_error("create the directory", &directory))?;
    let path = directory.join(unit_name(&args.service.service));
    match create_file(&path, 0o644, &unit, None) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(ServiceError::Installed { path }),
        created => created.map_err(file_error("write", &path))?,
    }
    let tmp_path = (scope == Scope::System).then(|| directory.join(tmp_unit_name(&args.service.service)));
    let written = match &tmp_path {
        Some(path) => fs::write(path, tmp_unit(&args.service.service)).map_err(file_error("write", path)),
        None => Ok(()),
    };
    let systemctl = Systemctl::new(scope, args.root.as_deref());
    let enabled = written.and_then(|()| enable_unit(&systemctl, args.root.is_none(), &args.service.service));
    if enabled.is_err() {
        // The next attempt would fail if these files existed.
        for path in [Some(&path), tmp_path.as_ref()].into_iter().flatten() {
            let _ = fs::remove_file(path);
        }
        if is_new {
            let _ = fs::remove_file(&config);
        }
    }
    enabled?;
    tracing::info!(unit = %path.display(), "Installed; run `gitlab-runner start` to start it");
    Ok(())
}

/// Makes systemd read and enable the unit.
///
/// `is_running_system` is false for the system below `--root`, which reads the unit when it boots.
fn enable_unit(systemctl: &Systemctl, is_running_system: bool, service: &str) -> Result<(), ServiceError> {
    if is_running_system {
        systemctl.run(&["daemon-reload"])?;
    }
    systemctl.run(&["enable", &unit_name(service)])
}

fn try_uninstall(args: &ServiceUninstallArgs) -> Result<(), ServiceError> {
    let scope = Scope::of(args.service.user_service);
    if scope == Scope::System {
        check_user_is_root(args.root.as_deref())?;
    }
    let unit = unit_name(&args.service.service);
    let directory = path_in_root(args.root.as_deref(), &scope.unit_directory()?);
    let path = directory.join(&unit);
    if !path.exists() {
        return Err(ServiceError::NotInstalled { path });
    }
    let systemctl = Systemctl::new(scope, args.root.as_deref());
    systemctl.run(&["disable", &unit])?;
    let tmp_path = directory.join(tmp_unit_name(&args.service.service));
    for path in [&path, &tmp_path] {
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

/// Checks that this process runs as root. For another system, the permissions of its directory decide instead.
fn check_user_is_root(other_system: Option<&Path>) -> Result<(), ServiceError> {
    if other_system.is_none() && !paths::is_root() { Err(ServiceError::NotRoot) } else { Ok(()) }
}

fn program_command(executable: &Path) -> Vec<String> {
    let is_muster = !crate::runner::is_called(Some(&executable.as_os_str().to_owned()));
    let words = if is_muster { &["runner", "run"][..] } else { &["run"][..] };
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn path_in_root(root: Option<&Path>, path: &Path) -> PathBuf {
    match root {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// Owner of new files.
#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
}

/// Creates the configuration file, and returns true. Returns false if it already exists.
///
/// `owner` becomes the owner of the file, and of its directory if the directory is new. `None` means this process's user.
fn create_config(path: &Path, owner: Option<Owner>) -> io::Result<bool> {
    let new_directory = path.parent().filter(|directory| !directory.exists());
    if let Some(directory) = new_directory {
        // Only the directory of the file is private. Its owner must be able to enter the directories above.
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent)?;
        }
        DirBuilder::new().mode(0o700).create(directory)?;
    }
    match create_file(path, 0o600, NEW_CONFIG, owner) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        created => created?,
    }
    if let (Some(directory), Some(Owner { uid, gid })) = (new_directory, owner) {
        // The user may be able to replace the directory by a link.
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(directory)?;
        fchown(opened, Some(uid), Some(gid))?;
    }
    Ok(true)
}

/// Creates a file with this content. After an error, such as a full disk, no incomplete file remains.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the file exists, or the error of the system.
fn create_file(path: &Path, mode: u32, content: &str, owner: Option<Owner>) -> io::Result<()> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(mode))
        .tempfile_in(path.parent().unwrap_or(Path::new("/")))?;
    file.write_all(content.as_bytes())?;
    if let Some(Owner { uid, gid }) = owner {
        fchown(file.as_file(), Some(uid), Some(gid))?;
    }
    file.persist_noclobber(path).map(drop).map_err(|error| error.error)
}

fn non_empty(name: Option<&str>) -> Option<&str> {
    name.filter(|name| !name.is_empty())
}
