//! Index of steps in a directory: one TOML file for each step, in any subdirectory.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use walkdir::WalkDir;

use super::error::StepCommandError;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IndexEntry {
    /// Reference of the step, as a `run:` list names it.
    pub(super) step: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) description: String,
    /// Message to the users of a deprecated step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deprecated: Option<String>,
    /// Message to the users of a defective step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) defective: Option<String>,
}

/// Reads all entries of an index, sorted by file name.
pub(super) fn read(directory: &Path) -> Result<Vec<IndexEntry>, StepCommandError> {
    let mut entries = Vec::new();
    for file in WalkDir::new(directory).sort_by_file_name() {
        let file = file.map_err(|error| StepCommandError::File { path: directory.to_owned(), source: error.into() })?;
        if file.path().extension().is_some_and(|extension| extension == "toml") && file.file_type().is_file() {
            entries.push(read_entry(file.path())?);
        }
    }
    Ok(entries)
}

/// Writes the entry of a step. Replaces an earlier entry of the same step.
pub(super) fn write(directory: &Path, entry: &IndexEntry) -> Result<(), StepCommandError> {
    let text = toml::to_string(entry).map_err(|error| StepCommandError::Usage(error.to_string()))?;
    let path = path(directory, &entry.step);
    let parent = path.parent().unwrap_or(directory);
    std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text)).map_err(StepCommandError::file(path))
}

/// Changes the entry of a step. Creates the entry if it does not exist.
///
/// An index has one version of each step. If the entry is for another version than `step`, it is not changed, and its
/// reference is returned.
pub(super) fn change(
    directory: &Path,
    step: &str,
    change: impl FnOnce(&mut IndexEntry),
) -> Result<Option<String>, StepCommandError> {
    let path = path(directory, step);
    let mut entry = match path.exists() {
        true => read_entry(&path)?,
        false => IndexEntry { step: step.to_owned(), ..IndexEntry::default() },
    };
    if entry.step != step {
        return Ok(Some(entry.step));
    }
    change(&mut entry);
    write(directory, &entry).map(|()| None)
}

fn read_entry(path: &Path) -> Result<IndexEntry, StepCommandError> {
    let text = std::fs::read_to_string(path).map_err(StepCommandError::file(path))?;
    let invalid =
        |error: toml::de::Error| StepCommandError::Index { path: path.to_owned(), problem: error.message().to_owned() };
    toml::from_str(&text).map_err(invalid)
}

/// Returns the file of a step: its reference without scheme, version and digest, as a path in the directory.
fn path(directory: &Path, step: &str) -> PathBuf {
    let step = step.split_once("://").map_or(step, |(_, rest)| rest);
    let (parents, name) = step.rsplit_once('/').unwrap_or(("", step));
    let name = name.split([':', '@']).next().unwrap_or_default();
    let parents = parents.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    let mut path = directory.to_owned();
    path.extend(parents);
    path.join(format!("{name}.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_different_groups_have_different_files() {
        let file = |step: &str| path(Path::new("index"), step).display().to_string();
        assert_eq!(file("r.example:5000/g1/echo:1.2"), "index/r.example:5000/g1/echo.toml");
        assert_eq!(file("r.example:5000/g2/echo@sha256:ab"), "index/r.example:5000/g2/echo.toml");
        assert_eq!(file("https://git.example/../../steps/echo@v1"), "index/git.example/steps/echo.toml");
        assert_eq!(file("echo"), "index/echo.toml");
    }
}
