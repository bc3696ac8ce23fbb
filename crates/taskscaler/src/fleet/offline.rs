//! What the files of a manager that does not run, or is not asked, say of its fleets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Report;
use crate::books::{Intent, Row, RowKey};
use crate::driver::{Journal, StoreError};
use crate::engine::{GroupStatus, InstanceStatus, SlotStatus, Status, Tasks};
use crate::history;

/// One fleet, by its files.
#[derive(Debug, Clone, PartialEq)]
pub struct OfflineFleet {
    /// Its books; the history is beside them.
    pub books: PathBuf,
    /// How it is.
    pub report: Report,
}

/// The fleets whose books are in this directory, at `unix`. A directory that is not there has none.
///
/// # Errors
/// [`StoreError`]: the directory cannot be read. Books that cannot be are told as their fleet's report.
pub fn offline(directory: &Path, unix: i64) -> Result<Vec<OfflineFleet>, StoreError> {
    let error = |source| StoreError::File { doing: "read", path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(error(cause)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(error)?.path();
        // Of a scaler that never wrote a row only the history is there.
        if path.extension().is_some_and(|extension| extension == "books" || extension == "history") {
            files.push(path.with_extension("books"));
        }
    }
    files.sort();
    files.dedup();
    Ok(files.into_iter().map(|books| fleet(&books, unix).unwrap_or_else(|error| unreadable(books, &error))).collect())
}

/// Damaged books say nothing of the others.
fn unreadable(books: PathBuf, error: &StoreError) -> OfflineFleet {
    let down = Some(error.with_causes());
    OfflineFleet {
        report: Report { runner: name_of(&books), down, no_requests: None, status: None, resources: BTreeMap::new() },
        books,
    }
}

fn fleet(books: &Path, unix: i64) -> Result<OfflineFleet, StoreError> {
    let rows = Journal::rows(books)?;
    let mut groups: BTreeMap<String, GroupStatus> = BTreeMap::new();
    let mut instances = Vec::new();
    for (key, row) in rows {
        match (key, row) {
            (RowKey::Instance { group, id }, Row::Instance { slots, used, seen_unix, intent, was_ready, .. }) => {
                of(&mut groups, &group).instances += 1;
                let age_s = unix.saturating_sub(seen_unix);
                instances.push(instance((group, id), slots, used, age_s, &intent, was_ready));
            }
            (RowKey::Ask { group, .. }, Row::Ask { open, granted, .. }) => {
                let group = of(&mut groups, &group);
                group.coming += open;
                group.doubtful += if granted { 0 } else { open };
            }
            (RowKey::Gone { group, .. }, _) => drop(of(&mut groups, &group)),
            (RowKey::Drained { group }, Row::Drained { by }) => of(&mut groups, &group).drained = Some(by),
            (RowKey::Foreign { group, id }, _) => of(&mut groups, &group).foreign.push(id),
            _ => {}
        }
    }
    instances.sort_by_key(|instance| std::cmp::Reverse(instance.age_ms));
    let acquired = instances.iter().map(|instance| instance.slots.len() as u64).sum();
    let runner = match groups.keys().next() {
        Some(name) => name.clone(),
        None => name_of(books),
    };
    let status = Status {
        tasks: Tasks { acquired, ..Tasks::default() },
        missing: 0,
        idle_wanted: 0,
        policy: None,
        spend_per_hour: 0.0,
        held: Vec::new(),
        waiting: Vec::new(),
        booting: 0,
        ready_in_ms: None,
        groups: groups.into_values().collect(),
        instances,
    };
    let down = Some("this is what its books say".to_owned());
    Ok(OfflineFleet {
        books: books.to_owned(),
        report: Report { runner, down, no_requests: None, status: Some(status), resources: BTreeMap::new() },
    })
}

/// A scaler without rows is named by what it decided last, or by its file.
fn name_of(books: &Path) -> String {
    let last = history::read(books, 0, 1, |told| told.group.is_some()).ok().and_then(|mut told| told.pop()?.group);
    last.unwrap_or_else(|| books.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

fn of<'a>(groups: &'a mut BTreeMap<String, GroupStatus>, name: &str) -> &'a mut GroupStatus {
    groups.entry(name.to_owned()).or_insert_with(|| GroupStatus {
        name: name.to_owned(),
        down: None,
        max: None,
        instances: 0,
        coming: 0,
        doubtful: 0,
        failures: 0,
        error: None,
        list_failures: 0,
        list_error: None,
        foreign: Vec::new(),
        drained: None,
    })
}

fn instance(
    (group, id): (String, String),
    slots: Vec<Option<String>>,
    used: u32,
    age_s: i64,
    intent: &Intent,
    was_ready: bool,
) -> InstanceStatus {
    let (state, why) = match intent {
        // Earlier books do not say it, and only what was ready has had jobs.
        Intent::Use if was_ready || used > 0 => ("ready", None),
        Intent::Use => ("booting", None),
        Intent::Keep { by, .. } => ("drained", Some(by.clone())),
        Intent::Suspend => ("suspended", Some("kept for a later job".to_owned())),
        Intent::Drain(why) => ("draining", Some(why.to_string())),
        Intent::Delete(why) => ("deleting", Some(why.to_string())),
    };
    let age_ms = u64::try_from(age_s).unwrap_or(0).saturating_mul(1000);
    InstanceStatus {
        id,
        group,
        state: state.to_owned(),
        why,
        for_ms: age_ms,
        age_ms,
        used,
        failures: 0,
        slots: (0..).zip(slots).filter_map(|(slot, key)| Some(SlotStatus { slot, key: key? })).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_books_do_not_hide_the_others() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a.books"), "{\"taskscaler_books\":1}\nnonsense\n").unwrap();
        std::fs::write(place.path().join("b.books"), "{\"taskscaler_books\":1}\n").unwrap();
        let fleets = offline(place.path(), 0).unwrap();
        let [damaged, whole] = fleets.as_slice() else { panic!("{fleets:?}") };
        let why = damaged.report.down.as_deref().unwrap();
        assert!(damaged.report.status.is_none() && why.contains("a.books, line 2 cannot be read"), "{why}");
        assert!(whole.report.status.is_some());
    }
}
