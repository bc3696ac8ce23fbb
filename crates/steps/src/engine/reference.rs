//! Text references of steps (docs/spec/steps.md, sections 2.1 to 2.5).

use std::path::{Component, Path, PathBuf};

use crate::expression::Dialect;

/// Names of the step file in a step's directory. The first that exists is used.
const STEP_FILES: [&str; 2] = ["func.yml", "step.yml"];
const LEGACY_STEP_FILES: [&str; 1] = ["step.yml"];
const ADVICE: &str = "keep the step in the repository and call it as `./directory`";

/// Step to which a reference refers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Bundled step that runs a shell script.
    Script,
    /// Step file in a directory.
    File {
        /// Directory of the file.
        dir: PathBuf,
        /// Possible names of the file. The first that exists is used.
        names: Vec<String>,
    },
}

/// Reference that cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// There is no bundled step of this name.
    #[error("fetching dist step: fetch: distributed step {0:?} not found; the only one is \"script\"")]
    Bundled(String),
    /// There is no built-in step of this name.
    #[error("there is no built-in step {0:?}; {ADVICE}")]
    Builtin(String),
    /// The text is neither a local nor a remote reference.
    #[error("expecting url@rev. got {0:?}; write a local step as `./directory`")]
    NoRevision(String),
    /// The kind of step is not supported.
    #[error("{0} are not supported; {ADVICE}")]
    Unsupported(&'static str),
    /// The step is not in the repository.
    #[error("{0:?}: only local steps are supported; {ADVICE}")]
    Remote(String),
}

/// Returns whether a reference contains an expression.
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
            return if name == "script" { Ok(Self::Script) } else { Err(ReferenceError::Bundled(name.to_owned())) };
        }
        // The manager uses built-in steps in a job's plan. A `run:` list must not call them, because their inputs are not checked.
        if let (Some(name), Dialect::Current) = (reference.strip_prefix("builtin://"), dialect) {
            return Err(ReferenceError::Builtin(name.to_owned()));
        }
        let is_oci = dialect == Dialect::Current && reference.contains(':');
        if reference.contains('@') || is_oci {
            Err(ReferenceError::Remote(reference.to_owned()))
        } else {
            Err(ReferenceError::NoRevision(reference.to_owned()))
        }
    }

    fn local(reference: &str, base: &Path, dialect: Dialect) -> Self {
        let (dir, file) = split(reference, dialect);
        let names = match (file, dialect) {
            (Some(file), _) => vec![file.to_owned()],
            (None, Dialect::Legacy) => LEGACY_STEP_FILES.map(str::to_owned).to_vec(),
            (None, Dialect::Current) => STEP_FILES.map(str::to_owned).to_vec(),
        };
        Self::File { dir: clean(&base.join(dir)), names }
    }
}

/// Splits a path into the directory of a step, and the name of its file if the path has one.
pub(super) fn split(path: &str, dialect: Dialect) -> (&str, Option<&str>) {
    let path = path.trim_end_matches('/');
    let is_file = |name: &str| name.ends_with(".yml") || (dialect == Dialect::Current && name.ends_with(".yaml"));
    match path.rsplit_once('/') {
        Some(("", file)) if is_file(file) => ("/", Some(file)),
        Some((dir, file)) if is_file(file) => (dir, Some(file)),
        _ if path.is_empty() => ("/", None),
        _ => (path, None),
    }
}

/// Removes `.` and resolves `..` without the file system, as Go's `filepath.Clean` does.
fn clean(path: &Path) -> PathBuf {
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
