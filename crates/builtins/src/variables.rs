//! Variables of a job and its processes (docs/spec/job-execution.md, sections 3.3 and 3.5).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_agent_api::step_runner::Variable;
use muster_archive::{Root, create_root};
use muster_files::{FileError, Limit, open_in, read_open};
use muster_job::ExportKind;
use muster_steps::engine::ExportedVariable;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::private_file;
use crate::removal::remove_tree;

/// File in the temporary directory with which a job passes variables to later stages.
const ENV_FILE: &str = "gitlab_runner_env";
const ENV_FILE_LIMIT: Limit =
    Limit { bytes: 4 * 1024 * 1024, remedy: "pass large values to later stages in files of the project" };
/// Maximum size of an environment variable in bytes, below the kernel's 128 KiB. The script exports larger ones.
const MAX_ENTRY_BYTES: usize = 100 * 1024;
/// Maximum size of all environment variables in bytes, below the kernel's 2 MiB. The script exports the rest.
const MAX_TOTAL_BYTES: usize = 1024 * 1024;
const TEMP_DIR_MODE: u32 = 0o700;

/// Variable of a job with its expanded value.
#[derive(Clone, PartialEq, Eq)]
pub struct JobVariable {
    /// Name.
    pub key: String,
    /// Value, or content of a file variable.
    pub value: String,
    /// Whether this is a file variable, whose value in the job is a path.
    pub file: bool,
    /// Whether the value is masked in the trace.
    pub masked: bool,
}

impl std::fmt::Debug for JobVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobVariable").field("key", &self.key).field("masked", &self.masked).finish_non_exhaustive()
    }
}

/// Name and value of a variable in the job.
pub type ResolvedVariable<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Variables of one job. The last value of a name is used.
#[derive(Debug)]
pub struct Variables {
    all: Vec<JobVariable>,
    /// Variables that Muster sets later, such as `CI_JOB_STATUS`.
    changed: Mutex<HashMap<&'static str, String>>,
    /// Variables from `GITLAB_ENV`.
    from_gitlab_env: Mutex<Vec<(String, String)>>,
    /// Variables of Muster or of the operator's steps. They replace all others, so that a job cannot change them.
    added: Mutex<Vec<JobVariable>>,
}

impl Variables {
    /// Returns the variables of a job, in the order of the payload.
    #[must_use]
    pub fn new(all: Vec<JobVariable>) -> Self {
        Self { all, changed: Mutex::default(), from_gitlab_env: Mutex::default(), added: Mutex::default() }
    }

    /// Adds variables, which replace others of the same name.
    pub fn add(&self, variables: impl IntoIterator<Item = JobVariable>) {
        self.added.lock().extend(variables);
    }

    /// Adds exported variables of an operator's step. Files are written before the next step.
    pub(crate) fn add_exported(&self, exported: Vec<ExportedVariable>, temp_dir: &Path) -> io::Result<()> {
        for ExportedVariable { name, value, kind } in exported {
            if let Some(path) = file_variable_path(temp_dir, &name).filter(|_| kind == ExportKind::File) {
                private_file::remove(&path)?;
            }
            self.add([JobVariable { key: name, value, file: kind == ExportKind::File, masked: kind.is_masked() }]);
        }
        Ok(())
    }

    /// Returns the value of a variable in the payload, unless it is a file variable.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.all.iter().rev().find(|variable| variable.key == key && !variable.file).map(|v| v.value.as_str())
    }

    /// Returns all values by name. The value of a file variable is its path.
    #[must_use]
    pub fn values(&self, temp_dir: &Path) -> Map<String, Value> {
        self.resolved(temp_dir).into_iter().map(|(key, value)| (key.into(), Value::String(value.into()))).collect()
    }

    /// Sets a variable, which replaces the payload's.
    pub fn set(&self, key: &'static str, value: &str) {
        self.changed.lock().insert(key, value.to_owned());
    }

    /// Returns all variables except those of [`Variables::set`]. The value of a file variable is its content.
    pub(crate) fn current(&self) -> Vec<Variable> {
        let payload = self.all.iter().map(|variable| Variable {
            key: variable.key.clone(),
            value: variable.value.clone(),
            file: variable.file,
            masked: variable.masked,
        });
        let from_gitlab_env = self.from_gitlab_env.lock();
        let from_gitlab_env = from_gitlab_env.iter().map(|(key, value)| Variable {
            key: key.clone(),
            value: value.clone(),
            ..Variable::default()
        });
        let added = self.added.lock();
        let added = added.iter().map(|variable| Variable {
            key: variable.key.clone(),
            value: variable.value.clone(),
            file: variable.file,
            masked: variable.masked,
        });
        payload.chain(from_gitlab_env).chain(added).collect()
    }

    /// Returns those values of the payload that must be masked.
    pub fn masked(&self) -> impl Iterator<Item = &str> {
        self.all.iter().filter(|variable| variable.masked).map(|variable| variable.value.as_str())
    }

    /// Creates the temporary directory, and writes the file variables.
    ///
    /// `root` is the part of the path that jobs can change. Symbolic links in this part are rejected.
    ///
    /// # Errors
    /// If a file cannot be written, or the name of a file variable is not a valid file name.
    pub fn write_files(&self, temp_dir: &Path, root: &Root) -> io::Result<()> {
        create_private_dir(temp_dir, root)?;
        // An earlier job may have left files, which the next job must not read.
        remove_content(temp_dir)?;
        for variable in self.all.iter().filter(|variable| variable.file) {
            let path = checked_file_path(temp_dir, variable)?;
            private_file::write(&path, variable.value.as_bytes())?;
        }
        Ok(())
    }

    /// Writes missing files of file variables. A file is missing if its variable was added later, or if a job removed
    /// the file.
    ///
    /// # Errors
    /// As for [`Variables::write_files`].
    pub fn restore_files(&self, temp_dir: &Path, root: &Root) -> io::Result<()> {
        let is_missing = |path: &Path| matches!(path.symlink_metadata(), Err(e) if e.kind() == io::ErrorKind::NotFound);
        if is_missing(temp_dir) {
            create_private_dir(temp_dir, root)?;
        }
        // The last value of a name is used.
        let added = self.added.lock();
        for variable in self.all.iter().chain(&*added).filter(|variable| variable.file).rev() {
            let path = checked_file_path(temp_dir, variable)?;
            if is_missing(&path) {
                private_file::write(&path, variable.value.as_bytes())?;
            }
        }
        Ok(())
    }

    /// Reads the variables in the file `GITLAB_ENV`. Blocks the thread while it reads.
    ///
    /// # Errors
    /// If the file exists but cannot be read.
    pub fn read_gitlab_env(&self, temp_dir: &Path) -> Result<(), FileError> {
        let path = temp_dir.join(ENV_FILE);
        let read = open_in(temp_dir, ENV_FILE).and_then(|file| read_open(file, &path, ENV_FILE_LIMIT));
        let bytes = match read {
            Err(error) if error.is_missing() => Vec::new(),
            read => read?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter_map(|line| line.split_once('='));
        *self.from_gitlab_env.lock() = lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Ok(())
    }

    /// Empties the temporary directory. Removes it if the job has changed it, or if it cannot be emptied.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn clear_files(temp_dir: &Path) -> io::Result<()> {
        let metadata = match fs::symlink_metadata(temp_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata?,
        };
        if !metadata.is_dir() {
            return fs::remove_file(temp_dir);
        }
        let is_unchanged = metadata.permissions().mode() & 0o7777 == TEMP_DIR_MODE;
        if is_unchanged && remove_content(temp_dir).is_ok() { Ok(()) } else { remove_tree(temp_dir) }
    }

    /// Returns the environment of a process: `base`, then the job's variables except [`Variables::exports`]. Later
    /// values replace earlier ones.
    #[must_use]
    pub fn environment(&self, base: &[(OsString, OsString)], temp_dir: &Path) -> Vec<(OsString, OsString)> {
        let mut env = base.to_vec();
        let resolved = self.resolved(temp_dir);
        let mut total = 0;
        env.extend(
            resolved
                .into_iter()
                .filter(|(key, value)| fits_in_env(key, value, &mut total))
                .map(|(key, value)| (key.into_owned().into(), value.into_owned().into())),
        );
        env
    }

    /// Returns the variables that the script must export: large ones, and those that name files that a shell executes
    /// at its start.
    #[must_use]
    pub fn exports(&self, temp_dir: &Path) -> Vec<ResolvedVariable<'_>> {
        let mut total = 0;
        self.resolved(temp_dir).into_iter().filter(|(key, value)| !fits_in_env(key, value, &mut total)).collect()
    }

    /// Returns all variables. The value of a file variable is its path.
    #[must_use]
    pub fn all(&self, temp_dir: &Path) -> Vec<ResolvedVariable<'_>> {
        self.resolved(temp_dir)
    }

    /// Returns the last value of each name. An earlier value must not be exported if it is too large for the environment
    /// and the last value is not.
    fn resolved(&self, temp_dir: &Path) -> Vec<ResolvedVariable<'_>> {
        let mut env: Vec<ResolvedVariable<'_>> = Vec::with_capacity(self.all.len() + 8);
        env.push(("CI_JOB_STATUS".into(), "running".into()));
        env.extend(self.all.iter().map(|variable| {
            let path = if variable.file { file_variable_path(temp_dir, &variable.key) } else { None };
            let path = path.map(|path| Cow::Owned(path.to_string_lossy().into_owned()));
            (Cow::Borrowed(variable.key.as_str()), path.unwrap_or(Cow::Borrowed(variable.value.as_str())))
        }));
        env.extend(self.changed.lock().iter().map(|(key, value)| (Cow::Borrowed(*key), value.clone().into())));
        let env_file = temp_dir.join(ENV_FILE);
        env.push(("GITLAB_ENV".into(), env_file.to_string_lossy().into_owned().into()));
        env.extend(self.from_gitlab_env.lock().iter().map(|(key, value)| (key.clone().into(), value.clone().into())));
        env.extend(self.added.lock().iter().map(|variable| {
            let path = if variable.file { file_variable_path(temp_dir, &variable.key) } else { None };
            let path = path.map(|path| path.to_string_lossy().into_owned());
            (variable.key.clone().into(), path.unwrap_or_else(|| variable.value.clone()).into())
        }));
        // Environment variables cannot contain these characters.
        let has_nul = |text: &str| text.as_bytes().contains(&0);
        env.retain(|(key, value)| !key.is_empty() && !key.contains('=') && !has_nul(key) && !has_nul(value));
        let mut seen = HashSet::with_capacity(env.len());
        let is_last: Vec<bool> = env.iter().rev().map(|(key, _)| seen.insert(key.as_ref())).collect();
        let mut is_last = is_last.into_iter().rev();
        env.retain(|_| is_last.next().unwrap_or(true));
        env
    }
}

/// Returns whether a variable may be in the environment. If so, adds its size to `total`.
///
/// The shell would execute the files of `BASH_ENV` and `ENV` before the script.
fn fits_in_env(key: &str, value: &str, total: &mut usize) -> bool {
    if matches!(key, "BASH_ENV" | "ENV") {
        return false;
    }
    let size = key.len() + value.len() + 2;
    if size > MAX_ENTRY_BYTES || *total + size > MAX_TOTAL_BYTES {
        return false;
    }
    *total += size;
    true
}

/// Returns the path of a file variable. `None` means that its name is not a valid file name.
fn file_variable_path(temp_dir: &Path, key: &str) -> Option<PathBuf> {
    let is_valid = !key.is_empty() && !key.contains(['/', '\0']) && key != "." && key != "..";
    is_valid.then(|| temp_dir.join(key))
}

fn remove_content(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // This type does not follow symbolic links.
        if entry.file_type()?.is_dir() {
            muster_files::remove_tree(&entry.path())
        } else {
            fs::remove_file(entry.path())
        }?;
    }
    Ok(())
}

fn checked_file_path(temp_dir: &Path, variable: &JobVariable) -> io::Result<PathBuf> {
    file_variable_path(temp_dir, &variable.key).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{}` is not a valid name for a file variable", variable.key),
        )
    })
}

fn create_private_dir(directory: &Path, root: &Root) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        create_root(parent, root)?;
    }
    match fs::DirBuilder::new().mode(TEMP_DIR_MODE).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::symlink_metadata(directory)?.is_dir() {
                return Ok(());
            }
            // A job has replaced the directory.
            fs::remove_file(directory)?;
            fs::DirBuilder::new().mode(TEMP_DIR_MODE).create(directory)
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(key: &str, value: &str, file: bool) -> JobVariable {
        JobVariable { key: key.to_owned(), value: value.to_owned(), file, masked: false }
    }

    #[test]
    fn file_variables_are_private_files() {
        let dir = tempfile::tempdir().unwrap();
        let temp = dir.path().join("p.tmp");
        let variables = Variables::new(vec![variable("KEY", "content", true), variable("A", "1", false)]);
        variables.write_files(&temp, &Root::Chosen).unwrap();
        let path = temp.join("KEY");
        assert_eq!(fs::read_to_string(&path).unwrap(), "content");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&temp).unwrap().permissions().mode() & 0o777, 0o700);
        let env = variables.environment(&[], &temp);
        assert!(env.contains(&("KEY".into(), path.into())));
        Variables::clear_files(&temp).unwrap();
        assert_eq!(fs::read_dir(&temp).unwrap().count(), 0);
    }

    #[test]
    fn next_job_gets_empty_private_temp_dir() {
        let dir = tempfile::tempdir().unwrap();
        let (temp, elsewhere) = (dir.path().join("p.tmp"), dir.path().join("elsewhere"));
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("file"), "").unwrap();
        let variables = Variables::new(vec![variable("KEY", "content", true)]);
        let changes: [&dyn Fn(); 4] = [
            &|| fs::create_dir_all(temp.join("a/b")).unwrap(),
            &|| std::os::unix::fs::symlink(&elsewhere, temp.join("link")).unwrap(),
            &|| fs::set_permissions(&temp, fs::Permissions::from_mode(0o755)).unwrap(),
            &|| {
                fs::remove_dir_all(&temp).unwrap();
                std::os::unix::fs::symlink(&elsewhere, &temp).unwrap();
            },
        ];
        for change in changes {
            variables.write_files(&temp, &Root::Chosen).unwrap();
            change();
            // `write_files` must also replace a symbolic link.
            if !temp.is_symlink() {
                Variables::clear_files(&temp).unwrap();
            }
            variables.write_files(&temp, &Root::Chosen).unwrap();
            assert_eq!(fs::read_dir(&temp).unwrap().count(), 1);
            let metadata = fs::symlink_metadata(&temp).unwrap();
            assert!(metadata.is_dir() && metadata.permissions().mode() & 0o777 == 0o700);
        }
        assert!(elsewhere.join("file").exists() && !elsewhere.join("KEY").exists());
        Variables::clear_files(&dir.path().join("missing")).unwrap();
    }

    #[test]
    fn file_variable_outside_temp_dir_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let variables = Variables::new(vec![variable("../x", "content", true)]);
        assert_eq!(
            variables.write_files(&dir.path().join("t"), &Root::Chosen).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }

    #[test]
    fn gitlab_env_overrides_the_variables_of_the_payload() {
        let dir = tempfile::tempdir().unwrap();
        let variables = Variables::new(vec![variable("A", "1", false), variable("A", "2", false)]);
        fs::write(dir.path().join(ENV_FILE), "A=3\nno assignment\nB=x=y\n").unwrap();
        variables.set("CI_JOB_STATUS", "failed");
        variables.read_gitlab_env(dir.path()).unwrap();
        let env: HashMap<OsString, OsString> =
            variables.environment(&[("A".into(), "0".into())], dir.path()).into_iter().collect();
        assert_eq!(env.get(&OsString::from("A")).unwrap(), "3");
        assert_eq!(env.get(&OsString::from("B")).unwrap(), "x=y");
        assert_eq!(env.get(&OsString::from("CI_JOB_STATUS")).unwrap(), "failed");
    }

    #[test]
    fn added_variables_replace_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let temp = dir.path().join("p.tmp");
        let variables = Variables::new(vec![variable("A", "payload", false), variable("FILE", "payload", true)]);
        variables.write_files(&temp, &Root::Chosen).unwrap();
        variables.add([variable("A", "added", false), variable("NEW", "content", true)]);
        fs::write(temp.join(ENV_FILE), "A=job\nNEW=job\n").unwrap();
        variables.read_gitlab_env(&temp).unwrap();
        variables.restore_files(&temp, &Root::Chosen).unwrap();
        assert_eq!(fs::read_to_string(temp.join("NEW")).unwrap(), "content");
        let values = variables.values(&temp);
        assert_eq!((&values["A"], &values["NEW"]), (&"added".into(), &temp.join("NEW").to_str().unwrap().into()));
        let current = variables.current();
        let last = |key: &str| current.iter().rev().find(|variable| variable.key == key).unwrap();
        assert_eq!((last("A").value.as_str(), last("NEW").file), ("added", true));
    }

    #[test]
    fn large_variable_is_exported_by_script() {
        let large = "x".repeat(200 * 1024);
        let variables = Variables::new(vec![variable("LARGE", &large, false), variable("SMALL", "1", false)]);
        let dir = tempfile::tempdir().unwrap();
        assert!(!variables.environment(&[], dir.path()).iter().any(|(key, _)| key == "LARGE"));
        assert_eq!(variables.exports(dir.path()), [("LARGE".into(), large.into())]);
    }

    #[test]
    fn large_value_that_was_replaced_is_not_exported() {
        let dir = tempfile::tempdir().unwrap();
        let large = "x".repeat(200 * 1024);
        let variables = Variables::new(["A", "B", "C"].map(|key| variable(key, &large, false)).to_vec());
        fs::write(dir.path().join(ENV_FILE), "A=small\n").unwrap();
        variables.read_gitlab_env(dir.path()).unwrap();
        variables.add([variable("B", "small", false)]);
        let env: HashMap<OsString, OsString> = variables.environment(&[], dir.path()).into_iter().collect();
        assert_eq!(["A", "B"].map(|key| env.get(&OsString::from(key)).unwrap()), ["small", "small"]);
        let exports = variables.exports(dir.path());
        assert_eq!(exports.iter().map(|(key, _)| key.as_ref()).collect::<Vec<_>>(), ["C"]);
    }
}
