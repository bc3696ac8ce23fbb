//! The rules of pipeline-yaml 5.2 and 5.3 once more, slowly and literally, to judge the engine by.

use std::collections::BTreeMap;

use muster_coordinator::schedule::JobState;
use muster_job::JobStatus;
use muster_pipeline::model::{Job, Need, Pipeline, When, Work};

/// A job's status as others see it.
fn mapped(job: &JobState) -> &'static str {
    match (job.status, job.allowed) {
        (JobStatus::Failed | JobStatus::Canceled, true) => "warn",
        (JobStatus::Manual, true) => "ignored",
        (status, _) => status.as_str(),
    }
}

/// The first rule that matches.
fn composite(words: &[&str], dag: bool) -> &'static str {
    let only = |allowed: &[&str]| words.iter().all(|word| allowed.contains(word));
    let any = |wanted: &str| words.contains(&wanted);
    if dag && (any("skipped") || any("ignored")) {
        return "skipped";
    }
    let only_rules: [(&[&str], &str); 5] = [
        (&["skipped", "ignored"], "skipped"),
        (&["success", "skipped", "warn", "ignored"], "success"),
        (&["created", "warn", "ignored"], "created"),
        (&["canceled", "success", "skipped", "warn", "ignored"], "canceled"),
        (&["pending", "created", "skipped", "warn", "ignored"], "pending"),
    ];
    let any_rules = [
        ("running", "running"),
        ("pending", "running"),
        ("waiting_for_resource", "waiting_for_resource"),
        ("manual", "manual"),
        ("scheduled", "scheduled"),
        ("created", "running"),
        ("canceling", "canceling"),
    ];
    let of_all = only_rules.iter().find(|(allowed, _)| only(allowed)).map(|(_, status)| *status);
    let of_any = || any_rules.iter().find(|(word, _)| any(word)).map(|(_, status)| *status);
    of_all.or_else(of_any).unwrap_or("failed")
}

/// Needs by place; `None` for stage order.
fn needs(model: &Pipeline, job: &Job) -> Option<Vec<usize>> {
    let place = |name: &str| model.jobs.iter().position(|other| other.name == name).expect("a sound graph");
    job.needs.as_ref().map(|needs| {
        let named = needs.iter().filter_map(|need| match need {
            Need::Job { name, .. } => Some(place(name)),
            _ => None,
        });
        named.collect()
    })
}

/// Places that a job waits for, worked out once per pipeline.
pub(super) struct Reference {
    model: Pipeline,
    needs: Vec<Option<Vec<usize>>>,
}

impl Reference {
    pub(super) fn new(model: Pipeline) -> Self {
        let needs = model.jobs.iter().map(|job| needs(&model, job)).collect();
        Self { model, needs }
    }

    /// All jobs that a job waits for.
    pub(super) fn waits_for(&self, place: usize) -> Vec<usize> {
        let stage = self.model.jobs[place].stage_index;
        let earlier =
            || (0..self.model.jobs.len()).filter(|&other| self.model.jobs[other].stage_index < stage).collect();
        self.needs[place].clone().unwrap_or_else(earlier)
    }

    /// What a created job does now: `wait`, `skip`, `start`, `manual` or `scheduled`.
    fn turn(&self, jobs: &[JobState], place: usize, stage_inputs: &mut BTreeMap<usize, &'static str>) -> &'static str {
        let model = &self.model.jobs[place];
        let words = |places: Vec<usize>| places.into_iter().map(|place| mapped(&jobs[place])).collect::<Vec<_>>();
        let judge = |words: Vec<&str>, dag| if words.is_empty() { "success" } else { composite(&words, dag) };
        let dag = self.needs[place].is_some();
        let input = if dag {
            judge(words(self.waits_for(place)), true)
        } else {
            stage_inputs.entry(model.stage_index).or_insert_with(|| judge(words(self.waits_for(place)), false))
        };
        let asked = jobs[place].asked;
        let met = match (model.when, input) {
            (_, "canceled") => false,
            (When::OnSuccess | When::Manual | When::Delayed, "success") => true,
            (When::OnSuccess | When::Manual | When::Delayed, "skipped") => !dag,
            (When::OnSuccess | When::Manual | When::Delayed, "failed") => false,
            (When::OnFailure, "failed") => true,
            (When::OnFailure, "success" | "skipped") => asked,
            (When::Always, "success" | "failed" | "skipped") => true,
            _ => return "wait",
        };
        match model.when {
            _ if !met => "skip",
            _ if dag && self.waits_for(place).iter().any(|&need| !rests(&jobs[need])) => "wait",
            When::Manual if !asked => "manual",
            When::Delayed if !asked => "scheduled",
            _ => "start",
        }
    }

    /// Whether one event may have turned `before` into `after`, and left nothing undone.
    pub(super) fn check(&self, before: &[JobState], after: &[JobState], status: JobStatus) {
        let words: Vec<&str> = after.iter().map(mapped).collect();
        assert_eq!(status.as_str(), composite(&words, false), "the pipeline's status");
        let mut inputs = BTreeMap::new();
        for (place, (was, is)) in before.iter().zip(after).enumerate() {
            let turn = self.turn(after, place, &mut inputs);
            let had_its_turn = was.status == JobStatus::Created || was.retry != is.retry;
            match is.status {
                JobStatus::Created => assert_eq!(turn, "wait", "job {place} is left waiting"),
                JobStatus::Canceled => {}
                _ if !had_its_turn => {}
                JobStatus::Skipped => assert_eq!(turn, "skip", "job {place} was skipped"),
                JobStatus::Manual => assert_eq!(turn, "manual", "job {place} waits for a person"),
                JobStatus::Scheduled => assert_eq!(turn, "scheduled", "job {place} is delayed"),
                JobStatus::Pending | JobStatus::WaitingForResource => assert_eq!(turn, "start", "job {place} started"),
                other => panic!("job {place} went from its turn to {other}"),
            }
            if is.status == JobStatus::Skipped && is.child.is_none() && !self.needs_a_manual_job(place) {
                assert_eq!(turn, "skip", "job {place} is skipped although it could still run");
            }
        }
        self.check_groups(after);
    }

    /// An optional manual need (or a bridge that shows one) that is canceled changes the input of a skipped job without bringing it back.
    fn needs_a_manual_job(&self, place: usize) -> bool {
        let manual = |&need: &usize| {
            let need = &self.model.jobs[need];
            matches!(need.when, When::Manual | When::Delayed) || matches!(need.work, Work::Bridge(_))
        };
        self.needs[place].iter().flatten().any(manual)
    }

    fn check_groups(&self, jobs: &[JobState]) {
        let mut holders: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (job, model) in jobs.iter().zip(&self.model.jobs) {
            let Some(group) = &model.resource_group else { continue };
            let (held, waiting) = holders.entry(group).or_default();
            match job.status {
                JobStatus::Pending | JobStatus::Running | JobStatus::Canceling => *held += 1,
                JobStatus::WaitingForResource => *waiting += 1,
                _ => {}
            }
        }
        for (group, (held, waiting)) in holders {
            assert!(held <= 1, "group {group} is held by {held}");
            assert!(held == 1 || waiting == 0, "group {group} is free and {waiting} wait for it");
        }
    }
}

/// Nobody has to wait for it.
pub(super) fn rests(job: &JobState) -> bool {
    job.status.is_complete() || mapped(job) == "ignored"
}
