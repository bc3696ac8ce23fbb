//! Resource groups: at most one job of a group runs at a time, across pipelines (docs/spec/pipeline-yaml.md, section 5.7).
//!
//! A bridge that waits for its child pipeline lends its group to the jobs of the child. Otherwise, bridge and jobs would wait for
//! each other indefinitely.

use std::collections::{BTreeSet, HashMap};

use muster_job::PipelineId;

use super::event::ResourceMode;

/// A job that names a resource group. Jobs are ordered by age: hierarchy, pipeline, job index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) root: PipelineId,
    pub(super) pipeline: PipelineId,
    pub(super) job_index: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// The job does not need the group now.
    None,
    /// The job will need the group once it is ready.
    Upcoming,
    /// The job is ready and waits for the group.
    Waiting,
    /// The job holds the group.
    Holding,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct ResourceGroup {
    mode: ResourceMode,
    /// Jobs that hold the group. Several only if a bridge lends the group to a job of its child.
    holders: BTreeSet<Member>,
    waiting: BTreeSet<Member>,
    /// Waiting jobs, and jobs that will need the group later.
    upcoming: BTreeSet<Member>,
    /// Number of jobs that name the group.
    members: usize,
    /// Whether the mode was set. Such a group is kept even without members.
    configured: bool,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ResourceGroups {
    numbers: HashMap<String, usize>,
    groups: Vec<ResourceGroup>,
    /// Numbers of removed groups, to be reused.
    free: Vec<usize>,
}

impl ResourceGroups {
    /// Returns the number of a group. Creates the group if necessary.
    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.free.pop().unwrap_or(self.groups.len());
        if number == self.groups.len() {
            self.groups.push(ResourceGroup::default());
        }
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Registers a job that names the group. Returns the number of the group.
    pub(super) fn enter(&mut self, name: &str) -> usize {
        let number = self.number(name);
        if let Some(group) = self.groups.get_mut(number) {
            group.members += 1;
        }
        number
    }

    /// Removes a job from a group. If it was the last one, removes the group, unless the group's mode was set.
    pub(super) fn leave(&mut self, number: usize, member: Member) {
        self.claim(number, member, Claim::None);
        let Some(group) = self.groups.get_mut(number) else { return };
        group.members = group.members.saturating_sub(1);
        if group.members == 0 && !group.configured {
            *group = ResourceGroup::default();
            self.numbers.retain(|_, other| *other != number);
            self.free.push(number);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Returns the numbers of all groups, including removed ones.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.groups.len()
    }

    /// Returns the number of the group.
    pub(super) fn set_mode(&mut self, name: &str, mode: ResourceMode) -> usize {
        let number = self.number(name);
        if let Some(group) = self.groups.get_mut(number) {
            (group.mode, group.configured) = (mode, true);
        }
        number
    }

    /// Replaces the claim of a job to the group. Returns whether another job may now get the group.
    pub(super) fn claim(&mut self, number: usize, member: Member, claim: Claim) -> bool {
        let Some(group) = self.groups.get_mut(number) else { return false };
        // Adds the job to a set or removes it. Returns whether the job was removed.
        let update = |set: &mut BTreeSet<Member>, is_member: bool| {
            if is_member {
                set.insert(member);
                false
            } else {
                set.remove(&member)
            }
        };
        let released = update(&mut group.holders, claim == Claim::Holding);
        let withdrawn = update(&mut group.upcoming, matches!(claim, Claim::Upcoming | Claim::Waiting));
        update(&mut group.waiting, claim == Claim::Waiting);
        released || withdrawn
    }

    /// Returns whether a waiting job gets the group now.
    ///
    /// `is_below(pipeline, holder)` returns whether the pipeline is a descendant of the bridge `holder`.
    pub(super) fn may_acquire(
        &self,
        number: usize,
        member: Member,
        is_below: impl Fn(PipelineId, Member) -> bool,
    ) -> bool {
        let Some(group) = self.groups.get(number) else { return true };
        if group.holders.is_empty() {
            group.first_choice() == Some(member)
        } else {
            group.holders.iter().all(|&holder| is_below(member.pipeline, holder))
        }
    }

    /// Returns the waiting job that gets the group next. `None` if no waiting job may get it now.
    ///
    /// `is_below` is the same function as for [`ResourceGroups::may_acquire`].
    pub(super) fn next(&self, number: usize, is_below: impl Fn(PipelineId, Member) -> bool) -> Option<Member> {
        let group = self.groups.get(number)?;
        if group.holders.is_empty() {
            return group.first_choice();
        }
        let borrows = |member: &&Member| group.holders.iter().all(|&holder| is_below(member.pipeline, holder));
        group.waiting.iter().find(borrows).copied()
    }
}

impl ResourceGroup {
    /// Returns the job that gets the group if no job holds it.
    fn first_choice(&self) -> Option<Member> {
        match self.mode {
            ResourceMode::Unordered => self.waiting.first().copied(),
            ResourceMode::OldestFirst => self.first_of_root(self.upcoming.first()?.root),
            ResourceMode::NewestReadyFirst => self.first_of_root(self.waiting.last()?.root),
            ResourceMode::NewestFirst => self.first_of_root(self.upcoming.last()?.root),
        }
    }

    fn first_of_root(&self, root: PipelineId) -> Option<Member> {
        let start = Member { root, pipeline: PipelineId(i64::MIN), job_index: 0 };
        self.waiting.range(start..).next().copied().filter(|member| member.root == root)
    }
}
