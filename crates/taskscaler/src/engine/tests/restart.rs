//! What survives the process.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::rig::{MONDAY, Mood, Rig, config, id, key, wanted};
use crate::books::{Row, RowKey};
use crate::config::Config;
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::need::Need;
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::words::{Context, Request};

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
fn restarted(mut rig: Rig, config: Config) -> Rig {
    let mut rows = BTreeMap::new();
    stored(&mut rig, &mut rows);
    let text = serde_json::to_string(&rows.into_iter().collect::<Vec<_>>()).unwrap();
    let rows: Vec<(RowKey, Row)> = serde_json::from_str(&text).unwrap();
    let (engine, unknown) = Engine::restore(config, rows, Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown, []);
    let mut cloud = std::mem::take(&mut rig.clouds[0]);
    cloud.values_mut().for_each(|state| *state = crate::InstanceState::Running);
    let mut next = Rig::around(engine, cloud);
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
    rig.tell(Event::Settled);
    rig.seconds(61);
    assert_eq!((rig.instances(), rig.clouds[0].len()), (1, 1));
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
    let cpus = |milli| Need { cpu_milli: Some(milli), memory_bytes: None };
    let sticky = Request { context: Some(Context(5)), ..Request::default() };
    let mut rig = Rig::new(config.clone());
    rig.want_by("large", &Request { need: cpus(3000), ..Request::default() });
    rig.want_by("wide", &Request { need: cpus(2000), ..Request::default() });
    rig.seconds(31);
    rig.want_by("sticky", &sticky);
    let place = rig.place("sticky");
    rig.release("sticky");
    let mut rig = restarted(rig, config);
    let [large, wide] = ["large", "wide"].map(|name| rig.engine.claim(&key(name)).unwrap());
    assert_eq!((large.slot, large.slots, wide.slots), (0, 3, 2));
    rig.tell(Event::Settled);
    rig.want_by("again", &sticky);
    assert_eq!(rig.place("again"), place);
    rig.release("large");
    assert_eq!(rig.engine.tasks().acquired, 3);
}

#[test]
fn someone_elses_instance_is_not_taken_for_one_that_was_asked_for_before_the_restart() {
    let config = config(5, 1);
    let mut rig = Rig::with(config.clone(), BTreeMap::from([(id("theirs"), crate::InstanceState::Running)]));
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    let mut rig = restarted(rig, config);
    rig.want("1");
    rig.seconds(300);
    let status = rig.engine.status(rig.now);
    assert_eq!(status.groups[0].foreign, ["theirs"]);
    assert!(rig.clouds[0].contains_key(&id("theirs")) && rig.place("1") != "theirs/0");
}

#[test]
fn instances_leases_and_uses_are_adopted() {
    let mut config = config(3, 2);
    config.uses_max = NonZeroU32::new(3);
    config.policies = Policies::always(wanted(0, 600));
    let mut rig = Rig::new(config.clone());
    rig.want("1");
    rig.want("2");
    rig.seconds(31);
    rig.release("1");
    let mut rig = restarted(rig, config);
    let lease = rig.engine.claim(&key("2")).unwrap();
    assert_eq!((lease.instance.as_str(), lease.slot, lease.use_number), ("i1", 1, 2));
    rig.tell(Event::Settled);
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
    rig.tell(Event::Settled);
    assert_eq!(rig.lost, [key("1")]);
    assert!(rig.clouds[0].is_empty(), "what its job left behind is unknown");
}

#[test]
fn a_request_that_was_under_way_still_counts() {
    let config = config(1, 1);
    let mut rig = Rig::new(config.clone());
    rig.moods[0] = Mood::Silent;
    rig.want("1");
    rig.make(super::rig::G);
    let mut rig = restarted(rig, config);
    rig.want("1");
    rig.seconds(40);
    assert_eq!((rig.place("1").as_str(), rig.made), ("i1/0", 1), "I1: it is ours, and no second one is made");
    assert!(rig.engine.status(rig.now).groups[0].foreign.is_empty());
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
fn rows_of_version_1_are_read() {
    let text = include_str!("books-v1.json");
    let rows: Vec<(RowKey, Row)> = serde_json::from_str(text).unwrap();
    let mut with_forecast = config(3, 2);
    with_forecast.forecast = Some(crate::forecast::ForecastConfig::default());
    let (engine, unknown) = Engine::restore(with_forecast, rows, Now::steady(Time::ZERO, MONDAY));
    assert_eq!(unknown.len(), 1, "the group `old` is not configured any more");
    let status = engine.status(Now::steady(Time::ZERO, MONDAY));
    assert_eq!(status.instances.len(), 3);
    assert_eq!(status.groups[0].coming, 2);
}
