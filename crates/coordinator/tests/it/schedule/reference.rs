//! A slow and literal implementation of docs/spec/pipeline-yaml.md, sections 5.2 and 5.3, to check the engine.

use std::collections::BTreeMap;

use muster_coordinator::schedule::JobState;
use muster_job::JobStatus;
use muster_pipeline::model::{Job, Need, Pipeline, When, Work};

/// Returns the job's status as the rules name it.
fn status_in_rules(job: &JobState) -> &'static str {
    match (job.status, job.failure_allowed) {
        (JobStatus::Failed | JobStatus::Canceled, true) => "warn",
        (JobStatus::Manual, true) => "ignored",
        (status, _) => status.as_str(),
    }
}

/// Returns the composite status, which is the result of the first rule that matches.
///
/// `of_needs` selects the rules for the needs of a job.
fn composite(statuses: &[&str], of_needs: bool) -> &'static str {
    let only = |allowed: &[&str]| statuses.iter().all(|status| allowed.contains(status));
    let any = |wanted: &str| statuses.contains(&wanted);
    if of_needs && (any("skipped") || any("ignored")) {
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
    let only_match = only_rules.iter().find(|(allowed, _)| only(allowed)).map(|(_, status)| *status);
    let any_match = || any_rules.iter().find(|(wanted, _)| any(wanted)).map(|(_, status)| *status);
    only_match.or_else(any_match).unwrap_or("failed")
}

/// Returns the indexes of the jobs that `job` needs. `None` means that the job waits for all jobs of earlier stages.
fn needs(model: &Pipeline, job: &Job) -> Option<Vec<usize>> {
    let job_index = |name: &str| model.jobs.iter().position(|other| other.name == name).expect("the graph is invalid");
    job.needs.as_ref().map(|needs| {
        let indexes = needs.iter().filter_map(|need| match need {
            Need::Job { name, .. } => Some(job_index(name)),
            _ => None,
        });
        indexes.collect()
    })
}

pub(super) struct Reference {
    model: Pipeline,
    needs: Vec<Option<Vec<usize>>>,
}

impl Reference {
    pub(super) fn new(model: Pipeline) -> Self {
        let needs = model.jobs.iter().map(|job| needs(&model, job)).collect();
        Self { model, needs }
    }

    pub(super) fn awaited_jobs(&self, job_index: usize) -> Vec<usize> {
        let stage = self.model.jobs[job_index].stage_index;
        let earlier =
            || (0..self.model.jobs.len()).filter(|&other| self.model.jobs[other].stage_index < stage).collect();
        self.needs[job_index].clone().unwrap_or_else(earlier)
    }

    /// Returns `wait`, `skip`, `start`, `manual` or `scheduled`. `stage_inputs` caches the composite status of all
    /// earlier stages, by stage.
    fn readiness(
        &self,
        jobs: &[JobState],
        job_index: usize,
        stage_inputs: &mut BTreeMap<usize, &'static str>,
    ) -> &'static str {
        let model = &self.model.jobs[job_index];
        let statuses = |indexes: Vec<usize>| {
            indexes.into_iter().map(|job_index| status_in_rules(&jobs[job_index])).collect::<Vec<_>>()
        };
        let composite_of = |statuses: Vec<&str>, of_needs| {
            if statuses.is_empty() { "success" } else { composite(&statuses, of_needs) }
        };
        let has_needs = self.needs[job_index].is_some();
        let input = if has_needs {
            composite_of(statuses(self.awaited_jobs(job_index)), true)
        } else {
            stage_inputs
                .entry(model.stage_index)
                .or_insert_with(|| composite_of(statuses(self.awaited_jobs(job_index)), false))
        };
        let requested_by_user = jobs[job_index].requested_by_user;
        let condition_met = match (model.when, input) {
            (_, "canceled") => false,
            (When::OnSuccess | When::Manual | When::Delayed, "success") => true,
            (When::OnSuccess | When::Manual | When::Delayed, "skipped") => !has_needs,
            (When::OnSuccess | When::Manual | When::Delayed, "failed") => false,
            (When::OnFailure, "failed") => true,
            (When::OnFailure, "success" | "skipped") => requested_by_user,
            (When::Always, "success" | "failed" | "skipped") => true,
            _ => return "wait",
        };
        match model.when {
            _ if !condition_met => "skip",
            _ if has_needs && self.awaited_jobs(job_index).iter().any(|&need| !is_non_blocking(&jobs[need])) => "wait",
            When::Manual if !requested_by_user => "manual",
            When::Delayed if !requested_by_user => "scheduled",
            _ => "start",
        }
    }

    /// Checks that one event can have changed `before` to `after`, and that no ready job is still `created`.
    pub(super) fn check(&self, before: &[JobState], after: &[JobState], status: JobStatus) {
        let statuses: Vec<&str> = after.iter().map(status_in_rules).collect();
        assert_eq!(status.as_str(), composite(&statuses, false), "the pipeline's status");
        let mut inputs = BTreeMap::new();
        for (job_index, (old, new)) in before.iter().zip(after).enumerate() {
            let readiness = self.readiness(after, job_index, &mut inputs);
            let was_created = old.status == JobStatus::Created || old.retry != new.retry;
            match new.status {
                JobStatus::Created => assert_eq!(readiness, "wait", "job {job_index} is still created"),
                JobStatus::Canceled => {}
                _ if !was_created => {}
                JobStatus::Skipped => assert_eq!(readiness, "skip", "job {job_index} was skipped"),
                JobStatus::Manual => assert_eq!(readiness, "manual", "job {job_index} waits for a manual start"),
                JobStatus::Scheduled => assert_eq!(readiness, "scheduled", "job {job_index} is delayed"),
                JobStatus::Pending | JobStatus::WaitingForResource => {
                    assert_eq!(readiness, "start", "job {job_index} started")
                }
                other => panic!("job {job_index} changed from created to {other}"),
            }
            if new.status == JobStatus::Skipped && new.child.is_none() && !self.needs_manual_job(job_index) {
                assert_eq!(readiness, "skip", "skipped job {job_index} must not be able to run");
            }
        }
        self.check_groups(after);
    }

    /// Returns whether a job needs a manual or delayed job, or a bridge that may mirror one.
    ///
    /// Canceling such a need changes the input of a skipped job without reviving it.
    fn needs_manual_job(&self, job_index: usize) -> bool {
        let may_be_manual = |&need: &usize| {
            let need = &self.model.jobs[need];
            matches!(need.when, When::Manual | When::Delayed) || matches!(need.work, Work::Bridge(_))
        };
        self.needs[job_index].iter().flatten().any(may_be_manual)
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
            assert!(held <= 1, "at most one job may hold group {group}, found {held}");
            assert!(held == 1 || waiting == 0, "no job may wait for the free group {group}, found {waiting}");
        }
    }
}

pub(super) fn is_non_blocking(job: &JobState) -> bool {
    job.status.is_complete() || status_in_rules(job) == "ignored"
}
