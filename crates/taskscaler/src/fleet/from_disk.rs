//! Reads the status of fleets from the ledgers on disk, without a running manager.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Report;
use crate::driver::{FileLedger, LedgerError};
use crate::engine::{GroupStatus, InstanceStatus, ScalerStatus, SlotCounts, SlotStatus};
use crate::history;
use crate::ledger::{Intent, Row, RowKey};

/// A fleet, as read from its ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetFromDisk {
    /// Path of the ledger. The history is next to it.
    pub ledger: PathBuf,
    /// Status of the fleet.
    pub report: Report,
}

/// The fleets whose books are in this directory, at `unix`. A directory that is not there has none.
///
/// # Errors
/// [`StoreError`]: the directory cannot be read. Books that cannot be are told as their fleet's report.
pub fn read_fleets(directory: &Path, unix: i64) -> Result<Vec<FleetFromDisk>, LedgerError> {
    let error = |source| LedgerError::File { doing: "read", path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(error(cause)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(error)?.path();
        // A scaler that never wrote a row has only a history.
        if path.extension().is_some_and(|extension| extension == "ledger" || extension == "history") {
            files.push(path.with_extension("ledger"));
        }
    }
    files.sort();
    files.dedup();
    Ok(files.into_iter().map(|books| fleet(&books, unix).unwrap_or_else(|error| unreadable(books, &error))).collect())
}

/// Returns the report of a fleet with an unreadable ledger.
fn unreadable(books: PathBuf, error: &LedgerError) -> FleetFromDisk {
    let down = Some(error.with_causes());
    FleetFromDisk {
        report: Report {
            runner: name_of(&books),
            unavailable_reason: down,
            requests_paused_reason: None,
            status: None,
            resources: BTreeMap::new(),
        },
        ledger: books,
    }
}

fn fleet(books: &Path, unix: i64) -> Result<FleetFromDisk, LedgerError> {
    let rows = FileLedger::rows(books)?;
    let mut groups: BTreeMap<String, GroupStatus> = BTreeMap::new();
    let mut instances = Vec::new();
    for (key, row) in rows {
        match (key, row) {
            (
                RowKey::Instance { group, id },
                Row::Instance { slots, job_count: used, first_seen_at: seen_unix, intent, was_ready, .. },
            ) => {
                of(&mut groups, &group).instances += 1;
                let age_s = unix.saturating_sub(seen_unix);
                instances.push(instance((group, id), slots, used, age_s, &intent, was_ready));
            }
            (RowKey::ScaleUp { group, .. }, Row::ScaleUp { outstanding: open, accepted: granted, .. }) => {
                let group = of(&mut groups, &group);
                group.requested += open;
                group.unconfirmed += if granted { 0 } else { open };
            }
            (RowKey::Deleted { group, .. }, _) => drop(of(&mut groups, &group)),
            (RowKey::DrainedGroup { group }, Row::DrainedGroup { by }) => of(&mut groups, &group).drained = Some(by),
            (RowKey::Unmanaged { group, id }, _) => of(&mut groups, &group).unmanaged.push(id),
            _ => {}
        }
    }
    instances.sort_by_key(|instance| std::cmp::Reverse(instance.age_ms));
    let acquired = instances.iter().map(|instance| instance.slots.len() as u64).sum();
    let runner = match groups.keys().next() {
        Some(name) => name.clone(),
        None => name_of(books),
    };
    let status = ScalerStatus {
        slots: SlotCounts { acquired, ..SlotCounts::default() },
        desired_change: 0,
        idle_target: 0,
        policy: None,
        cost_per_hour: 0.0,
        scale_up_blocked: Vec::new(),
        waiting: Vec::new(),
        booting: 0,
        next_ready_in_ms: None,
        groups: groups.into_values().collect(),
        instances,
    };
    let down = Some("read from its ledger".to_owned());
    Ok(FleetFromDisk {
        ledger: books.to_owned(),
        report: Report {
            runner,
            unavailable_reason: down,
            requests_paused_reason: None,
            status: Some(status),
            resources: BTreeMap::new(),
        },
    })
}

/// Returns the group of the latest decision, or the name of the file.
fn name_of(books: &Path) -> String {
    let last = history::read(books, 0, 1, |told| told.group.is_some()).ok().and_then(|mut told| told.pop()?.group);
    last.unwrap_or_else(|| books.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

fn of<'a>(groups: &'a mut BTreeMap<String, GroupStatus>, name: &str) -> &'a mut GroupStatus {
    groups.entry(name.to_owned()).or_insert_with(|| GroupStatus {
        name: name.to_owned(),
        unavailable_reason: None,
        max: None,
        instances: 0,
        requested: 0,
        unconfirmed: 0,
        failures: 0,
        error: None,
        list_failures: 0,
        list_error: None,
        unmanaged: Vec::new(),
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
        Intent::Serve if was_ready || used > 0 => ("ready", None),
        Intent::Serve => ("booting", None),
        Intent::Cordon { by, .. } => ("cordoned", Some(by.clone())),
        Intent::Suspend => ("suspended", Some("for a later job".to_owned())),
        Intent::Drain(why) => ("draining", Some(why.to_string())),
        Intent::Delete(why) => ("deleting", Some(why.to_string())),
    };
    let age_ms = u64::try_from(age_s).unwrap_or(0).saturating_mul(1000);
    InstanceStatus {
        id,
        group,
        state: state.to_owned(),
        reason: why,
        state_age_ms: age_ms,
        age_ms,
        job_count: used,
        failures: 0,
        slots: (0..).zip(slots).filter_map(|(slot, key)| Some(SlotStatus { slot, key: key? })).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_ledger_does_not_hide_other_fleets() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a.ledger"), "{\"taskscaler_ledger\":1}\nnonsense\n").unwrap();
        std::fs::write(place.path().join("b.ledger"), "{\"taskscaler_ledger\":1}\n").unwrap();
        let fleets = read_fleets(place.path(), 0).unwrap();
        let [damaged, whole] = fleets.as_slice() else { panic!("{fleets:?}") };
        let why = damaged.report.unavailable_reason.as_deref().unwrap();
        assert!(damaged.report.status.is_none() && why.contains("a.ledger at line 2"), "{why}");
        assert!(whole.report.status.is_some());
    }
}
