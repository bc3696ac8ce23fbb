//! Resource groups: at most one job of a group at a time, across pipelines (pipeline-yaml 5.7).
//!
//! A bridge that waits for its child pipeline lends its group to the jobs below it: they would wait for each other
//! for ever otherwise.

use std::collections::{BTreeSet, HashMap};

use muster_job::PipelineId;

use super::event::ResourceMode;

/// A member of a group. Its order is age: hierarchy, pipeline, place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) root: PipelineId,
    pub(super) pipeline: PipelineId,
    pub(super) place: usize,
}

/// What a member wants of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing, for now.
    None,
    /// It will want it once its turn has come.
    Later,
    /// Now.
    Waits,
    /// It has it.
    Holds,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Group {
    mode: ResourceMode,
    /// More than one only where a bridge lends the group to a job below it.
    holders: BTreeSet<Member>,
    waiting: BTreeSet<Member>,
    /// Waiting ones and those that will want it later.
    upcoming: BTreeSet<Member>,
    /// Number of jobs that name it.
    members: usize,
    /// Its mode was set, so that it is kept also without members.
    configured: bool,
}

/// All resource groups of the project.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Groups {
    numbers: HashMap<String, usize>,
    groups: Vec<Group>,
    /// Numbers of groups that were removed, for the next ones.
    free: Vec<usize>,
}

impl Groups {
    /// The number of the group with this name.
    fn number(&mut self, name: &str) -> usize {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.free.pop().unwrap_or(self.groups.len());
        if number == self.groups.len() {
            self.groups.push(Group::default());
        }
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// The number of the group with this name, for a job that names it.
    pub(super) fn enter(&mut self, name: &str) -> usize {
        let number = self.number(name);
        self.groups[number].members += 1;
        number
    }

    /// A job that names the group is removed. A group that no job names is removed, too.
    pub(super) fn leave(&mut self, number: usize, member: Member) {
        self.claim(number, member, Claim::None);
        let group = &mut self.groups[number];
        group.members = group.members.saturating_sub(1);
        if group.members == 0 && !group.configured {
            *group = Group::default();
            self.numbers.retain(|_, known| *known != number);
            self.free.push(number);
        }
    }

    /// Whether there is no group.
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The numbers of all groups.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.groups.len()
    }

    /// Sets how the group with this name chooses; the answer is its number.
    pub(super) fn set_mode(&mut self, name: &str, mode: ResourceMode) -> usize {
        let number = self.number(name);
        self.groups[number].mode = mode;
        self.groups[number].configured = true;
        number
    }

    /// Records what a member wants now. True if that may have made room for another.
    pub(super) fn claim(&mut self, number: usize, member: Member, claim: Claim) -> bool {
        let group = &mut self.groups[number];
        let set = |set: &mut BTreeSet<Member>, in_it: bool| {
            if in_it {
                set.insert(member);
                false
            } else {
                set.remove(&member)
            }
        };
        let released = set(&mut group.holders, claim == Claim::Holds);
        let gone = set(&mut group.upcoming, matches!(claim, Claim::Later | Claim::Waits));
        set(&mut group.waiting, claim == Claim::Waits);
        released || gone
    }

    /// A waiting member gets the group now. `is_below(pipeline, holder)`: the pipeline is a descendant of the bridge
    /// `holder`.
    pub(super) fn admits(&self, number: usize, member: Member, is_below: impl Fn(PipelineId, Member) -> bool) -> bool {
        let group = &self.groups[number];
        if group.holders.is_empty() {
            group.first_choice() == Some(member)
        } else {
            group.holders.iter().all(|&holder| is_below(member.pipeline, holder))
        }
    }

    /// The waiting member that gets the group now, if any does; `is_below` as for [`Groups::admits`].
    pub(super) fn next(&self, number: usize, is_below: impl Fn(PipelineId, Member) -> bool) -> Option<Member> {
        let group = &self.groups[number];
        if group.holders.is_empty() {
            return group.first_choice();
        }
        let borrows = |member: &&Member| group.holders.iter().all(|&holder| is_below(member.pipeline, holder));
        group.waiting.iter().find(borrows).copied()
    }
}

impl Group {
    /// Who gets the group when nobody holds it.
    fn first_choice(&self) -> Option<Member> {
        match self.mode {
            ResourceMode::Unordered => self.waiting.first().copied(),
            ResourceMode::OldestFirst => self.first_of_root(self.upcoming.first()?.root),
            ResourceMode::NewestReadyFirst => self.first_of_root(self.waiting.last()?.root),
            ResourceMode::NewestFirst => self.first_of_root(self.upcoming.last()?.root),
        }
    }

    /// The first waiting member of a hierarchy.
    fn first_of_root(&self, root: PipelineId) -> Option<Member> {
        let begin = Member { root, pipeline: PipelineId(i64::MIN), place: 0 };
        self.waiting.range(begin..).next().copied().filter(|member| member.root == root)
    }
}
