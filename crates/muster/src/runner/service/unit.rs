//! Content of the systemd unit.

use std::path::Path;

use super::ServiceError;
use super::systemctl::Scope;

pub(super) struct Unit<'a> {
    pub(super) service: &'a str,
    pub(super) executable: &'a Path,
    pub(super) arguments: &'a [String],
    /// `None` means root, or the owner of a user service.
    pub(super) user: Option<&'a str>,
    pub(super) scope: Scope,
}

impl Unit<'_> {
    pub(super) fn render(&self) -> Result<String, ServiceError> {
        let executable = self.executable.to_string_lossy();
        let mut command = quoted(&executable, "the path of the program")?;
        for argument in self.arguments {
            command.push(' ');
            command.push_str(&quoted(argument, "an argument")?);
        }
        let condition = escaped_percent(&executable);
        let user = match self.user {
            Some(user) if user.contains(['\n', '\r']) => {
                return Err(ServiceError::LineEnd { value: "the user's name" });
            }
            Some(user) => format!("User={}\n", escaped_percent(user)),
            None => String::new(),
        };
        // systemd sets no HOME for a system service without `User=`, but the manager finds its plugins in root's home.
        // Jobs get the home of their user from `su`.
        let home = match (self.scope, self.user) {
            (Scope::System, None) => "Environment=HOME=%h\n",
            _ => "",
        };
        let service = self.service;
        let (after, hardening, wanted_by) = match self.scope {
            Scope::System => {
                let tmp_unit = tmp_unit_name(service);
                let after = format!(
                    "After=network-online.target {tmp_unit}\nWants=network-online.target {tmp_unit}\n\
                     JoinsNamespaceOf={tmp_unit}\n"
                );
                (after, hardening(&tmp_unit), "multi-user.target")
            }
            // For an unprivileged user, a mount namespace requires a user namespace, in which jobs could not use sudo.
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
# `systemctl stop` starts a graceful shutdown (SIGQUIT). After 30 s, only the manager is killed (KillMode=process): running jobs
# continue at their agent, and the next start resumes them. Thus neither a restart nor an upgrade loses a job. To wait
# longer for jobs, raise TimeoutStopSec with `systemctl edit {service}`.
KillMode=process
KillSignal=SIGQUIT
TimeoutStopSec=30
# A job that runs out of memory fails, but other jobs continue.
OOMPolicy=continue
TasksMax=infinity
{hardening}
[Install]
WantedBy={wanted_by}
"
        ))
    }
}

/// Returns the name of the unit that owns the temporary directory of a service.
pub(super) fn tmp_unit_name(service: &str) -> String {
    format!("{service}-tmp.service")
}

/// Returns the unit that owns the temporary directory of a service.
///
/// When a unit stops, systemd deletes its private /tmp, and with it the files of running jobs. So /tmp belongs to this
/// unit, which remains active when the service stops.
pub(super) fn tmp_unit(service: &str) -> String {
    format!(
        "[Unit]
Description=Temporary directory of {service}, kept across restarts for running jobs

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
PrivateTmp=yes
"
    )
}

/// Returns the lines that restrict the service, and with it the jobs.
fn hardening(tmp_unit: &str) -> String {
    format!(
        "
# /tmp and /var/tmp are not shared with other users of this host. The directory belongs to {tmp_unit}, which
# remains active when this service stops, because running jobs still use it. Mounts of jobs are visible to this service only.
PrivateTmp=yes
# Not set, because jobs are processes of this service and may do anything that their authors do on this host:
# - NoNewPrivileges=, and settings that imply it for users other than root (SystemCallFilter=, RestrictNamespaces=,
#   PrivateDevices=, ProtectKernelTunables= and others): `sudo` in jobs, and `su` to their user, need new privileges.
# - ProtectSystem=, ProtectHome=, ReadOnlyPaths=: jobs install packages, deploy, and work in the home of their user.
# - ProtectControlGroups=: each job may have its own cgroup.
# - PrivateNetwork=, IPAddressDeny=: jobs fetch, push and serve.
# - CapabilityBoundingSet=: builds of images and packages as root use chroot, mount and mknod.
# If no job needs one of these, you can set it with `systemctl edit`.
"
    )
}

/// Quotes a word for a systemd command line. Escapes variables and specifiers. `description` names the word in errors.
fn quoted(word: &str, description: &'static str) -> Result<String, ServiceError> {
    if word.contains(['\n', '\r']) {
        return Err(ServiceError::LineEnd { value: description });
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
    fn words_are_quoted_for_systemd() {
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
