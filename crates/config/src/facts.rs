//! What the checks have to know beside the text. A value, so that checks are pure; the shell around fills it in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Facts about this process and machine.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The process's environment.
    pub env: BTreeMap<String, String>,
    /// Permissions of the file; none where it does not exist or has no such thing.
    pub mode: Option<u32>,
    /// The file exists.
    pub exists: bool,
    /// The file can be replaced by a save.
    pub writable: bool,
    /// Directories with time zones; empty means that zones are not checked.
    pub zones: Vec<PathBuf>,
    /// The user's name, for messages.
    pub user: String,
    /// The process has no root rights and took the user's own file, while the system's is there.
    pub system_config: Option<PathBuf>,
    /// This version, for comparisons of images.
    pub version: String,
    /// The user's home directory.
    pub home: Option<PathBuf>,
    /// The user of jobs, where the manager is told one (`run --user`).
    pub job_user: Option<String>,
    /// The system id beside the file, where it was made on another machine.
    pub foreign_system_id: Option<String>,
    /// Files that keys name are looked for.
    pub files_checked: bool,
    /// Looks for plugins; none: they are not looked for.
    pub find_plugin: Option<FindPlugin>,
    /// The file may be another machine's: a plugin that is not here is no error.
    pub for_any_machine: bool,
    /// Without the file there is nothing to do.
    pub must_exist: bool,
}

/// Looks for what `plugin = "..."` says.
pub type FindPlugin = fn(&str) -> Result<(), NoPlugin>;

/// Why it cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPlugin {
    /// This machine lacks it; another one may have it.
    NotHere(String),
    /// It is no name of a plugin: no machine can have it.
    NoName(String),
}

impl Facts {
    /// The facts of this process about the file at `path`.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let env: BTreeMap<_, _> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        let metadata = std::fs::metadata(path).ok();
        let zones = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];
        let zones = env.get("ZONEINFO").map(String::as_str).into_iter().chain(zones).map(PathBuf::from).collect();
        let root = rustix::process::geteuid().is_root();
        let system = Path::new(SYSTEM_CONFIG);
        let home = env.get("HOME").map(PathBuf::from);
        let own = home.as_ref().is_some_and(|home| path.starts_with(home));
        Self {
            mode: metadata.as_ref().map(mode),
            exists: metadata.is_some(),
            writable: super::links::can_replace(path),
            zones,
            user: env.get("USER").or_else(|| env.get("LOGNAME")).cloned().unwrap_or_else(|| {
                if root { "root".to_owned() } else { format!("uid {}", rustix::process::geteuid().as_raw()) }
            }),
            system_config: (!root && own && system.exists()).then(|| system.to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            home,
            job_user: None,
            foreign_system_id: crate::system_id::foreign(path.parent().unwrap_or(Path::new("."))),
            files_checked: true,
            find_plugin: None,
            for_any_machine: false,
            must_exist: false,
            env,
        }
    }

    /// Whether that file is known to be missing.
    #[must_use]
    pub fn lacks(&self, path: &Path) -> bool {
        self.files_checked && !path.exists()
    }

    /// Whether the zone is known; true where nobody can tell.
    #[must_use]
    pub fn zone_exists(&self, zone: &str) -> bool {
        let safe = !zone.starts_with('/') && !zone.contains("..") && zone.len() < 100;
        matches!(zone, "" | "Local" | "UTC")
            || self.zones.is_empty()
            || (safe && self.zones.iter().any(|directory| directory.join(zone).is_file()))
    }
}

/// Where the file of a service is.
const SYSTEM_CONFIG: &str = "/etc/gitlab-runner/config.toml";

#[cfg(unix)]
fn mode(metadata: &std::fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata) & 0o7777
}

#[cfg(not(unix))]
fn mode(_: &std::fs::Metadata) -> u32 {
    0o600
}
