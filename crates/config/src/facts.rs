//! Facts about the host that the checks need, in one struct, so that tests can replace them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Facts about this process, this machine and the configuration file.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Environment of the process.
    pub env: BTreeMap<String, String>,
    /// Permissions of the configuration file. `None` if it does not exist.
    pub mode: Option<u32>,
    /// Whether the configuration file exists.
    pub exists: bool,
    /// Whether a save can replace the file.
    pub writable: bool,
    /// Directories with time zones. Empty means that time zones are not checked.
    pub zones: Vec<PathBuf>,
    /// Name of the user, for messages.
    pub user: String,
    /// Path of the system's file, if it exists and the process uses the user's own file instead.
    pub system_config: Option<PathBuf>,
    /// Version of Muster, to compare with versions in image names.
    pub version: String,
    /// Home directory of the user.
    pub home: Option<PathBuf>,
    /// User that runs the jobs, from `run --user`.
    pub job_user: Option<String>,
    /// System ID in the directory of the configuration file, if that ID belongs to another machine.
    pub other_machine_system_id: Option<String>,
    /// Whether to check that files named by keys exist.
    pub files_checked: bool,
    /// Function that finds plugins. `None` means that plugins are not checked.
    pub find_plugin: Option<FindPlugin>,
    /// Whether the file may be for another machine, so that a plugin may be missing here.
    pub for_any_machine: bool,
    /// Whether the file must exist.
    pub must_exist: bool,
}

/// Finds the plugin that `plugin = "..."` names.
pub type FindPlugin = fn(&str) -> Result<(), NoPlugin>;

/// Reason why a plugin cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoPlugin {
    /// The plugin is not installed on this machine.
    NotInstalled(String),
    /// The value is not a valid plugin name, so no machine can have the plugin.
    InvalidName(String),
}

impl HostFacts {
    /// Collects the facts of this process about the file at `path`.
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
        let is_own = home.as_ref().is_some_and(|home| path.starts_with(home));
        Self {
            mode: metadata.as_ref().map(mode),
            exists: metadata.is_some(),
            writable: super::links::can_replace(path),
            zones,
            user: env.get("USER").or_else(|| env.get("LOGNAME")).cloned().unwrap_or_else(|| {
                if root { "root".to_owned() } else { format!("uid {}", rustix::process::geteuid().as_raw()) }
            }),
            system_config: (!root && is_own && system.exists()).then(|| system.to_owned()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            home,
            job_user: None,
            other_machine_system_id: crate::system_id::id_of_other_machine(path.parent().unwrap_or(Path::new("."))),
            files_checked: true,
            find_plugin: None,
            for_any_machine: false,
            must_exist: false,
            env,
        }
    }

    /// Returns whether the file is known to be missing.
    #[must_use]
    pub fn is_missing(&self, path: &Path) -> bool {
        self.files_checked && !path.exists()
    }

    /// Returns whether the time zone exists, or cannot be checked.
    #[must_use]
    pub fn zone_exists(&self, zone: &str) -> bool {
        let safe = !zone.starts_with('/') && !zone.contains("..") && zone.len() < 100;
        matches!(zone, "" | "Local" | "UTC")
            || self.zones.is_empty()
            || (safe && self.zones.iter().any(|directory| directory.join(zone).is_file()))
    }
}

const SYSTEM_CONFIG: &str = "/etc/gitlab-runner/config.toml";

#[cfg(unix)]
fn mode(metadata: &std::fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(metadata) & 0o7777
}

#[cfg(not(unix))]
fn mode(_: &std::fs::Metadata) -> u32 {
    0o600
}
