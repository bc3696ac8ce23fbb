//! The text of the unit.

use std::path::Path;

use super::ServiceError;
use super::systemctl::Scope;

/// What the unit says.
pub(super) struct Unit<'a> {
    /// Name of the service.
    pub(super) service: &'a str,
    /// The program.
    pub(super) executable: &'a Path,
    /// Its arguments.
    pub(super) arguments: &'a [String],
    /// As whom systemd runs it; none is root, or the user whose service it is.
    pub(super) user: Option<&'a str>,
    /// Whose service.
    pub(super) scope: Scope,
}

impl Unit<'_> {
    /// The text of the file.
    pub(super) fn render(&self) -> Result<String, ServiceError> {
        let executable = self.executable.to_string_lossy();
        let mut command = quoted(&executable, "the path of the program")?;
        for argument in self.arguments {
            command.push(' ');
            command.push_str(&quoted(argument, "an argument")?);
        }
        let condition = escaped_percent(&executable);
        let user = match self.user {
            Some(user) if user.contains(['\n', '\r']) => return Err(ServiceError::LineEnd { what: "the user's name" }),
            Some(user) => format!("User={}\n", escaped_percent(user)),
            None => String::new(),
        };
        // A service of a user has one from systemd. In root's are installed plugins; jobs have that of their user, by `su`.
        let home = match (self.scope, self.user) {
            (Scope::System, None) => "Environment=HOME=%h\n",
            _ => "",
        };
        let (after, wanted_by) = match self.scope {
            Scope::System => ("After=network-online.target\nWants=network-online.target\n", "multi-user.target"),
            Scope::User => ("", "default.target"),
        };
        let service = self.service;
        Ok(format!(
            "[Unit]
Description=GitLab Runner
ConditionFileIsExecutable={condition}
{after}StartLimitIntervalSec=0

[Service]
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{user}{home}Restart=always
RestartSec=1
EnvironmentFile=-/etc/default/{service}
EnvironmentFile=-/etc/sysconfig/{service}
# A stop asks for a drain (SIGQUIT) of 30 s. Then only the manager is ended (KillMode=process): jobs that still run go on
# at their agent, and the next start takes them up. So neither a restart nor an upgrade loses a job. To let a stop wait
# for all jobs, raise TimeoutStopSec with `systemctl edit {service}`.
KillMode=process
KillSignal=SIGQUIT
TimeoutStopSec=30
# A job that runs out of memory fails; it does not take the others with it.
OOMPolicy=continue
TasksMax=infinity

[Install]
WantedBy={wanted_by}
"
        ))
    }
}

/// One word of a command line as systemd reads it: no variable, no specifier, no escape has a meaning in it.
fn quoted(word: &str, what: &'static str) -> Result<String, ServiceError> {
    if word.contains(['\n', '\r']) {
        return Err(ServiceError::LineEnd { what });
    }
    let escaped = escaped_percent(&word.replace('\\', "\\\\").replace('"', "\\\"")).replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.=:@,+".contains(c);
    Ok(if !word.is_empty() && word.chars().all(plain) { escaped } else { format!("\"{escaped}\"") })
}

fn escaped_percent(text: &str) -> String {
    text.replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_so_that_systemd_gives_them_back() {
        for (word, line) in [
            ("/usr/bin/gitlab-runner", "/usr/bin/gitlab-runner"),
            ("", "\"\""),
            ("two words", "\"two words\""),
            ("50%", "\"50%%\""),
            ("$HOME", "\"$$HOME\""),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
        ] {
            assert_eq!(quoted(word, "a word").unwrap(), line);
        }
        quoted("two\nlines", "a word").unwrap_err();
    }
}
