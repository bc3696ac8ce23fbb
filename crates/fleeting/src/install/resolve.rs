//! Resolves `plugin = "..."` to an executable, without network access.
//! See docs/spec/fleeting.md, section 6.6.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use muster_oci::{LockFileError, Reference, ReferenceError};

use super::error::InstallError;
use super::store::{Installed, Store};
use crate::host::PluginSpec;

/// Prefix of plugin executables in `PATH`.
const EXECUTABLE_PREFIX: &str = "fleeting-plugin-";

/// Executable of a plugin, with the kind of its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedPlugin {
    /// A path in the configuration.
    Path(PathBuf),
    /// A program in `PATH`.
    OnPath(PathBuf),
    /// An installed version from a registry.
    Installed(PathBuf),
    /// A plugin that is built into this program.
    BuiltIn {
        /// Path of this program.
        executable: PathBuf,
        /// Name of the plugin.
        name: String,
    },
}

/// The plugins that are built into this program.
/// This program runs a plugin if its arguments are `plugin serve NAME`.
#[derive(Debug, Clone)]
pub struct BuiltIn {
    /// Path of this program.
    pub executable: PathBuf,
    /// Names of the plugins.
    pub names: &'static [&'static str],
}

impl ResolvedPlugin {
    /// Returns the path of the executable.
    #[must_use]
    pub fn executable(&self) -> &Path {
        match self {
            Self::Path(path) | Self::OnPath(path) | Self::Installed(path) => path,
            Self::BuiltIn { executable, .. } => executable,
        }
    }

    /// Returns the command-line arguments.
    /// Only a built-in plugin gets arguments. Other plugins get none, because other hosts of the protocol pass none.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        match self {
            Self::BuiltIn { name, .. } => ["plugin", "serve", name].map(str::to_owned).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns the settings to start the plugin, with default timeouts and without configuration.
    #[must_use]
    pub fn spec(&self) -> PluginSpec {
        PluginSpec { arguments: self.arguments(), ..PluginSpec::new(self.executable()) }
    }
}

/// Settings of this process that the resolution depends on.
#[derive(Debug, Clone)]
pub struct LookupContext {
    /// Directory of installed plugins. `None` if neither `FLEETING_PLUGIN_PATH` nor `HOME` is set.
    pub store: Option<Store>,
    /// Value of `PATH`.
    pub path: OsString,
    /// Working directory.
    pub directory: PathBuf,
    /// Plugins that are built into this program.
    pub built_in: Option<BuiltIn>,
}

impl LookupContext {
    /// Returns the settings of this process, without built-in plugins.
    #[must_use]
    pub fn from_environment() -> Self {
        Self {
            store: Store::from_environment().ok(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            directory: std::env::current_dir().unwrap_or_default(),
            built_in: None,
        }
    }
}

/// Reason why the executable of a plugin was not found.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The path does not name an executable file.
    #[error("plugin {path:?}: {reason}")]
    Path {
        /// The path.
        path: PathBuf,
        /// Problem with the path.
        reason: String,
    },
    /// The program is neither in `PATH` nor a built-in plugin.
    #[error("plugin not found: {name} is not in any directory of PATH")]
    NotOnPath {
        /// Name of the program.
        name: String,
    },
    /// The plugin is not installed.
    #[error(
        "plugin not found: {reference} is not installed{searched}; install it with: muster plugin install {plugin}{hint}"
    )]
    NotInstalled {
        /// The configured text.
        plugin: String,
        /// Complete reference of the plugin.
        reference: String,
        /// Searched directories and installed versions, or why no directory of plugins is known.
        /// Formatted to be appended.
        searched: String,
        /// Suggestion for a likely mistake, formatted to be appended.
        hint: String,
    },
    /// The files of the installed version have changed.
    #[error("plugin {plugin}: {} differs from what was installed: {changes}; repair it with: muster plugin install {plugin}", executable.display())]
    Changed {
        /// The configured text.
        plugin: String,
        /// Path of the plugin's executable.
        executable: PathBuf,
        /// The changes.
        changes: String,
    },
    /// The files of the installed version cannot be verified.
    #[error("plugin {plugin}: failed to verify {}", executable.display())]
    Unverified {
        /// The configured text.
        plugin: String,
        /// Path of the plugin's executable.
        executable: PathBuf,
        /// Reason, such as a damaged lock file.
        source: Box<InstallError>,
    },
    /// The text is not a valid reference.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

/// Resolves a plugin's name to an executable. The first rule that applies decides:
///
/// 1. A path that starts with `/`, `./` or `../`. The Go host also accepts any word that names a file or directory in the working
///    directory, so that a stray `./aws` hides the plugin `aws`.
/// 2. `fleeting-plugin-NAME`: a program in `PATH`.
/// 3. The highest installed version that matches.
/// 4. `NAME` without registry, group and version: the program `fleeting-plugin-NAME` in `PATH`.
/// 5. `NAME` or `fleeting-plugin-NAME`: the plugin of that name that is built into this program.
///
/// # Errors
/// [`ResolveError`].
pub fn resolve(plugin: &str, context: &LookupContext) -> Result<ResolvedPlugin, ResolveError> {
    if ["/", "./", "../"].iter().any(|start| plugin.starts_with(start)) {
        let path = context.directory.join(plugin);
        let path_error = |reason: &str| Err(ResolveError::Path { path: path.clone(), reason: reason.to_owned() });
        return match path.metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => path_error("no such file"),
            Err(error) => path_error(&error.to_string()),
            Ok(meta) if meta.is_dir() => path_error("is a directory; name the executable in it"),
            Ok(meta) if !is_executable(&meta) => path_error("not executable; run chmod +x if it is a program"),
            Ok(_) => Ok(ResolvedPlugin::Path(path)),
        };
    }
    let is_bare = !plugin.contains(['/', ':', '@']);
    if is_bare && plugin.starts_with(EXECUTABLE_PREFIX) {
        let found = on_path(plugin, context).map(ResolvedPlugin::OnPath).or_else(|| built_in(plugin, context));
        return found.ok_or_else(|| ResolveError::NotOnPath { name: plugin.to_owned() });
    }
    let reference = Reference::parse(plugin, &super::DEFAULTS)?;
    if let Some(store) = &context.store
        && let Some(installed) = store.find(&reference)
    {
        check_unchanged(plugin, store, &installed)?;
        return Ok(ResolvedPlugin::Installed(installed.executable));
    }
    if let Some(path) = is_bare.then(|| on_path(&format!("{EXECUTABLE_PREFIX}{plugin}"), context)).flatten() {
        return Ok(ResolvedPlugin::OnPath(path));
    }
    if let Some(found) = is_bare.then(|| built_in(plugin, context)).flatten() {
        return Ok(found);
    }
    let versions = context.store.iter().flat_map(|store| store.versions(&reference.repository));
    let versions: Vec<String> = versions.map(|installed| installed.version.to_string()).collect();
    let versions_text =
        if versions.is_empty() { String::new() } else { format!(" (installed versions: {})", versions.join(", ")) };
    let is_file = context.directory.join(plugin).is_file();
    let hint = if is_file {
        format!("; if you mean the file in the working directory, write ./{plugin}")
    } else {
        String::new()
    };
    let searched = match &context.store {
        Some(store) => format!(" in {}", store.directory().display()),
        None => format!(" ({})", InstallError::NoDirectory),
    };
    let on_path = if is_bare {
        format!(", and {EXECUTABLE_PREFIX}{plugin} is not in any directory of PATH")
    } else {
        String::new()
    };
    let (plugin, reference) = (plugin.to_owned(), reference.to_string());
    Err(ResolveError::NotInstalled { plugin, reference, searched: searched + &versions_text + &on_path, hint })
}

/// Checks that the files of an installed version are unchanged.
/// A version is not checked if the lock file has no entry for it, or if this user may not read the lock file.
fn check_unchanged(plugin: &str, store: &Store, installed: &Installed) -> Result<(), ResolveError> {
    let (configured, executable) = (plugin.to_owned(), installed.executable.clone());
    match store.changes(installed) {
        Ok(changes) if changes.is_empty() => Ok(()),
        Ok(changes) => Err(ResolveError::Changed { plugin: configured, executable, changes: changes.join("; ") }),
        Err(InstallError::LockFile(LockFileError::File { path, source, .. }))
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            tracing::warn!(plugin, path = %path.display(), "failed to read the lock file of plugins; digests are not verified");
            Ok(())
        }
        Err(source) => Err(ResolveError::Unverified { plugin: configured, executable, source: Box::new(source) }),
    }
}

fn built_in(plugin: &str, context: &LookupContext) -> Option<ResolvedPlugin> {
    let name = plugin.strip_prefix(EXECUTABLE_PREFIX).unwrap_or(plugin);
    let BuiltIn { executable, names } = context.built_in.as_ref()?;
    names.contains(&name).then(|| ResolvedPlugin::BuiltIn { executable: executable.clone(), name: name.to_owned() })
}

fn on_path(name: &str, context: &LookupContext) -> Option<PathBuf> {
    // A relative directory would depend on the working directory of the process.
    let directories = std::env::split_paths(&context.path).filter(|directory| directory.is_absolute());
    let mut files = directories.map(|directory| directory.join(name));
    files.find(|file| file.metadata().is_ok_and(|meta| meta.is_file() && is_executable(&meta)))
}

fn is_executable(meta: &std::fs::Metadata) -> bool {
    meta.permissions().mode() & 0o111 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        directory: tempfile::TempDir,
        context: LookupContext,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            let context = LookupContext {
                store: Some(Store::new(path("plugins"))),
                path: path("bin").into(),
                directory: path("work"),
                built_in: None,
            };
            std::fs::create_dir_all(&context.directory).unwrap();
            Self { directory, context }
        }

        fn create_executable(&self, name: &str) -> PathBuf {
            let path = self.directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn install(&self, name: &str, version: &str) -> PathBuf {
            self.create_executable(&format!(
                "plugins/registry.gitlab.com/gitlab-org/fleeting/plugins/{name}/{version}/plugin"
            ))
        }

        fn resolve(&self, plugin: &str) -> Result<ResolvedPlugin, String> {
            resolve(plugin, &self.context).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn o02_highest_matching_version_is_used() {
        let fixture = Fixture::new();
        let paths: Vec<_> = ["1.2.3", "1.10.0", "2.0.0-rc.1"].map(|version| fixture.install("aws", version)).into();
        for (plugin, path) in
            [("aws", 1), ("aws:1", 1), ("aws:latest", 1), ("aws:1.2", 0), ("aws:2.0.0-rc.1", 2), ("aws:^1.2", 1)]
        {
            assert_eq!(fixture.resolve(plugin), Ok(ResolvedPlugin::Installed(paths[path].clone())), "{plugin}");
        }
        let error = fixture.resolve("aws:2").unwrap_err();
        assert!(error.contains("plugin not found") && error.contains("muster plugin install aws:2"), "{error}");
        assert!(error.contains("installed versions: ") && error.contains("1.10.0"), "{error}");
        let listed: Vec<String> =
            fixture.context.store.unwrap().list().iter().map(|installed| installed.version.to_string()).collect();
        assert_eq!(listed, ["1.2.3", "1.10.0", "2.0.0-rc.1"]);
    }

    /// The Go host uses the file or directory `./aws` in its working directory for `plugin = "aws"`.
    #[test]
    fn file_in_working_directory_is_not_a_plugin() {
        let fixture = Fixture::new();
        fixture.create_executable("work/aws");
        let error = fixture.resolve("aws").unwrap_err();
        assert!(error.contains("write ./aws"), "{error}");
        let installed = fixture.install("aws", "1.0.0");
        assert_eq!(fixture.resolve("aws"), Ok(ResolvedPlugin::Installed(installed)));
        assert_eq!(fixture.resolve("./aws").unwrap().executable(), fixture.context.directory.join("./aws"));
    }

    #[test]
    fn built_in_plugin_is_found_last() {
        let mut fixture = Fixture::new();
        fixture.context.built_in = Some(BuiltIn { executable: "/bin/muster".into(), names: &["static"] });
        for plugin in ["static", "fleeting-plugin-static"] {
            let found = fixture.resolve(plugin).unwrap();
            let spec = found.spec();
            assert_eq!((spec.executable.as_path(), spec.name().as_str()), (Path::new("/bin/muster"), "static"));
            assert_eq!(spec.arguments, ["plugin", "serve", "static"]);
        }
        assert!(fixture.resolve("static:1").is_err(), "a version must come from a registry");
        assert!(fixture.resolve("aws").is_err());
        let path = fixture.create_executable("bin/fleeting-plugin-static");
        assert_eq!(fixture.resolve("static"), Ok(ResolvedPlugin::OnPath(path)));
    }

    #[test]
    fn changed_plugin_is_not_run() {
        let fixture = Fixture::new();
        let path = fixture.install("aws", "1.0.0");
        assert_eq!(
            fixture.resolve("aws"),
            Ok(ResolvedPlugin::Installed(path.clone())),
            "a version without an entry in the lock file is not verified"
        );
        let digest = muster_oci::Digest::of_file(&path).unwrap().to_string();
        let mut lock = muster_oci::LockFile::default();
        lock.put(muster_oci::Entry {
            repository: "registry.gitlab.com/gitlab-org/fleeting/plugins/aws".to_owned(),
            version: "1.0.0".to_owned(),
            platform: muster_oci::HostPlatform::this().to_string(),
            layer: "sha256:0a".to_owned(),
            files: [("plugin".to_owned(), digest)].into(),
        });
        lock.write(&fixture.context.store.as_ref().unwrap().lock_file(), 0o600).unwrap();
        assert_eq!(fixture.resolve("aws"), Ok(ResolvedPlugin::Installed(path.clone())));
        std::fs::write(&path, "something else").unwrap();
        let error = fixture.resolve("aws").unwrap_err();
        assert!(
            error.contains("differs from what was installed") && error.contains("muster plugin install aws"),
            "{error}"
        );
    }

    /// A system service has no HOME, and so no directory of plugins.
    #[test]
    fn plugins_are_found_without_plugin_directory() {
        let mut fixture = Fixture::new();
        fixture.context.store = None;
        fixture.context.built_in = Some(BuiltIn { executable: "/bin/muster".into(), names: &["static"] });
        let absolute = fixture.create_executable("elsewhere/example");
        assert_eq!(fixture.resolve(absolute.to_str().unwrap()), Ok(ResolvedPlugin::Path(absolute)));
        assert_eq!(fixture.resolve("static").unwrap().arguments(), ["plugin", "serve", "static"]);
        let path = fixture.create_executable("bin/fleeting-plugin-other");
        assert_eq!(fixture.resolve("other"), Ok(ResolvedPlugin::OnPath(path)));
        let error = fixture.resolve("aws").unwrap_err();
        for expected in
            ["no directory for plugins; set FLEETING_PLUGIN_PATH or HOME", "-aws is not in any directory of PATH"]
        {
            assert!(error.contains(expected), "{error}");
        }
        assert!(!fixture.resolve("aws:1").unwrap_err().contains(" PATH;"), "versions must not be searched in PATH");
    }

    #[test]
    fn plugin_names_are_searched_in_path() {
        let mut fixture = Fixture::new();
        let path = fixture.create_executable("bin/fleeting-plugin-static");
        assert_eq!(fixture.resolve("fleeting-plugin-static"), Ok(ResolvedPlugin::OnPath(path.clone())));
        assert_eq!(fixture.resolve("static"), Ok(ResolvedPlugin::OnPath(path)));
        assert!(fixture.resolve("fleeting-plugin-other").unwrap_err().contains("is not in any directory of PATH"));
        assert!(fixture.resolve("static:1").is_err(), "a version must come from a registry");
        let installed = fixture.install("static", "1.0.0");
        assert_eq!(
            fixture.resolve("static"),
            Ok(ResolvedPlugin::Installed(installed)),
            "the installed plugin takes precedence"
        );

        fixture.create_executable("work/fleeting-plugin-relative");
        fixture.context.path = ".:".into();
        assert!(fixture.resolve("fleeting-plugin-relative").is_err(), "relative directories of PATH must be ignored");
    }

    #[test]
    fn unusable_paths_are_errors() {
        let fixture = Fixture::new();
        std::fs::create_dir(fixture.context.directory.join("directory")).unwrap();
        std::fs::write(fixture.context.directory.join("text"), "").unwrap();
        std::os::unix::fs::symlink("loop", fixture.context.directory.join("loop")).unwrap();
        for (plugin, reason) in [
            ("./missing", "no such file"),
            ("./directory", "directory"),
            ("./text", "not executable"),
            ("./loop", "symbolic links"),
        ] {
            let error = fixture.resolve(plugin).unwrap_err();
            assert!(error.contains(reason), "{plugin}: {error}");
        }
    }
}
