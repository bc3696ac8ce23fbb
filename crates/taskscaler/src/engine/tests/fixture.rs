//! An engine with a simulated cloud.

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

pub(super) fn config(max: u32, capacity: u32) -> Config {
    let mut config = Config::new(GroupConfig::new("main", max));
    config.capacity = NonZeroU32::new(capacity).unwrap();
    config.policies = Policies::always(IdleTarget::default());
    config.heartbeat_interval = None;
    config
}

/// The target is preemptive if it has idle slots.
pub(super) fn idle_target(idle_count: u32, idle_time_s: u64) -> IdleTarget {
    let idle_time = Duration::from_secs(idle_time_s);
    IdleTarget { idle_count, idle_time, preemptive: idle_count > 0, ..IdleTarget::default() }
}

pub(super) fn id(name: &str) -> InstanceId {
    InstanceId::new(name)
}

pub(super) fn key(name: &str) -> TaskKey {
    TaskKey::new(name)
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum CloudBehavior {
    Accept,
    Reject(&'static str),
    /// Accepts and creates at most this many instances.
    Partial(u32),
    /// Accepts all instances, but creates none.
    AcceptOnly,
    /// Neither answers nor creates instances.
    NoAnswer,
}

pub(super) struct Fixture {
    pub(super) engine: Engine,
    pub(super) now: Now,
    pub(super) clouds: Vec<BTreeMap<InstanceId, InstanceState>>,
    pub(super) behaviors: Vec<CloudBehavior>,
    /// Time until a created instance runs.
    pub(super) boot: Duration,
    /// Creation times of the instances that do not run yet.
    boot_starts: BTreeMap<InstanceId, Time>,
    pub(super) created: u32,
    pub(super) prepare_result: Result<(), String>,
    pub(super) deletions_work: bool,
    pub(super) assignments: Vec<SlotAssignment>,
    pub(super) lost: Vec<TaskKey>,
    pub(super) revoked: Vec<TaskKey>,
    pub(super) resume_failures: Vec<(TaskKey, ResumeError)>,
    /// Whether suspend and resume calls have an effect.
    pub(super) suspend_has_effect: bool,
    pub(super) rejects_suspends: bool,
    pub(super) answers_prepare: bool,
    pub(super) operator_replies: Vec<Result<OperatorOutcome, OperatorError>>,
    pub(super) actions: Vec<Action>,
    pub(super) decisions: Vec<Decision>,
}

impl Fixture {
    /// The groups are up and have been listed.
    pub(super) fn new(config: Config) -> Self {
        Self::with_instances(config, BTreeMap::new())
    }

    pub(super) fn with_instances(config: Config, existing: BTreeMap<InstanceId, InstanceState>) -> Self {
        let now = Now::steady(Time::ZERO, MONDAY);
        let engine = Engine::new(config, now);
        Self::from_engine(engine, existing)
    }

    pub(super) fn from_engine(engine: Engine, existing: BTreeMap<InstanceId, InstanceState>) -> Self {
        Self::from_engine_at(Now::steady(Time::ZERO, MONDAY), engine, existing)
    }

    pub(super) fn from_engine_at(now: Now, engine: Engine, existing: BTreeMap<InstanceId, InstanceState>) -> Self {
        let groups = engine.config().groups.len();
        let mut clouds = vec![BTreeMap::new(); groups];
        clouds[0] = existing;
        let mut fixture = Self {
            engine,
            now,
            clouds,
            behaviors: vec![CloudBehavior::Accept; groups],
            boot: Duration::from_secs(30),
            boot_starts: BTreeMap::new(),
            created: 0,
            prepare_result: Ok(()),
            deletions_work: true,
            assignments: Vec::new(),
            lost: Vec::new(),
            revoked: Vec::new(),
            resume_failures: Vec::new(),
            suspend_has_effect: true,
            rejects_suspends: false,
            answers_prepare: true,
            operator_replies: Vec::new(),
            actions: Vec::new(),
            decisions: Vec::new(),
        };
        for group in (0..groups).map(GroupId) {
            fixture.handle(Event::PluginUp { group, max_size: 0 });
        }
        fixture
    }

    /// Creates a fixture with at most `max` single-use instances. The first one has had its job, and calls to delete it
    /// have no effect.
    pub(super) fn with_stuck_deletion(max: u32) -> Self {
        let mut config = config(max, 1);
        config.max_uses = NonZeroU32::new(1);
        let mut fixture = Self::new(config);
        fixture.acquire("first");
        fixture.seconds(40);
        fixture.deletions_work = false;
        fixture.release("first");
        fixture
    }

    pub(super) fn handle(&mut self, event: Event) {
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
                self.actions.push(action.clone());
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
            Action::Increase { group, call, count } => {
                let (created, result) = match &self.behaviors[group.0] {
                    CloudBehavior::Accept => (count, Ok(count)),
                    CloudBehavior::Reject(error) => (0, Err((*error).to_owned())),
                    CloudBehavior::Partial(max) => (count.min(*max), Ok(count.min(*max))),
                    CloudBehavior::AcceptOnly => (0, Ok(count)),
                    CloudBehavior::NoAnswer => return None,
                };
                (0..created).for_each(|_| self.create(group));
                Some(Event::Increased { group, call, result })
            }
            Action::Decrease { group, ids } => {
                if self.deletions_work {
                    ids.iter().for_each(|id| {
                        self.clouds[group.0].remove(id);
                    });
                }
                Some(Event::Decreased { group, ids: ids.clone(), result: Ok(ids) })
            }
            Action::Prepare { .. } if !self.answers_prepare => None,
            Action::Prepare { group, id, .. } => {
                Some(Event::Prepared { group, id, result: self.prepare_result.clone() })
            }
            Action::Heartbeat { group, id } => Some(Event::Health { group, id, result: Ok(()) }),
            Action::Assign(lease) => {
                self.assignments.push(lease);
                None
            }
            Action::Lost { key, .. } => {
                self.lost.push(key);
                None
            }
            Action::RevokeReservation { key } => {
                self.revoked.push(key);
                None
            }
            Action::OperatorReply { result, .. } => {
                self.operator_replies.push(result);
                None
            }
            Action::Suspend { group, ids } => {
                Some(Event::Suspended { group, result: self.set_state(group, &ids, InstanceState::Suspended), ids })
            }
            Action::Resume { group, ids } => {
                Some(Event::Resumed { group, result: self.set_state(group, &ids, InstanceState::Running), ids })
            }
            Action::ResumeFailed { key, error } => {
                self.resume_failures.push((key, error));
                None
            }
            Action::ForgetInstance { .. } | Action::EnvironmentSaved { .. } => None,
        }
    }

    fn set_state(
        &mut self,
        group: GroupId,
        ids: &[InstanceId],
        target: InstanceState,
    ) -> Result<Vec<InstanceId>, String> {
        if self.rejects_suspends {
            return Err("not possible".to_owned());
        }
        for id in ids.iter().filter(|_| self.suspend_has_effect) {
            self.clouds[group.0].entry(id.clone()).and_modify(|state| *state = target);
        }
        Ok(ids.to_vec())
    }

    pub(super) fn create(&mut self, group: GroupId) {
        self.created += 1;
        let id = InstanceId::new(format!("i{}", self.created));
        self.boot_starts.insert(id.clone(), self.now.at);
        self.clouds[group.0].insert(id, InstanceState::Creating);
    }

    pub(super) fn stop_boots(&mut self) {
        self.boot_starts.clear();
    }

    /// Handles a tick whenever the engine must wake or an instance has booted.
    pub(super) fn advance(&mut self, duration: Duration) {
        let end = self.now.at + duration;
        for _ in 0..100_000 {
            let boots = self.boot_starts.values().map(|since| *since + self.boot).filter(|at| *at > self.now.at).min();
            let next = self.engine.next_wake(self.now).into_iter().chain(boots).min().unwrap_or(end);
            if next > end {
                break;
            }
            assert!(next >= self.now.at, "the engine wants to wake in the past: {next:?}");
            self.set_time(next.max(self.now.at + Duration::from_millis(1)));
            self.handle(Event::Tick);
        }
        self.set_time(end);
        self.handle(Event::Tick);
    }

    fn set_time(&mut self, at: Time) {
        self.now = Now::steady(at, MONDAY);
        let booted: Vec<InstanceId> =
            self.boot_starts.iter().filter(|(_, since)| **since + self.boot <= at).map(|(id, _)| id.clone()).collect();
        for id in booted {
            self.boot_starts.remove(&id);
            for cloud in &mut self.clouds {
                if let Some(state) = cloud.get_mut(&id) {
                    *state = InstanceState::Running;
                }
            }
        }
    }

    pub(super) fn seconds(&mut self, seconds: u64) {
        self.advance(Duration::from_secs(seconds));
    }

    pub(super) fn reserve(&mut self, name: &str) -> Result<(), NoCapacity> {
        self.engine.reserve(self.now, key(name))
    }

    pub(super) fn acquire(&mut self, name: &str) {
        self.acquire_for(name, &SlotRequest::default());
    }

    pub(super) fn acquire_for(&mut self, name: &str, request: &SlotRequest) {
        self.engine.admit(key(name));
        self.engine.acquire(self.now, key(name), request).unwrap();
        self.answer();
    }

    pub(super) fn apply_operator_action(
        &mut self,
        id: Option<&str>,
        action: OperatorAction,
    ) -> Result<OperatorOutcome, OperatorError> {
        let (id, by) = (id.map(InstanceId::new), "ann".to_owned());
        self.handle(Event::Operator { request: 1, group: G, id, action, by });
        self.operator_replies.pop().unwrap()
    }

    pub(super) fn release(&mut self, name: &str) {
        self.handle(Event::Release { key: key(name) });
    }

    /// Returns the slot of a job as `instance/slot`, or `none`.
    pub(super) fn slot_of(&self, name: &str) -> String {
        let lease = self.assignments.iter().rev().find(|lease| lease.key.as_str() == name);
        lease.map_or_else(|| "none".to_owned(), |lease| format!("{}/{}", lease.instance, lease.slot))
    }

    pub(super) fn instances(&self) -> usize {
        self.engine.status(self.now).instances.len()
    }

    pub(super) fn increases(&self) -> Vec<u32> {
        self.actions
            .iter()
            .filter_map(|action| if let Action::Increase { count, .. } = action { Some(*count) } else { None })
            .collect()
    }

    pub(super) fn count(&self, matches: impl Fn(&Action) -> bool) -> usize {
        self.actions.iter().filter(|action| matches(action)).count()
    }

    pub(super) fn decided(&self, matches: impl Fn(&DecisionKind) -> bool) -> bool {
        self.decisions.iter().any(|decision| matches(&decision.kind))
    }
}

/// Checks Muster's value where it intentionally differs from gitlab-runner's (docs/spec/fleeting.md).
#[track_caller]
pub(super) fn assert_differs_from_upstream<T: PartialEq + std::fmt::Debug>(
    description: &str,
    (upstream, muster): (T, T),
    found: T,
) {
    assert_eq!(found, muster, "{description}; gitlab-runner has {upstream:?}");
    assert_ne!(upstream, muster, "{description}: the values must differ");
}

/// Returns a fixture whose instances already run. The engine adopts them.
pub(super) fn fixture_with_adopted(mut config: Config, names: &[&str]) -> Fixture {
    config.unmanaged = crate::config::UnmanagedPolicy::Adopt;
    Fixture::with_instances(config, names.iter().map(|name| (id(name), InstanceState::Running)).collect())
}
