//! Where gitlab-runner keeps its files (runner-config 2.1, 2.9).

use std::path::{Path, PathBuf};

/// The configuration file where neither `--config` nor `CONFIG_FILE` names one: `/etc/gitlab-runner/config.toml` for
/// root, else `~/.gitlab-runner/config.toml`, else `config.toml` in the working directory.
pub(crate) fn default_config_file() -> PathBuf {
    default_directory().join("config.toml")
}

/// The folder of certificates, by host name. It depends on the user, never on `--config`.
pub(crate) fn certificates() -> PathBuf {
    default_directory().join("certs")
}

/// Whether this is the system's runner, not a user's.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user's home: `HOME`, or what the user database has.
pub(crate) fn home() -> Option<PathBuf> {
    let variable = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    variable.or_else(|| home_of(|_, uid| uid == rustix::process::geteuid().as_raw()))
}

/// The home of a user by name.
pub(crate) fn home_of_user(name: &str) -> Option<PathBuf> {
    home_of(|user, _| user == name)
}

/// Reads the database itself: a static executable has no name service to ask.
fn home_of(wanted: impl Fn(&str, u32) -> bool) -> Option<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, _, _, home, ..] = fields[..] else { return None };
        let fits = wanted(name, uid.parse().ok()?) && Path::new(home).is_absolute();
        fits.then(|| PathBuf::from(home))
    })
}

fn default_directory() -> PathBuf {
    if is_root() {
        return PathBuf::from("/etc/gitlab-runner");
    }
    match home() {
        Some(home) => home.join(".gitlab-runner"),
        None => std::env::current_dir().unwrap_or_default(),
    }
}
