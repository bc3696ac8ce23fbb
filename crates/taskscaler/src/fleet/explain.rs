//! Explains a fleet, job, instance or group from its status and the decisions of the last day.

use super::{Explanation, Report, ReportSource};
use crate::engine::{GroupStatus, InstanceStatus, ScalerStatus};
use crate::history::{DAY_S, HistoryEntry};

/// Maximum number of decisions in an [`Explanation`].
pub const MAX_DECISIONS: usize = 1000;
const SCALING_KINDS: [&str; 8] = [
    "policy",
    "scale_up",
    "scale_up_accepted",
    "scale_up_blocked",
    "creation_failed",
    "list_failed",
    "lost",
    "operator",
];

/// Subject of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The whole fleet.
    Fleet,
    /// A job, by its ID on the server or its task key.
    Job(String),
    /// An instance, by its ID at the provider.
    Instance(String),
    /// A group, by its name.
    Group(String),
}

/// Reads the history. The arguments are the earliest Unix time, the maximum number of decisions, and a filter.
pub type HistoryReader<'a> =
    &'a dyn Fn(i64, usize, &dyn Fn(&HistoryEntry) -> bool) -> std::io::Result<Vec<HistoryEntry>>;

/// Explains a subject of one fleet. `unix` is the current time in seconds since 1970.
///
/// # Errors
/// Reading the history failed.
pub fn explain(
    subject: &Subject,
    report: &Report,
    source: ReportSource,
    unix: i64,
    read_history: HistoryReader<'_>,
) -> std::io::Result<Explanation> {
    let since = unix - DAY_S;
    let mut explanation = match subject {
        Subject::Fleet => explain_fleet(report, source, read_history(since, MAX_DECISIONS + 1, &|_| true)?),
        Subject::Job(job) => explain_job(job, report, source, unix, read_history)?,
        Subject::Instance(id) => {
            let decisions = read_history(since, MAX_DECISIONS + 1, &|entry| entry.instance.as_ref() == Some(id))?;
            explain_instance(id, report, source, decisions)
        }
        Subject::Group(name) => {
            let is_about = |entry: &HistoryEntry| {
                entry.group.as_ref() == Some(name) || entry.kind == "policy" || entry.text.contains(&group_prefix(name))
            };
            explain_group(name, report, source, read_history(since, MAX_DECISIONS + 1, &is_about)?)
        }
    };
    let surplus = explanation.decisions.len().saturating_sub(MAX_DECISIONS);
    explanation.truncated = surplus > 0;
    explanation.ledger_unreadable = report.is_ledger_unreadable(source);
    explanation.decisions.drain(..surplus);
    if let Some(reason) = &report.unavailable_reason {
        let state = match source {
            ReportSource::Manager => "is not running",
            ReportSource::Disk if report.is_ledger_unreadable(source) => "has an unreadable ledger",
            ReportSource::Disk => "was not queried",
        };
        explanation.summary.insert(0, format!("the scaler of runner {} {state}: {reason}", report.runner));
    }
    Ok(explanation)
}

fn group_prefix(group: &str) -> String {
    format!("group {group}:")
}

fn explanation(report: &Report, found: bool, summary: Vec<String>, decisions: Vec<HistoryEntry>) -> Explanation {
    Explanation { runner: report.runner.clone(), found, summary, decisions, truncated: false, ledger_unreadable: false }
}

/// `job` is the key itself or a job ID, for which the key starts with `job-<id>-`.
fn is_key_of_job(key: &str, job: &str) -> bool {
    let rest = key.strip_prefix("job-").and_then(|rest| rest.strip_prefix(job));
    key == job || rest.is_some_and(|rest| rest.starts_with('-'))
}

fn explain_job(
    job: &str,
    report: &Report,
    source: ReportSource,
    unix: i64,
    read_history: HistoryReader<'_>,
) -> std::io::Result<Explanation> {
    let since = unix - DAY_S;
    let is_own = |entry: &HistoryEntry| entry.keys.iter().any(|key| is_key_of_job(key, job));
    let mut decisions = read_history(since, MAX_DECISIONS + 1, &is_own)?;
    let mut summary = Vec::new();
    let mut window = None;
    let status = report.status.as_ref();
    let waiting = status.and_then(|status| status.waiting.iter().find(|waiting| is_key_of_job(&waiting.key, job)));
    let instances = status.into_iter().flat_map(|status| &status.instances);
    let assigned = instances.flat_map(|instance| instance.slots.iter().map(move |slot| (instance, slot)));
    let assigned = assigned.into_iter().find(|(_, slot)| is_key_of_job(&slot.key, job));
    if let (Some(status), Some(waiting)) = (status, waiting) {
        let (waited, ahead) = (seconds(waiting.waiting_ms), waiting.requests_ahead);
        let (requests, are) = if ahead == 1 { ("request", "is") } else { ("requests", "are") };
        summary.push(format!("job {job} has waited {waited} for a slot; {ahead} {requests} {are} ahead of it"));
        summary.extend(pending_instances(status));
        window = Some((unix - i64::try_from(waiting.waiting_ms / 1000).unwrap_or(0) - 1, unix));
    } else if let Some((instance, slot)) = assigned {
        summary.push(format!("job {job} has slot {} of instance {}", slot.slot, instance.id));
    } else if let Some(last) = decisions.last() {
        // The ledger does not contain waiting jobs, so a job without a slot may wait again.
        summary.push(match (source, status) {
            (ReportSource::Manager, Some(_)) => format!("job {job} has ended on this runner: {}", last.text),
            _ => format!("the last decision about job {job} on this runner: {}", last.text),
        });
    } else {
        summary.push(format!(
            "job {job} is unknown to runner {}: it was not requested yet, runs elsewhere, or ended more than a day ago",
            report.runner
        ));
        summary
            .extend(report.requests_paused_reason.as_ref().map(|reason| format!("job requests are paused: {reason}")));
    }
    // An earlier wait of a rescheduled job is not explained.
    let leased = decisions.iter().rev().find(|entry| entry.kind == "leased").filter(|_| waiting.is_none());
    if let Some(leased) = leased {
        let waited = leased.after_ms.unwrap_or(0);
        summary.push(format!("it waited {} for the slot", seconds(waited)));
        window = Some((leased.unix - i64::try_from(waited / 1000).unwrap_or(0) - 1, leased.unix));
    }
    let found = waiting.is_some() || assigned.is_some() || !decisions.is_empty();
    if let Some((from, to)) = window {
        let is_scaling =
            |entry: &HistoryEntry| entry.unix <= to && SCALING_KINDS.contains(&entry.kind.as_str()) && !is_own(entry);
        decisions.extend(read_history(from, MAX_DECISIONS + 1, &is_scaling)?);
        decisions.sort_by_key(|entry| entry.unix);
    }
    Ok(explanation(report, found, summary, decisions))
}

fn pending_instances(status: &ScalerStatus) -> Vec<String> {
    let mut summary = Vec::new();
    if status.booting > 0 {
        let next = status.next_ready_in_ms.map(|ms| match ms {
            0 => "; the next is expected any moment".to_owned(),
            ms => format!("; the next is expected to be ready in {}", seconds(ms)),
        });
        let next = next.unwrap_or_default();
        let (instances, are) = if status.booting == 1 { ("instance", "is") } else { ("instances", "are") };
        summary.push(format!("{} {instances} {are} booting or being prepared{next}", status.booting));
    }
    summary.extend(status.scale_up_blocked.iter().map(|block| format!("cannot scale up: {block}")));
    summary
}

fn explain_instance(id: &str, report: &Report, source: ReportSource, decisions: Vec<HistoryEntry>) -> Explanation {
    let status = report.status.as_ref();
    let found = status.and_then(|status| status.instances.iter().find(|instance| instance.id == id));
    let unmanaged = status.into_iter().flat_map(|status| &status.groups);
    let unmanaged = unmanaged.into_iter().find(|group| group.unmanaged.iter().any(|unmanaged| unmanaged == id));
    let mut summary = Vec::new();
    if let Some(instance) = found {
        summary.extend(instance_summary(instance, source));
        summary.extend(
            status.filter(|_| source == ReportSource::Manager).and_then(|status| idle_reason(instance, status)),
        );
    } else if let Some(group) = unmanaged {
        summary.push(format!("instance {id} of group {} is unmanaged and ignored", group.name));
    } else if decisions.is_empty() {
        summary.push(format!("instance {id} was unknown to runner {} during the last day", report.runner));
    } else {
        summary.push(match status {
            Some(_) => format!("instance {id} no longer exists"),
            None => format!("whether instance {id} still exists is unknown"),
        });
        let removal_kinds = ["operator", "delete", "lost", "deleted"];
        summary.extend(
            decisions.iter().filter(|entry| removal_kinds.contains(&&*entry.kind)).map(|entry| entry.text.clone()),
        );
    }
    explanation(report, found.is_some() || unmanaged.is_some() || !decisions.is_empty(), summary, decisions)
}

/// `None` if the instance is not idle.
fn idle_reason(instance: &InstanceStatus, status: &ScalerStatus) -> Option<String> {
    if instance.state != "ready" || !instance.slots.is_empty() {
        return None;
    }
    let (idle, target, reserved) = (status.slots.idle, status.idle_target, status.slots.reserved);
    let policy = status.policy.map_or_else(|| "no policy".to_owned(), |policy| format!("policy {policy}"));
    let (slots, are) = if idle == 1 { ("slot", "is") } else { ("slots", "are") };
    let summary = format!("it has no job: {idle} {slots} {are} idle, target {target} ({policy})");
    Some(if idle <= target {
        format!("{summary}, so it is kept")
    } else {
        format!(
            "{summary}; it is deleted after the idle time, unless one of the open job requests ({reserved}) returns a job for it"
        )
    })
}

fn instance_summary(instance: &InstanceStatus, source: ReportSource) -> Vec<String> {
    let InstanceStatus { id, group, state, reason, state_age_ms, age_ms, job_count, slots, .. } = instance;
    // The ledger does not contain the time of the last change.
    let state = match source {
        ReportSource::Manager => format!("has been {state} for {}", seconds(*state_age_ms)),
        ReportSource::Disk => format!("is {state}"),
    };
    let mut summary = vec![format!(
        "instance {id} of group {group} {state}; it was first seen {} ago and has had {job_count} job{}",
        seconds(*age_ms),
        if *job_count == 1 { "" } else { "s" }
    )];
    summary.extend(reason.as_ref().map(|reason| match instance.state.as_str() {
        "cordoned" => format!("it gets no jobs and is kept until you uncordon or delete it: cordoned by {reason}"),
        "suspending" | "suspended" | "resuming" => format!("it gets no other jobs: {reason}"),
        "draining" => format!("it is deleted after its last job: {reason}"),
        _ => format!("it is being deleted: {reason}"),
    }));
    summary.extend(slots.iter().map(|slot| format!("slot {}: {}", slot.slot, slot.key)));
    summary
}

fn explain_group(name: &str, report: &Report, source: ReportSource, decisions: Vec<HistoryEntry>) -> Explanation {
    let status = report.status.as_ref();
    let found = status.and_then(|status| Some((status, status.groups.iter().find(|group| group.name == name)?)));
    let mut summary = Vec::new();
    match found {
        Some((status, group)) => {
            summary.extend(group_summary(group, source));
            summary.extend(target_summary(status, source));
            let blocks = status.scale_up_blocked.iter().filter(|block| block.starts_with(&group_prefix(name)));
            summary.extend(blocks.map(|block| format!("cannot scale up: {block}")));
        }
        None => summary.push(match source {
            ReportSource::Manager => format!("runner {} has no group {name}", report.runner),
            ReportSource::Disk => format!("the ledger of runner {} has no group {name}", report.runner),
        }),
    }
    explanation(report, found.is_some(), summary, decisions)
}

fn group_summary(group: &GroupStatus, source: ReportSource) -> Vec<String> {
    let max = match (source, group.max) {
        (ReportSource::Disk, _) => String::new(),
        (ReportSource::Manager, None) => " (no limit)".to_owned(),
        (ReportSource::Manager, Some(max)) => format!(" (maximum {max})"),
    };
    let GroupStatus { name, instances, requested, unconfirmed, failures, error, unmanaged, .. } = group;
    let unconfirmed = if *unconfirmed > 0 { format!(" ({unconfirmed} unconfirmed)") } else { String::new() };
    let s = if *instances == 1 { "" } else { "s" };
    let mut summary =
        vec![format!("group {name} has {instances} instance{s}{max}; requested: {requested}{unconfirmed}")];
    let drained = |by| format!("drained by {by}; it creates no instances until you uncordon it");
    summary.extend(group.drained.as_ref().map(drained));
    summary.extend(group.unavailable_reason.as_ref().map(|reason| format!("its plugin is not running: {reason}")));
    summary.extend(error.as_ref().map(|error| match failures {
        1 => format!("the last attempt failed: {error}"),
        _ => format!("the last {failures} attempts failed: {error}"),
    }));
    summary.extend(group.list_failure_message());
    if !unmanaged.is_empty() {
        summary.push(format!("unmanaged instances, ignored: {}", unmanaged.join(", ")));
    }
    summary
}

fn target_summary(status: &ScalerStatus, source: ReportSource) -> Vec<String> {
    if source == ReportSource::Disk {
        return vec!["the target, waiting jobs and blocked groups are known only to a running manager".to_owned()];
    }
    let slots = &status.slots;
    let deviation = match status.desired_change {
        0 => "the number of instances is on target".to_owned(),
        1 => "1 more instance is needed".to_owned(),
        needed @ 2.. => format!("{needed} more instances are needed"),
        -1 => "1 instance is surplus".to_owned(),
        surplus => format!("{} instances are surplus", surplus.unsigned_abs()),
    };
    let policy =
        status.policy.map_or_else(|| "no active policy".to_owned(), |policy| format!("policy {policy} is active"));
    vec![format!(
        "{deviation}; slots in use: {}, jobs waiting: {}, idle slots: {} (target {}); {policy}",
        slots.acquired, slots.pending, slots.idle, status.idle_target
    )]
}

fn explain_fleet(report: &Report, source: ReportSource, decisions: Vec<HistoryEntry>) -> Explanation {
    let mut summary = Vec::new();
    if let Some(status) = &report.status {
        summary.extend(status.groups.iter().flat_map(|group| group_summary(group, source)));
        summary.extend(target_summary(status, source));
        summary.extend(pending_instances(status));
    }
    summary.extend(report.requests_paused_reason.as_ref().map(|reason| format!("job requests are paused: {reason}")));
    explanation(report, true, summary, decisions)
}

fn seconds(ms: u64) -> String {
    format!("{}.{:01} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{SlotCounts, WaitingStatus};

    fn entry(unix: i64, kind: &str, keys: &[&str], text: &str) -> HistoryEntry {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let (kind, text) = (kind.to_owned(), text.to_owned());
        HistoryEntry { unix, kind, group: None, instance: None, keys, text, after_ms: None, inputs: None }
    }

    fn report(waiting: Vec<WaitingStatus>) -> Report {
        let status = ScalerStatus {
            slots: SlotCounts::default(),
            desired_change: 1,
            idle_target: 0,
            policy: None,
            cost_per_hour: 0.0,
            scale_up_blocked: vec!["group a: instance limit of 2 reached".to_owned()],
            waiting,
            booting: 2,
            next_ready_in_ms: Some(3000),
            groups: Vec::new(),
            instances: Vec::new(),
        };
        Report {
            runner: "r".to_owned(),
            unavailable_reason: None,
            requests_paused_reason: None,
            status: Some(status),
            resources: std::collections::BTreeMap::new(),
        }
    }

    fn explain_job(job: &str, report: &Report, history: &[HistoryEntry]) -> Explanation {
        let read_history = |since, _: usize, is_wanted: &dyn Fn(&HistoryEntry) -> bool| {
            Ok(history.iter().filter(|entry| entry.unix >= since && is_wanted(entry)).cloned().collect())
        };
        explain(&Subject::Job(job.to_owned()), report, ReportSource::Manager, 1000, &read_history).unwrap()
    }

    #[test]
    fn explain_job_reports_queue_position_eta_and_blockers() {
        let waiting = WaitingStatus { key: "job-12-abcd".to_owned(), waiting_ms: 42_300, requests_ahead: 3 };
        let history = [
            entry(900, "scale_up_blocked", &[], "before the wait"),
            entry(970, "scale_up_blocked", &[], "during the wait"),
            entry(980, "leased", &["job-11-ffff"], "slot of another job"),
        ];
        let explanation = explain_job("12", &report(vec![waiting]), &history);
        assert_eq!(
            explanation.summary,
            [
                "job 12 has waited 42.3 s for a slot; 3 requests are ahead of it",
                "2 instances are booting or being prepared; the next is expected to be ready in 3.0 s",
                "cannot scale up: group a: instance limit of 2 reached",
            ]
        );
        let texts: Vec<&str> = explanation.decisions.iter().map(|entry| entry.text.as_str()).collect();
        assert_eq!((explanation.found, texts), (true, vec!["during the wait"]));
    }

    #[test]
    fn explain_job_covers_only_the_current_wait() {
        let waiting = WaitingStatus { key: "job-12-abcd".to_owned(), waiting_ms: 42_000, requests_ahead: 0 };
        let mut first = entry(500, "leased", &["job-12-0000"], "it has slot 0 of i1");
        first.after_ms = Some(1_000);
        let history = [
            entry(499, "scale_up", &[], "before the first wait"),
            first,
            entry(950, "lost", &["job-12-0000"], "i1 is lost"),
            entry(970, "scale_up_blocked", &[], "during the wait"),
        ];
        let explanation = explain_job("12", &report(vec![waiting]), &history);
        assert!(!explanation.summary.iter().any(|line| line.starts_with("it waited")), "{:?}", explanation.summary);
        let texts: Vec<&str> = explanation.decisions.iter().map(|entry| entry.text.as_str()).collect();
        assert_eq!(texts, ["it has slot 0 of i1", "i1 is lost", "during the wait"]);
    }

    /// The ledger contains the existing instances, but not the targets.
    #[test]
    fn report_from_disk_does_not_claim_targets() {
        let directory = tempfile::tempdir().unwrap();
        let row = "{\"taskscaler_ledger\":1}\n[[{\"instance\":{\"group\":\"a\",\"id\":\"i1\"}},{\"instance\":{\"slots\":[],\"job_count\":0,\"first_seen_at\":1,\"intent\":\"serve\"}}]]\n";
        std::fs::write(directory.path().join("x.ledger"), row).unwrap();
        let fleets = crate::fleet::read_fleets(directory.path(), 1000).unwrap();
        let read_nothing = |_, _: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(Vec::new());
        for subject in [Subject::Fleet, Subject::Group("a".to_owned())] {
            let explanation = explain(&subject, &fleets[0].report, ReportSource::Disk, 1000, &read_nothing).unwrap();
            let summary = explanation.summary.join("\n");
            assert!(summary.contains("group a has 1 instance; requested: 0"), "{summary}");
            for unknown in ["limit", "on target", "jobs waiting", "policy"] {
                assert!(!summary.contains(unknown), "{summary}");
            }
            assert!(summary.contains("known only to a running manager"), "{summary}");
        }
    }

    #[test]
    fn report_from_disk_does_not_claim_how_long_a_state_lasts_or_that_a_job_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let row = "{\"taskscaler_ledger\":1}\n[[{\"instance\":{\"group\":\"a\",\"id\":\"i1\"}},{\"instance\":{\"slots\":[],\"job_count\":1,\"first_seen_at\":1,\"intent\":{\"cordon\":{\"by\":\"root\"}}}}]]\n";
        std::fs::write(directory.path().join("x.ledger"), row).unwrap();
        let fleets = crate::fleet::read_fleets(directory.path(), 1000).unwrap();
        let read_history =
            |_, _: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(vec![entry(990, "lost", &["job-12-x"], "i1 is lost")]);
        let summary = |subject: Subject, report: &Report| {
            explain(&subject, report, ReportSource::Disk, 1000, &read_history).unwrap().summary
        };
        let report = &fleets[0].report;
        let instance = summary(Subject::Instance("i1".to_owned()), report);
        assert_eq!(instance[1], "instance i1 of group a is cordoned; it was first seen 999.0 s ago and has had 1 job");
        let job = summary(Subject::Job("12".to_owned()), report);
        assert_eq!(job[1], "the last decision about job 12 on this runner: i1 is lost");
        let unreadable = Report { status: None, ..report.clone() };
        let instance = summary(Subject::Instance("i1".to_owned()), &unreadable);
        assert_eq!(instance[1], "whether instance i1 still exists is unknown");
    }

    #[test]
    fn explanation_is_marked_as_truncated() {
        let history: Vec<HistoryEntry> = (0..1500).map(|n| entry(n, "policy", &[], &n.to_string())).collect();
        let report = report(Vec::new());
        let read_history =
            |_, max: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(history[history.len() - max.min(1500)..].to_vec());
        let explanation = explain(&Subject::Fleet, &report, ReportSource::Manager, 1500, &read_history).unwrap();
        assert_eq!((explanation.truncated, explanation.decisions.len()), (true, MAX_DECISIONS));
        assert_eq!(explanation.decisions[0].text, "500", "the latest decisions are kept");
        let read_few = |_, _: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(history[..1000].to_vec());
        assert!(!explain(&Subject::Fleet, &report, ReportSource::Manager, 1500, &read_few).unwrap().truncated);
    }

    #[test]
    fn job_id_does_not_match_longer_ids() {
        let waiting = WaitingStatus { key: "job-123-abcd".to_owned(), waiting_ms: 0, requests_ahead: 0 };
        let report = Report { requests_paused_reason: Some("full".to_owned()), ..report(vec![waiting]) };
        let explanation = explain_job("12", &report, &[entry(999, "leased", &["job-120-x"], "")]);
        assert!(!explanation.found && explanation.decisions.is_empty(), "{explanation:?}");
        assert_eq!(explanation.summary[1], "job requests are paused: full");
    }
}
