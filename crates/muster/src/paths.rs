use std::path::{Component, Path, PathBuf};

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
    let own_uid = rustix::process::geteuid().as_raw();
    variable.or_else(|| Some(find_user(Path::new(PASSWD), |_, uid| uid == own_uid)?.home))
}

const PASSWD: &str = "/etc/passwd";

/// Entry of a user in `/etc/passwd`.
#[derive(Debug)]
pub(crate) struct UserEntry {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: PathBuf,
}

/// Returns a user of the system below `root`, or of this system if `root` is `None` or has no `/etc/passwd`.
pub(crate) fn user_in(root: Option<&Path>, name: &str) -> Option<UserEntry> {
    let passwd = root.map(|root| root.join("etc/passwd")).filter(|path| path.exists());
    find_user(passwd.as_deref().unwrap_or(Path::new(PASSWD)), |user, _| user == name)
}

/// Returns the first user in the file `passwd` whose name and ID satisfy `predicate`.
///
/// Reads the file itself, because a static executable cannot use the name service.
fn find_user(passwd: &Path, predicate: impl Fn(&str, u32) -> bool) -> Option<UserEntry> {
    let users = std::fs::read_to_string(passwd).ok()?;
    users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let is_match = predicate(name, uid) && Path::new(home).is_absolute();
        is_match.then(|| UserEntry { uid, gid, home: PathBuf::from(home) })
    })
}

/// Returns `path` relative to `directory`, or `None` if it is not in the directory. Both paths are absolute.
///
/// `directory` must be free of symbolic links. `path` may lead to the directory through symbolic links and `..`.
pub(crate) fn relative_to(directory: &Path, path: &Path) -> Option<PathBuf> {
    // The text is compared first, because a parent of the directory may not be searchable.
    let is_directory =
        |path: &&Path| *path == directory || std::fs::canonicalize(path).is_ok_and(|found| found == directory);
    let relative = path.strip_prefix(path.ancestors().find(is_directory)?).ok()?;
    relative.components().all(|part| matches!(part, Component::Normal(_))).then(|| relative.to_owned())
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
