//! Environments that a job saves for a later job.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use super::fixture::{Fixture, G, MONDAY, config, id, idle_target, key};
use crate::config::Config;
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::ledger::{Intent, Row, RowKey};
use crate::operator::{OperatorAction, OperatorError};
use crate::policy::Policies;
use crate::suspend::{ResumeError, SuspendError};
use crate::time::{Now, Time};
use crate::types::{RemovalReason, TaskKey};
use muster_fleeting::model::InstanceState;

const OWNER: &str = "project 1, protected";

fn single_job_config(max: u32) -> Config {
    let mut config = config(max, 1);
    config.max_uses = NonZeroU32::new(1);
    config
}

/// Job `1` runs on `i1`.
fn with_job(max: u32) -> Fixture {
    let mut fixture = Fixture::new(single_job_config(max));
    fixture.acquire("1");
    fixture.seconds(31);
    assert_eq!(fixture.slot_of("1"), "i1/0");
    fixture
}

/// The environment of job `1` is suspended.
fn suspended(max: u32) -> Fixture {
    let mut fixture = with_job(max);
    suspend(&mut fixture, "1").unwrap();
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "suspended");
    fixture
}

/// Job `2` has resumed the environment of job `1`.
fn resumed() -> Fixture {
    let mut fixture = suspended(3);
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.seconds(3);
    assert_eq!(fixture.slot_of("2"), "i1/0");
    fixture
}

fn suspend(fixture: &mut Fixture, name: &str) -> Result<(), SuspendError> {
    let result = fixture.engine.suspend(fixture.now, &key(name), OWNER);
    fixture.answer();
    result
}

fn resume(fixture: &mut Fixture, name: &str, environment: &str, owner: &str) -> Result<(), ResumeError> {
    let resumed = fixture.engine.resume(fixture.now, key(name), environment, owner);
    fixture.answer();
    resumed
}

fn state(fixture: &Fixture, id: &str) -> String {
    let status = fixture.engine.status(fixture.now);
    let found = status.instances.into_iter().find(|instance| instance.id == id);
    found.map_or_else(|| "deleted".to_owned(), |instance| instance.state)
}

fn suspend_count(fixture: &Fixture) -> usize {
    fixture.count(|action| matches!(action, Action::Suspend { .. }))
}

#[test]
fn saved_environment_is_resumed_on_the_same_instance() {
    let mut fixture = suspended(3);
    assert!(fixture.actions.contains(&Action::EnvironmentSaved { key: key("1") }));
    fixture.acquire("2");
    fixture.seconds(31);
    assert_eq!(fixture.slot_of("2"), "i2/0");
    resume(&mut fixture, "3", "1", OWNER).unwrap();
    fixture.seconds(3);
    assert_eq!((fixture.slot_of("3"), state(&fixture, "i1")), ("i1/0".to_owned(), "ready".to_owned()));
    assert_eq!(fixture.clouds[0][&id("i1")], InstanceState::Running);
    assert_eq!(resume(&mut fixture, "4", "1", OWNER), Err(ResumeError::Unknown));
    // Each instance runs one job, and one more for each resumption. After the job that resumed it, it is deleted.
    fixture.release("3");
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "deleted");
    assert_eq!(resume(&mut fixture, "4", "1", OWNER), Err(ResumeError::Unknown));
}

#[test]
fn resumed_job_can_save_its_environment_again() {
    let mut fixture = resumed();
    suspend(&mut fixture, "2").unwrap();
    fixture.seconds(3);
    assert_eq!(resume(&mut fixture, "3", "1", OWNER), Err(ResumeError::Unknown));
    resume(&mut fixture, "3", "2", OWNER).unwrap();
    fixture.seconds(3);
    assert_eq!(fixture.slot_of("3"), "i1/0");
}

#[test]
fn only_the_owner_can_resume_an_environment() {
    let mut fixture = suspended(3);
    for owner in ["project 2, protected", "project 1, unprotected", ""] {
        assert_eq!(resume(&mut fixture, "2", "1", owner), Err(ResumeError::NotOwner));
    }
    assert_eq!(resume(&mut fixture, "2", "i1", OWNER), Err(ResumeError::Unknown));
    assert_eq!(state(&fixture, "i1"), "suspended");
    fixture.handle(Event::CanSuspend { group: G, can: false });
    assert_eq!(resume(&mut fixture, "2", "1", OWNER), Err(ResumeError::NoCapability));
}

#[test]
fn suspend_is_rejected_for_unsuitable_instances() {
    let mut shared = Fixture::new(config(3, 1));
    shared.acquire("1");
    shared.seconds(31);
    assert_eq!(suspend(&mut shared, "1"), Err(SuspendError::Shared));
    let mut fixture = with_job(3);
    assert_eq!(fixture.engine.may_suspend(&key("1")), Ok(()));
    fixture.handle(Event::CanSuspend { group: G, can: false });
    assert_eq!(suspend(&mut fixture, "1"), Err(SuspendError::NoCapability));
    fixture.handle(Event::CanSuspend { group: G, can: true });
    assert_eq!(suspend(&mut fixture, "2"), Err(SuspendError::InstanceLost));
    fixture.apply_operator_action(Some("i1"), OperatorAction::Drain).unwrap();
    assert!(matches!(suspend(&mut fixture, "1"), Err(SuspendError::InstanceTakesNoJobs { .. })));
    assert_eq!(suspend_count(&fixture), 0);
    fixture.release("1");
    fixture.seconds(3);
    assert_eq!(fixture.instances(), 0);
}

#[test]
fn suspended_instances_leave_one_instance_for_other_jobs() {
    let mut fixture = with_job(1);
    assert_eq!(suspend(&mut fixture, "1"), Err(SuspendError::NoSpareInstance { suspended: 0, max: 1 }));
    let mut config = single_job_config(3);
    config.groups[0].price_per_hour = 2.0;
    config.max_cost_per_hour = Some(3.0);
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.seconds(31);
    assert_eq!(suspend(&mut fixture, "1"), Err(SuspendError::CostLimit));
    let mut fixture = suspended(2);
    fixture.handle(Event::PluginUp { group: G, max_size: 1 });
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "deleted");
    assert!(fixture.decided(|kind| matches!(
        kind,
        crate::decision::DecisionKind::Delete { reason: RemovalReason::NoSpareInstance, .. }
    )));
}

#[test]
fn suspend_without_effect_is_repeated_until_expiry() {
    let mut fixture = with_job(3);
    fixture.suspend_has_effect = false;
    suspend(&mut fixture, "1").unwrap();
    fixture.seconds(30);
    assert_eq!((suspend_count(&fixture), state(&fixture, "i1").as_str()), (1, "suspending"));
    fixture.seconds(40);
    assert_eq!(suspend_count(&fixture), 2);
    fixture.seconds(8 * 3600);
    assert_eq!((state(&fixture, "i1").as_str(), fixture.clouds[0].len()), ("deleted", 0));
    assert!(
        fixture.decided(|kind| matches!(
            kind,
            crate::decision::DecisionKind::Delete { reason: RemovalReason::Expired, .. }
        ))
    );
}

#[test]
fn unexpectedly_running_instance_is_suspended_again() {
    let mut fixture = suspended(3);
    fixture.clouds[0].insert(id("i1"), InstanceState::Running);
    fixture.seconds(61);
    assert_eq!((suspend_count(&fixture), state(&fixture, "i1").as_str()), (2, "suspended"));
    assert_eq!(fixture.clouds[0][&id("i1")], InstanceState::Suspended);
}

#[test]
fn resume_without_effect_fails_within_five_minutes() {
    let mut fixture = suspended(3);
    fixture.suspend_has_effect = false;
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.seconds(299);
    assert_eq!((fixture.resume_failures.len(), state(&fixture, "i1").as_str()), (0, "resuming"));
    fixture.seconds(2);
    let error = fixture.resume_failures[0].1.to_string();
    assert!(fixture.resume_failures[0].0 == key("2") && error.contains("was not ready within 300 s"), "{error}");
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "suspended");
    fixture.suspend_has_effect = true;
    resume(&mut fixture, "3", "1", OWNER).unwrap();
    fixture.seconds(5);
    assert_eq!(fixture.slot_of("3"), "i1/0");
}

#[test]
fn environment_is_resumed_even_if_suspend_failed() {
    let mut fixture = with_job(3);
    fixture.handle(Event::CanSuspend { group: G, can: true });
    fixture.rejects_suspends = true;
    suspend(&mut fixture, "1").unwrap();
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "suspending");
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.seconds(62);
    assert_eq!(fixture.slot_of("2"), "i1/0");
}

#[test]
fn resume_fails_when_instance_is_lost_or_unready() {
    let mut fixture = suspended(3);
    fixture.suspend_has_effect = false;
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.clouds[0].clear();
    fixture.seconds(5);
    assert_eq!((fixture.resume_failures.len(), fixture.instances()), (1, 0));
    let mut fixture = suspended(3);
    fixture.prepare_result = Err("no route to host".to_owned());
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.seconds(5);
    assert!(fixture.resume_failures[0].1.to_string().contains("no route to host"), "{:?}", fixture.resume_failures);
    assert_eq!(fixture.instances(), 0);
}

#[test]
fn canceled_resume_leaves_environment_to_next_job() {
    let mut fixture = suspended(3);
    fixture.suspend_has_effect = false;
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    assert_eq!(resume(&mut fixture, "3", "1", OWNER), Err(ResumeError::InUse));
    fixture.handle(Event::Cancel { key: key("2") });
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "suspended");
    fixture.suspend_has_effect = true;
    resume(&mut fixture, "3", "1", OWNER).unwrap();
    fixture.seconds(5);
    assert_eq!((fixture.slot_of("2"), fixture.slot_of("3")), ("none".to_owned(), "i1/0".to_owned()));
}

#[test]
fn next_job_takes_over_a_canceled_resume() {
    for listed in [InstanceState::Resuming, InstanceState::Suspended] {
        let mut fixture = suspended(3);
        fixture.suspend_has_effect = false;
        resume(&mut fixture, "2", "1", OWNER).unwrap();
        // The list may be from before the resume call.
        fixture.clouds[0].insert(id("i1"), listed);
        fixture.seconds(3);
        fixture.handle(Event::Cancel { key: key("2") });
        resume(&mut fixture, "3", "1", OWNER).unwrap();
        fixture.seconds(3);
        fixture.clouds[0].insert(id("i1"), InstanceState::Running);
        fixture.seconds(5);
        assert_eq!((fixture.slot_of("3"), suspend_count(&fixture)), ("i1/0".to_owned(), 1), "{listed}");
    }
}

#[test]
fn instance_is_suspended_again_after_canceled_resume() {
    let mut fixture = suspended(3);
    fixture.suspend_has_effect = false;
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.clouds[0].insert(id("i1"), InstanceState::Resuming);
    fixture.seconds(3);
    fixture.handle(Event::Cancel { key: key("2") });
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "suspending", "an instance that is resuming does not count as suspended");
    fixture.suspend_has_effect = true;
    fixture.clouds[0].insert(id("i1"), InstanceState::Running);
    fixture.seconds(5);
    assert_eq!((suspend_count(&fixture), state(&fixture, "i1").as_str()), (2, "suspended"));
    fixture.clouds[0].insert(id("i1"), InstanceState::Resuming);
    fixture.seconds(61);
    assert_eq!(state(&fixture, "i1"), "suspending");
}

#[test]
fn abandoned_assignment_leaves_environment_to_next_job() {
    let mut fixture = resumed();
    fixture.handle(Event::AssignmentAbandoned { key: key("2") });
    fixture.seconds(3);
    assert_eq!((state(&fixture, "i1").as_str(), fixture.engine.has_environment("1")), ("suspended", true));
    let mut fixture = restart(fixture);
    resume(&mut fixture, "3", "1", OWNER).unwrap();
    fixture.seconds(5);
    assert_eq!(fixture.slot_of("3"), "i1/0");
    // If the abandoned assignment has no environment, its slot is released.
    fixture.acquire("4");
    fixture.seconds(31);
    assert_eq!(fixture.slot_of("4"), "i2/0");
    fixture.handle(Event::AssignmentAbandoned { key: key("4") });
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i2"), "deleted");
}

/// The list is from before the resume, and the manager was restarted in between.
#[test]
fn outdated_list_does_not_end_resumed_job_after_restart() {
    let fixture = resumed();
    let mut fixture = restart(fixture);
    assert!(fixture.engine.claim(&key("2")).is_some());
    fixture.handle(Event::ClaimsComplete);
    fixture.clouds[0].insert(id("i1"), InstanceState::Suspended);
    fixture.seconds(20);
    fixture.clouds[0].insert(id("i1"), InstanceState::Running);
    fixture.seconds(60);
    assert_eq!((fixture.lost.clone(), state(&fixture, "i1").as_str()), (vec![], "ready"));
}

#[test]
fn suspended_instances_are_neither_idle_nor_available() {
    let mut config = single_job_config(3);
    config.policies = Policies::always(idle_target(1, 3600));
    let mut fixture = Fixture::new(config);
    fixture.seconds(31);
    fixture.acquire("1");
    fixture.seconds(31);
    suspend(&mut fixture, "1").unwrap();
    fixture.seconds(31);
    let slots = fixture.engine.slot_counts();
    assert_eq!((fixture.instances(), slots.idle, slots.acquired, slots.unavailable), (2, 1, 0, 0));
    // One suspended instance, one in use and one idle are the maximum.
    fixture.acquire("2");
    fixture.seconds(31);
    assert_eq!((fixture.instances(), fixture.clouds[0].len()), (3, 3));
}

#[test]
fn operator_can_drain_suspended_instances() {
    let mut fixture = suspended(3);
    assert_eq!(fixture.apply_operator_action(Some("i1"), OperatorAction::Cordon), Err(OperatorError::Suspended));
    let status = fixture.engine.status(fixture.now);
    assert!(status.instances[0].reason.as_ref().unwrap().contains("environment of 1, expires in"));
    fixture.apply_operator_action(None, OperatorAction::Drain).unwrap();
    fixture.seconds(3);
    assert_eq!(fixture.clouds[0].len(), 0);
    let mut fixture = suspended(3);
    fixture.apply_operator_action(Some("i1"), OperatorAction::Drain).unwrap();
    fixture.seconds(3);
    assert_eq!(fixture.clouds[0].len(), 0);
}

fn restart(fixture: Fixture) -> Fixture {
    let config = fixture.engine.config().clone();
    restart_with(fixture, config)
}

fn restore(fixture: &mut Fixture, config: Config) -> (Now, Engine) {
    let mut rows: BTreeMap<RowKey, Row> = BTreeMap::new();
    for change in fixture.engine.changes() {
        match change.row {
            Some(row) => rows.insert(change.key, row),
            None => rows.remove(&change.key),
        };
    }
    let text = serde_json::to_string(&rows.into_iter().collect::<Vec<_>>()).unwrap();
    let now = Now::steady(Time::from_millis(1000), MONDAY);
    let (engine, unknown) = Engine::restore(config, serde_json::from_str(&text).unwrap(), now);
    assert_eq!(unknown, []);
    (now, engine)
}

fn restart_with(mut fixture: Fixture, config: Config) -> Fixture {
    let (now, engine) = restore(&mut fixture, config);
    let mut next = Fixture::from_engine_at(now, engine, std::mem::take(&mut fixture.clouds[0]));
    next.created = fixture.created;
    next
}

#[test]
fn environment_survives_restart() {
    for suspend_has_effect in [true, false] {
        let mut fixture = with_job(3);
        fixture.suspend_has_effect = suspend_has_effect;
        suspend(&mut fixture, "1").unwrap();
        let mut fixture = restart(fixture);
        fixture.handle(Event::ClaimsComplete);
        fixture.seconds(5);
        assert_eq!(
            (suspend_count(&fixture), state(&fixture, "i1").as_str()),
            (usize::from(!suspend_has_effect), "suspended")
        );
        assert!(fixture.engine.has_environment("1"));
        assert_eq!(resume(&mut fixture, "2", "1", "another owner"), Err(ResumeError::NotOwner));
        resume(&mut fixture, "2", "1", OWNER).unwrap();
        fixture.seconds(5);
        assert_eq!(fixture.slot_of("2"), "i1/0");
    }
}

/// The job may or may not have used the environment.
#[test]
fn resumed_environment_is_not_restored_after_restart() {
    let fixture = resumed();
    let mut fixture = restart(fixture);
    assert_eq!(resume(&mut fixture, "3", "1", OWNER), Err(ResumeError::Unknown));
    fixture.handle(Event::ClaimsComplete);
    fixture.seconds(5);
    assert_eq!((fixture.lost.clone(), state(&fixture, "i1").as_str()), (vec![key("2")], "deleted"));
}

fn shared_config() -> Config {
    Config { capacity: NonZeroU32::MIN.saturating_add(1), ..single_job_config(3) }
}

#[test]
fn environments_are_deleted_once_jobs_share_instances() {
    let mut fixture = restart_with(suspended(3), shared_config());
    assert!(resume(&mut fixture, "2", "1", OWNER).is_err());
    fixture.handle(Event::ClaimsComplete);
    fixture.seconds(5);
    assert_eq!((fixture.clouds[0].len(), fixture.instances()), (0, 0));
}

/// If the deletion were not stored, a later start could resume an environment whose instance is being deleted.
#[test]
fn deletion_of_environment_is_stored_once_jobs_share_instances() {
    let (now, mut engine) = restore(&mut suspended(3), shared_config());
    let rows: Vec<Row> = engine.changes().into_iter().filter_map(|change| change.row).collect();
    let [Row::Instance { intent, .. }] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(*intent, Intent::Delete(RemovalReason::NotResumable));
    let error = engine.resume(now, key("2"), "1", OWNER).unwrap_err().to_string();
    assert!(error.contains("instances may now run several jobs"), "{error}");
}

#[test]
fn preparation_for_canceled_resume_serves_next_job() {
    let mut fixture = suspended(3);
    fixture.answers_prepare = false;
    resume(&mut fixture, "2", "1", OWNER).unwrap();
    fixture.seconds(3);
    assert_eq!(state(&fixture, "i1"), "resuming");
    fixture.handle(Event::Cancel { key: key("2") });
    resume(&mut fixture, "3", "1", OWNER).unwrap();
    fixture.seconds(3);
    let prepares = fixture.count(|action| matches!(action, Action::Prepare { was_ready: true, .. }));
    assert_eq!((prepares, fixture.slot_of("3").as_str()), (1, "none"));
    fixture.handle(Event::Prepared { group: G, id: id("i1"), result: Ok(()) });
    assert_eq!(fixture.slot_of("3"), "i1/0");
}

#[test]
fn outdated_list_does_not_end_resumed_job() {
    let mut fixture = resumed();
    fixture.clouds[0].insert(id("i1"), InstanceState::Suspended);
    fixture.handle(Event::ConnectionLost { key: key("2") });
    fixture.seconds(2);
    assert_eq!(fixture.lost, [""; 0].map(TaskKey::new));
    fixture.advance(Duration::from_secs(120));
    assert_eq!(fixture.lost, [key("2")], "an instance that remains suspended does not run its job");
}
