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
const PREFIX: &str = "fleeting-plugin-";

/// Executable of a plugin, by the place where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
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
/// It runs them with the arguments `plugin serve NAME`.
#[derive(Debug, Clone)]
pub struct BuiltIn {
    /// Path of this program.
    pub executable: PathBuf,
    /// Names of the plugins.
    pub names: &'static [&'static str],
}

impl Found {
    /// Returns the path of the executable.
    #[must_use]
    pub fn executable(&self) -> &Path {
        match self {
            Self::Path(path) | Self::OnPath(path) | Self::Installed(path) => path,
            Self::BuiltIn { executable, .. } => executable,
        }
    }

    /// Returns the command-line arguments. Other hosts of the protocol start plugins without arguments.
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

/// Values of the process that influence the resolution.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Directory of installed plugins. `None` if neither `FLEETING_PLUGIN_PATH` nor `HOME` is set.
    pub store: Option<Store>,
    /// Value of `PATH`.
    pub path: OsString,
    /// Working directory.
    pub directory: PathBuf,
    /// Plugins that are built into this program.
    pub built_in: Option<BuiltIn>,
}

impl Surroundings {
    /// Returns the values of this process.
    #[must_use]
    pub fn of_environment() -> Self {
        Self {
            store: Store::of_environment().ok(),
            path: std::env::var_os("PATH").unwrap_or_default(),
            directory: std::env::current_dir().unwrap_or_default(),
            built_in: None,
        }
    }
}

/// Reason why a plugin has no executable.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The path does not name an executable file.
    #[error("plugin {path:?}: {why}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong with the path.
        why: &'static str,
    },
    /// The program is not in `PATH`.
    #[error("plugin not found: {name} is in no folder of PATH")]
    NotOnPath {
        /// Name of the program.
        name: String,
    },
    /// The plugin is not installed.
    #[error(
        "plugin not found: {reference} is not installed{looked}; install it with: muster plugin install {plugin}{hint}"
    )]
    NotInstalled {
        /// The configured text.
        plugin: String,
        /// Complete reference of the plugin.
        reference: String,
        /// The searched places and the installed versions, formatted to be appended.
        looked: String,
        /// What the user may have meant instead, formatted to be appended.
        hint: String,
    },
    /// The files of the installed version have changed.
    #[error("plugin {plugin}: {} is not what was installed: {what}; bring it anew with: muster plugin install {plugin}", executable.display())]
    Changed {
        /// The configured text.
        plugin: String,
        /// Path of the plugin's executable.
        executable: PathBuf,
        /// The changes.
        what: String,
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
pub fn resolve(plugin: &str, around: &Surroundings) -> Result<Found, ResolveError> {
    if ["/", "./", "../"].iter().any(|start| plugin.starts_with(start)) {
        let path = around.directory.join(plugin);
        let refuse = |why| Err(ResolveError::Path { path: path.clone(), why });
        return match path.metadata() {
            Err(_) => refuse("there is no such file"),
            Ok(meta) if meta.is_dir() => refuse("it is a directory; name the executable in it"),
            Ok(meta) if !is_executable(&meta) => refuse("it is not executable; chmod +x helps where it is a program"),
            Ok(_) => Ok(Found::Path(path)),
        };
    }
    let is_bare = !plugin.contains(['/', ':', '@']);
    if is_bare && plugin.starts_with(PREFIX) {
        let found = on_path(plugin, around).map(Found::OnPath).or_else(|| built_in(plugin, around));
        return found.ok_or_else(|| ResolveError::NotOnPath { name: plugin.to_owned() });
    }
    let reference = Reference::parse(plugin, &super::DEFAULTS)?;
    if let Some(store) = &around.store
        && let Some(installed) = store.find(&reference)
    {
        check(plugin, store, &installed)?;
        return Ok(Found::Installed(installed.executable));
    }
    if let Some(path) = is_bare.then(|| on_path(&format!("{PREFIX}{plugin}"), around)).flatten() {
        return Ok(Found::OnPath(path));
    }
    if let Some(found) = is_bare.then(|| built_in(plugin, around)).flatten() {
        return Ok(found);
    }
    let others = around.store.iter().flat_map(|store| store.versions(&reference.repository));
    let others: Vec<String> = others.map(|installed| installed.version.to_string()).collect();
    let there = if others.is_empty() { String::new() } else { format!(" (there is {})", others.join(", ")) };
    let is_file = around.directory.join(plugin).is_file();
    let hint = if is_file { format!(", or write ./{plugin} where you mean that file") } else { String::new() };
    let place = match &around.store {
        Some(store) => format!(" in {}", store.folder().display()),
        None => format!(" ({})", InstallError::NoFolder),
    };
    let on_path = if is_bare { format!(", and {PREFIX}{plugin} is in no folder of PATH") } else { String::new() };
    let (plugin, reference) = (plugin.to_owned(), reference.to_string());
    Err(ResolveError::NotInstalled { plugin, reference, looked: place + &there + &on_path, hint })
}

/// Checks that the files of an installed version are unchanged.
/// Without a lock file entry there is nothing to compare with.
fn check(plugin: &str, store: &Store, installed: &Installed) -> Result<(), ResolveError> {
    let failed = |what: String| ResolveError::Changed {
        plugin: plugin.to_owned(),
        executable: installed.executable.clone(),
        what,
    };
    match store.changes(installed) {
        Ok(changes) if changes.is_empty() => Ok(()),
        Ok(changes) => Err(failed(changes.join("; "))),
        Err(InstallError::LockFile(LockFileError::File { path, source, .. }))
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            tracing::warn!(plugin, path = %path.display(), "the digests of plugins cannot be read: not checked");
            Ok(())
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

fn built_in(plugin: &str, around: &Surroundings) -> Option<Found> {
    let name = plugin.strip_prefix(PREFIX).unwrap_or(plugin);
    let BuiltIn { executable, names } = around.built_in.as_ref()?;
    names.contains(&name).then(|| Found::BuiltIn { executable: executable.clone(), name: name.to_owned() })
}

fn on_path(name: &str, around: &Surroundings) -> Option<PathBuf> {
    // A relative directory would depend on the working directory of the process.
    let folders = std::env::split_paths(&around.path).filter(|folder| folder.is_absolute());
    let mut files = folders.map(|folder| folder.join(name));
    files.find(|file| file.metadata().is_ok_and(|meta| meta.is_file() && is_executable(&meta)))
}

fn is_executable(meta: &std::fs::Metadata) -> bool {
    meta.permissions().mode() & 0o111 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Here {
        folder: tempfile::TempDir,
        around: Surroundings,
    }

    impl Here {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            let around = Surroundings {
                store: Some(Store::new(at("plugins"))),
                path: at("bin").into(),
                directory: at("here"),
                built_in: None,
            };
            std::fs::create_dir_all(&around.directory).unwrap();
            Self { folder, around }
        }

        fn executable(&self, name: &str) -> PathBuf {
            let path = self.folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn installed(&self, name: &str, version: &str) -> PathBuf {
            self.executable(&format!("plugins/registry.gitlab.com/gitlab-org/fleeting/plugins/{name}/{version}/plugin"))
        }

        fn resolve(&self, plugin: &str) -> Result<Found, String> {
            resolve(plugin, &self.around).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn o02_the_highest_installed_version_that_fits_is_used() {
        let here = Here::new();
        let paths: Vec<_> = ["1.2.3", "1.10.0", "2.0.0-rc.1"].map(|version| here.installed("aws", version)).into();
        for (plugin, path) in
            [("aws", 1), ("aws:1", 1), ("aws:latest", 1), ("aws:1.2", 0), ("aws:2.0.0-rc.1", 2), ("aws:^1.2", 1)]
        {
            assert_eq!(here.resolve(plugin), Ok(Found::Installed(paths[path].clone())), "{plugin}");
        }
        let error = here.resolve("aws:2").unwrap_err();
        assert!(error.contains("plugin not found") && error.contains("muster plugin install aws:2"), "{error}");
        assert!(error.contains("there is 1.10.0") || error.contains("1.10.0"), "{error}");
        let listed: Vec<String> = here.around.store.unwrap().list().iter().map(|one| one.version.to_string()).collect();
        assert_eq!(listed, ["1.2.3", "1.10.0", "2.0.0-rc.1"]);
    }

    /// In Go, `plugin = "aws"` uses the file or directory `./aws` in the manager's working directory.
    #[test]
    fn peers_defect_3_a_file_of_the_working_directory_is_no_plugin() {
        let here = Here::new();
        here.executable("here/aws");
        let error = here.resolve("aws").unwrap_err();
        assert!(error.contains("or write ./aws where you mean that file"), "{error}");
        let installed = here.installed("aws", "1.0.0");
        assert_eq!(here.resolve("aws"), Ok(Found::Installed(installed)));
        assert_eq!(here.resolve("./aws").unwrap().executable(), here.around.directory.join("./aws"));
    }

    #[test]
    fn a_plugin_of_this_program_is_the_last_that_is_found() {
        let mut here = Here::new();
        here.around.built_in = Some(BuiltIn { executable: "/bin/muster".into(), names: &["static"] });
        for plugin in ["static", "fleeting-plugin-static"] {
            let found = here.resolve(plugin).unwrap();
            let spec = found.spec();
            assert_eq!((spec.executable.as_path(), spec.name().as_str()), (Path::new("/bin/muster"), "static"));
            assert_eq!(spec.arguments, ["plugin", "serve", "static"]);
        }
        assert!(here.resolve("static:1").is_err(), "a version is one of a registry's");
        assert!(here.resolve("aws").is_err());
        let path = here.executable("bin/fleeting-plugin-static");
        assert_eq!(here.resolve("static"), Ok(Found::OnPath(path)));
    }

    #[test]
    fn an_installed_plugin_that_was_changed_is_not_run() {
        let here = Here::new();
        let path = here.installed("aws", "1.0.0");
        assert_eq!(here.resolve("aws"), Ok(Found::Installed(path.clone())), "another program's has no digest");
        let digest = muster_oci::Digest::of_file(&path).unwrap().to_string();
        let mut lock = muster_oci::LockFile::default();
        lock.put(muster_oci::Entry {
            repository: "registry.gitlab.com/gitlab-org/fleeting/plugins/aws".to_owned(),
            version: "1.0.0".to_owned(),
            platform: muster_oci::HostPlatform::this().to_string(),
            layer: "sha256:0a".to_owned(),
            files: [("plugin".to_owned(), digest)].into(),
        });
        lock.write(&here.around.store.as_ref().unwrap().lock_file()).unwrap();
        assert_eq!(here.resolve("aws"), Ok(Found::Installed(path.clone())));
        std::fs::write(&path, "something else").unwrap();
        let error = here.resolve("aws").unwrap_err();
        assert!(error.contains("is not what was installed") && error.contains("muster plugin install aws"), "{error}");
    }

    /// A system service has no HOME.
    #[test]
    fn without_a_folder_of_plugins_all_others_are_found() {
        let mut here = Here::new();
        here.around.store = None;
        here.around.built_in = Some(BuiltIn { executable: "/bin/muster".into(), names: &["static"] });
        let absolute = here.executable("elsewhere/mine");
        assert_eq!(here.resolve(absolute.to_str().unwrap()), Ok(Found::Path(absolute)));
        assert_eq!(here.resolve("static").unwrap().arguments(), ["plugin", "serve", "static"]);
        let path = here.executable("bin/fleeting-plugin-other");
        assert_eq!(here.resolve("other"), Ok(Found::OnPath(path)));
        let error = here.resolve("aws").unwrap_err();
        for place in ["no folder for plugins; set FLEETING_PLUGIN_PATH, or HOME", "-aws is in no folder of PATH"] {
            assert!(error.contains(place), "{error}");
        }
        assert!(!here.resolve("aws:1").unwrap_err().contains(" PATH;"), "a version is one of a registry's");
    }

    #[test]
    fn names_are_looked_up_on_path() {
        let mut here = Here::new();
        let path = here.executable("bin/fleeting-plugin-static");
        assert_eq!(here.resolve("fleeting-plugin-static"), Ok(Found::OnPath(path.clone())));
        assert_eq!(here.resolve("static"), Ok(Found::OnPath(path)));
        assert!(here.resolve("fleeting-plugin-other").unwrap_err().contains("is in no folder of PATH"));
        assert!(here.resolve("static:1").is_err(), "a version is one of a registry's");
        let installed = here.installed("static", "1.0.0");
        assert_eq!(here.resolve("static"), Ok(Found::Installed(installed)), "installed ones come first");

        here.executable("here/fleeting-plugin-relative");
        here.around.path = ".:".into();
        assert!(here.resolve("fleeting-plugin-relative").is_err(), "relative folders of PATH are not looked at");
    }

    #[test]
    fn paths_to_nothing_that_runs_say_why() {
        let here = Here::new();
        std::fs::create_dir(here.around.directory.join("folder")).unwrap();
        std::fs::write(here.around.directory.join("text"), "").unwrap();
        for (plugin, why) in [("./none", "no such file"), ("./folder", "directory"), ("./text", "not executable")] {
            let error = here.resolve(plugin).unwrap_err();
            assert!(error.contains(why), "{plugin}: {error}");
        }
    }
}
