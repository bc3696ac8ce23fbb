//! Environments that jobs leave for later ones.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::fixture::{G, MONDAY, Rig, config, id, key, wanted};
use crate::config::Config;
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::ledger::{Row, RowKey};
use crate::operator::{OperatorAction, OperatorError};
use crate::policy::Policies;
use crate::suspend::{ResumeError, SuspendError};
use crate::time::{Now, Time};
use crate::types::{RemovalReason, TaskKey};
use muster_fleeting::model::InstanceState;

const MINE: &str = "project 1, protected";

fn one_job_each(max: u32) -> Config {
    let mut config = config(max, 1);
    config.max_uses = NonZeroU32::new(1);
    config
}

/// A job `1` runs on `i1`.
fn with_a_job(max: u32) -> Rig {
    let mut rig = Rig::new(one_job_each(max));
    rig.want("1");
    rig.seconds(31);
    assert_eq!(rig.place("1"), "i1/0");
    rig
}

/// What job `1` left is suspended.
fn asleep(max: u32) -> Rig {
    let mut rig = with_a_job(max);
    suspend(&mut rig, "1").unwrap();
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "suspended");
    rig
}

/// Job `2` has what job `1` left.
fn resumed() -> Rig {
    let mut rig = asleep(3);
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.seconds(3);
    assert_eq!(rig.place("2"), "i1/0");
    rig
}

fn suspend(rig: &mut Rig, name: &str) -> Result<(), SuspendError> {
    let suspended = rig.engine.suspend(rig.now, &key(name), MINE);
    rig.answer();
    suspended
}

fn resume(rig: &mut Rig, name: &str, of: &str, owner: &str) -> Result<(), ResumeError> {
    let resumed = rig.engine.resume(rig.now, key(name), of, owner);
    rig.answer();
    resumed
}

fn state(rig: &Rig, id: &str) -> String {
    let status = rig.engine.status(rig.now);
    let found = status.instances.into_iter().find(|instance| instance.id == id);
    found.map_or_else(|| "gone".to_owned(), |instance| instance.state)
}

fn suspends(rig: &Rig) -> usize {
    rig.count(|action| matches!(action, Action::Suspend { .. }))
}

#[test]
fn what_a_job_leaves_is_suspended_and_a_later_job_gets_exactly_that_instance() {
    let mut rig = asleep(3);
    assert!(rig.log.contains(&Action::EnvironmentSaved { key: key("1") }));
    // Another job gets another instance.
    rig.want("2");
    rig.seconds(31);
    assert_eq!(rig.place("2"), "i2/0");
    resume(&mut rig, "3", "1", MINE).unwrap();
    rig.seconds(3);
    assert_eq!((rig.place("3"), state(&rig, "i1")), ("i1/0".to_owned(), "ready".to_owned()));
    assert_eq!(rig.clouds[0][&id("i1")], InstanceState::Running);
    assert_eq!(resume(&mut rig, "4", "1", MINE), Err(ResumeError::Unknown));
    // It has had its job, and goes like any other.
    rig.release("3");
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "gone");
    assert_eq!(resume(&mut rig, "4", "1", MINE), Err(ResumeError::Unknown));
}

#[test]
fn a_resumed_job_can_leave_its_environment_again_under_its_own_name() {
    let mut rig = resumed();
    suspend(&mut rig, "2").unwrap();
    rig.seconds(3);
    assert_eq!(resume(&mut rig, "3", "1", MINE), Err(ResumeError::Unknown));
    resume(&mut rig, "3", "2", MINE).unwrap();
    rig.seconds(3);
    assert_eq!(rig.place("3"), "i1/0");
}

#[test]
fn nobody_else_gets_an_environment_whatever_its_name_says() {
    let mut rig = asleep(3);
    for owner in ["project 2, protected", "project 1, unprotected", ""] {
        assert_eq!(resume(&mut rig, "2", "1", owner), Err(ResumeError::NotOwner));
    }
    assert_eq!(resume(&mut rig, "2", "i1", MINE), Err(ResumeError::Unknown));
    assert_eq!(state(&rig, "i1"), "suspended");
    rig.tell(Event::CanSuspend { group: G, can: false });
    assert_eq!(resume(&mut rig, "2", "1", MINE), Err(ResumeError::NoCapability));
}

#[test]
fn an_instance_that_is_not_one_jobs_alone_or_cannot_be_suspended_is_not() {
    let mut shared = Rig::new(config(3, 1));
    shared.want("1");
    shared.seconds(31);
    assert_eq!(suspend(&mut shared, "1"), Err(SuspendError::Shared));
    let mut rig = with_a_job(3);
    assert_eq!(rig.engine.may_suspend(&key("1")), Ok(()));
    rig.tell(Event::CanSuspend { group: G, can: false });
    assert_eq!(suspend(&mut rig, "1"), Err(SuspendError::NoCapability));
    rig.tell(Event::CanSuspend { group: G, can: true });
    assert_eq!(suspend(&mut rig, "2"), Err(SuspendError::InstanceLost));
    rig.operate(Some("i1"), OperatorAction::Drain).unwrap();
    assert!(matches!(suspend(&mut rig, "1"), Err(SuspendError::InstanceDeleting { .. })));
    assert_eq!(suspends(&rig), 0);
    rig.release("1");
    rig.seconds(3);
    assert_eq!(rig.instances(), 0);
}

#[test]
fn the_last_place_and_the_last_money_are_for_jobs_that_resume_nothing() {
    let mut rig = with_a_job(1);
    assert_eq!(suspend(&mut rig, "1"), Err(SuspendError::NoSpareInstance { suspended: 0, max: 1 }));
    let mut config = one_job_each(3);
    config.groups[0].price_per_hour = 2.0;
    config.max_cost_per_hour = Some(3.0);
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.seconds(31);
    assert_eq!(suspend(&mut rig, "1"), Err(SuspendError::CostLimit));
    // Where prices rise later, what sleeps goes.
    let mut rig = asleep(2);
    rig.tell(Event::PluginUp { group: G, max_size: 1 });
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "gone");
    assert!(rig.told(|what| matches!(
        what,
        crate::decision::DecisionKind::Delete { reason: RemovalReason::NoSpareInstance, .. }
    )));
}

#[test]
fn a_suspension_without_effect_is_repeated_each_minute_until_the_environment_expires() {
    let mut rig = with_a_job(3);
    rig.sleeping = false;
    suspend(&mut rig, "1").unwrap();
    rig.seconds(30);
    assert_eq!((suspends(&rig), state(&rig, "i1").as_str()), (1, "suspending"));
    rig.seconds(40);
    assert_eq!(suspends(&rig), 2);
    rig.seconds(8 * 3600);
    assert_eq!((state(&rig, "i1").as_str(), rig.clouds[0].len()), ("gone", 0));
    assert!(
        rig.told(|what| matches!(what, crate::decision::DecisionKind::Delete { reason: RemovalReason::Expired, .. }))
    );
}

#[test]
fn what_was_woken_by_somebody_else_is_suspended_again() {
    let mut rig = asleep(3);
    rig.clouds[0].insert(id("i1"), InstanceState::Running);
    rig.seconds(61);
    assert_eq!((suspends(&rig), state(&rig, "i1").as_str()), (2, "suspended"));
    assert_eq!(rig.clouds[0][&id("i1")], InstanceState::Suspended);
}

#[test]
fn a_resumption_without_effect_is_told_within_five_minutes_and_may_be_tried_again() {
    let mut rig = asleep(3);
    rig.sleeping = false;
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.seconds(299);
    assert_eq!((rig.refused.len(), state(&rig, "i1").as_str()), (0, "resuming"));
    rig.seconds(2);
    let why = rig.refused[0].1.to_string();
    assert!(rig.refused[0].0 == key("2") && why.contains("was not ready within 300 s"), "{why}");
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "suspended");
    rig.sleeping = true;
    resume(&mut rig, "3", "1", MINE).unwrap();
    rig.seconds(5);
    assert_eq!(rig.place("3"), "i1/0");
}

#[test]
fn what_cannot_be_suspended_is_had_all_the_same() {
    let mut rig = with_a_job(3);
    rig.tell(Event::CanSuspend { group: G, can: true });
    rig.refuses_sleep = true;
    suspend(&mut rig, "1").unwrap();
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "suspending");
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.seconds(62);
    assert_eq!(rig.place("2"), "i1/0");
}

#[test]
fn who_waits_for_an_instance_that_vanishes_or_gets_not_ready_is_told() {
    let mut rig = asleep(3);
    rig.sleeping = false;
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.clouds[0].clear();
    rig.seconds(5);
    assert_eq!((rig.refused.len(), rig.instances()), (1, 0));
    let mut rig = asleep(3);
    rig.readying = Err("no route to host".to_owned());
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.seconds(5);
    assert!(rig.refused[0].1.to_string().contains("no route to host"), "{:?}", rig.refused);
    assert_eq!(rig.instances(), 0);
}

#[test]
fn a_job_that_waits_no_longer_leaves_the_environment_to_the_next() {
    let mut rig = asleep(3);
    rig.sleeping = false;
    resume(&mut rig, "2", "1", MINE).unwrap();
    assert_eq!(resume(&mut rig, "3", "1", MINE), Err(ResumeError::InUse));
    rig.tell(Event::Cancel { key: key("2") });
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "suspended");
    rig.sleeping = true;
    resume(&mut rig, "3", "1", MINE).unwrap();
    rig.seconds(5);
    assert_eq!((rig.place("2"), rig.place("3")), ("nowhere".to_owned(), "i1/0".to_owned()));
}

/// The machine of a job that was canceled is on its way up, and the next job has it as it comes.
#[test]
fn what_wakes_for_a_job_that_was_canceled_is_not_suspended_under_the_next_one() {
    for seen in [InstanceState::Resuming, InstanceState::Suspended] {
        let mut rig = asleep(3);
        rig.sleeping = false;
        resume(&mut rig, "2", "1", MINE).unwrap();
        // The list may be one from before that.
        rig.clouds[0].insert(id("i1"), seen);
        rig.seconds(3);
        rig.tell(Event::Cancel { key: key("2") });
        resume(&mut rig, "3", "1", MINE).unwrap();
        rig.seconds(3);
        rig.clouds[0].insert(id("i1"), InstanceState::Running);
        rig.seconds(5);
        assert_eq!((rig.place("3"), suspends(&rig)), ("i1/0".to_owned(), 1), "{seen}");
    }
}

#[test]
fn what_runs_for_a_job_that_was_canceled_is_suspended_where_no_other_one_comes() {
    let mut rig = asleep(3);
    rig.sleeping = false;
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.clouds[0].insert(id("i1"), InstanceState::Resuming);
    rig.seconds(3);
    rig.tell(Event::Cancel { key: key("2") });
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "suspending", "it is not said to be suspended while it wakes");
    rig.sleeping = true;
    rig.clouds[0].insert(id("i1"), InstanceState::Running);
    rig.seconds(5);
    assert_eq!((suspends(&rig), state(&rig, "i1").as_str()), (2, "suspended"));
    // What somebody else wakes later is seen to wake.
    rig.clouds[0].insert(id("i1"), InstanceState::Resuming);
    rig.seconds(61);
    assert_eq!(state(&rig, "i1"), "suspending");
}

#[test]
fn what_was_granted_to_a_job_that_had_gone_is_there_for_the_next_one() {
    let mut rig = resumed();
    rig.tell(Event::GrantAbandoned { key: key("2") });
    rig.seconds(3);
    assert_eq!((state(&rig, "i1").as_str(), rig.engine.has_environment("1")), ("suspended", true));
    let mut rig = restarted(rig);
    resume(&mut rig, "3", "1", MINE).unwrap();
    rig.seconds(5);
    assert_eq!(rig.place("3"), "i1/0");
    // What was no environment is released.
    rig.want("4");
    rig.seconds(31);
    assert_eq!(rig.place("4"), "i2/0");
    rig.tell(Event::GrantAbandoned { key: key("4") });
    rig.seconds(3);
    assert_eq!(state(&rig, "i2"), "gone");
}

/// A list from before the resumption, after a restart in between.
#[test]
fn an_old_list_does_not_take_a_resumed_job_its_instance_after_a_restart() {
    let rig = resumed();
    let mut rig = restarted(rig);
    assert!(rig.engine.claim(&key("2")).is_some());
    rig.tell(Event::ClaimsComplete);
    rig.clouds[0].insert(id("i1"), InstanceState::Suspended);
    rig.seconds(20);
    rig.clouds[0].insert(id("i1"), InstanceState::Running);
    rig.seconds(60);
    assert_eq!((rig.lost.clone(), state(&rig, "i1").as_str()), (vec![], "ready"));
}

#[test]
fn suspended_instances_are_no_supply_and_no_idle_ones() {
    let mut config = one_job_each(3);
    config.policies = Policies::always(wanted(1, 3600));
    let mut rig = Rig::new(config);
    rig.seconds(31);
    rig.want("1");
    rig.seconds(31);
    suspend(&mut rig, "1").unwrap();
    rig.seconds(31);
    let tasks = rig.engine.slot_counts();
    assert_eq!((rig.instances(), tasks.idle, tasks.acquired, tasks.unavailable), (2, 1, 0, 0));
    // One suspended, one in use, and one idle is all that there may be.
    rig.want("2");
    rig.seconds(31);
    assert_eq!((rig.instances(), rig.clouds[0].len()), (3, 3));
}

#[test]
fn operators_see_it_and_remove_it_and_a_drained_group_is_emptied_of_it() {
    let mut rig = asleep(3);
    assert_eq!(rig.operate(Some("i1"), OperatorAction::Cordon), Err(OperatorError::Suspended));
    let status = rig.engine.status(rig.now);
    assert!(status.instances[0].reason.as_ref().unwrap().contains("environment of 1, expires in"));
    rig.operate(None, OperatorAction::Drain).unwrap();
    rig.seconds(3);
    assert_eq!(rig.clouds[0].len(), 0);
    let mut rig = asleep(3);
    rig.operate(Some("i1"), OperatorAction::Drain).unwrap();
    rig.seconds(3);
    assert_eq!(rig.clouds[0].len(), 0);
}

/// The process is killed, and started again with what is in its books.
fn restarted(rig: Rig) -> Rig {
    let config = rig.engine.config().clone();
    restarted_as(rig, config)
}

fn restarted_as(mut rig: Rig, config: Config) -> Rig {
    let mut rows: BTreeMap<RowKey, Row> = BTreeMap::new();
    for change in rig.engine.changes() {
        match change.row {
            Some(row) => rows.insert(change.key, row),
            None => rows.remove(&change.key),
        };
    }
    let text = serde_json::to_string(&rows.into_iter().collect::<Vec<_>>()).unwrap();
    let now = Now::steady(Time::from_millis(1000), MONDAY);
    let (engine, unknown) = Engine::restore(config, serde_json::from_str(&text).unwrap(), now);
    assert_eq!(unknown, []);
    let mut next = Rig::around_at(now, engine, std::mem::take(&mut rig.clouds[0]));
    next.made = rig.made;
    next
}

#[test]
fn an_environment_outlives_the_manager() {
    for sleeping in [true, false] {
        let mut rig = with_a_job(3);
        rig.sleeping = sleeping;
        suspend(&mut rig, "1").unwrap();
        // Killed while it is suspended, or before that had an effect.
        let mut rig = restarted(rig);
        rig.tell(Event::ClaimsComplete);
        rig.seconds(5);
        assert_eq!((suspends(&rig), state(&rig, "i1").as_str()), (usize::from(!sleeping), "suspended"));
        assert!(rig.engine.has_environment("1"));
        assert_eq!(resume(&mut rig, "2", "1", "nobody"), Err(ResumeError::NotOwner));
        resume(&mut rig, "2", "1", MINE).unwrap();
        rig.seconds(5);
        assert_eq!(rig.place("2"), "i1/0");
    }
}

/// Nobody could tell whether it was used, and by whom.
#[test]
fn what_a_job_was_given_is_no_environment_any_more_also_after_a_restart() {
    let rig = resumed();
    let mut rig = restarted(rig);
    assert_eq!(resume(&mut rig, "3", "1", MINE), Err(ResumeError::Unknown));
    rig.tell(Event::ClaimsComplete);
    rig.seconds(5);
    assert_eq!((rig.lost.clone(), state(&rig, "i1").as_str()), (vec![key("2")], "gone"));
}

#[test]
fn where_jobs_share_instances_by_now_nobody_is_given_an_environment() {
    let shared = Config { capacity: NonZeroU32::MIN.saturating_add(1), ..one_job_each(3) };
    let mut rig = restarted_as(asleep(3), shared);
    assert!(resume(&mut rig, "2", "1", MINE).is_err());
    rig.tell(Event::ClaimsComplete);
    rig.seconds(5);
    assert_eq!((rig.clouds[0].len(), rig.instances()), (0, 0));
}

/// Its instance is made ready for a job that is cancelled meanwhile: the answer is not taken for the next job's.
#[test]
fn what_is_made_ready_for_a_job_that_is_cancelled_is_the_next_ones() {
    let mut rig = asleep(3);
    rig.preparing = false;
    resume(&mut rig, "2", "1", MINE).unwrap();
    rig.seconds(3);
    assert_eq!(state(&rig, "i1"), "resuming");
    rig.tell(Event::Cancel { key: key("2") });
    resume(&mut rig, "3", "1", MINE).unwrap();
    rig.seconds(3);
    let prepares = rig.count(|action| matches!(action, Action::Prepare { again: true, .. }));
    assert_eq!((prepares, rig.place("3").as_str()), (1, "nowhere"));
    rig.tell(Event::Prepared { group: G, id: id("i1"), result: Ok(()) });
    assert_eq!(rig.place("3"), "i1/0");
}

#[test]
fn an_old_list_does_not_take_a_resumed_instance_from_its_job() {
    let mut rig = resumed();
    rig.clouds[0].insert(id("i1"), InstanceState::Suspended);
    rig.tell(Event::ConnectionLost { key: key("2") });
    rig.seconds(2);
    assert_eq!(rig.lost, [""; 0].map(TaskKey::new));
    rig.pass(Duration::from_secs(120));
    assert_eq!(rig.lost, [key("2")], "what stays suspended does not run its job");
}
