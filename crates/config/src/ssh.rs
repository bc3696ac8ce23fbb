//! Reads `[runners.ssh]`, with gitlab-runner's defaults.

use std::path::PathBuf;

use muster_job::Secret;

use super::tree::Table;
use crate::settings::SshSettings;

pub(super) fn read(runner: &Table) -> Option<SshSettings> {
    let table = runner.table("ssh")?;
    let text = |name: &str| table.str(name).filter(|text| !text.is_empty());
    let or_default = |name: &str, default: &str| text(name).unwrap_or(default).to_owned();
    Some(SshSettings {
        host: or_default("host", "localhost"),
        port: or_default("port", "22"),
        user: or_default("user", "root"),
        password: text("password").map(Secret::new),
        identity_file: text("identity_file").map(PathBuf::from),
        known_hosts_file: text("known_hosts_file").map(PathBuf::from),
        accepts_any_host_key: table.bool("disable_strict_host_key_checking").unwrap_or_default(),
    })
}
