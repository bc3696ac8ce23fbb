//! Why something is as it is, from how the fleet is now and what was decided in the last day.

use super::{Explained, Report, Source};
use crate::engine::{GroupStatus, InstanceStatus, Status};
use crate::history::{DAY_S, Told};

/// Decisions of an answer.
const DECISIONS_MAX: usize = 1000;
/// Kinds that say how many instances there are to be.
const SCALING: [&str; 8] = ["policy", "ask", "granted", "hold", "creation_failed", "update_failed", "lost", "operator"];

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// The whole fleet.
    Fleet,
    /// A job, by its number or its key.
    Job(String),
    /// An instance, by its name at the provider.
    Instance(String),
    /// A group, by its name.
    Group(String),
}

/// Reads the history: decisions since a time that are wanted, at most so many.
pub type Recall<'a> = &'a dyn Fn(i64, usize, &dyn Fn(&Told) -> bool) -> std::io::Result<Vec<Told>>;

/// The answer of one fleet at `unix`.
///
/// # Errors
/// The history cannot be read.
pub fn explain(
    subject: &Subject,
    report: &Report,
    source: Source,
    unix: i64,
    recall: Recall<'_>,
) -> std::io::Result<Explained> {
    let since = unix - DAY_S;
    let mut explained = match subject {
        Subject::Fleet => fleet(report, source, recall(since, DECISIONS_MAX + 1, &|_| true)?),
        Subject::Job(job) => self::job(job, report, unix, recall)?,
        Subject::Instance(id) => {
            let own = recall(since, DECISIONS_MAX + 1, &|told| told.instance.as_ref() == Some(id))?;
            instance(id, report, source, own)
        }
        Subject::Group(name) => {
            let about = |told: &Told| {
                told.group.as_ref() == Some(name) || told.kind == "policy" || told.text.contains(&mention(name))
            };
            group(name, report, source, recall(since, DECISIONS_MAX + 1, &about)?)
        }
    };
    let surplus = explained.decisions.len().saturating_sub(DECISIONS_MAX);
    explained.is_cut = surplus > 0;
    explained.is_unread = report.is_unread(source);
    explained.decisions.drain(..surplus);
    if let Some(why) = &report.down {
        let how = match source {
            Source::Manager => "does not run",
            Source::Store if report.is_unread(source) => "has books that cannot be read",
            Source::Store => "was not asked",
        };
        explained.answer.insert(0, format!("the scaler of runner {} {how}: {why}", report.runner));
    }
    Ok(explained)
}

/// How a group is named within a text.
fn mention(group: &str) -> String {
    format!("group {group}:")
}

fn explained(report: &Report, known: bool, answer: Vec<String>, decisions: Vec<Told>) -> Explained {
    Explained { runner: report.runner.clone(), known, answer, decisions, is_cut: false, is_unread: false }
}

/// Whether a key is that of a job: its own text, or `job-<number>-...`.
fn is_of(key: &str, job: &str) -> bool {
    let rest = key.strip_prefix("job-").and_then(|rest| rest.strip_prefix(job));
    key == job || rest.is_some_and(|rest| rest.starts_with('-'))
}

fn job(job: &str, report: &Report, unix: i64, recall: Recall<'_>) -> std::io::Result<Explained> {
    let since = unix - DAY_S;
    let own = |told: &Told| told.keys.iter().any(|key| is_of(key, job));
    let mut decisions = recall(since, DECISIONS_MAX + 1, &own)?;
    let mut answer = Vec::new();
    let mut window = None;
    let status = report.status.as_ref();
    let waiting = status.and_then(|status| status.waiting.iter().find(|waiting| is_of(&waiting.key, job)));
    let slots = status.into_iter().flat_map(|status| &status.instances);
    let held = slots.flat_map(|instance| instance.slots.iter().map(move |slot| (instance, slot)));
    let held = held.into_iter().find(|(_, slot)| is_of(&slot.key, job));
    if let (Some(status), Some(waiting)) = (status, waiting) {
        let before = waiting.before;
        answer.push(format!("job {job} has waited {} for a slot; {before} are before it", seconds(waiting.for_ms)));
        answer.extend(coming(status));
        window = Some((unix - i64::try_from(waiting.for_ms / 1000).unwrap_or(0) - 1, unix));
    } else if let Some((instance, slot)) = held {
        answer.push(format!("job {job} has slot {} of instance {}", slot.slot, instance.id));
    } else if let Some(last) = decisions.last() {
        answer.push(format!("job {job} is over here: {}", last.text));
    } else {
        answer.push(format!(
            "runner {} does not know job {job}: it was not requested yet, runs elsewhere, or ended more than a day ago",
            report.runner
        ));
        answer.extend(report.no_requests.as_ref().map(|why| format!("no more jobs are requested for now: {why}")));
    }
    // One that waits again is asked about this wait, not the one before.
    let leased = decisions.iter().rev().find(|told| told.kind == "leased").filter(|_| waiting.is_none());
    if let Some(leased) = leased {
        let waited = leased.after_ms.unwrap_or(0);
        answer.push(format!("it had waited {} for it", seconds(waited)));
        window = Some((leased.unix - i64::try_from(waited / 1000).unwrap_or(0) - 1, leased.unix));
    }
    let known = waiting.is_some() || held.is_some() || !decisions.is_empty();
    if let Some((from, to)) = window {
        let meanwhile = |told: &Told| told.unix <= to && SCALING.contains(&told.kind.as_str()) && !own(told);
        decisions.extend(recall(from, DECISIONS_MAX + 1, &meanwhile)?);
        decisions.sort_by_key(|told| told.unix);
    }
    Ok(explained(report, known, answer, decisions))
}

/// What those that wait can hope for.
fn coming(status: &Status) -> Vec<String> {
    let mut answer = Vec::new();
    if status.booting > 0 {
        let next = status.ready_in_ms.map(|ms| match ms {
            0 => "; by what was learned, the next should be ready already".to_owned(),
            ms => format!("; the next is expected to be ready in {}", seconds(ms)),
        });
        let next = next.unwrap_or_default();
        answer.push(format!("{} instances boot or are made ready{next}", status.booting));
    }
    answer.extend(status.held.iter().map(|held| format!("no more instances can be asked for: {held}")));
    answer
}

fn instance(id: &str, report: &Report, source: Source, decisions: Vec<Told>) -> Explained {
    let status = report.status.as_ref();
    let found = status.and_then(|status| status.instances.iter().find(|instance| instance.id == id));
    let foreign = status.into_iter().flat_map(|status| &status.groups);
    let foreign = foreign.into_iter().find(|group| group.foreign.iter().any(|known| known == id));
    let mut answer = Vec::new();
    if let Some(instance) = found {
        answer.extend(now(instance));
        answer.extend(status.filter(|_| source == Source::Manager).and_then(|status| why_idle(instance, status)));
    } else if let Some(group) = foreign {
        answer.push(format!("instance {id} of group {} was not asked for here; it is left alone", group.name));
    } else if decisions.is_empty() {
        answer.push(format!("runner {} does not know instance {id}, nor did it in the last day", report.runner));
    } else {
        answer.push(format!("instance {id} is not there any more"));
        let ends = ["operator", "remove", "lost", "gone"];
        answer.extend(decisions.iter().filter(|told| ends.contains(&&*told.kind)).map(|told| told.text.clone()));
    }
    explained(report, found.is_some() || foreign.is_some() || !decisions.is_empty(), answer, decisions)
}

/// Why an instance without a job is there.
fn why_idle(instance: &InstanceStatus, status: &Status) -> Option<String> {
    if instance.state != "ready" || !instance.slots.is_empty() {
        return None;
    }
    let (idle, wanted, promised) = (status.tasks.idle, status.idle_wanted, status.tasks.reserved);
    let policy = status.policy.map_or_else(|| "no policy".to_owned(), |policy| format!("policy {policy}"));
    let kept = format!("it has no job: {idle} slots are idle, and {wanted} are wanted idle ({policy})");
    Some(if idle <= wanted {
        format!("{kept}, so it is kept")
    } else {
        format!(
            "{kept}; {promised} job requests are out, whose jobs may get it; else it goes when the idle time is over"
        )
    })
}

fn now(instance: &InstanceStatus) -> Vec<String> {
    let InstanceStatus { id, group, state, why, for_ms, age_ms, used, slots, .. } = instance;
    let mut answer = vec![format!(
        "instance {id} of group {group} has been {state} for {}; it was first seen {} ago, and has had {used} jobs",
        seconds(*for_ms),
        seconds(*age_ms)
    )];
    answer.extend(why.as_ref().map(|why| match state.as_str() {
        "drained" => format!("it gets no jobs and stays until it is resumed or removed: drained by {why}"),
        "suspending" | "suspended" | "resuming" => format!("it gets no other jobs: {why}"),
        _ => format!("it goes: {why}"),
    }));
    answer.extend(slots.iter().map(|slot| format!("slot {}: {}", slot.slot, slot.key)));
    answer
}

fn group(name: &str, report: &Report, source: Source, decisions: Vec<Told>) -> Explained {
    let status = report.status.as_ref();
    let found = status.and_then(|status| Some((status, status.groups.iter().find(|group| group.name == name)?)));
    let mut answer = Vec::new();
    match found {
        Some((status, group)) => {
            answer.extend(how(group, source));
            answer.extend(wanted(status, source));
            let held = status.held.iter().filter(|held| held.starts_with(&mention(name)));
            answer.extend(held.map(|held| format!("none is asked for: {held}")));
        }
        None => answer.push(match source {
            Source::Manager => format!("runner {} has no group {name}", report.runner),
            Source::Store => format!("the books of runner {} have nothing of a group {name}", report.runner),
        }),
    }
    explained(report, found.is_some(), answer, decisions)
}

fn how(group: &GroupStatus, source: Source) -> Vec<String> {
    let GroupStatus { name, down, max, instances, coming, doubtful, failures, error, foreign, drained, .. } = group;
    let max = match (source, max) {
        (Source::Store, _) => String::new(),
        (Source::Manager, None) => " without a limit".to_owned(),
        (Source::Manager, Some(max)) => format!(" of at most {max}"),
    };
    let doubt = if *doubtful > 0 { format!(" ({doubtful} of them in doubt)") } else { String::new() };
    let mut answer = vec![format!("group {name} has {instances} instances{max}, and {coming} asked for{doubt}")];
    answer.extend(drained.as_ref().map(|by| format!("it makes no more until it is resumed: drained by {by}")));
    answer.extend(down.as_ref().map(|why| format!("its plugin does not run: {why}")));
    answer.extend(error.as_ref().map(|error| format!("the last {failures} attempts failed: {error}")));
    answer.extend(group.unlisted());
    if !foreign.is_empty() {
        answer.push(format!("not asked for here, and left alone: {}", foreign.join(", ")));
    }
    answer
}

fn wanted(status: &Status, source: Source) -> Vec<String> {
    if source == Source::Store {
        return vec![
            "how many are wanted, who waits, and what stands in the way, only a manager at work can say".to_owned(),
        ];
    }
    let tasks = &status.tasks;
    let what = match status.missing {
        0 => "as many instances as are wanted are there or on their way".to_owned(),
        missing @ 1.. => format!("{missing} instances are missing"),
        surplus => format!("{} instances are more than wanted", surplus.unsigned_abs()),
    };
    let policy = status.policy.map_or_else(|| "no policy holds".to_owned(), |policy| format!("policy {policy} holds"));
    vec![format!(
        "{what}: {} slots in use, {} jobs wait, {} slots idle of {} wanted idle; {policy}",
        tasks.acquired, tasks.pending, tasks.idle, status.idle_wanted
    )]
}

fn fleet(report: &Report, source: Source, decisions: Vec<Told>) -> Explained {
    let mut answer = Vec::new();
    if let Some(status) = &report.status {
        answer.extend(status.groups.iter().flat_map(|group| how(group, source)));
        answer.extend(wanted(status, source));
        answer.extend(coming(status));
    }
    answer.extend(report.no_requests.as_ref().map(|why| format!("no more jobs are requested for now: {why}")));
    explained(report, true, answer, decisions)
}

fn seconds(ms: u64) -> String {
    format!("{}.{:01} s", ms / 1000, ms % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Tasks, WaitingStatus};

    fn told(unix: i64, kind: &str, keys: &[&str], text: &str) -> Told {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let (kind, text) = (kind.to_owned(), text.to_owned());
        Told { unix, kind, group: None, instance: None, keys, text, after_ms: None, inputs: None }
    }

    fn report(waiting: Vec<WaitingStatus>) -> Report {
        let status = Status {
            tasks: Tasks::default(),
            missing: 1,
            idle_wanted: 0,
            policy: None,
            spend_per_hour: 0.0,
            held: vec!["group a: it has its 2 instances".to_owned()],
            waiting,
            booting: 2,
            ready_in_ms: Some(3000),
            groups: Vec::new(),
            instances: Vec::new(),
        };
        Report {
            runner: "r".to_owned(),
            down: None,
            no_requests: None,
            status: Some(status),
            resources: std::collections::BTreeMap::new(),
        }
    }

    fn ask(job: &str, report: &Report, history: &[Told]) -> Explained {
        let recall = |since, _: usize, wanted: &dyn Fn(&Told) -> bool| {
            Ok(history.iter().filter(|told| told.unix >= since && wanted(told)).cloned().collect())
        };
        explain(&Subject::Job(job.to_owned()), report, Source::Manager, 1000, &recall).unwrap()
    }

    #[test]
    fn a_waiting_job_has_its_place_its_hope_and_what_stands_in_the_way() {
        let waiting = WaitingStatus { key: "job-12-abcd".to_owned(), for_ms: 42_300, before: 3 };
        let history = [
            told(900, "hold", &[], "too early"),
            told(970, "hold", &[], "in the way"),
            told(980, "leased", &["job-11-ffff"], "another's"),
        ];
        let explained = ask("12", &report(vec![waiting]), &history);
        assert_eq!(
            explained.answer,
            [
                "job 12 has waited 42.3 s for a slot; 3 are before it",
                "2 instances boot or are made ready; the next is expected to be ready in 3.0 s",
                "no more instances can be asked for: group a: it has its 2 instances",
            ]
        );
        let texts: Vec<&str> = explained.decisions.iter().map(|told| told.text.as_str()).collect();
        assert_eq!((explained.known, texts), (true, vec!["in the way"]));
    }

    #[test]
    fn a_job_that_waits_again_has_its_second_wait_explained() {
        let waiting = WaitingStatus { key: "job-12-abcd".to_owned(), for_ms: 42_000, before: 0 };
        let mut first = told(500, "leased", &["job-12-0000"], "it has slot 0 of i1");
        first.after_ms = Some(1_000);
        let history = [
            told(499, "ask", &[], "before the first"),
            first,
            told(950, "lost", &["job-12-0000"], "i1 is lost"),
            told(970, "hold", &[], "in the way"),
        ];
        let explained = ask("12", &report(vec![waiting]), &history);
        assert!(!explained.answer.iter().any(|line| line.starts_with("it had waited")), "{:?}", explained.answer);
        let texts: Vec<&str> = explained.decisions.iter().map(|told| told.text.as_str()).collect();
        assert_eq!(texts, ["it has slot 0 of i1", "i1 is lost", "in the way"]);
    }

    /// Books say what there is, and nothing of what is wanted.
    #[test]
    fn books_do_not_say_that_all_is_well() {
        let place = tempfile::tempdir().unwrap();
        let row = "{\"taskscaler_books\":1}\n[[{\"instance\":{\"group\":\"a\",\"id\":\"i1\"}},{\"instance\":{\"slots\":[],\"used\":0,\"seen_unix\":1,\"intent\":\"use\"}}]]\n";
        std::fs::write(place.path().join("x.books"), row).unwrap();
        let fleets = crate::fleet::offline(place.path(), 1000).unwrap();
        let none = |_, _: usize, _: &dyn Fn(&Told) -> bool| Ok(Vec::new());
        for subject in [Subject::Fleet, Subject::Group("a".to_owned())] {
            let explained = explain(&subject, &fleets[0].report, Source::Store, 1000, &none).unwrap();
            let answer = explained.answer.join("\n");
            assert!(answer.contains("group a has 1 instances, and 0 asked for"), "{answer}");
            for wrong in ["limit", "are wanted are there", "0 jobs wait", "policy"] {
                assert!(!answer.contains(wrong), "{answer}");
            }
            assert!(answer.contains("only a manager at work can say"), "{answer}");
        }
    }

    #[test]
    fn an_answer_that_leaves_something_out_says_so() {
        let history: Vec<Told> = (0..1500).map(|n| told(n, "policy", &[], &n.to_string())).collect();
        let report = report(Vec::new());
        let recall = |_, most: usize, _: &dyn Fn(&Told) -> bool| Ok(history[history.len() - most.min(1500)..].to_vec());
        let explained = explain(&Subject::Fleet, &report, Source::Manager, 1500, &recall).unwrap();
        assert_eq!((explained.is_cut, explained.decisions.len()), (true, DECISIONS_MAX));
        assert_eq!(explained.decisions[0].text, "500", "the latest stay");
        let few = |_, _: usize, _: &dyn Fn(&Told) -> bool| Ok(history[..1000].to_vec());
        assert!(!explain(&Subject::Fleet, &report, Source::Manager, 1500, &few).unwrap().is_cut);
    }

    #[test]
    fn a_number_is_not_taken_for_the_beginning_of_another() {
        let waiting = WaitingStatus { key: "job-123-abcd".to_owned(), for_ms: 0, before: 0 };
        let report = Report { no_requests: Some("full".to_owned()), ..report(vec![waiting]) };
        let explained = ask("12", &report, &[told(999, "leased", &["job-120-x"], "")]);
        assert!(!explained.known && explained.decisions.is_empty(), "{explained:?}");
        assert_eq!(explained.answer[1], "no more jobs are requested for now: full");
    }
}
