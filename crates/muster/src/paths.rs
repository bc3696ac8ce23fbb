use std::path::{Path, PathBuf};

/// Returns the configuration file if neither `--config` nor `CONFIG_FILE` is set: `/etc/gitlab-runner/config.toml` for
/// root, else `~/.gitlab-runner/config.toml`, else `config.toml` in the working directory.
pub(crate) fn default_config_file() -> PathBuf {
    default_directory().join("config.toml")
}

/// Returns the directory of TLS certificates, whose file names begin with the name of a server.
pub(crate) fn certificates() -> PathBuf {
    default_directory().join("certs")
}

/// Returns whether this process runs as root, which gitlab-runner calls system mode.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the user's home directory: `HOME`, or the entry in `/etc/passwd`.
pub(crate) fn home() -> Option<PathBuf> {
    let variable = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    variable.or_else(|| home_of(|_, uid| uid == rustix::process::geteuid().as_raw()))
}

pub(crate) fn home_of_user(name: &str) -> Option<PathBuf> {
    home_of(|user, _| user == name)
}

/// Returns the home directory of the first user in `/etc/passwd` whose name and ID satisfy `predicate`.
///
/// Reads the file itself, because a static executable cannot use the name service.
fn home_of(predicate: impl Fn(&str, u32) -> bool) -> Option<PathBuf> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, _, _, home, ..] = fields[..] else { return None };
        let is_match = predicate(name, uid.parse().ok()?) && Path::new(home).is_absolute();
        is_match.then(|| PathBuf::from(home))
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
