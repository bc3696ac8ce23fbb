//! Reads the status of fleets from the ledgers on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Report;
use crate::driver::{FileLedger, LedgerError};
use crate::engine::{GroupStatus, InstanceStatus, ScalerStatus, SlotCounts, SlotStatus};
use crate::history;
use crate::ledger::{Intent, Row, RowKey};

/// A fleet as its ledger describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetFromDisk {
    /// Path of the ledger.
    pub ledger: PathBuf,
    /// Status of the fleet.
    pub report: Report,
}

/// Reads the fleets whose ledgers are in a directory. Returns no fleets if the directory does not exist.
///
/// A ledger does not contain the name of its runner, so a report has the names of the runner's groups instead.
///
/// `unix` is the current time in seconds since 1970. The report of a fleet whose ledger is unreadable contains the
/// error.
///
/// # Errors
/// Reading the directory failed.
pub fn read_fleets(directory: &Path, unix: i64) -> Result<Vec<FleetFromDisk>, LedgerError> {
    let read_error = |source| LedgerError::File { doing: "read", path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(read_error(source)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(read_error)?.path();
        // A scaler that never wrote a row has only a history.
        if path.extension().is_some_and(|extension| extension == "ledger" || extension == "history") {
            files.push(path.with_extension("ledger"));
        }
    }
    files.sort();
    files.dedup();
    let read = |ledger: PathBuf| read_fleet(&ledger, unix).unwrap_or_else(|error| unreadable_fleet(ledger, &error));
    Ok(files.into_iter().map(read).collect())
}

fn unreadable_fleet(ledger: PathBuf, error: &LedgerError) -> FleetFromDisk {
    FleetFromDisk {
        report: Report {
            runner: fleet_name(&ledger),
            unavailable_reason: Some(error.with_causes()),
            requests_paused_reason: None,
            status: None,
            resources: BTreeMap::new(),
        },
        ledger,
    }
}

fn read_fleet(ledger: &Path, unix: i64) -> Result<FleetFromDisk, LedgerError> {
    let rows = FileLedger::rows(ledger)?;
    let mut groups: BTreeMap<String, GroupStatus> = BTreeMap::new();
    let mut instances = Vec::new();
    for (key, row) in rows {
        match (key, row) {
            (
                RowKey::Instance { group, id },
                Row::Instance { slots, job_count, first_seen_at, intent, was_ready, .. },
            ) => {
                group_status(&mut groups, &group).instances += 1;
                let age_s = unix.saturating_sub(first_seen_at);
                instances.push(instance_status((group, id), slots, job_count, age_s, &intent, was_ready));
            }
            // As in the engine, a written-off request no longer counts.
            (RowKey::ScaleUp { group, .. }, Row::ScaleUp { written_off_until: Some(_), .. }) => {
                group_status(&mut groups, &group);
            }
            (RowKey::ScaleUp { group, .. }, Row::ScaleUp { outstanding, accepted, .. }) => {
                let group = group_status(&mut groups, &group);
                group.requested += outstanding;
                group.unconfirmed += if accepted { 0 } else { outstanding };
            }
            (RowKey::Deleted { group, .. }, _) => drop(group_status(&mut groups, &group)),
            (RowKey::DrainedGroup { group }, Row::DrainedGroup { by }) => {
                group_status(&mut groups, &group).drained = Some(by)
            }
            (RowKey::Unmanaged { group, id }, _) => group_status(&mut groups, &group).unmanaged.push(id),
            _ => {}
        }
    }
    instances.sort_by_key(|instance| std::cmp::Reverse(instance.age_ms));
    let acquired = instances.iter().map(|instance| instance.slots.len() as u64).sum();
    let runner = if groups.is_empty() {
        fleet_name(ledger)
    } else {
        groups.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
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
    Ok(FleetFromDisk {
        ledger: ledger.to_owned(),
        report: Report {
            runner,
            unavailable_reason: Some("read from its ledger".to_owned()),
            requests_paused_reason: None,
            status: Some(status),
            resources: BTreeMap::new(),
        },
    })
}

/// Name for a fleet without groups in its ledger: that of the group in the latest decision, or else of the file.
fn fleet_name(ledger: &Path) -> String {
    let latest = history::read(ledger, 0, 1, |entry| entry.group.is_some());
    let group = latest.ok().and_then(|mut entries| entries.pop()?.group);
    group.unwrap_or_else(|| ledger.file_stem().unwrap_or_default().to_string_lossy().into_owned())
}

fn group_status<'a>(groups: &'a mut BTreeMap<String, GroupStatus>, name: &str) -> &'a mut GroupStatus {
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

fn instance_status(
    (group, id): (String, String),
    slots: Vec<Option<String>>,
    job_count: u32,
    age_s: i64,
    intent: &Intent,
    was_ready: bool,
) -> InstanceStatus {
    let (state, reason) = match intent {
        Intent::Serve if was_ready || job_count > 0 => ("ready", None),
        Intent::Serve => ("booting", None),
        Intent::Cordon { by, .. } => ("cordoned", Some(by.clone())),
        Intent::Suspend => ("suspended", Some("for a later job".to_owned())),
        Intent::Drain(reason) => ("draining", Some(reason.to_string())),
        Intent::Delete(reason) => ("deleting", Some(reason.to_string())),
    };
    let age_ms = u64::try_from(age_s).unwrap_or(0).saturating_mul(1000);
    InstanceStatus {
        id,
        group,
        state: state.to_owned(),
        reason,
        state_age_ms: age_ms,
        age_ms,
        job_count,
        failures: 0,
        slots: (0..).zip(slots).filter_map(|(slot, key)| Some(SlotStatus { slot, key: key? })).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_as_the_engine_counts_them() {
        let directory = tempfile::tempdir().unwrap();
        let row = |call: u64, accepted: bool, written_off_until: Option<i64>| {
            let key = RowKey::ScaleUp { group: "main".to_owned(), call };
            let outstanding = u32::try_from(call).unwrap();
            let row = Row::ScaleUp { requested: 4, outstanding, requested_at: 1, accepted, written_off_until };
            serde_json::to_string(&[(key, row)]).unwrap()
        };
        let rows = [row(1, true, None), row(2, false, None), row(4, false, Some(9))].join("\n");
        let text = format!("{{\"taskscaler_ledger\":1}}\n{rows}\n");
        std::fs::write(directory.path().join("a.ledger"), text).unwrap();
        let fleets = read_fleets(directory.path(), 5).unwrap();
        let status = fleets[0].report.status.as_ref().unwrap_or_else(|| panic!("{fleets:?}"));
        assert_eq!((status.groups[0].requested, status.groups[0].unconfirmed), (3, 2));
    }

    #[test]
    fn fleet_has_the_names_of_all_its_groups() {
        let directory = tempfile::tempdir().unwrap();
        let row = |group: &str| {
            let key = RowKey::DrainedGroup { group: group.to_owned() };
            serde_json::to_string(&[(key, Row::DrainedGroup { by: "root".to_owned() })]).unwrap()
        };
        let text = format!("{{\"taskscaler_ledger\":1}}\n{}\n{}\n", row("spot"), row("on-demand"));
        std::fs::write(directory.path().join("a.ledger"), text).unwrap();
        assert_eq!(read_fleets(directory.path(), 5).unwrap()[0].report.runner, "on-demand, spot");
    }

    #[test]
    fn damaged_ledger_does_not_hide_other_fleets() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.ledger"), "{\"taskscaler_ledger\":1}\nnonsense\n").unwrap();
        std::fs::write(directory.path().join("b.ledger"), "{\"taskscaler_ledger\":1}\n").unwrap();
        let fleets = read_fleets(directory.path(), 0).unwrap();
        let [damaged, intact] = fleets.as_slice() else { panic!("{fleets:?}") };
        let reason = damaged.report.unavailable_reason.as_deref().unwrap();
        assert!(damaged.report.status.is_none() && reason.contains("a.ledger at line 2"), "{reason}");
        assert!(intact.report.status.is_some());
    }
}
