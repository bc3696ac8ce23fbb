//! References of steps in step files and `run:` lists (docs/spec/steps.md, sections 2.1 to 2.6).

use std::path::{Component, Path, PathBuf};

use crate::expression::Dialect;
use crate::remote::{ReferenceError, RemoteStep, default_files, split};

pub(super) const OCI_FETCH: &str = "step/oci/fetch";
/// Steps with `dist://`, except `script`.
const DISTRIBUTED: [&str; 3] = ["step/oci/build", OCI_FETCH, "step/oci/promote"];
/// Steps with `builtin://` that lists of steps may call.
const FUNCTIONS: [&str; 9] = [
    "checkout",
    "cache/restore",
    "cache/save",
    "artifacts/download",
    "artifacts/upload",
    "service",
    "function/oci/build",
    "function/oci/publish",
    "script_legacy",
];
/// Step with which gitlab-runner sends a whole job if its feature flag `FF_CONCRETE` is on.
const WHOLE_JOB: &str = "concrete";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Script,
    /// Another step that comes with the agent, by its name without `dist://` or `builtin://`.
    Bundled(String),
    File {
        dir: PathBuf,
        /// Possible names of the file. The first existing file is used.
        names: Vec<String>,
    },
    Remote(RemoteStep),
}

pub(super) fn is_dynamic(reference: &str) -> bool {
    reference.contains("${{")
}

impl Target {
    /// Parses a reference. A local path is relative to `base`.
    ///
    /// # Errors
    /// The reference is invalid, or not supported.
    pub(super) fn parse(reference: &str, base: &Path, dialect: Dialect) -> Result<Self, ReferenceError> {
        let reference = reference.trim();
        if reference.starts_with(['.', '/']) {
            return Ok(Self::local(reference, base, dialect));
        }
        if let Some(name) = reference.strip_prefix("dist://") {
            return match name {
                "script" => Ok(Self::Script),
                name if DISTRIBUTED.contains(&name) => Ok(Self::Bundled(name.to_owned())),
                name => Err(ReferenceError::Bundled(name.to_owned())),
            };
        }
        // Authors may call these steps, because the inputs cannot set URLs or tokens.
        if let (Some(name), Dialect::Current) = (reference.strip_prefix("builtin://"), dialect) {
            return match name {
                name if FUNCTIONS.contains(&name) => Ok(Self::Bundled(name.to_owned())),
                WHOLE_JOB => Err(ReferenceError::WholeJob),
                name => Err(ReferenceError::Builtin(name.to_owned(), &FUNCTIONS)),
            };
        }
        RemoteStep::parse(reference, dialect).map(Self::Remote)
    }

    fn local(reference: &str, base: &Path, dialect: Dialect) -> Self {
        let (dir, file) = split(reference, dialect);
        let names = file.map_or_else(|| default_files(dialect), |file| vec![file.to_owned()]);
        Self::File { dir: clean(&base.join(dir)), names }
    }
}

/// Removes `.` and resolves `..` without the file system, as Go's `filepath.Clean` does.
pub(super) fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match (component, clean.components().next_back()) {
            (Component::CurDir, _) | (Component::ParentDir, Some(Component::RootDir)) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => {
                clean.pop();
            }
            (other, _) => clean.push(other),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_for_an_unknown_built_in_step_lists_all_names() {
        let error = Target::parse("builtin://cache", Path::new(""), Dialect::Current).unwrap_err().to_string();
        for name in FUNCTIONS {
            assert!(error.contains(&format!(" {name},")), "{error}");
        }
    }

    #[test]
    fn local_reference_names_a_directory_or_a_file() {
        for (reference, dir, file) in [
            (".", "/base", "step.yml"),
            ("./a", "/base/a", "step.yml"),
            (" ./a//b/ ", "/base/a/b", "step.yml"),
            ("./a/my.yml", "/base/a", "my.yml"),
            ("/abs/", "/abs", "step.yml"),
            ("/abs/x.yml", "/abs", "x.yml"),
            ("/", "/", "step.yml"),
            ("/x.yml", "/", "x.yml"),
            ("../a", "/a", "step.yml"),
            ("../../../a", "/a", "step.yml"),
            ("./x.yaml", "/base/x.yaml", "step.yml"),
        ] {
            let expected = Target::File { dir: PathBuf::from(dir), names: vec![file.to_owned()] };
            assert_eq!(Target::parse(reference, Path::new("/base"), Dialect::Legacy), Ok(expected), "{reference}");
        }
        let own = Target::File { dir: PathBuf::from("/a.yml"), names: vec!["step.yml".to_owned()] };
        assert_eq!(Target::parse(".", Path::new("/a.yml"), Dialect::Legacy), Ok(own));
        assert_eq!(clean(Path::new("../../a/../b")), Path::new("../../b"));
    }
}
