//! What operators do by hand: instances that are kept aside, groups that make no more, removals.

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::instance::State;
use crate::books::RowKey;
use crate::decision::What;
use crate::event::Action;
use crate::operator::{Act, Done, Refused};
use crate::time::Now;
use crate::words::{GroupId, Loss, Removal};

impl Engine {
    /// Does it, or says why not.
    pub(super) fn operate(
        &mut self,
        now: Now,
        question: u64,
        (group, id): (GroupId, Option<InstanceId>),
        act: Act,
        by: String,
    ) {
        let answer = match (&id, act) {
            (Some(id), Act::Drain) => self.set_aside(now, group, id, &by),
            (Some(id), Act::Resume) => self.resume_instance(now, group, id),
            (Some(id), Act::Remove { now: at_once }) => self.remove_by_operator(now, group, id, at_once, &by),
            (None, Act::Drain) => self.drain_group(now, group, &by),
            (None, Act::Resume) => self.resume_group(now, group),
            (None, Act::Remove { .. }) => Err(Refused::WholeGroup),
        };
        if let Ok(done) = &answer {
            self.decide(now, What::Operator { group, id, act, by, done: done.clone() });
        }
        self.actions.push(Action::Answer { question, answer });
    }

    fn set_aside(&mut self, now: Now, group: GroupId, id: &InstanceId, by: &str) -> Result<Done, Refused> {
        let index = self.pool.find(group, id).ok_or_else(|| self.unknown(group, id))?;
        let instance = self.pool.get(index).ok_or(Refused::NoInstance)?;
        let jobs = instance.jobs;
        let then = match &instance.state {
            State::Booting | State::Preparing | State::Ready => None,
            // The later word counts.
            State::Draining(Removal::Operator { .. } | Removal::GroupDrained { .. }) => None,
            State::Draining(why) => Some(why.clone()),
            State::Aside { then, .. } => then.clone(),
            State::Deleting(deleting) => return Err(Refused::Goes { why: deleting.why.to_string() }),
            State::Asleep(_) => return Err(Refused::Suspended),
        };
        let state = State::Aside { by: by.to_owned(), then };
        self.pool.change(index, |instance| instance.enter(state, now.at, None));
        self.touch(index);
        Ok(Done::Drained { jobs })
    }

    fn resume_instance(&mut self, now: Now, group: GroupId, id: &InstanceId) -> Result<Done, Refused> {
        let index = self.pool.find(group, id).ok_or_else(|| self.unknown(group, id))?;
        let instance = self.pool.get(index).ok_or(Refused::NoInstance)?;
        let drained = self.group(group).and_then(|group| group.drained.clone());
        let then = match (&instance.state, drained) {
            (State::Aside { then, .. }, drained) => {
                then.clone().or_else(|| drained.map(|by| Removal::GroupDrained { by }))
            }
            (State::Draining(Removal::GroupDrained { .. } | Removal::Operator { .. }), Some(by)) => {
                return Err(Refused::GroupDrained { by });
            }
            (State::Draining(Removal::GroupDrained { .. } | Removal::Operator { .. }), None) => None,
            (State::Draining(why), _) => return Err(Refused::Goes { why: why.to_string() }),
            (State::Deleting(deleting), _) => return Err(Refused::Goes { why: deleting.why.to_string() }),
            (State::Booting | State::Preparing | State::Ready | State::Asleep(_), _) => {
                return Err(Refused::NotDrained);
            }
        };
        self.put_back(now, index);
        Ok(match then {
            Some(why) => {
                self.retire(now, index, why.clone());
                Done::Goes { why: why.to_string() }
            }
            None => Done::Resumed,
        })
    }

    /// It is looked at as if it had just been made: who kept it may have done anything to it.
    fn put_back(&mut self, now: Now, index: usize) {
        let due = Some(now.at + self.config.boot_deadline);
        let group = self.pool.change(index, |instance| {
            instance.asked = now.at;
            instance.teaches = false;
            instance.enter(State::Booting, now.at, due);
            instance.group
        });
        self.touch(index);
        if let Some(group) = group.and_then(|group| self.group_mut(group)) {
            group.updates.urgent = Some(now.at);
        }
    }

    fn remove_by_operator(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        at_once: bool,
        by: &str,
    ) -> Result<Done, Refused> {
        let why = Removal::Operator { by: by.to_owned() };
        let Some(index) = self.pool.find(group, id) else {
            let of = self.group_mut(group).ok_or(Refused::NoGroup)?;
            of.foreign.remove(id).ok_or(Refused::NoInstance)?;
            self.touch_foreign(group, id);
            let index = self.adopt(now, group, id.clone(), true);
            self.delete(now, index, why);
            return Ok(Done::Removing { jobs: 0 });
        };
        let jobs = self.pool.get(index).map_or(0, |instance| instance.jobs);
        if at_once {
            self.lose_jobs(now, index, &Loss::Operator { by: by.to_owned() });
            self.delete(now, index, why);
            return Ok(Done::Removed { jobs });
        }
        self.retire(now, index, why);
        Ok(Done::Removing { jobs })
    }

    fn drain_group(&mut self, now: Now, id: GroupId, by: &str) -> Result<Done, Refused> {
        let group = self.group_mut(id).ok_or(Refused::NoGroup)?;
        group.drained = Some(by.to_owned());
        self.touch_drained(id);
        Ok(Done::GroupDrained { instances: self.empty_drained(now, id) })
    }

    fn resume_group(&mut self, now: Now, id: GroupId) -> Result<Done, Refused> {
        let group = self.group_mut(id).ok_or(Refused::NoGroup)?;
        group.drained.take().ok_or(Refused::NotDrained)?;
        self.touch_drained(id);
        for index in self.pool.of_group(id) {
            let goes = |state: &State| matches!(state, State::Draining(Removal::GroupDrained { .. }));
            if self.pool.get(index).is_some_and(|instance| goes(&instance.state)) {
                self.put_back(now, index);
            }
        }
        Ok(Done::GroupResumed)
    }

    /// The instances of a drained group go, each after its jobs, also those that appear only now. How many go from now on.
    pub(super) fn empty_drained(&mut self, now: Now, id: GroupId) -> u32 {
        let Some(by) = self.group(id).and_then(|group| group.drained.clone()) else { return 0 };
        let mut going = 0;
        for index in self.pool.of_group(id) {
            // One that a job waits for goes after that job.
            let stays = |state: &State| match state {
                State::Booting | State::Preparing | State::Ready => true,
                State::Asleep(sleep) => sleep.waker.is_none(),
                State::Draining(_) | State::Deleting(_) | State::Aside { .. } => false,
            };
            if self.pool.get(index).is_some_and(|instance| stays(&instance.state)) {
                self.retire(now, index, Removal::GroupDrained { by: by.clone() });
                going += 1;
            }
        }
        going
    }

    fn touch_drained(&mut self, id: GroupId) {
        if let Some(group) = self.group(id).map(|group| group.config.name.clone()) {
            self.dirty.insert(RowKey::Drained { group });
        }
    }

    fn unknown(&self, group: GroupId, id: &InstanceId) -> Refused {
        match self.group(group) {
            None => Refused::NoGroup,
            Some(group) if group.foreign.contains_key(id) => Refused::Foreign,
            Some(_) => Refused::NoInstance,
        }
    }
}
