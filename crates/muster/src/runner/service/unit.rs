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
        let service = self.service;
        let (after, hardening, wanted_by) = match self.scope {
            Scope::System => {
                let temporary = temporary_unit_name(service);
                let after = format!(
                    "After=network-online.target {temporary}\nWants=network-online.target {temporary}\n\
                     JoinsNamespaceOf={temporary}\n"
                );
                (after, hardening(&temporary), "multi-user.target")
            }
            // A mount namespace of an unprivileged user takes a user namespace, in which no job could use sudo.
            Scope::User => (String::new(), String::new(), "default.target"),
        };
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
{hardening}
[Install]
WantedBy={wanted_by}
"
        ))
    }
}

/// Name of the unit that holds the temporary directory of a service.
pub(super) fn temporary_unit_name(service: &str) -> String {
    format!("{service}-tmp.service")
}

/// The unit that holds the temporary directory of a service. systemd deletes the private /tmp of a unit when it stops, and with
/// it the files of jobs that go on; one that is shared with a unit that stays is kept.
pub(super) fn temporary_unit(service: &str) -> String {
    format!(
        "[Unit]
Description=Temporary directory of {service}, kept while jobs outlive a restart

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
PrivateTmp=yes
"
    )
}

/// The lines that close what jobs do not need. Jobs are processes of the service, so that each line counts for them too.
fn hardening(temporary: &str) -> String {
    format!(
        "
# Neither /tmp nor /var/tmp is shared with other users of this host. The directory belongs to {temporary}, which
# stays when this service stops: systemd would delete it, and jobs go on. What a job mounts is seen by this service only.
PrivateTmp=yes
# Not set, since jobs are processes of this service and do what their authors do on this host:
# - NoNewPrivileges=, and what implies it for a user other than root (SystemCallFilter=, RestrictNamespaces=,
#   PrivateDevices=, ProtectKernelTunables= and others): `sudo` in jobs, and `su` to their user, need new privileges.
# - ProtectSystem=, ProtectHome=, ReadOnlyPaths=: jobs install packages, deploy, and work in the home of their user.
# - ProtectControlGroups=: each job may have a cgroup of its own.
# - PrivateNetwork=, IPAddressDeny=: jobs fetch, push and serve.
# - CapabilityBoundingSet=: builds of images and packages as root use chroot, mount and mknod.
# Where no job needs one of these, add it with `systemctl edit`.
"
    )
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
