//! Explains a job, an instance or a group from the fleet's status and the decisions of the last day.

use super::{Explanation, Report, ReportSource};
use crate::engine::{GroupStatus, InstanceStatus, ScalerStatus};
use crate::history::{DAY_S, HistoryEntry};

/// Maximum number of decisions in an answer.
const MAX_DECISIONS: usize = 1000;
/// Kinds of decisions that change the number of instances.
const SCALING: [&str; 8] = [
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
    /// A job, by its ID at the server or its task key.
    Job(String),
    /// An instance, by its ID at the provider.
    Instance(String),
    /// A group, by its name.
    Group(String),
}

/// Reads the history: at most a number of matching decisions since a time in seconds since 1970.
pub type HistoryReader<'a> =
    &'a dyn Fn(i64, usize, &dyn Fn(&HistoryEntry) -> bool) -> std::io::Result<Vec<HistoryEntry>>;

/// Explains a subject of one fleet at `unix` seconds since 1970.
///
/// # Errors
/// Reading the history failed.
pub fn explain(
    subject: &Subject,
    report: &Report,
    source: ReportSource,
    unix: i64,
    recall: HistoryReader<'_>,
) -> std::io::Result<Explanation> {
    let since = unix - DAY_S;
    let mut explained = match subject {
        Subject::Fleet => fleet(report, source, recall(since, MAX_DECISIONS + 1, &|_| true)?),
        Subject::Job(job) => self::job(job, report, unix, recall)?,
        Subject::Instance(id) => {
            let own = recall(since, MAX_DECISIONS + 1, &|told| told.instance.as_ref() == Some(id))?;
            instance(id, report, source, own)
        }
        Subject::Group(name) => {
            let about = |told: &HistoryEntry| {
                told.group.as_ref() == Some(name) || told.kind == "policy" || told.text.contains(&group_prefix(name))
            };
            group(name, report, source, recall(since, MAX_DECISIONS + 1, &about)?)
        }
    };
    let surplus = explained.decisions.len().saturating_sub(MAX_DECISIONS);
    explained.truncated = surplus > 0;
    explained.ledger_unreadable = report.is_ledger_unreadable(source);
    explained.decisions.drain(..surplus);
    if let Some(why) = &report.unavailable_reason {
        let how = match source {
            ReportSource::Manager => "is not running",
            ReportSource::Disk if report.is_ledger_unreadable(source) => "has an unreadable ledger",
            ReportSource::Disk => "was not queried",
        };
        explained.summary.insert(0, format!("the scaler of runner {} {how}: {why}", report.runner));
    }
    Ok(explained)
}

/// Prefix of the messages about a group.
fn group_prefix(group: &str) -> String {
    format!("group {group}:")
}

fn explained(report: &Report, known: bool, answer: Vec<String>, decisions: Vec<HistoryEntry>) -> Explanation {
    Explanation {
        runner: report.runner.clone(),
        found: known,
        summary: answer,
        decisions,
        truncated: false,
        ledger_unreadable: false,
    }
}

/// Whether a task key belongs to a job: it is equal, or starts with `job-<id>-`.
fn is_key_of_job(key: &str, job: &str) -> bool {
    let rest = key.strip_prefix("job-").and_then(|rest| rest.strip_prefix(job));
    key == job || rest.is_some_and(|rest| rest.starts_with('-'))
}

fn job(job: &str, report: &Report, unix: i64, recall: HistoryReader<'_>) -> std::io::Result<Explanation> {
    let since = unix - DAY_S;
    let own = |told: &HistoryEntry| told.keys.iter().any(|key| is_key_of_job(key, job));
    let mut decisions = recall(since, MAX_DECISIONS + 1, &own)?;
    let mut answer = Vec::new();
    let mut window = None;
    let status = report.status.as_ref();
    let waiting = status.and_then(|status| status.waiting.iter().find(|waiting| is_key_of_job(&waiting.key, job)));
    let slots = status.into_iter().flat_map(|status| &status.instances);
    let held = slots.flat_map(|instance| instance.slots.iter().map(move |slot| (instance, slot)));
    let held = held.into_iter().find(|(_, slot)| is_key_of_job(&slot.key, job));
    if let (Some(status), Some(waiting)) = (status, waiting) {
        let before = waiting.queue_position;
        answer
            .push(format!("job {job} has waited {} for a slot; queue position {before}", seconds(waiting.waiting_ms)));
        answer.extend(pending_instances(status));
        window = Some((unix - i64::try_from(waiting.waiting_ms / 1000).unwrap_or(0) - 1, unix));
    } else if let Some((instance, slot)) = held {
        answer.push(format!("job {job} has slot {} of instance {}", slot.slot, instance.id));
    } else if let Some(last) = decisions.last() {
        answer.push(format!("job {job} has ended here: {}", last.text));
    } else {
        answer.push(format!(
            "job {job} is unknown to runner {}: it was not requested yet, runs elsewhere, or ended more than a day ago",
            report.runner
        ));
        answer.extend(report.requests_paused_reason.as_ref().map(|why| format!("job requests are paused: {why}")));
    }
    // For a job that waits again, explain the current wait and not an earlier one.
    let leased = decisions.iter().rev().find(|told| told.kind == "leased").filter(|_| waiting.is_none());
    if let Some(leased) = leased {
        let waited = leased.after_ms.unwrap_or(0);
        answer.push(format!("it waited {} for the slot", seconds(waited)));
        window = Some((leased.unix - i64::try_from(waited / 1000).unwrap_or(0) - 1, leased.unix));
    }
    let known = waiting.is_some() || held.is_some() || !decisions.is_empty();
    if let Some((from, to)) = window {
        let meanwhile = |told: &HistoryEntry| told.unix <= to && SCALING.contains(&told.kind.as_str()) && !own(told);
        decisions.extend(recall(from, MAX_DECISIONS + 1, &meanwhile)?);
        decisions.sort_by_key(|told| told.unix);
    }
    Ok(explained(report, known, answer, decisions))
}

/// Describes instances that will become ready, and why no more can be created.
fn pending_instances(status: &ScalerStatus) -> Vec<String> {
    let mut answer = Vec::new();
    if status.booting > 0 {
        let next = status.next_ready_in_ms.map(|ms| match ms {
            0 => "; the next is expected any moment".to_owned(),
            ms => format!("; the next is expected to be ready in {}", seconds(ms)),
        });
        let next = next.unwrap_or_default();
        answer.push(format!("{} instances are booting or being prepared{next}", status.booting));
    }
    answer.extend(status.scale_up_blocked.iter().map(|held| format!("cannot scale up: {held}")));
    answer
}

fn instance(id: &str, report: &Report, source: ReportSource, decisions: Vec<HistoryEntry>) -> Explanation {
    let status = report.status.as_ref();
    let found = status.and_then(|status| status.instances.iter().find(|instance| instance.id == id));
    let foreign = status.into_iter().flat_map(|status| &status.groups);
    let foreign = foreign.into_iter().find(|group| group.unmanaged.iter().any(|known| known == id));
    let mut answer = Vec::new();
    if let Some(instance) = found {
        answer.extend(instance_summary(instance));
        answer.extend(
            status.filter(|_| source == ReportSource::Manager).and_then(|status| idle_reason(instance, status)),
        );
    } else if let Some(group) = foreign {
        answer.push(format!("instance {id} of group {} is unmanaged and ignored", group.name));
    } else if decisions.is_empty() {
        answer.push(format!("instance {id} was unknown to runner {} during the last day", report.runner));
    } else {
        answer.push(format!("instance {id} no longer exists"));
        let ends = ["operator", "delete", "lost", "deleted"];
        answer.extend(decisions.iter().filter(|told| ends.contains(&&*told.kind)).map(|told| told.text.clone()));
    }
    explained(report, found.is_some() || foreign.is_some() || !decisions.is_empty(), answer, decisions)
}

/// Explains why an idle instance is kept.
fn idle_reason(instance: &InstanceStatus, status: &ScalerStatus) -> Option<String> {
    if instance.state != "ready" || !instance.slots.is_empty() {
        return None;
    }
    let (idle, target, reserved) = (status.slots.idle, status.idle_target, status.slots.reserved);
    let policy = status.policy.map_or_else(|| "no policy".to_owned(), |policy| format!("policy {policy}"));
    let summary = format!("it has no job: {idle} slots are idle, target {target} ({policy})");
    Some(if idle <= target {
        format!("{summary}, so it is kept")
    } else {
        format!(
            "{summary}; it is deleted after the idle time, unless one of {reserved} open job requests returns a job for it"
        )
    })
}

fn instance_summary(instance: &InstanceStatus) -> Vec<String> {
    let InstanceStatus { id, group, state, reason, state_age_ms, age_ms, job_count, slots, .. } = instance;
    let mut answer = vec![format!(
        "instance {id} of group {group} has been {state} for {}; it was first seen {} ago and has had {job_count} jobs",
        seconds(*state_age_ms),
        seconds(*age_ms)
    )];
    answer.extend(reason.as_ref().map(|reason| match state.as_str() {
        "cordoned" => format!("it gets no jobs and is kept until you uncordon or delete it: cordoned by {reason}"),
        "suspending" | "suspended" | "resuming" => format!("it gets no other jobs: {reason}"),
        _ => format!("it is being deleted: {reason}"),
    }));
    answer.extend(slots.iter().map(|slot| format!("slot {}: {}", slot.slot, slot.key)));
    answer
}

fn group(name: &str, report: &Report, source: ReportSource, decisions: Vec<HistoryEntry>) -> Explanation {
    let status = report.status.as_ref();
    let found = status.and_then(|status| Some((status, status.groups.iter().find(|group| group.name == name)?)));
    let mut answer = Vec::new();
    match found {
        Some((status, group)) => {
            answer.extend(group_summary(group, source));
            answer.extend(target_summary(status, source));
            let held = status.scale_up_blocked.iter().filter(|held| held.starts_with(&group_prefix(name)));
            answer.extend(held.map(|held| format!("cannot scale up: {held}")));
        }
        None => answer.push(match source {
            ReportSource::Manager => format!("runner {} has no group {name}", report.runner),
            ReportSource::Disk => format!("the ledger of runner {} has no group {name}", report.runner),
        }),
    }
    explained(report, found.is_some(), answer, decisions)
}

fn group_summary(group: &GroupStatus, source: ReportSource) -> Vec<String> {
    let max = match (source, group.max) {
        (ReportSource::Disk, _) => String::new(),
        (ReportSource::Manager, None) => " without a limit".to_owned(),
        (ReportSource::Manager, Some(max)) => format!(" of at most {max}"),
    };
    let GroupStatus { name, instances, requested, unconfirmed, failures, error, unmanaged, .. } = group;
    let unconfirmed = if *unconfirmed > 0 { format!(" ({unconfirmed} unconfirmed)") } else { String::new() };
    let mut answer =
        vec![format!("group {name} has {instances} instances{max} and has requested {requested}{unconfirmed}")];
    let drained = |by| format!("drained by {by}; it creates no instances until you uncordon it");
    answer.extend(group.drained.as_ref().map(drained));
    answer.extend(group.unavailable_reason.as_ref().map(|reason| format!("its plugin is not running: {reason}")));
    answer.extend(error.as_ref().map(|error| format!("the last {failures} attempts failed: {error}")));
    answer.extend(group.unlisted());
    if !unmanaged.is_empty() {
        answer.push(format!("unmanaged instances, ignored: {}", unmanaged.join(", ")));
    }
    answer
}

fn target_summary(status: &ScalerStatus, source: ReportSource) -> Vec<String> {
    if source == ReportSource::Disk {
        return vec!["the target, waiting jobs and blocked groups are known only to a running manager".to_owned()];
    }
    let tasks = &status.slots;
    let what = match status.desired_change {
        0 => "the number of instances is on target".to_owned(),
        missing @ 1.. => format!("{missing} instances are missing"),
        surplus => format!("{} instances are surplus", surplus.unsigned_abs()),
    };
    let policy =
        status.policy.map_or_else(|| "no active policy".to_owned(), |policy| format!("policy {policy} is active"));
    vec![format!(
        "{what}: {} slots in use, {} jobs waiting, {} slots idle (target {}); {policy}",
        tasks.acquired, tasks.pending, tasks.idle, status.idle_target
    )]
}

fn fleet(report: &Report, source: ReportSource, decisions: Vec<HistoryEntry>) -> Explanation {
    let mut answer = Vec::new();
    if let Some(status) = &report.status {
        answer.extend(status.groups.iter().flat_map(|group| group_summary(group, source)));
        answer.extend(target_summary(status, source));
        answer.extend(pending_instances(status));
    }
    answer.extend(report.requests_paused_reason.as_ref().map(|why| format!("job requests are paused: {why}")));
    explained(report, true, answer, decisions)
}

fn seconds(ms: u64) -> String {
    format!("{}.{:01} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{SlotCounts, WaitingStatus};

    fn told(unix: i64, kind: &str, keys: &[&str], text: &str) -> HistoryEntry {
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
            scale_up_blocked: vec!["group a: it has its maximum of 2 instances".to_owned()],
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

    fn ask(job: &str, report: &Report, history: &[HistoryEntry]) -> Explanation {
        let recall = |since, _: usize, wanted: &dyn Fn(&HistoryEntry) -> bool| {
            Ok(history.iter().filter(|told| told.unix >= since && wanted(told)).cloned().collect())
        };
        explain(&Subject::Job(job.to_owned()), report, ReportSource::Manager, 1000, &recall).unwrap()
    }

    #[test]
    fn explain_job_reports_queue_position_eta_and_blockers() {
        let waiting = WaitingStatus { key: "job-12-abcd".to_owned(), waiting_ms: 42_300, queue_position: 3 };
        let history = [
            told(900, "scale_up_blocked", &[], "too early"),
            told(970, "scale_up_blocked", &[], "in the way"),
            told(980, "leased", &["job-11-ffff"], "another's"),
        ];
        let explained = ask("12", &report(vec![waiting]), &history);
        assert_eq!(
            explained.summary,
            [
                "job 12 has waited 42.3 s for a slot; queue position 3",
                "2 instances are booting or being prepared; the next is expected to be ready in 3.0 s",
                "cannot scale up: group a: it has its maximum of 2 instances",
            ]
        );
        let texts: Vec<&str> = explained.decisions.iter().map(|told| told.text.as_str()).collect();
        assert_eq!((explained.found, texts), (true, vec!["in the way"]));
    }

    #[test]
    fn explain_job_covers_only_the_current_wait() {
        let waiting = WaitingStatus { key: "job-12-abcd".to_owned(), waiting_ms: 42_000, queue_position: 0 };
        let mut first = told(500, "leased", &["job-12-0000"], "it has slot 0 of i1");
        first.after_ms = Some(1_000);
        let history = [
            told(499, "scale_up", &[], "before the first"),
            first,
            told(950, "lost", &["job-12-0000"], "i1 is lost"),
            told(970, "scale_up_blocked", &[], "in the way"),
        ];
        let explained = ask("12", &report(vec![waiting]), &history);
        assert!(!explained.summary.iter().any(|line| line.starts_with("it waited")), "{:?}", explained.summary);
        let texts: Vec<&str> = explained.decisions.iter().map(|told| told.text.as_str()).collect();
        assert_eq!(texts, ["it has slot 0 of i1", "i1 is lost", "in the way"]);
    }

    /// The ledger knows what exists, but not what is wanted.
    #[test]
    fn report_from_disk_does_not_claim_targets() {
        let place = tempfile::tempdir().unwrap();
        let row = "{\"taskscaler_ledger\":1}\n[[{\"instance\":{\"group\":\"a\",\"id\":\"i1\"}},{\"instance\":{\"slots\":[],\"job_count\":0,\"first_seen_at\":1,\"intent\":\"serve\"}}]]\n";
        std::fs::write(place.path().join("x.ledger"), row).unwrap();
        let fleets = crate::fleet::read_fleets(place.path(), 1000).unwrap();
        let none = |_, _: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(Vec::new());
        for subject in [Subject::Fleet, Subject::Group("a".to_owned())] {
            let explained = explain(&subject, &fleets[0].report, ReportSource::Disk, 1000, &none).unwrap();
            let answer = explained.summary.join("\n");
            assert!(answer.contains("group a has 1 instances and has requested 0"), "{answer}");
            for wrong in ["limit", "on target", "0 jobs waiting", "policy"] {
                assert!(!answer.contains(wrong), "{answer}");
            }
            assert!(answer.contains("known only to a running manager"), "{answer}");
        }
    }

    #[test]
    fn explanation_is_marked_as_truncated() {
        let history: Vec<HistoryEntry> = (0..1500).map(|n| told(n, "policy", &[], &n.to_string())).collect();
        let report = report(Vec::new());
        let recall =
            |_, most: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(history[history.len() - most.min(1500)..].to_vec());
        let explained = explain(&Subject::Fleet, &report, ReportSource::Manager, 1500, &recall).unwrap();
        assert_eq!((explained.truncated, explained.decisions.len()), (true, MAX_DECISIONS));
        assert_eq!(explained.decisions[0].text, "500", "the latest stay");
        let few = |_, _: usize, _: &dyn Fn(&HistoryEntry) -> bool| Ok(history[..1000].to_vec());
        assert!(!explain(&Subject::Fleet, &report, ReportSource::Manager, 1500, &few).unwrap().truncated);
    }

    #[test]
    fn job_id_does_not_match_longer_ids() {
        let waiting = WaitingStatus { key: "job-123-abcd".to_owned(), waiting_ms: 0, queue_position: 0 };
        let report = Report { requests_paused_reason: Some("full".to_owned()), ..report(vec![waiting]) };
        let explained = ask("12", &report, &[told(999, "leased", &["job-120-x"], "")]);
        assert!(!explained.found && explained.decisions.is_empty(), "{explained:?}");
        assert_eq!(explained.summary[1], "job requests are paused: full");
    }
}
