//! `new`: creates the project of a new plugin. The project builds, and the plugin passes the conformance tests.

use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::error::PluginError;
use crate::ci::ui;

const PLACEHOLDER: &str = "toy";

/// Error message for a missing `--sdk`. A Rust project must depend on a local directory, because the crate is not
/// published, and another author could publish a crate of the same name.
const NO_SDK: &str = "the crate muster-fleeting is not published yet; set --sdk to its directory in a clone of Muster, \
                      such as `--sdk ../muster/crates/fleeting`, or use --lang go, python or shell";

/// Arguments of `muster plugin new`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginNewArgs {
    /// Name of the plugin: lowercase letters, digits and dashes.
    #[arg(value_name = "NAME")]
    name: String,
    /// Language of the plugin. Shell and Python programs are run by the plugin `script`.
    #[arg(long, value_enum, default_value_t = Language::Rust)]
    lang: Language,
    /// Directory of the new project; must not exist. [default: fleeting-plugin-NAME]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// For Rust: directory of the crate muster-fleeting, `crates/fleeting` in a clone of Muster.
    #[arg(long, value_name = "DIR")]
    sdk: Option<PathBuf>,
}

/// Language of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    /// Uses Muster's SDK.
    Rust,
    /// Uses GitLab's library.
    Go,
    /// Program for the plugin `script`.
    Python,
    /// Program for the plugin `script`.
    Shell,
}

struct TemplateFile {
    name: &'static str,
    text: &'static str,
    is_program: bool,
}

macro_rules! template {
    ($name:literal, $path:literal) => {
        TemplateFile {
            name: $name,
            text: include_str!(concat!("../../../fleeting/templates/", $path)),
            is_program: false,
        }
    };
    (program $name:literal, $path:literal) => {
        TemplateFile { is_program: true, ..template!($name, $path) }
    };
}

const RUST: &[TemplateFile] = &[
    template!("Cargo.toml", "rust/Cargo.toml.txt"),
    template!("src/main.rs", "rust/src/main.rs"),
    template!("plugin.toml", "rust/plugin.toml"),
    template!("README.md", "rust/README.md"),
];
const GO: &[TemplateFile] = &[
    template!("go.mod", "go/go.mod.txt"),
    template!("main.go", "go/main.go.txt"),
    template!("plugin.toml", "go/plugin.toml"),
    template!("README.md", "go/README.md"),
];
const PYTHON: &[TemplateFile] = &[
    template!(program "group.py", "python/group.py"),
    template!("plugin.toml", "python/plugin.toml"),
    template!("README.md", "python/README.md"),
];
const SHELL: &[TemplateFile] = &[
    template!(program "group", "shell/group"),
    template!("plugin.toml", "shell/plugin.toml"),
    template!("README.md", "shell/README.md"),
];

pub(super) fn run(args: &PluginNewArgs) -> Result<bool, PluginError> {
    let name = args.name.strip_prefix("fleeting-plugin-").unwrap_or(&args.name);
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.chars().all(is_allowed) || !name.starts_with(|c: char| c.is_ascii_lowercase()) || name.len() > 50 {
        return Err(PluginError::Usage(
            "invalid plugin name; use at most 50 lowercase letters, digits and dashes, beginning with a letter",
        ));
    }
    let directory = args.directory.clone().unwrap_or_else(|| format!("fleeting-plugin-{name}").into());
    if directory.exists() {
        return Err(PluginError::Exists(directory));
    }
    let (files, build) = match args.lang {
        Language::Rust => (RUST, "cargo build && "),
        Language::Go => (GO, "go mod tidy && go build && "),
        Language::Python => (PYTHON, ""),
        Language::Shell => (SHELL, ""),
    };
    let sdk = match (args.lang, &args.sdk) {
        (Language::Rust, None) => return Err(PluginError::Usage(NO_SDK)),
        (_, sdk) => sdk.as_deref().map(sdk_dependency).transpose()?.unwrap_or_default(),
    };
    for file in files {
        let text = file.text.replace(PLACEHOLDER, name).replace("@SDK@", &sdk);
        let path = directory.join(file.name);
        write(&path, &text, file.is_program).map_err(|source| PluginError::File { path, source })?;
    }
    ui::outln(&format!(
        "created {}, a plugin that only simulates instances; test it:\n  cd {} && {build}muster plugin test --config plugin.toml",
        directory.display(),
        directory.display()
    ));
    Ok(true)
}

fn sdk_dependency(directory: &Path) -> Result<String, PluginError> {
    if !directory.join("Cargo.toml").is_file() {
        return Err(PluginError::NoSdk(directory.to_owned()));
    }
    let path = directory.canonicalize().map_err(|source| PluginError::File { path: directory.to_owned(), source })?;
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
