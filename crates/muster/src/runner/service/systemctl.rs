use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::ServiceError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    System,
    User,
}

impl Scope {
    pub(super) fn of(user_service: bool) -> Self {
        if user_service { Self::User } else { Self::System }
    }

    /// Returns the directory of the unit files: the administrator's directory for a system service, or the user's own.
    pub(super) fn unit_directory(self) -> Result<PathBuf, ServiceError> {
        if self == Self::System {
            return Ok(PathBuf::from("/etc/systemd/system"));
        }
        let variable = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let config = variable.or_else(|| Some(crate::paths::home()?.join(".config")));
        config.map(|config| config.join("systemd/user")).ok_or(ServiceError::NoOwnHome)
    }
}

#[derive(Debug)]
pub(super) struct Systemctl {
    scope: Scope,
    root: Option<PathBuf>,
}

impl Systemctl {
    /// `root` is the root directory of another system, which need not run. `None` means the running system.
    pub(super) fn new(scope: Scope, root: Option<&Path>) -> Self {
        Self { scope, root: root.map(Path::to_owned) }
    }

    /// Runs `systemctl` with these arguments. If `systemctl` fails, the error has its error output.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<(), ServiceError> {
        let (text, output) = self.output(arguments)?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let message = if message.is_empty() { "no error output".to_owned() } else { message };
        // -1 means that a signal ended the program.
        Err(ServiceError::Systemctl { arguments: text, code: output.status.code().unwrap_or(-1), message })
    }

    /// Returns systemd's name of the state, or `not-found` if the unit does not exist.
    pub(super) fn state(&self, unit: &str) -> Result<String, ServiceError> {
        let arguments = ["show", "--property=LoadState", "--property=ActiveState", unit];
        let (text, output) = self.output(&arguments)?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(ServiceError::Systemctl { arguments: text, code: output.status.code().unwrap_or(-1), message });
        }
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let property = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        if property("LoadState") == Some("not-found") {
            return Ok("not-found".to_owned());
        }
        Ok(property("ActiveState").unwrap_or("unknown").trim().to_owned())
    }

    fn output(&self, arguments: &[&str]) -> Result<(String, Output), ServiceError> {
        let mut command = Command::new("systemctl");
        if self.scope == Scope::User {
            command.arg("--user");
        }
        if let Some(root) = &self.root {
            command.arg("--root").arg(root);
        }
        command.args(arguments).stdin(Stdio::null());
        let text = arguments.join(" ");
        match command.output() {
            Ok(output) => Ok((text, output)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(ServiceError::NoSystemd),
            Err(source) => Err(ServiceError::Spawn { arguments: text, source }),
        }
    }
}
