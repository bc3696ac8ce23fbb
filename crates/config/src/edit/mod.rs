//! Edits config.toml: changes single values or entries, and keeps every other byte.
//!
//! ```no_run
//! # use muster_config::edit::{ConfigFile, EditError, NewToken};
//! # fn register(path: &std::path::Path, entry: toml_edit::Table) -> Result<(), EditError> {
//! let mut file = ConfigFile::open(path)?; // waits for other writers, at most LOCK_TIMEOUT
//! file.add_runner(entry);
//! file.save() // the lock is released when `file` is dropped
//! # }
//! ```
//!
//! - Comments, order, unknown keys and `$VAR` references are kept, unlike in gitlab-runner.
//! - A save renames a new file over the old one. A file that is a mount point is overwritten instead.
//! - The mode is kept, and the owner if possible. A new file has mode 0600, and a new directory mode 0700.
//! - Writers exclude each other by a lock file, `.<name>.lock`. [`lock_for_manager`] takes the lock of a running manager.
//! - If a program without the lock changes the file in the meantime, nothing is saved
//!   ([`EditError::ModifiedConcurrently`]).

mod lock;
mod save;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_job::Secret;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::codes::Severity;
use super::facts::HostFacts;
use super::links;
use super::load::{self, Loaded};
use super::problem::Problem;
use super::text_file;
pub use lock::{ConfigLock, lock_for_manager};

/// Maximum time that a writer waits for another writer.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Value of [`EditError::Io::doing`] if overwriting the file failed. The file may be incomplete only in this case.
const OVERWRITE: &str = "overwrite";

/// Reason why a file was not changed. After a failed save, only a file that is a mount point can be incomplete.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// Another process has locked the file.
    #[error(
        "`{}` is in use by {}; wait until it has exited, then try again",
        path.display(),
        pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// Path of the configuration.
        path: PathBuf,
        /// ID of the process that holds the lock, if it is known.
        pid: Option<u32>,
    },
    /// The file is not valid TOML, or a change has made it too large.
    #[error("`{}` cannot be changed because it has errors:\n{}", path.display(), problems.join("\n"))]
    Invalid {
        /// Path of the configuration.
        path: PathBuf,
        /// Rendered problems, without secrets.
        problems: Vec<String>,
    },
    /// Another program changed the file in the meantime.
    #[error("`{}` was changed by another program in the meantime, so nothing was saved; try again", path.display())]
    ModifiedConcurrently {
        /// Path of the configuration.
        path: PathBuf,
    },
    /// The `[[runners]]` entry does not exist.
    #[error("entry {} of [[runners]] does not exist", index + 1)]
    NoRunner {
        /// Requested index, from 0.
        index: usize,
    },
    /// Reading or writing failed.
    #[error("failed to {doing} `{}`{}", path.display(), hint(doing, source))]
    Io {
        /// Action that failed, such as `write`.
        doing: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

fn hint(doing: &str, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    if links::is_symlink_loop(error) {
        return ": the symbolic links form a loop; let the link point to the file".to_owned();
    }
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ": free some space on its disk",
        ErrorKind::ReadOnlyFilesystem => ": its file system is read-only",
        ErrorKind::PermissionDenied if matches!(doing, "read" | OVERWRITE) => {
            ": fix its permissions or run as its owner"
        }
        ErrorKind::PermissionDenied => ": fix the permissions of its directory or run as its owner",
        _ if doing == OVERWRITE => "",
        _ => return String::new(),
    };
    let state = match doing {
        OVERWRITE => "the file may be incomplete, and a hidden file beside it has the complete new text",
        _ => "the file is unchanged",
    };
    format!("; {state}{remedy}")
}

/// Returns the path behind symbolic links.
fn target(path: &Path) -> Result<PathBuf, EditError> {
    links::target(path).map_err(|source| EditError::Io { doing: "find", path: path.to_owned(), source })
}

/// A new authentication token of a runner.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The token.
    pub token: Secret,
    /// ID of the runner on the server. `None` if the server did not return an ID.
    pub id: Option<i64>,
    /// Time at which the token was created. `None` means unknown.
    pub obtained_at: Option<OffsetDateTime>,
    /// Time at which the token expires. `None` means never.
    pub expires_at: Option<OffsetDateTime>,
}

impl NewToken {
    /// Returns the token of a coordinator's answer to a reset, which does not change the runner's ID.
    ///
    /// `expires_at` is the `token_expires_at` of the answer. GitLab sends none, or a date in year 1, for a token that never expires.
    #[must_use]
    pub fn after_reset(token: &str, expires_at: Option<&str>, obtained_at: OffsetDateTime) -> Self {
        let expiry = |text: &str| OffsetDateTime::parse(text, &Rfc3339).ok().filter(|date| date.year() > 1);
        Self {
            token: Secret::new(token),
            id: None,
            obtained_at: Some(obtained_at),
            expires_at: expires_at.and_then(expiry),
        }
    }
}

/// A locked configuration file that is open for changes.
pub struct ConfigFile {
    path: PathBuf,
    /// Original text. `None` if there was no file.
    before: Option<String>,
    document: DocumentMut,
    _lock: ConfigLock,
}

/// Hides the text, because it contains tokens.
impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ConfigFile {
    /// Locks and reads the file. A missing file counts as empty.
    ///
    /// # Errors
    /// [`EditError`] if the file is locked, cannot be read or is not valid TOML.
    pub fn open(path: &Path) -> Result<Self, EditError> {
        Self::open_within(path, LOCK_TIMEOUT)
    }

    /// Like [`ConfigFile::open`], with another timeout for the lock.
    ///
    /// # Errors
    /// As for [`ConfigFile::open`].
    pub fn open_within(path: &Path, wait: Duration) -> Result<Self, EditError> {
        let path = target(path)?;
        let lock = lock::lock_for_writer(&path, wait)?;
        let before = match text_file::read(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(EditError::Io { doing: "read", path, source }),
        };
        let text = before.as_deref().unwrap_or_default();
        match text.parse::<DocumentMut>() {
            Ok(document) => Ok(Self { path, before, document, _lock: lock }),
            Err(_) => Err(invalid(&path, &load::parse(text, &HostFacts::default()))),
        }
    }

    /// Returns the path of the file behind symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Parses the current text, including the changes so far.
    #[must_use]
    pub fn read(&self, facts: &HostFacts) -> Loaded {
        load::parse(&self.document.to_string(), facts)
    }

    /// Returns the current text, including the changes so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// Adds an entry at the end of `[[runners]]`, and returns its index. An empty file first gets `concurrent` and `check_interval`.
    pub fn add_runner(&mut self, entry: Table) -> usize {
        let root = self.document.as_table_mut();
        if root.is_empty() {
            root.insert("concurrent", toml_edit::value(1));
            root.insert("check_interval", toml_edit::value(0));
        }
        let name = name_in(root, "runners").unwrap_or_else(|| "runners".to_owned());
        match root.entry(&name).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new())) {
            Item::Value(Value::Array(list)) => {
                list.push(entry.into_inline_table());
                list.len() - 1
            }
            // As in gitlab-runner, a single table may stand for an array.
            item => {
                if let Item::Table(table) = item {
                    let mut tables = ArrayOfTables::new();
                    tables.push(std::mem::take(table));
                    *item = Item::ArrayOfTables(tables);
                }
                let Some(tables) = item.as_array_of_tables_mut() else { return 0 };
                let mut entry = without_positions(&entry);
                if entry.decor().prefix().is_none() {
                    entry.decor_mut().set_prefix("\n");
                }
                tables.push(entry);
                tables.len() - 1
            }
        }
    }

    /// Removes an entry of `[[runners]]` and the comments directly above it.
    ///
    /// # Errors
    /// [`EditError::NoRunner`] if there is no such entry.
    pub fn remove_runner(&mut self, index: usize) -> Result<(), EditError> {
        let root = self.document.as_table_mut();
        let name = name_in(root, "runners").unwrap_or_default();
        match root.get_mut(&name) {
            Some(Item::ArrayOfTables(tables)) if index < tables.len() => drop(tables.remove(index)),
            Some(Item::Value(Value::Array(list))) if index < list.len() => drop(list.remove(index)),
            Some(Item::Table(_)) if index == 0 => drop(root.remove(&name)),
            _ => return Err(EditError::NoRunner { index }),
        }
        Ok(())
    }

    /// Replaces the token of an entry, the times of the token and, if `new` has an ID, the ID of the runner.
    ///
    /// Returns C023 if the old token was a reference to the environment, because the new token is in the file itself.
    ///
    /// # Errors
    /// [`EditError::NoRunner`] if there is no such entry.
    pub fn set_token(&mut self, index: usize, new: &NewToken) -> Result<Option<Problem>, EditError> {
        let entry = self.runner_mut(index)?;
        let old = string(entry, "token");
        set(entry, "token", new.token.expose().into());
        if let Some(id) = new.id {
            set(entry, "id", id.into());
        }
        for (key, time) in [("token_obtained_at", new.obtained_at), ("token_expires_at", new.expires_at)] {
            match time {
                Some(time) => set(entry, key, date(time)),
                None => drop(name_in(entry, key).and_then(|name| entry.remove(&name))),
            }
        }
        let name = string(entry, "name").unwrap_or_default();
        Ok(old.filter(|old| old.contains('$')).map(|old| {
            let message = format!(
                "token = \"{}\" was replaced by the new token, which is now in the file",
                masked_reference(&old)
            );
            Problem::new("C023", message)
                .of(index, &name)
                .help("store the new token at the source of the variable, and restore the reference")
        }))
    }

    /// Sets a key of an entry of `[[runners]]`.
    ///
    /// # Errors
    /// [`EditError::NoRunner`] if there is no such entry.
    pub fn set_runner_key(&mut self, index: usize, key: &str, value: Value) -> Result<(), EditError> {
        set(self.runner_mut(index)?, key, value);
        Ok(())
    }

    /// Saves the file if it was changed.
    ///
    /// # Errors
    /// [`EditError`] if the file cannot be saved. It is then unchanged, unless it is a mount point.
    pub fn save(&mut self) -> Result<(), EditError> {
        let text = self.document.to_string();
        if self.before.as_deref() == Some(text.as_str()) {
            return Ok(());
        }
        // A defect must not destroy the file, so the text must be valid TOML.
        let loaded = load::parse(&text, &HostFacts::default());
        if loaded.problems.iter().any(|problem| problem.code == "C000" && problem.severity == Severity::Fatal) {
            return Err(invalid(&self.path, &loaded));
        }
        save::replace(&self.path, self.before.as_deref(), &text)?;
        self.before = Some(text);
        Ok(())
    }

    /// Checks that an existing file can be saved, by a trial save of its current content.
    ///
    /// # Errors
    /// [`EditError`] if the file cannot be saved.
    pub fn check_writable(&self) -> Result<(), EditError> {
        match &self.before {
            Some(text) => save::replace(&self.path, Some(text), text),
            None => Ok(()),
        }
    }

    fn runner_mut(&mut self, index: usize) -> Result<&mut dyn TableLike, EditError> {
        let root = self.document.as_table_mut();
        let name = name_in(root, "runners").unwrap_or_default();
        let entry: Option<&mut dyn TableLike> = match root.get_mut(&name) {
            Some(Item::ArrayOfTables(tables)) => tables.get_mut(index).map(|table| table as &mut dyn TableLike),
            Some(Item::Value(Value::Array(list))) => list
                .get_mut(index)
                .and_then(Value::as_inline_table_mut)
                .map(|table: &mut InlineTable| table as &mut dyn TableLike),
            Some(Item::Table(table)) if index == 0 => Some(table),
            _ => None,
        };
        entry.ok_or(EditError::NoRunner { index })
    }
}

fn invalid(path: &Path, loaded: &Loaded) -> EditError {
    let fatal = loaded.problems.iter().filter(|problem| problem.severity == Severity::Fatal);
    EditError::Invalid { path: path.to_owned(), problems: fatal.map(|problem| problem.render(path)).collect() }
}

/// Returns the key as the table spells it.
fn name_in(table: &dyn TableLike, key: &str) -> Option<String> {
    if table.contains_key(key) {
        return Some(key.to_owned());
    }
    table.iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case(key)).map(str::to_owned)
}

fn string(table: &dyn TableLike, key: &str) -> Option<String> {
    table.get(&name_in(table, key)?)?.as_str().map(str::to_owned)
}

/// Sets a key, and keeps the comment beside it. A key that the table does not have is added at the end.
fn set(table: &mut dyn TableLike, key: &str, value: Value) {
    let name = name_in(table, key).unwrap_or_else(|| key.to_owned());
    match table.get_mut(&name) {
        Some(Item::Value(old)) => {
            let decor = old.decor().clone();
            *old = value;
            *old.decor_mut() = decor;
        }
        Some(other) => *other = Item::Value(value),
        None => {
            table.insert(&name, Item::Value(value));
        }
    }
}

/// Returns the time in UTC with a precision of one second, as gitlab-runner writes it.
fn date(time: OffsetDateTime) -> Value {
    let time = time.to_offset(time::UtcOffset::UTC).replace_nanosecond(0).unwrap_or(time);
    let text = time.format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
    text.parse::<toml_edit::Datetime>().map_or_else(|_| Value::from(text), Value::from)
}

/// Returns a reference such as `$TOKEN` for a message. It is masked if it may contain a part of a token.
fn masked_reference(text: &str) -> String {
    if super::runners::is_reference(text) { super::problem::shown_name(text) } else { "[masked]".to_owned() }
}

/// Copies an entry, without the positions of its tables, so that the tables are written directly below the entry.
fn without_positions(entry: &Table) -> Table {
    let mut copy = Table::new();
    *copy.decor_mut() = entry.decor().clone();
    for (name, item) in entry {
        let item = match item {
            Item::Table(inner) => Item::Table(without_positions(inner)),
            Item::ArrayOfTables(tables) => Item::ArrayOfTables(tables.iter().map(without_positions).collect()),
            other => other.clone(),
        };
        match entry.key(name) {
            Some(key) => drop(copy.insert_formatted(key, item)),
            None => drop(copy.insert(name, item)),
        }
    }
    copy
}
