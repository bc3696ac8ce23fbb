//! `new`: a plugin's project that builds, and passes the conformance kit.

use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::error::PluginError;
use crate::ci::ui;

/// What the projects are called where they are written; replaced by the name.
const PLACEHOLDER: &str = "toy";

/// A project that names a crate of no registry does not build, or one day builds somebody else's.
const NO_SDK: &str = "a plugin in Rust needs the crate muster-fleeting, which no registry has yet: name its folder, as in \
                      `--sdk ../muster/crates/fleeting` beside a clone of Muster; or take --lang go, python or shell";

/// Arguments of `new`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the plugin: lower case letters, digits and dashes.
    #[arg(value_name = "NAME")]
    name: String,
    /// In what it is written. Shell and Python programs are run by the plugin `script`.
    #[arg(long, value_enum, default_value_t = Language::Rust)]
    lang: Language,
    /// Folder of the project; it must not be there. [default: fleeting-plugin-NAME]
    #[arg(long, value_name = "FOLDER")]
    directory: Option<PathBuf>,
    /// For Rust: folder of the crate muster-fleeting, `crates/fleeting` of a clone of Muster. No registry has it yet.
    #[arg(long, value_name = "FOLDER")]
    sdk: Option<PathBuf>,
}

/// In what a plugin is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    /// With the SDK.
    Rust,
    /// With GitLab's library.
    Go,
    /// A program for the plugin `script`.
    Python,
    /// A program for the plugin `script`.
    Shell,
}

/// A file of a project.
struct Template {
    name: &'static str,
    text: &'static str,
    is_program: bool,
}

macro_rules! template {
    ($name:literal, $path:literal) => {
        Template { name: $name, text: include_str!(concat!("../../../fleeting/templates/", $path)), is_program: false }
    };
    (program $name:literal, $path:literal) => {
        Template { is_program: true, ..template!($name, $path) }
    };
}

const RUST: &[Template] = &[
    template!("Cargo.toml", "rust/Cargo.toml.txt"),
    template!("src/main.rs", "rust/src/main.rs"),
    template!("plugin.toml", "rust/plugin.toml"),
    template!("README.md", "rust/README.md"),
];
const GO: &[Template] = &[
    template!("go.mod", "go/go.mod.txt"),
    template!("main.go", "go/main.go.txt"),
    template!("plugin.toml", "go/plugin.toml"),
    template!("README.md", "go/README.md"),
];
const PYTHON: &[Template] = &[
    template!(program "group.py", "python/group.py"),
    template!("plugin.toml", "python/plugin.toml"),
    template!("README.md", "python/README.md"),
];
const SHELL: &[Template] = &[
    template!(program "group", "shell/group"),
    template!("plugin.toml", "shell/plugin.toml"),
    template!("README.md", "shell/README.md"),
];

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<bool, PluginError> {
    let name = args.name.strip_prefix("fleeting-plugin-").unwrap_or(&args.name);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(fits) || !name.starts_with(|c: char| c.is_ascii_lowercase()) || name.len() > 50 {
        return Err(PluginError::Words(
            "a plugin's name has lower case letters, digits and dashes, and a letter first",
        ));
    }
    let folder = args.directory.clone().unwrap_or_else(|| format!("fleeting-plugin-{name}").into());
    if folder.exists() {
        return Err(PluginError::Exists(folder));
    }
    let (files, build) = match args.lang {
        Language::Rust => (RUST, "cargo build && "),
        Language::Go => (GO, "go mod tidy && go build && "),
        Language::Python => (PYTHON, ""),
        Language::Shell => (SHELL, ""),
    };
    let sdk = match (args.lang, &args.sdk) {
        (Language::Rust, None) => return Err(PluginError::Words(NO_SDK)),
        (_, sdk) => sdk.as_deref().map(sdk_at).transpose()?.unwrap_or_default(),
    };
    for file in files {
        let text = file.text.replace(PLACEHOLDER, name).replace("@SDK@", &sdk);
        let path = folder.join(file.name);
        write(&path, &text, file.is_program).map_err(|source| PluginError::File { path, source })?;
    }
    ui::outln(&format!(
        "{} is a plugin that makes nothing yet. Try it:\n  cd {} && {build}muster plugin test --config plugin.toml",
        folder.display(),
        folder.display()
    ));
    Ok(true)
}

/// Where the project finds the SDK, as Cargo takes it.
fn sdk_at(folder: &Path) -> Result<String, PluginError> {
    if !folder.join("Cargo.toml").is_file() {
        return Err(PluginError::NoSdk(folder.to_owned()));
    }
    let path = folder.canonicalize().map_err(|source| PluginError::File { path: folder.to_owned(), source })?;
    Ok(format!("path = {:?}", path.display().to_string()))
}

fn write(path: &Path, text: &str, is_program: bool) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    if is_program {
        file.set_permissions(Permissions::from_mode(0o755))?;
    }
    Ok(())
}
