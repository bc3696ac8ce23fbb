//! State that survives a restart of the process.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use muster_fleeting::model::InstanceState;
use std::time::Duration;

use super::fixture::{CloudBehavior, Fixture, MONDAY, config, id, idle_target, key};
use crate::config::Config;
use crate::decision::DecisionKind;
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::ledger::{Row, RowKey};
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::types::{LossReason, ResourceRequest, SlotRequest, StickyContextId};

fn store_changes(fixture: &mut Fixture, rows: &mut BTreeMap<RowKey, Row>) {
    for change in fixture.engine.changes() {
        match change.row {
            Some(row) => rows.insert(change.key, row),
            None => rows.remove(&change.key),
        };
    }
}

fn restart(fixture: Fixture, config: Config) -> Fixture {
    restarted_at(Now::steady(Time::ZERO, MONDAY), fixture, config)
}

fn restarted_at(now: Now, mut fixture: Fixture, config: Config) -> Fixture {
    let mut rows = BTreeMap::new();
    store_changes(&mut fixture, &mut rows);
    let text = serde_json::to_string(&rows.into_iter().collect::<Vec<_>>()).unwrap();
    let rows: Vec<(RowKey, Row)> = serde_json::from_str(&text).unwrap();
    let (engine, unknown) = Engine::restore(config, rows, now);
    assert_eq!(unknown, []);
    let mut cloud = std::mem::take(&mut fixture.clouds[0]);
    cloud.values_mut().for_each(|state| *state = InstanceState::Running);
    let mut next = Fixture::from_engine_at(now, engine, cloud);
    next.created = fixture.created;
    next
}

#[test]
fn loss_is_attributed_to_restart_only_if_instance_was_not_found_since() {
    for (is_found, expected) in [(false, LossReason::MissingAfterRestart), (true, LossReason::Missing)] {
        let config = config(2, 1);
        let mut fixture = Fixture::new(config.clone());
        fixture.acquire("1");
        fixture.seconds(31);
        if !is_found {
            fixture.clouds[0].clear();
        }
        let mut fixture = restart(fixture, config);
        fixture.engine.claim(&key("1")).unwrap();
        fixture.handle(Event::ClaimsComplete);
        fixture.seconds(61);
        fixture.clouds[0].clear();
        fixture.seconds(200);
        let is_expected =
            |kind: &DecisionKind| matches!(kind, DecisionKind::Lost { reason, .. } if *reason == expected);
        assert!(fixture.decided(is_expected), "{expected:?}");
    }
}

#[test]
fn unclaimed_lease_is_reported_as_lost_only_once() {
    let config = config(2, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    let mut fixture = restart(fixture, config);
    fixture.handle(Event::ClaimsComplete);
    let is_unclaimed = |action: &Action| matches!(action, Action::Lost { key: lost, reason: LossReason::Unclaimed } if *lost == key("1"));
    assert_eq!(fixture.count(is_unclaimed), 1);
    assert_eq!(fixture.count(|action| matches!(action, Action::Lost { .. })), 1);
}

#[test]
fn renamed_group_keeps_instances_and_leases() {
    let config = config(2, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    let slot = fixture.slot_of("1");
    let mut renamed = config.clone();
    renamed.groups[0].name = "renamed".to_owned();
    let mut rows = BTreeMap::new();
    store_changes(&mut fixture, &mut rows);
    let names = |rows: &BTreeMap<RowKey, Row>| {
        rows.keys().filter_map(|key| key.group().map(str::to_owned)).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&rows), [config.groups[0].name.clone()].into());
    let stored_rows = rows.clone().into_iter().collect();
    let (engine, unknown) = Engine::restore(renamed, stored_rows, Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown, []);
    let mut fixture = Fixture::from_engine(engine, std::mem::take(&mut fixture.clouds[0]));
    store_changes(&mut fixture, &mut rows);
    assert_eq!(names(&rows), ["renamed".to_owned()].into());
    let lease = fixture.engine.claim(&key("1")).unwrap();
    assert_eq!(format!("{}/{}", lease.instance, lease.slot), slot);
    fixture.handle(Event::ClaimsComplete);
    fixture.seconds(61);
    assert_eq!((fixture.instances(), fixture.clouds[0].len()), (1, 1));
}

#[test]
fn explicitly_named_group_does_not_take_over_instances_of_replaced_group() {
    let config = config(2, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    let mut rows = BTreeMap::new();
    store_changes(&mut fixture, &mut rows);
    let mut replaced = config;
    (replaced.groups[0].name, replaced.groups[0].is_named) = ("of-another-provider".to_owned(), true);
    let stored_rows = rows.clone().into_iter().collect();
    let (engine, unknown) = Engine::restore(replaced, stored_rows, Now::steady(Time::ZERO, MONDAY));
    let is_instance = |key: &&RowKey| matches!(key, RowKey::Instance { .. });
    assert_eq!(unknown.iter().filter(is_instance).count(), 1, "the row of the instance is kept: {unknown:?}");
    assert!(engine.status(Now::steady(Time::ZERO, MONDAY)).instances.is_empty());
}

#[test]
fn ready_command_is_not_repeated_after_restart() {
    let mut config = config(2, 1);
    config.policies = Policies::always(idle_target(1, 600));
    let mut fixture = Fixture::new(config.clone());
    fixture.seconds(31);
    let prepare_with_was_ready =
        |expected| move |action: &Action| matches!(action, Action::Prepare { was_ready, .. } if *was_ready == expected);
    assert_eq!((fixture.count(prepare_with_was_ready(false)), fixture.count(prepare_with_was_ready(true))), (1, 0));
    let mut fixture = restart(fixture, config);
    fixture.seconds(31);
    assert_eq!((fixture.count(prepare_with_was_ready(false)), fixture.count(prepare_with_was_ready(true))), (0, 1));
}

#[test]
fn slots_and_sticky_contexts_survive_restart() {
    let mut config = config(2, 4);
    config.density.slot.cpu_milli = Some(1000);
    config.policies = Policies::always(idle_target(0, 600));
    let cpus = |milli| ResourceRequest { cpu_milli: Some(milli), memory_bytes: None };
    let sticky = SlotRequest { sticky_context: Some(StickyContextId(5)), ..SlotRequest::default() };
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire_for("large", &SlotRequest { resources: cpus(3000), ..SlotRequest::default() });
    fixture.acquire_for("wide", &SlotRequest { resources: cpus(2000), ..SlotRequest::default() });
    fixture.seconds(31);
    fixture.acquire_for("sticky", &sticky);
    let slot = fixture.slot_of("sticky");
    fixture.release("sticky");
    let mut fixture = restart(fixture, config);
    let [large, wide] = ["large", "wide"].map(|name| fixture.engine.claim(&key(name)).unwrap());
    assert_eq!((large.slot, large.slots, wide.slots), (0, 3, 2));
    fixture.handle(Event::ClaimsComplete);
    fixture.acquire_for("again", &sticky);
    assert_eq!(fixture.slot_of("again"), slot);
    fixture.release("large");
    assert_eq!(fixture.engine.slot_counts().acquired, 3);
}

/// Returns a fixture that was restarted after its instance had been idle for 100 s. The wall clock advanced by
/// `clock_step_s` during the restart.
fn idle_and_restarted(idle_time_s: u64, clock_step_s: i64) -> Fixture {
    let mut config = config(2, 1);
    config.policies = Policies::always(idle_target(0, idle_time_s));
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    fixture.release("1");
    fixture.seconds(100);
    assert_eq!(fixture.clouds[0].len(), 1);
    let start = Time::from_millis(1_000_000_000);
    let mut fixture = restarted_at(Now { at: start, unix: fixture.now.unix + clock_step_s }, fixture, config);
    fixture.handle(Event::ClaimsComplete);
    fixture
}

#[test]
fn age_and_idle_time_survive_restart() {
    let mut fixture = idle_and_restarted(600, 200);
    let age = |fixture: &Fixture| fixture.engine.status(fixture.now).instances[0].age_ms / 1000;
    let before = age(&fixture);
    assert!((300..=332).contains(&before), "about 130 s before the restart and 200 s during it: {before}");
    fixture.seconds(290);
    assert_eq!((fixture.clouds[0].len(), age(&fixture)), (1, before + 290));
    fixture.seconds(20);
    assert!(fixture.clouds[0].is_empty(), "600 s of idle time: 100 before the restart, 200 during it and 300 after it");
}

#[test]
fn idle_instance_is_kept_for_a_while_after_restart() {
    let mut fixture = idle_and_restarted(600, 1_000_000_000);
    fixture.seconds(10);
    assert_eq!(fixture.clouds[0].len(), 1, "a clock that was set forward must not end the idle time immediately");
    fixture.seconds(10);
    assert!(fixture.clouds[0].is_empty());
    let mut fixture = idle_and_restarted(600, -1_000_000_000);
    assert_eq!(fixture.engine.status(fixture.now).instances[0].age_ms, 0, "the age after the clock was set back");
    fixture.seconds(590);
    assert_eq!(fixture.clouds[0].len(), 1);
    fixture.seconds(20);
    assert!(fixture.clouds[0].is_empty());
}

#[test]
fn rows_that_cannot_be_used_are_returned() {
    let group = config(1, 1).groups[0].name.clone();
    let rows = vec![
        (RowKey::SlotDemand { bucket: 1 }, Row::DrainedGroup { by: "me".to_owned() }),
        (RowKey::DrainedGroup { group }, Row::SlotDemand { max_slots: 1 }),
    ];
    let mut keys: Vec<RowKey> = rows.iter().map(|(key, _)| key.clone()).collect();
    let (_, mut unknown) = Engine::restore(config(1, 1), rows, Now::steady(Time::ZERO, MONDAY));
    keys.sort();
    unknown.sort();
    assert_eq!(unknown, keys);
}

#[test]
fn deleted_instance_is_forgotten_an_hour_after_its_deletion() {
    let group = config(1, 1).groups[0].name.clone();
    let key = |age: i64| RowKey::Deleted { group: group.clone(), id: format!("deleted-{age}") };
    let rows = [3599, 3600].map(|age| (key(age), Row::Deleted { deleted_at: MONDAY - age }));
    let (mut engine, unknown) = Engine::restore(config(1, 1), rows.to_vec(), Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown, []);
    let removed = engine.changes().into_iter().filter(|change| change.row.is_none()).map(|change| change.key);
    assert_eq!(removed.collect::<Vec<_>>(), [key(3600)]);
}

#[test]
fn unmanaged_instance_is_not_matched_to_restored_request() {
    let config = config(5, 1);
    let mut fixture =
        Fixture::with_instances(config.clone(), BTreeMap::from([(id("unmanaged"), InstanceState::Running)]));
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    let mut fixture = restart(fixture, config);
    fixture.acquire("1");
    fixture.seconds(300);
    let status = fixture.engine.status(fixture.now);
    assert_eq!(status.groups[0].unmanaged, ["unmanaged"]);
    assert!(fixture.clouds[0].contains_key(&id("unmanaged")) && fixture.slot_of("1") != "unmanaged/0");
}

#[test]
fn instances_leases_and_job_counts_survive_restart() {
    let mut config = config(3, 2);
    config.max_uses = NonZeroU32::new(3);
    config.policies = Policies::always(idle_target(0, 600));
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.seconds(31);
    fixture.release("1");
    let mut fixture = restart(fixture, config);
    let lease = fixture.engine.claim(&key("2")).unwrap();
    assert_eq!((lease.instance.as_str(), lease.slot, lease.use_number), ("i1", 1, 2));
    fixture.handle(Event::ClaimsComplete);
    fixture.acquire("3");
    assert_eq!(fixture.slot_of("3"), "i1/0", "R054: slots and job counts are known");
    fixture.release("2");
    fixture.release("3");
    assert!(fixture.clouds[0].is_empty(), "the instance has had its three jobs");
}

#[test]
fn unclaimed_lease_ends_and_its_instance_is_deleted() {
    let config = config(3, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    let mut fixture = restart(fixture, config);
    assert_eq!(fixture.clouds[0].len(), 1);
    fixture.handle(Event::ClaimsComplete);
    assert_eq!(fixture.lost, [key("1")]);
    assert!(fixture.clouds[0].is_empty(), "the lost job may have changed anything on its instance");
}

#[test]
fn instance_with_isolated_jobs_outlives_unclaimed_lease() {
    let mut config = config(3, 2);
    config.jobs_are_isolated = true;
    config.policies = Policies::always(idle_target(0, 600));
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    let mut fixture = restart(fixture, config);
    fixture.handle(Event::ClaimsComplete);
    assert_eq!(fixture.lost, [key("1")]);
    fixture.acquire("2");
    assert_eq!((fixture.slot_of("2").as_str(), fixture.clouds[0].len()), ("i1/0", 1));
}

#[test]
fn request_in_flight_survives_restart() {
    let config = config(1, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.behaviors[0] = CloudBehavior::NoAnswer;
    fixture.acquire("1");
    fixture.create(super::fixture::G);
    let mut fixture = restart(fixture, config);
    fixture.acquire("1");
    fixture.seconds(40);
    assert_eq!(
        (fixture.slot_of("1").as_str(), fixture.created),
        ("i1/0", 1),
        "I1: the instance must be managed, and no second instance created"
    );
    assert!(fixture.engine.status(fixture.now).groups[0].unmanaged.is_empty());
}

#[test]
fn deletion_continues_after_restart() {
    let mut config = config(1, 1);
    config.policies = Policies::always(idle_target(0, 0));
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    fixture.deletions_work = false;
    fixture.release("1");
    let fixture = restart(fixture, config);
    assert!(fixture.clouds[0].is_empty());
}

#[test]
fn deleted_instance_in_old_list_is_not_unmanaged() {
    let mut config = config(2, 1);
    config.policies = Policies::always(idle_target(0, 0));
    let mut fixture = Fixture::new(config.clone());
    fixture.acquire("1");
    fixture.seconds(31);
    let listed = fixture.clouds[0].clone();
    fixture.release("1");
    fixture.seconds(5);
    let mut fixture = restart(fixture, config);
    fixture.clouds[0] = listed;
    fixture.seconds(61);
    assert!(
        fixture.clouds[0].is_empty(),
        "the instance must be deleted again: the list is outdated, or the deletion failed"
    );
}

#[test]
fn reads_rows_of_version_1() {
    let text = include_str!("ledger-v1.json");
    let rows: Vec<(RowKey, Row)> = serde_json::from_str(text).unwrap();
    let mut with_forecast = config(3, 2);
    with_forecast.forecast = Some(crate::forecast::ForecastConfig::default());
    let (engine, unknown) = Engine::restore(with_forecast, rows, Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown.len(), 1, "the group `old` is no longer configured");
    let status = engine.status(Now::steady(Time::ZERO, MONDAY));
    assert_eq!(status.instances.len(), 4);
    assert_eq!((status.groups[0].requested, status.groups[0].drained.as_deref()), (2, Some("ann")));
    assert_eq!(status.instances.iter().filter(|instance| instance.state == "cordoned").count(), 1);
}

#[test]
fn lowered_capacity_applies_to_new_jobs_only() {
    let mut large = config(3, 4);
    large.max_uses = NonZeroU32::new(9);
    let mut fixture = Fixture::new(large.clone());
    (0..4).for_each(|job| fixture.acquire(&job.to_string()));
    fixture.seconds(31);
    let mut small = config(3, 2);
    small.max_uses = NonZeroU32::new(3);
    let mut fixture = restart(fixture, small);
    (0..4).for_each(|job| assert!(fixture.engine.claim(&key(&job.to_string())).is_some()));
    fixture.handle(Event::ClaimsComplete);
    fixture.seconds(60);
    assert_eq!((fixture.created, fixture.engine.slot_counts().acquired), (1, 4), "no instance is requested");
    fixture.reserve("new").unwrap();
    let refusal = (0..9).find_map(|n| fixture.reserve(&format!("more {n}")).err()).unwrap().to_string();
    assert!(refusal.contains("unready:0,"), "{refusal}");
    fixture.acquire("new");
    fixture.seconds(40);
    assert_eq!(fixture.slot_of("new"), "i2/0", "the first instance has four jobs, but a capacity of two");
    (0..3).for_each(|job| fixture.release(&job.to_string()));
    fixture.seconds(1);
    assert!(fixture.clouds[0].contains_key(&id("i1")), "the last job of the instance still runs");
    fixture.release("3");
    fixture.seconds(1);
    assert!(!fixture.clouds[0].contains_key(&id("i1")), "the instance has had four jobs, and the maximum is three");
}

fn week_of_demand(idle_today: Option<u64>) -> Vec<(RowKey, Row)> {
    let now = MONDAY.div_euclid(300);
    let loads = (now - 7 * 288..now).map(|bucket| (RowKey::SlotDemand { bucket }, Row::SlotDemand { max_slots: 50 }));
    let day = MONDAY.div_euclid(24 * 3600);
    loads
        .chain(idle_today.map(|slot_seconds| (RowKey::ForecastIdle { day }, Row::ForecastIdle { slot_seconds })))
        .collect()
}

#[test]
fn daily_forecast_limit_survives_restart() {
    let limited = crate::forecast::ForecastConfig { max_idle_slot_hours_per_day: Some(2.0), ..Default::default() };
    let with_forecast = Config { forecast: Some(limited), ..config(100, 1) };
    let idle_target = |idle_today| {
        let now = Now::steady(Time::ZERO, MONDAY);
        let (engine, _) = Engine::restore(with_forecast.clone(), week_of_demand(idle_today), now);
        engine.status(now).idle_target
    };
    assert!(idle_target(None) > 0 && idle_target(Some(7_000)) > 0, "less than the limit of two hours");
    assert_eq!(idle_target(Some(7_200)), 0, "the limit of two hours is reached");

    let (engine, _) = Engine::restore(with_forecast.clone(), week_of_demand(None), Now::steady(Time::ZERO, MONDAY));
    let mut fixture = Fixture::from_engine(engine, BTreeMap::new());
    fixture.seconds(3600);
    let mut rows = BTreeMap::new();
    store_changes(&mut fixture, &mut rows);
    let idle_today = rows.into_iter().find_map(|(key, row)| match (key, row) {
        (RowKey::ForecastIdle { .. }, Row::ForecastIdle { slot_seconds }) => Some(slot_seconds),
        _ => None,
    });
    assert!(idle_today.is_some_and(|idle| idle > 6_000), "the ledger has the total of the day: {idle_today:?}");
    assert_eq!(fixture.engine.status(fixture.now).idle_target, 0, "the limit is respected");
}

#[test]
fn unused_forecast_rows_are_deleted() {
    let mut rows = week_of_demand(Some(1));
    let now = Now::steady(Time::ZERO, MONDAY);
    let deleted = |mut engine: Engine| engine.changes().iter().filter(|change| change.row.is_none()).count();
    assert_eq!(deleted(Engine::restore(config(1, 1), rows.clone(), now).0), rows.len(), "no forecast is configured");
    let long_ago = MONDAY.div_euclid(300) - 20 * 288;
    rows.push((RowKey::SlotDemand { bucket: long_ago }, Row::SlotDemand { max_slots: 1 }));
    let with_forecast = Config { forecast: Some(crate::forecast::ForecastConfig::default()), ..config(1, 1) };
    assert_eq!(deleted(Engine::restore(with_forecast, rows, now).0), 1, "one row is too old");
}

#[test]
fn written_off_request_is_matched_after_restart() {
    let config = config(1, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.seconds(3 * 3600);
    let mut fixture = restart(fixture, config);
    fixture.behaviors[0] = CloudBehavior::Reject("quota");
    fixture.seconds(2 * 3600);
    fixture.create(super::fixture::G);
    fixture.seconds(100);
    assert!(fixture.engine.status(fixture.now).groups[0].unmanaged.is_empty());
}

#[test]
fn written_off_requests_are_matched_for_a_day() {
    let hour = Duration::from_secs(3600);
    let config = config(2, 1);
    let mut fixture = Fixture::new(config.clone());
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.advance(hour);
    for (restart, appears) in [(2, 10), (11, 23)] {
        fixture = restarted_at(Now::steady(Time::ZERO + hour * restart, MONDAY), fixture, config.clone());
        fixture.behaviors[0] = CloudBehavior::Reject("quota");
        fixture.advance(hour * (appears - restart));
        fixture.create(super::fixture::G);
        fixture.seconds(100);
        assert!(fixture.engine.status(fixture.now).groups[0].unmanaged.is_empty(), "after {appears} h");
        let is_of_this_age =
            |kind: &DecisionKind| matches!(kind, DecisionKind::Discovered { after, .. } if *after >= hour * appears);
        assert!(fixture.decided(is_of_this_age), "after {appears} h");
    }
}
