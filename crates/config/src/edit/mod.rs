//! Changes to config.toml: one thing is changed, every other byte stays, and no save loses anything.
//!
//! ```no_run
//! # use muster_config::edit::{ConfigFile, EditError, NewToken};
//! # fn register(path: &std::path::Path, entry: toml_edit::Table) -> Result<(), EditError> {
//! let mut file = ConfigFile::open(path)?; // waits for other writers, at most LOCK_WAIT
//! file.add_runner(entry);
//! file.save() // the lock is given back when `file` is dropped
//! # }
//! ```
//!
//! - Comments, order, unknown keys and `$VAR` texts stay as they are (the reference loses all of them).
//! - A save writes a new file beside the old one, syncs it and renames it: after a crash or on a full disk there is the old
//!   file or the new one. Mode and owner stay; a new file is 0600 in a directory of 0700. A symbolic link is followed.
//! - Writers exclude each other by a lock file, `.<name>.lock`; [`hold`] is the lock that a running manager holds.
//! - Somebody without the lock (an editor) may change the file meanwhile: then nothing is saved ([`EditError::Changed`]).

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
use super::facts::Facts;
use super::links;
use super::load::{self, Loaded};
use super::problem::Problem;
pub use lock::{Held, hold};

/// How long a writer waits for another one.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Why a file was not changed. It is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// Another process has it.
    #[error(
        "`{}` is in use by {}; wait until it has ended, then try again",
        path.display(),
        pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Locked {
        /// The configuration.
        path: PathBuf,
        /// Who has it, where that is known.
        pid: Option<u32>,
    },
    /// The file is no configuration; the texts of the problems, without secrets.
    #[error("`{}` cannot be changed, because it has errors:\n{}", path.display(), problems.join("\n"))]
    Invalid {
        /// The configuration.
        path: PathBuf,
        /// What is wrong, rendered.
        problems: Vec<String>,
    },
    /// Somebody else changed it meanwhile.
    #[error("`{}` was changed by somebody else meanwhile; nothing was saved, try again", path.display())]
    Changed {
        /// The configuration.
        path: PathBuf,
    },
    /// There is no such entry.
    #[error("there is no entry {} of [[runners]]", index + 1)]
    NoRunner {
        /// The index that was asked for, from 0.
        index: usize,
    },
    /// Reading or writing failed.
    #[error("cannot {doing} `{}`{}", path.display(), hint(source))]
    Io {
        /// What was tried, such as `write`.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

fn hint(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; the file is as it was, free some space on its disk",
        ErrorKind::ReadOnlyFilesystem => "; the file is as it was, its file system is read-only",
        ErrorKind::PermissionDenied => {
            "; the file is as it was, mend the permissions of its directory or run as its owner"
        }
        _ if links::is_circle(error) => ": a symbolic link leads in a circle, let it lead to the file",
        _ => "",
    }
}

/// The file itself, if a symbolic link was named.
fn target(path: &Path) -> Result<PathBuf, EditError> {
    links::target(path).map_err(|source| EditError::Io { doing: "find", path: path.to_owned(), source })
}

/// A new authentication token of a runner.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// The token.
    pub token: Secret,
    /// The server's number of the runner, if it told one.
    pub id: Option<i64>,
    /// When the token was made.
    pub obtained_at: Option<OffsetDateTime>,
    /// When it ends; none means never.
    pub expires_at: Option<OffsetDateTime>,
}

impl NewToken {
    /// The token that a coordinator answers to a reset, for a runner whose id stays as it is. `expires_at` is its
    /// `token_expires_at`: GitLab sends none, or a date in year 1, for a token that never expires.
    #[must_use]
    pub fn after_reset(token: &str, expires_at: Option<&str>, obtained_at: OffsetDateTime) -> Self {
        let ends = |text: &str| OffsetDateTime::parse(text, &Rfc3339).ok().filter(|date| date.year() > 1);
        Self {
            token: Secret::new(token),
            id: None,
            obtained_at: Some(obtained_at),
            expires_at: expires_at.and_then(ends),
        }
    }
}

/// A configuration file that is open for a change, under its lock.
pub struct ConfigFile {
    path: PathBuf,
    /// The file's text when it was read; none where there is no file yet.
    before: Option<String>,
    document: DocumentMut,
    _lock: Held,
}

/// The text holds tokens.
impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ConfigFile {
    /// Locks and reads the file; one that does not exist is begun.
    ///
    /// # Errors
    /// [`EditError`].
    pub fn open(path: &Path) -> Result<Self, EditError> {
        Self::open_within(path, LOCK_WAIT)
    }

    /// [`ConfigFile::open`], with another limit of the wait for the lock.
    ///
    /// # Errors
    /// [`EditError`].
    pub fn open_within(path: &Path, wait: Duration) -> Result<Self, EditError> {
        let path = target(path)?;
        let lock = lock::writer(&path, wait)?;
        let before = match load::read(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(EditError::Io { doing: "read", path, source }),
        };
        let text = before.as_deref().unwrap_or_default();
        match text.parse::<DocumentMut>() {
            Ok(document) => Ok(Self { path, before, document, _lock: lock }),
            Err(_) => Err(invalid(&path, &load::parse(text, &Facts::default()))),
        }
    }

    /// The file that is changed: the target where a symbolic link was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the text means now, with the changes so far.
    #[must_use]
    pub fn read(&self, facts: &Facts) -> Loaded {
        load::parse(&self.document.to_string(), facts)
    }

    /// The text now, with the changes so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    /// Adds an entry to `[[runners]]`, after the others; its index. A new file gets the global keys first.
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
            // A single table where an array was meant: the reference reads it so too.
            item => {
                if let Item::Table(table) = item {
                    let mut tables = ArrayOfTables::new();
                    tables.push(std::mem::take(table));
                    *item = Item::ArrayOfTables(tables);
                }
                let Some(tables) = item.as_array_of_tables_mut() else { return 0 };
                let mut entry = placed(&entry);
                if entry.decor().prefix().is_none() {
                    entry.decor_mut().set_prefix("\n");
                }
                tables.push(entry);
                tables.len() - 1
            }
        }
    }

    /// Removes an entry of `[[runners]]`, with the comments right above it.
    ///
    /// # Errors
    /// [`EditError::NoRunner`].
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

    /// Gives an entry another token. What it says of the old one, C023 where the file held a reference to the environment:
    /// the new token is then in the file itself.
    ///
    /// # Errors
    /// [`EditError::NoRunner`].
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
            let message =
                format!("token = \"{}\" was replaced by the new token, which is in the file now", reference(&old));
            Problem::new("C023", message)
                .of(index, &name)
                .help("store the new token where the variable comes from, and write the reference again")
        }))
    }

    /// Sets a key of an entry of `[[runners]]`.
    ///
    /// # Errors
    /// [`EditError::NoRunner`].
    pub fn set_runner_key(&mut self, index: usize, key: &str, value: Value) -> Result<(), EditError> {
        set(self.runner_mut(index)?, key, value);
        Ok(())
    }

    /// Writes the file. Without a change nothing is written.
    ///
    /// # Errors
    /// [`EditError`]; the file is then as it was, also where the disk is full.
    pub fn save(&mut self) -> Result<(), EditError> {
        let text = self.document.to_string();
        if self.before.as_deref() == Some(text.as_str()) {
            return Ok(());
        }
        // A defect must not cost the file: what would be written has to be a configuration again.
        let loaded = load::parse(&text, &Facts::default());
        if loaded.problems.iter().any(|problem| problem.code == "C000" && problem.severity == Severity::Fatal) {
            return Err(invalid(&self.path, &loaded));
        }
        save::replace(&self.path, self.before.as_deref(), &text)?;
        self.before = Some(text);
        Ok(())
    }

    /// Saves what the file holds already: whether a save works, before something is done that needs one.
    ///
    /// # Errors
    /// [`EditError`]; the file is as it was in any case.
    pub fn prove(&self) -> Result<(), EditError> {
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

/// The key as the table spells it.
fn name_in(table: &dyn TableLike, key: &str) -> Option<String> {
    if table.contains_key(key) {
        return Some(key.to_owned());
    }
    table.iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case(key)).map(str::to_owned)
}

fn string(table: &dyn TableLike, key: &str) -> Option<String> {
    table.get(&name_in(table, key)?)?.as_str().map(str::to_owned)
}

/// Sets a key in its place, with the comment beside it; a new one comes last.
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

/// A date to the second, in UTC, as the reference writes it.
fn date(time: OffsetDateTime) -> Value {
    let time = time.to_offset(time::UtcOffset::UTC).replace_nanosecond(0).unwrap_or(time);
    let text = time.format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
    text.parse::<toml_edit::Datetime>().map_or_else(|_| Value::from(text), Value::from)
}

/// What is written of a value that refers to the environment: the names only.
fn reference(text: &str) -> String {
    if super::runners::is_reference(text) { super::problem::shown_name(text) } else { "[masked]".to_owned() }
}

/// An entry as it is added: after an empty line, its tables right below it wherever they came from.
fn placed(entry: &Table) -> Table {
    // A table without a position follows what is written before it.
    let mut fresh = Table::new();
    *fresh.decor_mut() = entry.decor().clone();
    for (name, item) in entry {
        let item = match item {
            Item::Table(below) => Item::Table(placed(below)),
            Item::ArrayOfTables(tables) => Item::ArrayOfTables(tables.iter().map(placed).collect()),
            other => other.clone(),
        };
        match entry.key(name) {
            Some(key) => drop(fresh.insert_formatted(key, item)),
            None => drop(fresh.insert(name, item)),
        }
    }
    fresh
}
