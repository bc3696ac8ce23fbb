//! When instances are deleted or lost.

use std::time::Duration;

use super::fixture::{Fixture, G, config, fixture_with_adopted, id, idle_target, key};
use crate::decision::DecisionKind;
use crate::event::{Action, Event};
use crate::forecast::ForecastConfig;
use crate::policy::Policies;
use crate::types::{LossReason, RemovalReason, SlotRequest};
use muster_fleeting::model::InstanceState;

fn with_idle_instance(idle_s: u64) -> Fixture {
    let mut config = config(3, 1);
    config.policies = Policies::always(idle_target(0, idle_s));
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.seconds(40);
    fixture.release("1");
    fixture
}

fn decreases(fixture: &Fixture) -> usize {
    fixture.count(|action| matches!(action, Action::Decrease { .. }))
}

#[test]
fn instance_is_deleted_after_its_idle_time() {
    let mut fixture = with_idle_instance(120);
    fixture.seconds(119);
    assert_eq!(fixture.clouds[0].len(), 1);
    fixture.seconds(2);
    assert!(fixture.clouds[0].is_empty());
    assert!(
        fixture.decided(|kind| matches!(
            kind,
            DecisionKind::Delete { reason: RemovalReason::Idle { idle_ms: 120_000 }, .. }
        ))
    );
}

#[test]
fn job_within_idle_time_keeps_instance() {
    let mut fixture = with_idle_instance(120);
    fixture.seconds(100);
    fixture.acquire("2");
    fixture.seconds(1000);
    assert_eq!((fixture.slot_of("2").as_str(), fixture.clouds[0].len()), ("i1/0", 1));
}

/// The forecast creates no instances here, but retains two idle slots: the square root of the four slots in use.
#[test]
fn forecast_retains_instances_beyond_idle_time() {
    let mut config = config(10, 1);
    config.policies = Policies::always(idle_target(0, 30));
    config.forecast = Some(ForecastConfig { safety_factor: -1.0, retention_factor: 1.0, ..ForecastConfig::default() });
    let mut fixture = Fixture::new(config);
    let names: Vec<String> = (0..10).map(|name| name.to_string()).collect();
    names.iter().for_each(|name| fixture.acquire(name));
    fixture.seconds(60);
    assert_eq!(fixture.clouds[0].len(), 10, "only instances for jobs are requested");
    names[..6].iter().for_each(|name| fixture.release(name));
    fixture.seconds(25);
    assert_eq!(fixture.clouds[0].len(), 10);
    fixture.seconds(300);
    assert_eq!(fixture.clouds[0].len(), 4 + 2);
    names[6..].iter().for_each(|name| fixture.release(name));
    fixture.seconds(60);
    assert!(fixture.clouds[0].is_empty());
}

#[test]
fn deletion_without_effect_is_repeated_and_reported_as_stuck() {
    let mut config = config(3, 1);
    config.policies = Policies::always(idle_target(0, 0));
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.seconds(40);
    fixture.deletions_work = false;
    fixture.release("1");
    assert_eq!(decreases(&fixture), 1);
    fixture.seconds(58);
    assert_eq!(decreases(&fixture), 1, "there must be no retry before the interval of a minute");
    fixture.seconds(4);
    assert_eq!(decreases(&fixture), 2);
    fixture.seconds(600);
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::DeletionStuck { attempts: 10, .. })));
    fixture.deletions_work = true;
    fixture.seconds(120);
    assert_eq!(fixture.instances(), 0);
}

#[test]
fn instance_missing_from_one_list_is_not_lost() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    let removed = std::mem::take(&mut fixture.clouds[0]);
    fixture.seconds(60);
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::MissingFromList { .. })));
    fixture.clouds[0] = removed;
    fixture.seconds(120);
    assert!(fixture.lost.is_empty(), "a single list without the instance must not end its job");
}

#[test]
fn loss_of_adopted_instance_is_not_attributed_to_a_restart() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    fixture.clouds[0].clear();
    fixture.seconds(70);
    assert_eq!(fixture.lost, [key("1")]);
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Lost { reason: LossReason::Missing, .. })));
}

#[test]
fn lost_instance_that_reappears_is_deleted() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    let removed = std::mem::take(&mut fixture.clouds[0]);
    fixture.seconds(70);
    assert_eq!(fixture.lost, [key("1")]);
    fixture.clouds[0].extend(removed);
    fixture.seconds(120);
    assert!(!fixture.clouds[0].contains_key(&id("a")), "the lost job was rescheduled, so its instance must be deleted");
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Delete { reason: RemovalReason::Reappeared, .. })));
}

#[test]
fn lost_instance_that_is_deleting_counts_towards_maximum() {
    let mut fixture = fixture_with_adopted(config(1, 1), &["a"]);
    fixture.acquire("1");
    fixture.clouds[0].clear();
    fixture.seconds(70);
    assert_eq!((fixture.lost.as_slice(), fixture.created), ([key("1")].as_slice(), 0));
    fixture.clouds[0].insert(id("a"), InstanceState::Deleting);
    fixture.seconds(61);
    fixture.acquire("2");
    fixture.seconds(5);
    assert_eq!((fixture.created, decreases(&fixture)), (0, 0), "another instance would exceed the maximum");
    fixture.clouds[0].clear();
    fixture.seconds(61);
    assert_eq!(fixture.created, 1);
}

#[test]
fn job_is_lost_when_provider_deletes_its_instance() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    fixture.clouds[0].insert(id("a"), InstanceState::Deleting);
    fixture.seconds(61);
    assert_eq!(fixture.lost, [key("1")]);
}

#[test]
fn shutdown_deletes_instances_without_jobs_if_configured() {
    let mut config = config(3, 1);
    config.policies = Policies::always(idle_target(0, 3600));
    config.delete_on_shutdown = true;
    let mut fixture = fixture_with_adopted(config, &["a", "b"]);
    fixture.acquire("1");
    fixture.handle(Event::Stop);
    assert_eq!(fixture.clouds[0].keys().map(ToString::to_string).collect::<Vec<_>>(), ["a"]);
    assert!(fixture.engine.acquire(fixture.now, key("2"), &SlotRequest::default()).is_err());
    fixture.release("1");
    assert!(fixture.clouds[0].is_empty(), "the instance is deleted once its job has ended");
}

#[test]
fn draining_fleet_deletes_instance_of_last_job_during_shutdown() {
    for drains in [true, false] {
        let mut config = config(3, 1);
        config.policies = Policies::always(idle_target(0, 3600));
        let mut fixture = fixture_with_adopted(config, &["a"]);
        fixture.acquire("1");
        if drains {
            fixture.handle(Event::Drain);
        }
        fixture.handle(Event::Stop);
        assert_eq!(fixture.clouds[0].len(), 1, "the instance of a running job must remain");
        fixture.release("1");
        assert_eq!(
            fixture.clouds[0].is_empty(),
            drains,
            "without a drain, the instance must remain for the next start"
        );
    }
}

#[test]
fn reservation_does_not_keep_instance_beyond_idle_time() {
    for (idle, expected) in [(0, 0), (1, 1)] {
        let mut config = config(3, 1);
        config.policies = Policies::always(idle_target(idle, 10));
        let mut fixture = fixture_with_adopted(config, &["a", "b"]);
        fixture.reserve("1").unwrap();
        fixture.reserve("2").ok();
        fixture.seconds(9);
        assert_eq!(fixture.clouds[0].len(), 2);
        fixture.seconds(60);
        assert_eq!(fixture.clouds[0].len(), expected, "idle_count {idle}");
    }
}

#[test]
fn instances_are_not_removed_while_plugin_is_down() {
    let mut config = config(4, 1);
    config.heartbeat_interval = Some(Duration::from_secs(10));
    config.policies = Policies::always(idle_target(0, 36_000));
    let mut fixture = fixture_with_adopted(config, &["a", "b"]);
    fixture.seconds(60);
    // This boot takes longer than the boot timeout.
    fixture.boot = Duration::from_secs(6000);
    for job in ["1", "2", "3"] {
        fixture.acquire(job);
    }
    let checks = |fixture: &Fixture| fixture.count(|action| matches!(action, Action::Heartbeat { .. }));
    fixture.handle(Event::PluginDown { group: G, cause: "the plugin crashed".to_owned() });
    let before = checks(&fixture);
    fixture.handle(Event::ConnectionLost { key: key("1") });
    fixture.seconds(5990);
    assert_eq!(checks(&fixture), before, "no health checks without the plugin");
    fixture.handle(Event::PluginUp { group: G, max_size: 0 });
    fixture.seconds(30);
    assert!(checks(&fixture) > before);
    assert_eq!((fixture.instances(), fixture.created), (3, 1));
    assert_eq!(fixture.slot_of("3"), "i1/0", "the timeout of the booting instance starts again when the plugin is up");
    assert_eq!(fixture.count(|action| matches!(action, Action::Decrease { .. })), 0);
}

#[test]
fn draining_fleet_serves_remaining_jobs_without_idle_instances() {
    let mut config = config(5, 1);
    config.policies = Policies::always(idle_target(3, 3600));
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.seconds(31);
    assert_eq!(fixture.clouds[0].len(), 4);
    fixture.handle(Event::Drain);
    fixture.seconds(5);
    assert_eq!(fixture.clouds[0].len(), 1, "only the instance of the job");
    // A rescheduled job still gets an instance.
    fixture.acquire("2");
    fixture.seconds(31);
    assert_eq!(fixture.clouds[0].len(), 2);
    fixture.handle(Event::Policies(Policies::always(idle_target(3, 3600))));
    fixture.seconds(90);
    assert_eq!(fixture.clouds[0].len(), 2, "new policies have no effect");
}
