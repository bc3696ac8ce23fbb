//! An engine, and a cloud that does what it is told, when it is told to.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::config::{Config, GroupConfig};
use crate::decision::{Decision, DecisionKind};
use crate::engine::{Engine, NoCapacity};
use crate::event::{Action, Event};
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::{IdleTarget, Policies};
use crate::suspend::ResumeError;
use crate::time::{Now, Time};
use crate::types::{GroupId, SlotAssignment, SlotRequest, TaskKey};
use muster_fleeting::model::{InstanceId, InstanceState};

/// 2026-03-02 00:00 UTC, a Monday.
pub(super) const MONDAY: i64 = 1_772_409_600;
pub(super) const G: GroupId = GroupId(0);

/// A fleet of `max` instances with `capacity` slots.
pub(super) fn config(max: u32, capacity: u32) -> Config {
    let mut config = Config::new(GroupConfig::new("main", max));
    config.capacity = NonZeroU32::new(capacity).unwrap();
    config.policies = Policies::always(IdleTarget::default());
    config.heartbeat_interval = None;
    config
}

pub(super) fn wanted(idle_count: u32, idle_time_s: u64) -> IdleTarget {
    let idle_time = Duration::from_secs(idle_time_s);
    IdleTarget { idle_count, idle_time, preemptive: idle_count > 0, ..IdleTarget::default() }
}

pub(super) fn id(name: &str) -> InstanceId {
    InstanceId::new(name)
}

pub(super) fn key(name: &str) -> TaskKey {
    TaskKey::new(name)
}

/// How the cloud answers a creation.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Mood {
    Obliging,
    Refusing(&'static str),
    /// Grants at most so many.
    Short(u32),
    /// Grants, and makes nothing.
    Empty,
    /// Does not answer.
    Silent,
}

pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) now: Now,
    pub(super) clouds: Vec<BTreeMap<InstanceId, InstanceState>>,
    pub(super) moods: Vec<Mood>,
    /// Instances run after so long.
    pub(super) boot: Duration,
    started: BTreeMap<InstanceId, Time>,
    pub(super) made: u32,
    /// Whether instances get ready by themselves.
    pub(super) readying: Result<(), String>,
    /// Removals have an effect.
    pub(super) removing: bool,
    pub(super) granted: Vec<SlotAssignment>,
    pub(super) lost: Vec<TaskKey>,
    pub(super) withdrawn: Vec<TaskKey>,
    pub(super) refused: Vec<(TaskKey, ResumeError)>,
    /// Suspensions and resumptions have an effect.
    pub(super) sleeping: bool,
    /// Suspensions and resumptions are refused.
    pub(super) refuses_sleep: bool,
    /// Instances get ready, or not; else there is no answer.
    pub(super) preparing: bool,
    pub(super) answers: Vec<Result<OperatorOutcome, OperatorError>>,
    pub(super) log: Vec<Action>,
    pub(super) decisions: Vec<Decision>,
}

impl Rig {
    /// The groups are up and have been listed.
    pub(super) fn new(config: Config) -> Self {
        Self::with(config, BTreeMap::new())
    }

    /// As [`Self::new`], with instances that are there already.
    pub(super) fn with(config: Config, there: BTreeMap<InstanceId, InstanceState>) -> Self {
        let now = Now::steady(Time::ZERO, MONDAY);
        let engine = Engine::new(config, now);
        Self::around(engine, there)
    }

    pub(super) fn around(engine: Engine, there: BTreeMap<InstanceId, InstanceState>) -> Self {
        Self::around_at(Now::steady(Time::ZERO, MONDAY), engine, there)
    }

    pub(super) fn around_at(now: Now, engine: Engine, there: BTreeMap<InstanceId, InstanceState>) -> Self {
        let groups = engine.config().groups.len();
        let mut clouds = vec![BTreeMap::new(); groups];
        clouds[0] = there;
        let mut rig = Self {
            engine,
            now,
            clouds,
            moods: vec![Mood::Obliging; groups],
            boot: Duration::from_secs(30),
            started: BTreeMap::new(),
            made: 0,
            readying: Ok(()),
            removing: true,
            granted: Vec::new(),
            lost: Vec::new(),
            withdrawn: Vec::new(),
            refused: Vec::new(),
            sleeping: true,
            refuses_sleep: false,
            preparing: true,
            answers: Vec::new(),
            log: Vec::new(),
            decisions: Vec::new(),
        };
        for group in (0..groups).map(GroupId) {
            rig.tell(Event::PluginUp { group, max_size: 0 });
        }
        rig
    }

    /// At most `max` machines of one job each: the first has had its job, and the provider does not remove it.
    pub(super) fn with_a_machine_that_stays(max: u32) -> Self {
        let mut config = config(max, 1);
        config.max_uses = NonZeroU32::new(1);
        let mut rig = Self::new(config);
        rig.want("first");
        rig.seconds(40);
        rig.removing = false;
        rig.release("first");
        rig
    }

    /// One event, and the answers to what it leads to.
    pub(super) fn tell(&mut self, event: Event) {
        self.engine.handle(self.now, event);
        self.answer();
    }

    pub(super) fn answer(&mut self) {
        loop {
            self.engine.check().unwrap();
            self.decisions.extend(self.engine.decisions());
            let actions = self.engine.actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.log.push(action.clone());
                if let Some(answer) = self.perform(action) {
                    self.engine.handle(self.now, answer);
                }
            }
        }
    }

    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::List { group, call } => {
                let list = self.clouds[group.0].iter().map(|(id, state)| (id.clone(), *state)).collect();
                Some(Event::Listed { group, call, result: Ok(list) })
            }
            Action::Increase { group, call, n } => {
                let (made, result) = match &self.moods[group.0] {
                    Mood::Obliging => (n, Ok(n)),
                    Mood::Refusing(error) => (0, Err((*error).to_owned())),
                    Mood::Short(most) => (n.min(*most), Ok(n.min(*most))),
                    Mood::Empty => (0, Ok(n)),
                    Mood::Silent => return None,
                };
                (0..made).for_each(|_| self.make(group));
                Some(Event::Increased { group, call, result })
            }
            Action::Decrease { group, ids } => {
                if self.removing {
                    ids.iter().for_each(|id| {
                        self.clouds[group.0].remove(id);
                    });
                }
                Some(Event::Decreased { group, ids: ids.clone(), result: Ok(ids) })
            }
            Action::Prepare { .. } if !self.preparing => None,
            Action::Prepare { group, id, .. } => Some(Event::Prepared { group, id, result: self.readying.clone() }),
            Action::Heartbeat { group, id } => Some(Event::Health { group, id, result: Ok(()) }),
            Action::Grant(lease) => {
                self.granted.push(lease);
                None
            }
            Action::Lost { key, .. } => {
                self.lost.push(key);
                None
            }
            Action::RevokeReservation { key } => {
                self.withdrawn.push(key);
                None
            }
            Action::OperatorReply { result: answer, .. } => {
                self.answers.push(answer);
                None
            }
            Action::Suspend { group, ids } => {
                Some(Event::Suspended { group, result: self.change(group, &ids, false), ids })
            }
            Action::Resume { group, ids } => {
                Some(Event::Resumed { group, result: self.change(group, &ids, true), ids })
            }
            Action::ResumeFailed { key, error: why } => {
                self.refused.push((key, why));
                None
            }
            Action::ForgetInstance { .. } | Action::EnvironmentSaved { .. } => None,
        }
    }

    /// Suspends instances, or resumes them: at once, where that has an effect.
    fn change(&mut self, group: GroupId, ids: &[InstanceId], resume: bool) -> Result<Vec<InstanceId>, String> {
        if self.refuses_sleep {
            return Err("no".to_owned());
        }
        let to = if resume { InstanceState::Running } else { InstanceState::Suspended };
        for id in ids.iter().filter(|_| self.sleeping) {
            self.clouds[group.0].entry(id.clone()).and_modify(|state| *state = to);
        }
        Ok(ids.to_vec())
    }

    pub(super) fn make(&mut self, group: GroupId) {
        self.made += 1;
        let id = InstanceId::new(format!("i{}", self.made));
        self.started.insert(id.clone(), self.now.at);
        self.clouds[group.0].insert(id, InstanceState::Creating);
    }

    /// What boots now never runs.
    pub(super) fn jam(&mut self) {
        self.started.clear();
    }

    /// Time passes, from one wake to the next.
    pub(super) fn pass(&mut self, duration: Duration) {
        let end = self.now.at + duration;
        for _ in 0..100_000 {
            let boots = self.started.values().map(|since| *since + self.boot).filter(|at| *at > self.now.at).min();
            let next = self.engine.next_wake(self.now).into_iter().chain(boots).min().unwrap_or(end);
            if next > end {
                break;
            }
            assert!(next >= self.now.at, "the engine wakes in the past: {next:?}");
            self.set(next.max(self.now.at + Duration::from_millis(1)));
            self.tell(Event::Tick);
        }
        self.set(end);
        self.tell(Event::Tick);
    }

    fn set(&mut self, at: Time) {
        self.now = Now::steady(at, MONDAY);
        let ready: Vec<InstanceId> =
            self.started.iter().filter(|(_, since)| **since + self.boot <= at).map(|(id, _)| id.clone()).collect();
        for id in ready {
            self.started.remove(&id);
            for cloud in &mut self.clouds {
                if let Some(state) = cloud.get_mut(&id) {
                    *state = InstanceState::Running;
                }
            }
        }
    }

    pub(super) fn seconds(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    pub(super) fn reserve(&mut self, name: &str) -> Result<(), NoCapacity> {
        self.engine.reserve(self.now, key(name))
    }

    /// Reserves, and waits for a slot.
    pub(super) fn want(&mut self, name: &str) {
        self.want_by(name, &SlotRequest::default());
    }

    /// As [`Self::want`], for what a job asks for.
    pub(super) fn want_by(&mut self, name: &str, request: &SlotRequest) {
        self.engine.admit(key(name));
        self.engine.acquire(self.now, key(name), request).unwrap();
        self.answer();
    }

    /// An operator does something: to an instance, or without one to the group. What came of it.
    pub(super) fn operate(&mut self, id: Option<&str>, act: OperatorAction) -> Result<OperatorOutcome, OperatorError> {
        let (id, by) = (id.map(InstanceId::new), "ann".to_owned());
        self.tell(Event::Operator { request: 1, group: G, id, action: act, by });
        self.answers.pop().unwrap()
    }

    pub(super) fn release(&mut self, name: &str) {
        self.tell(Event::Release { key: key(name) });
    }

    /// Where a key's job is: `instance/slot`.
    pub(super) fn place(&self, name: &str) -> String {
        let lease = self.granted.iter().rev().find(|lease| lease.key.as_str() == name);
        lease.map_or_else(|| "nowhere".to_owned(), |lease| format!("{}/{}", lease.instance, lease.slot))
    }

    pub(super) fn instances(&self) -> usize {
        self.engine.status(self.now).instances.len()
    }

    /// Sizes of the requests for instances so far.
    pub(super) fn increases(&self) -> Vec<u32> {
        self.log
            .iter()
            .filter_map(|action| if let Action::Increase { n, .. } = action { Some(*n) } else { None })
            .collect()
    }

    pub(super) fn count(&self, which: impl Fn(&Action) -> bool) -> usize {
        self.log.iter().filter(|action| which(action)).count()
    }

    pub(super) fn told(&self, which: impl Fn(&DecisionKind) -> bool) -> bool {
        self.decisions.iter().any(|decision| which(&decision.kind))
    }
}

/// Where Muster differs from the peer on purpose: its value by fleeting.md, and ours as it was found.
#[track_caller]
pub(super) fn differs<T: PartialEq + std::fmt::Debug>(what: &str, (of_the_peer, of_muster): (T, T), found: T) {
    assert_eq!(found, of_muster, "{what}, where the peer has {of_the_peer:?}");
    assert_ne!(of_the_peer, of_muster, "{what}: that is no difference");
}

/// Instances that run already, and are ours by configuration.
pub(super) fn adopted(mut config: Config, names: &[&str]) -> Rig {
    config.unmanaged = crate::config::UnmanagedPolicy::Adopt;
    Rig::with(config, names.iter().map(|name| (id(name), InstanceState::Running)).collect())
}
