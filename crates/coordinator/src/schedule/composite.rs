//! The composite status of many jobs, computed from counts alone (docs/spec/pipeline-yaml.md, section 5.3).

use muster_job::JobStatus;

/// Status of a job as seen by other jobs, with `allow_failure` applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum StatusClass {
    Created,
    WaitingForResource,
    Pending,
    Running,
    Success,
    Failed,
    FailedAllowed,
    Canceling,
    Canceled,
    /// Canceled with `allow_failure`. For the composite status, it is the same as `FailedAllowed`.
    CanceledAllowed,
    Skipped,
    /// Waiting for a manual start. Later jobs wait for it, too.
    Manual,
    /// Waiting for a manual start. Later jobs do not wait for it.
    ManualAllowed,
    Scheduled,
}

const CLASS_COUNT: usize = 14;

impl StatusClass {
    pub(super) fn new(status: JobStatus, failure_allowed: bool) -> Self {
        match (status, failure_allowed) {
            (JobStatus::Created, _) => Self::Created,
            (JobStatus::WaitingForResource, _) => Self::WaitingForResource,
            (JobStatus::Pending, _) => Self::Pending,
            (JobStatus::Running, _) => Self::Running,
            (JobStatus::Success, _) => Self::Success,
            (JobStatus::Failed, false) => Self::Failed,
            (JobStatus::Failed, true) => Self::FailedAllowed,
            (JobStatus::Canceling, _) => Self::Canceling,
            (JobStatus::Canceled, false) => Self::Canceled,
            (JobStatus::Canceled, true) => Self::CanceledAllowed,
            (JobStatus::Skipped, _) => Self::Skipped,
            (JobStatus::Manual, false) => Self::Manual,
            (JobStatus::Manual, true) => Self::ManualAllowed,
            (JobStatus::Scheduled, _) => Self::Scheduled,
        }
    }

    /// Returns whether later jobs do not wait for a job of this class: it has ended, or it is `ManualAllowed`.
    pub(super) fn is_non_blocking(self) -> bool {
        NON_BLOCKING & self.bit() != 0
    }

    /// Returns whether a job of this class counts as "did not run" for the jobs that need it.
    pub(super) fn did_not_run(self) -> bool {
        NOT_RUN & self.bit() != 0
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

const fn set(mut classes: &[StatusClass]) -> u16 {
    let mut bits = 0;
    while let [class, rest @ ..] = classes {
        bits |= class.bit();
        classes = rest;
    }
    bits
}

/// The classes that docs/spec/pipeline-yaml.md, section 5.3, calls *warn*.
const ALLOWED_TO_FAIL: u16 = set(&[StatusClass::FailedAllowed, StatusClass::CanceledAllowed]);
/// The class that docs/spec/pipeline-yaml.md, section 5.3, calls *ignored*.
const IGNORED: u16 = set(&[StatusClass::ManualAllowed]);
const NOT_RUN: u16 = set(&[StatusClass::Skipped, StatusClass::ManualAllowed]);
const NON_BLOCKING: u16 = ALLOWED_TO_FAIL
    | IGNORED
    | set(&[StatusClass::Success, StatusClass::Failed, StatusClass::Canceled, StatusClass::Skipped]);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts([u32; CLASS_COUNT]);

impl Counts {
    pub(super) fn add(&mut self, class: StatusClass) {
        *self.count(class) += 1;
    }

    pub(super) fn shift(&mut self, from: StatusClass, to: StatusClass) {
        *self.count(from) -= 1;
        *self.count(to) += 1;
    }

    #[expect(clippy::indexing_slicing, reason = "there is one count for each class")]
    fn count(&mut self, class: StatusClass) -> &mut u32 {
        &mut self.0[class as usize]
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, more)| *own += more);
    }

    pub(super) fn remove_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, less)| *own -= less);
    }

    pub(super) fn has_warnings(&self) -> bool {
        self.classes() & StatusClass::FailedAllowed.bit() != 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes() == 0
    }

    fn classes(&self) -> u16 {
        self.0.iter().enumerate().filter(|(_, count)| **count > 0).fold(0, |bits, (class, _)| bits | 1 << class)
    }

    /// Returns the composite status of the counted jobs, from the first matching rule in docs/spec/pipeline-yaml.md,
    /// section 5.3.
    ///
    /// `of_needs` selects the rules for the jobs that one job needs, instead of the rules for a stage or a pipeline.
    pub(super) fn composite(&self, of_needs: bool) -> JobStatus {
        /// *warn* and *ignored*, which rules 3 to 7 permit beside the statuses that they name.
        const NEUTRAL: u16 = ALLOWED_TO_FAIL | IGNORED;
        let present = self.classes();
        let only = |allowed: u16| present & !allowed == 0;
        let any = |wanted: u16| present & wanted != 0;
        match () {
            () if of_needs && any(NOT_RUN) => JobStatus::Skipped,
            () if only(NOT_RUN) => JobStatus::Skipped,
            () if only(set(&[StatusClass::Success, StatusClass::Skipped]) | NEUTRAL) => JobStatus::Success,
            () if only(set(&[StatusClass::Created]) | NEUTRAL) => JobStatus::Created,
            () if only(set(&[StatusClass::Canceled, StatusClass::Success, StatusClass::Skipped]) | NEUTRAL) => {
                JobStatus::Canceled
            }
            () if only(set(&[StatusClass::Pending, StatusClass::Created, StatusClass::Skipped]) | NEUTRAL) => {
                JobStatus::Pending
            }
            () if any(set(&[StatusClass::Running, StatusClass::Pending])) => JobStatus::Running,
            () if any(set(&[StatusClass::WaitingForResource])) => JobStatus::WaitingForResource,
            () if any(set(&[StatusClass::Manual])) => JobStatus::Manual,
            () if any(set(&[StatusClass::Scheduled])) => JobStatus::Scheduled,
            () if any(set(&[StatusClass::Created])) => JobStatus::Running,
            () if any(set(&[StatusClass::Canceling])) => JobStatus::Canceling,
            () => JobStatus::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composite(jobs: &[(JobStatus, bool)], of_needs: bool) -> JobStatus {
        let mut counts = Counts::default();
        jobs.iter().for_each(|&(status, allowed)| counts.add(StatusClass::new(status, allowed)));
        counts.composite(of_needs)
    }

    #[test]
    fn first_matching_rule_determines_the_composite_status() {
        use JobStatus as S;
        /// Status and `allow_failure` of each job; composite status of the jobs as a stage; composite status as needs.
        type Case<'a> = (&'a [(S, bool)], S, S);
        let cases: &[Case<'_>] = &[
            (&[(S::Success, false), (S::Skipped, false)], S::Success, S::Skipped),
            (&[(S::Success, false), (S::Manual, true)], S::Success, S::Skipped),
            (&[(S::Skipped, false), (S::Manual, true)], S::Skipped, S::Skipped),
            (&[(S::Success, false), (S::Failed, true)], S::Success, S::Success),
            (&[(S::Created, false), (S::Failed, true)], S::Created, S::Created),
            (&[(S::Success, false), (S::Canceled, false)], S::Canceled, S::Canceled),
            (&[(S::Failed, false), (S::Canceled, false)], S::Failed, S::Failed),
            (&[(S::Created, false), (S::Pending, false)], S::Pending, S::Pending),
            (&[(S::Success, false), (S::Pending, false)], S::Running, S::Running),
            (&[(S::Failed, false), (S::Running, false)], S::Running, S::Running),
            (&[(S::Success, false), (S::WaitingForResource, false)], S::WaitingForResource, S::WaitingForResource),
            (&[(S::Failed, false), (S::Manual, false)], S::Manual, S::Manual),
            (&[(S::Success, false), (S::Scheduled, false)], S::Scheduled, S::Scheduled),
            (&[(S::Success, false), (S::Created, false)], S::Running, S::Running),
            (&[(S::Success, false), (S::Canceling, false)], S::Canceling, S::Canceling),
            (&[(S::Success, false), (S::Failed, false)], S::Failed, S::Failed),
        ];
        for (jobs, as_stage, as_needs) in cases {
            assert_eq!(composite(jobs, false), *as_stage, "{jobs:?} as a stage");
            assert_eq!(composite(jobs, true), *as_needs, "{jobs:?} as needs");
        }
    }
}
