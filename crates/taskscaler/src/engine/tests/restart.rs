//! What survives the process.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use muster_fleeting::model::InstanceState;
use std::time::Duration;

use super::fixture::{MONDAY, Mood, Rig, config, id, key, wanted};
use crate::config::Config;
use crate::decision::DecisionKind;
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::ledger::{Row, RowKey};
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::types::ResourceRequest;
use crate::types::{SlotRequest, StickyContextId};

/// The rows that a store would have.
fn stored(rig: &mut Rig, rows: &mut BTreeMap<RowKey, Row>) {
    for change in rig.engine.changes() {
        match change.row {
            Some(row) => rows.insert(change.key, row),
            None => rows.remove(&change.key),
        };
    }
}

/// The process is killed, and started again.
fn restarted(rig: Rig, config: Config) -> Rig {
    restarted_at(Now::steady(Time::ZERO, MONDAY), rig, config)
}

fn restarted_at(now: Now, mut rig: Rig, config: Config) -> Rig {
    let mut rows = BTreeMap::new();
    stored(&mut rig, &mut rows);
    let text = serde_json::to_string(&rows.into_iter().collect::<Vec<_>>()).unwrap();
    let rows: Vec<(RowKey, Row)> = serde_json::from_str(&text).unwrap();
    let (engine, unknown) = Engine::restore(config, rows, now);
    assert_eq!(unknown, []);
    let mut cloud = std::mem::take(&mut rig.clouds[0]);
    cloud.values_mut().for_each(|state| *state = InstanceState::Running);
    let mut next = Rig::around_at(now, engine, cloud);
    next.made = rig.made;
    next
}

#[test]
fn a_group_with_a_new_name_keeps_its_instances_and_its_leases() {
    let config = config(2, 1);
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    let place = rig.place("1");
    let mut renamed = config.clone();
    renamed.groups[0].name = "renamed".to_owned();
    let mut rows = BTreeMap::new();
    stored(&mut rig, &mut rows);
    let names = |rows: &BTreeMap<RowKey, Row>| {
        rows.keys().filter_map(|key| key.group().map(str::to_owned)).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(names(&rows), [config.groups[0].name.clone()].into());
    let kept = rows.clone().into_iter().collect();
    let (engine, unknown) = Engine::restore(renamed, kept, Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown, []);
    let mut rig = Rig::around(engine, std::mem::take(&mut rig.clouds[0]));
    // The books say so from now on: nothing of the former name is left in them.
    stored(&mut rig, &mut rows);
    assert_eq!(names(&rows), ["renamed".to_owned()].into());
    let lease = rig.engine.claim(&key("1")).unwrap();
    assert_eq!(format!("{}/{}", lease.instance, lease.slot), place);
    rig.tell(Event::ClaimsComplete);
    rig.seconds(61);
    assert_eq!((rig.instances(), rig.clouds[0].len()), (1, 1));
}

#[test]
fn a_group_of_a_list_that_is_replaced_leaves_its_instances_to_those_who_look_for_them() {
    let config = config(2, 1);
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    let mut rows = BTreeMap::new();
    stored(&mut rig, &mut rows);
    let mut replaced = config;
    (replaced.groups[0].name, replaced.groups[0].is_named) = ("of-another-provider".to_owned(), true);
    let kept = rows.clone().into_iter().collect();
    let (engine, unknown) = Engine::restore(replaced, kept, Now::steady(Time::ZERO, MONDAY));
    let is_instance = |key: &&RowKey| matches!(key, RowKey::Instance { .. });
    assert_eq!(unknown.iter().filter(is_instance).count(), 1, "it stays in the books: {unknown:?}");
    assert!(engine.status(Now::steady(Time::ZERO, MONDAY)).instances.is_empty());
}

#[test]
fn what_is_done_to_a_new_instance_is_not_done_again_after_a_restart() {
    let mut config = config(2, 1);
    config.policies = Policies::always(wanted(1, 600));
    let mut rig = Rig::new(config.clone());
    rig.seconds(31);
    let prepared = |again| move |action: &Action| matches!(action, Action::Prepare { again: is, .. } if *is == again);
    assert_eq!((rig.count(prepared(false)), rig.count(prepared(true))), (1, 0));
    let mut rig = restarted(rig, config);
    rig.seconds(31);
    assert_eq!((rig.count(prepared(false)), rig.count(prepared(true))), (0, 1));
}

#[test]
fn a_job_keeps_all_its_slots_and_an_instance_its_sticky_contexts() {
    let mut config = config(2, 4);
    config.density.slot.cpu_milli = Some(1000);
    config.policies = Policies::always(wanted(0, 600));
    let cpus = |milli| ResourceRequest { cpu_milli: Some(milli), memory_bytes: None };
    let sticky = SlotRequest { sticky_context: Some(StickyContextId(5)), ..SlotRequest::default() };
    let mut rig = Rig::new(config.clone());
    rig.want_by("large", &SlotRequest { resources: cpus(3000), ..SlotRequest::default() });
    rig.want_by("wide", &SlotRequest { resources: cpus(2000), ..SlotRequest::default() });
    rig.seconds(31);
    rig.want_by("sticky", &sticky);
    let place = rig.place("sticky");
    rig.release("sticky");
    let mut rig = restarted(rig, config);
    let [large, wide] = ["large", "wide"].map(|name| rig.engine.claim(&key(name)).unwrap());
    assert_eq!((large.slot, large.slots, wide.slots), (0, 3, 2));
    rig.tell(Event::ClaimsComplete);
    rig.want_by("again", &sticky);
    assert_eq!(rig.place("again"), place);
    rig.release("large");
    assert_eq!(rig.engine.slot_counts().acquired, 3);
}

/// An instance that has been idle for 100 s, restarted when the wall clock has gone on by so much.
fn idle_and_restarted(idle_time_s: u64, after_s: i64) -> Rig {
    let mut config = config(2, 1);
    config.policies = Policies::always(wanted(0, idle_time_s));
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    rig.release("1");
    rig.seconds(100);
    assert_eq!(rig.clouds[0].len(), 1);
    let start = Time::from_millis(1_000_000_000);
    let mut rig = restarted_at(Now { at: start, unix: rig.now.unix + after_s }, rig, config);
    rig.tell(Event::ClaimsComplete);
    rig
}

#[test]
fn age_and_idle_time_go_on_over_a_restart() {
    let mut rig = idle_and_restarted(600, 200);
    let age = |rig: &Rig| rig.engine.status(rig.now).instances[0].age_ms / 1000;
    let before = age(&rig);
    assert!((300..=332).contains(&before), "{before}");
    rig.seconds(290);
    assert_eq!((rig.clouds[0].len(), age(&rig)), (1, before + 290));
    rig.seconds(20);
    assert!(rig.clouds[0].is_empty(), "600 s of idle time, 300 of them before the restart");
}

#[test]
fn after_a_restart_jobs_have_a_while_to_come_whatever_the_clock_says() {
    let mut rig = idle_and_restarted(600, 1_000_000_000);
    rig.seconds(10);
    assert_eq!(rig.clouds[0].len(), 1, "the clock was put forward");
    rig.seconds(10);
    assert!(rig.clouds[0].is_empty());
    let mut rig = idle_and_restarted(600, -1_000_000_000);
    assert_eq!(rig.engine.status(rig.now).instances[0].age_ms, 0, "the clock was put back");
    rig.seconds(590);
    assert_eq!(rig.clouds[0].len(), 1);
    rig.seconds(20);
    assert!(rig.clouds[0].is_empty());
}

#[test]
fn someone_elses_instance_is_not_taken_for_one_that_was_asked_for_before_the_restart() {
    let config = config(5, 1);
    let mut rig = Rig::with(config.clone(), BTreeMap::from([(id("theirs"), InstanceState::Running)]));
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    let mut rig = restarted(rig, config);
    rig.want("1");
    rig.seconds(300);
    let status = rig.engine.status(rig.now);
    assert_eq!(status.groups[0].unmanaged, ["theirs"]);
    assert!(rig.clouds[0].contains_key(&id("theirs")) && rig.place("1") != "theirs/0");
}

#[test]
fn instances_leases_and_uses_are_adopted() {
    let mut config = config(3, 2);
    config.max_uses = NonZeroU32::new(3);
    config.policies = Policies::always(wanted(0, 600));
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.want("2");
    rig.seconds(31);
    rig.release("1");
    let mut rig = restarted(rig, config);
    let lease = rig.engine.claim(&key("2")).unwrap();
    assert_eq!((lease.instance.as_str(), lease.slot, lease.use_number), ("i1", 1, 2));
    rig.tell(Event::ClaimsComplete);
    rig.want("3");
    assert_eq!(rig.place("3"), "i1/0", "R054: slots and uses are known");
    rig.release("2");
    rig.release("3");
    assert!(rig.clouds[0].is_empty(), "three uses are over");
}

#[test]
fn a_lease_that_nobody_claims_ends_and_takes_its_instance_along() {
    let config = config(3, 1);
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    let mut rig = restarted(rig, config);
    assert_eq!(rig.clouds[0].len(), 1);
    rig.tell(Event::ClaimsComplete);
    assert_eq!(rig.lost, [key("1")]);
    assert!(rig.clouds[0].is_empty(), "what its job left behind is unknown");
}

#[test]
fn an_instance_on_which_jobs_leave_nothing_outlives_such_a_lease() {
    let mut config = config(3, 2);
    config.jobs_are_isolated = true;
    config.policies = Policies::always(wanted(0, 600));
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    let mut rig = restarted(rig, config);
    rig.tell(Event::ClaimsComplete);
    assert_eq!(rig.lost, [key("1")]);
    rig.want("2");
    assert_eq!((rig.place("2").as_str(), rig.clouds[0].len()), ("i1/0", 1));
}

#[test]
fn a_request_that_was_under_way_still_counts() {
    let config = config(1, 1);
    let mut rig = Rig::new(config.clone());
    rig.moods[0] = Mood::Silent;
    rig.want("1");
    rig.make(super::fixture::G);
    let mut rig = restarted(rig, config);
    rig.want("1");
    rig.seconds(40);
    assert_eq!((rig.place("1").as_str(), rig.made), ("i1/0", 1), "I1: it is ours, and no second one is made");
    assert!(rig.engine.status(rig.now).groups[0].unmanaged.is_empty());
}

#[test]
fn a_removal_goes_on() {
    let mut config = config(1, 1);
    config.policies = Policies::always(wanted(0, 0));
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    rig.removing = false;
    rig.release("1");
    let rig = restarted(rig, config);
    assert!(rig.clouds[0].is_empty());
}

#[test]
fn an_instance_that_is_gone_is_not_taken_for_a_foreign_one() {
    let mut config = config(2, 1);
    config.policies = Policies::always(wanted(0, 0));
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.seconds(31);
    let there = rig.clouds[0].clone();
    rig.release("1");
    rig.seconds(5);
    let mut rig = restarted(rig, config);
    rig.clouds[0] = there;
    rig.seconds(61);
    assert!(rig.clouds[0].is_empty(), "the list was old, or the removal did not hold");
}

#[test]
fn reads_rows_of_version_1() {
    let text = include_str!("ledger-v1.json");
    let rows: Vec<(RowKey, Row)> = serde_json::from_str(text).unwrap();
    let mut with_forecast = config(3, 2);
    with_forecast.forecast = Some(crate::forecast::ForecastConfig::default());
    let (engine, unknown) = Engine::restore(with_forecast, rows, Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown.len(), 1, "the group `old` is not configured any more");
    let status = engine.status(Now::steady(Time::ZERO, MONDAY));
    assert_eq!(status.instances.len(), 4);
    assert_eq!((status.groups[0].requested, status.groups[0].drained.as_deref()), (2, Some("ann")));
    assert_eq!(status.instances.iter().filter(|instance| instance.state == "cordoned").count(), 1);
}

/// The books have more held slots than there are now.
#[test]
fn a_capacity_that_is_lowered_while_jobs_run_is_kept_for_new_ones() {
    let mut roomy = config(3, 4);
    roomy.max_uses = NonZeroU32::new(9);
    let mut rig = Rig::new(roomy.clone());
    (0..4).for_each(|job| rig.want(&job.to_string()));
    rig.seconds(31);
    let mut narrow = config(3, 2);
    narrow.max_uses = NonZeroU32::new(3);
    let mut rig = restarted(rig, narrow);
    (0..4).for_each(|job| assert!(rig.engine.claim(&key(&job.to_string())).is_some()));
    rig.tell(Event::ClaimsComplete);
    rig.seconds(60);
    assert_eq!((rig.made, rig.engine.slot_counts().acquired), (1, 4), "nothing is missing");
    rig.reserve("new").unwrap();
    let refusal = (0..9).find_map(|n| rig.reserve(&format!("more {n}")).err()).unwrap().to_string();
    assert!(refusal.contains("unready:0,"), "{refusal}");
    rig.want("new");
    rig.seconds(40);
    assert_eq!(rig.place("new"), "i2/0", "four jobs are on the first one, which takes two");
    (0..3).for_each(|job| rig.release(&job.to_string()));
    rig.seconds(1);
    assert!(rig.clouds[0].contains_key(&id("i1")), "its last job runs");
    rig.release("3");
    rig.seconds(1);
    assert!(!rig.clouds[0].contains_key(&id("i1")), "it had four jobs, of at most three");
}

/// Books of a week of work, with what the forecast has kept idle today.
fn week_of_work(spent: Option<u64>) -> Vec<(RowKey, Row)> {
    let now = MONDAY.div_euclid(300);
    let loads = (now - 7 * 288..now).map(|bucket| (RowKey::SlotDemand { bucket }, Row::SlotDemand { max_slots: 50 }));
    let day = MONDAY.div_euclid(24 * 3600);
    loads.chain(spent.map(|slot_seconds| (RowKey::ForecastIdle { day }, Row::ForecastIdle { slot_seconds }))).collect()
}

#[test]
fn what_a_forecast_may_cost_in_a_day_is_not_had_again_after_a_restart() {
    let bound = crate::forecast::ForecastConfig { max_idle_slot_hours_per_day: Some(2.0), ..Default::default() };
    let with_forecast = Config { forecast: Some(bound), ..config(100, 1) };
    let idle = |spent| {
        let now = Now::steady(Time::ZERO, MONDAY);
        let (engine, _) = Engine::restore(with_forecast.clone(), week_of_work(spent), now);
        engine.status(now).idle_target
    };
    assert!(idle(None) > 0 && idle(Some(7_000)) > 0);
    assert_eq!(idle(Some(7_200)), 0);

    let (engine, _) = Engine::restore(with_forecast.clone(), week_of_work(None), Now::steady(Time::ZERO, MONDAY));
    let mut rig = Rig::around(engine, BTreeMap::new());
    rig.seconds(3600);
    let mut rows = BTreeMap::new();
    stored(&mut rig, &mut rows);
    let spent = rows.into_iter().find_map(|(key, row)| match (key, row) {
        (RowKey::ForecastIdle { .. }, Row::ForecastIdle { slot_seconds }) => Some(slot_seconds),
        _ => None,
    });
    assert!(spent.is_some_and(|spent| spent > 6_000), "the books have the sum of the day: {spent:?}");
    assert_eq!(rig.engine.status(rig.now).idle_target, 0, "and the bound holds");
}

#[test]
fn what_no_forecast_looks_at_leaves_the_books() {
    let mut rows = week_of_work(Some(1));
    let now = Now::steady(Time::ZERO, MONDAY);
    let gone = |mut engine: Engine| engine.changes().iter().filter(|change| change.row.is_none()).count();
    assert_eq!(gone(Engine::restore(config(1, 1), rows.clone(), now).0), rows.len(), "there is none any more");
    let long_ago = MONDAY.div_euclid(300) - 20 * 288;
    rows.push((RowKey::SlotDemand { bucket: long_ago }, Row::SlotDemand { max_slots: 1 }));
    let with_forecast = Config { forecast: Some(crate::forecast::ForecastConfig::default()), ..config(1, 1) };
    assert_eq!(gone(Engine::restore(with_forecast, rows, now).0), 1, "it is too old");
}

/// Late by hours, and after a restart: it is ours.
#[test]
fn what_was_given_up_before_a_restart_is_ours_when_it_appears() {
    let config = config(1, 1);
    let mut rig = Rig::new(config.clone());
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    rig.seconds(3 * 3600);
    let mut rig = restarted(rig, config);
    rig.moods[0] = Mood::Refusing("no");
    rig.seconds(2 * 3600);
    rig.make(super::fixture::G);
    rig.seconds(100);
    assert!(rig.engine.status(rig.now).groups[0].unmanaged.is_empty());
}

/// Each is late by most of a day, and there was a restart before each of them.
#[test]
fn what_was_given_up_is_ours_for_a_day_however_many_restarts_there_are() {
    let hour = Duration::from_secs(3600);
    let config = config(2, 1);
    let mut rig = Rig::new(config.clone());
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    rig.want("2");
    rig.pass(hour);
    for (restart, appears) in [(2, 10), (11, 23)] {
        rig = restarted_at(Now::steady(Time::ZERO + hour * restart, MONDAY), rig, config.clone());
        rig.moods[0] = Mood::Refusing("no");
        rig.pass(hour * (appears - restart));
        rig.make(super::fixture::G);
        rig.seconds(100);
        assert!(rig.engine.status(rig.now).groups[0].unmanaged.is_empty(), "after {appears} h");
        let of_its_age =
            |what: &DecisionKind| matches!(what, DecisionKind::Discovered { after, .. } if *after >= hour * appears);
        assert!(rig.told(of_its_age), "after {appears} h");
    }
}
