//! What goes, when, and what does not.

use std::time::Duration;

use super::fixture::{G, Rig, adopted, config, id, key, wanted};
use crate::decision::DecisionKind;
use crate::event::{Action, Event};
use crate::forecast::ForecastConfig;
use crate::policy::Policies;
use crate::types::{RemovalReason, SlotRequest};
use muster_fleeting::model::InstanceState;

/// Three instances at the most, none kept for nothing, and so much idle time; one was used, and is free.
fn used_once(idle_s: u64) -> Rig {
    let mut config = config(3, 1);
    config.policies = Policies::always(wanted(0, idle_s));
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.seconds(40);
    rig.release("1");
    rig
}

fn decreases(rig: &Rig) -> usize {
    rig.count(|action| matches!(action, Action::Decrease { .. }))
}

#[test]
fn an_instance_goes_after_its_idle_time_and_not_before() {
    let mut rig = used_once(120);
    rig.seconds(119);
    assert_eq!(rig.clouds[0].len(), 1);
    rig.seconds(2);
    assert!(rig.clouds[0].is_empty());
    assert!(
        rig.told(|what| matches!(what, DecisionKind::Delete { reason: RemovalReason::Idle { idle_ms: 120_000 }, .. }))
    );
}

#[test]
fn a_job_that_comes_in_time_keeps_it() {
    let mut rig = used_once(120);
    rig.seconds(100);
    rig.want("2");
    rig.seconds(1000);
    assert_eq!((rig.place("2").as_str(), rig.clouds[0].len()), ("i1/0", 1));
}

/// Two square roots of four stay; what was not asked for ahead is kept all the same.
#[test]
fn what_the_forecast_keeps_outlives_its_idle_time() {
    let mut config = config(10, 1);
    config.policies = Policies::always(wanted(0, 30));
    config.forecast = Some(ForecastConfig { safety_factor: -1.0, retention_factor: 1.0, ..ForecastConfig::default() });
    let mut rig = Rig::new(config);
    let names: Vec<String> = (0..10).map(|name| name.to_string()).collect();
    names.iter().for_each(|name| rig.want(name));
    rig.seconds(60);
    assert_eq!(rig.clouds[0].len(), 10, "none is asked for beside those that jobs want");
    names[..6].iter().for_each(|name| rig.release(name));
    rig.seconds(25);
    assert_eq!(rig.clouds[0].len(), 10);
    rig.seconds(300);
    assert_eq!(rig.clouds[0].len(), 4 + 2);
    names[6..].iter().for_each(|name| rig.release(name));
    rig.seconds(60);
    assert!(rig.clouds[0].is_empty());
}

#[test]
fn a_removal_without_effect_is_repeated_and_told() {
    let mut config = config(3, 1);
    config.policies = Policies::always(wanted(0, 0));
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.seconds(40);
    rig.removing = false;
    rig.release("1");
    assert_eq!(decreases(&rig), 1);
    rig.seconds(58);
    assert_eq!(decreases(&rig), 1, "V9: not before the retry interval");
    rig.seconds(4);
    assert_eq!(decreases(&rig), 2);
    rig.seconds(600);
    assert!(rig.told(|what| matches!(what, DecisionKind::DeletionStuck { attempts: 10, .. })));
    rig.removing = true;
    rig.seconds(120);
    assert_eq!(rig.instances(), 0);
}

#[test]
fn what_vanishes_twice_is_lost_and_what_comes_back_is_not() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    let there = std::mem::take(&mut rig.clouds[0]);
    rig.seconds(60);
    assert!(rig.told(|what| matches!(what, DecisionKind::MissingFromList { .. })));
    rig.clouds[0] = there;
    rig.seconds(120);
    assert!(rig.lost.is_empty(), "V11: one list that lacks it changes nothing");
}

#[test]
fn what_was_given_up_and_comes_back_is_removed() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    let there = std::mem::take(&mut rig.clouds[0]);
    rig.seconds(70);
    assert_eq!(rig.lost, [key("1")]);
    rig.clouds[0].extend(there);
    rig.seconds(120);
    assert!(!rig.clouds[0].contains_key(&id("a")), "its job is elsewhere; it is neither used nor leaked");
    assert!(rig.told(|what| matches!(what, DecisionKind::Delete { reason: RemovalReason::Reappeared, .. })));
}

/// Found by the simulation: a list that lacked it came before one that shows it going.
#[test]
fn what_was_given_up_has_its_place_until_the_provider_has_removed_it() {
    let mut rig = adopted(config(1, 1), &["a"]);
    rig.want("1");
    rig.clouds[0].clear();
    rig.seconds(70);
    assert_eq!((rig.lost.as_slice(), rig.made), ([key("1")].as_slice(), 0));
    rig.clouds[0].insert(id("a"), InstanceState::Deleting);
    rig.seconds(61);
    rig.want("2");
    rig.seconds(5);
    assert_eq!((rig.made, decreases(&rig)), (0, 0), "with another one there would be two of at most one");
    rig.clouds[0].clear();
    rig.seconds(61);
    assert_eq!(rig.made, 1);
}

#[test]
fn an_instance_that_the_provider_takes_loses_its_job_at_once() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    rig.clouds[0].insert(id("a"), InstanceState::Deleting);
    rig.seconds(61);
    assert_eq!(rig.lost, [key("1")]);
}

#[test]
fn the_end_of_the_scaler_removes_what_has_no_job_where_told_to() {
    let mut config = config(3, 1);
    config.policies = Policies::always(wanted(0, 3600));
    config.delete_on_shutdown = true;
    let mut rig = adopted(config, &["a", "b"]);
    rig.want("1");
    rig.tell(Event::Stop);
    assert_eq!(rig.clouds[0].keys().map(ToString::to_string).collect::<Vec<_>>(), ["a"]);
    assert!(rig.engine.acquire(rig.now, key("2"), &SlotRequest::default()).is_err());
    rig.release("1");
    assert!(rig.clouds[0].is_empty(), "its job ended after the word");
}

#[test]
fn after_a_drain_the_instance_of_the_last_job_goes_with_it_also_where_the_end_has_begun() {
    for drains in [true, false] {
        let mut config = config(3, 1);
        config.policies = Policies::always(wanted(0, 3600));
        let mut rig = adopted(config, &["a"]);
        rig.want("1");
        if drains {
            rig.tell(Event::Drain);
        }
        rig.tell(Event::Stop);
        assert_eq!(rig.clouds[0].len(), 1, "it has a job");
        rig.release("1");
        assert_eq!(rig.clouds[0].is_empty(), drains, "else the next start goes on with it");
    }
}

#[test]
fn a_reservation_keeps_no_instance_for_longer_than_the_idle_time() {
    for (idle, kept) in [(0, 0), (1, 1)] {
        let mut config = config(3, 1);
        config.policies = Policies::always(wanted(idle, 10));
        let mut rig = adopted(config, &["a", "b"]);
        rig.reserve("1").unwrap();
        rig.reserve("2").ok();
        rig.seconds(9);
        assert_eq!(rig.clouds[0].len(), 2);
        rig.seconds(60);
        assert_eq!(rig.clouds[0].len(), kept, "idle_count {idle}");
    }
}

/// A plugin that does not run says nothing of the machines.
#[test]
fn while_a_plugin_is_down_no_machine_is_judged() {
    let mut config = config(4, 1);
    config.heartbeat_interval = Some(Duration::from_secs(10));
    config.policies = Policies::always(wanted(0, 36_000));
    let mut rig = adopted(config, &["a", "b"]);
    rig.seconds(60);
    // One boots when the plugin goes, for longer than it may.
    rig.boot = Duration::from_secs(6000);
    for job in ["1", "2", "3"] {
        rig.want(job);
    }
    let beats = |rig: &Rig| rig.count(|action| matches!(action, Action::Heartbeat { .. }));
    rig.tell(Event::PluginDown { group: G, cause: "it crashed".to_owned() });
    let before = beats(&rig);
    rig.tell(Event::ConnectionLost { key: key("1") });
    rig.seconds(5990);
    assert_eq!(beats(&rig), before, "nobody is there to be asked");
    rig.tell(Event::PluginUp { group: G, max_size: 0 });
    rig.seconds(30);
    assert!(beats(&rig) > before);
    assert_eq!((rig.instances(), rig.made), (3, 1));
    assert_eq!(rig.place("3"), "i1/0", "it has its time to be listed when the plugin is back");
    assert_eq!(rig.count(|action| matches!(action, Action::Decrease { .. })), 0);
}

#[test]
fn a_fleet_that_gets_no_more_jobs_keeps_nothing_idle_and_serves_those_that_are_there() {
    let mut config = config(5, 1);
    config.policies = Policies::always(wanted(3, 3600));
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.seconds(31);
    assert_eq!(rig.clouds[0].len(), 4);
    rig.tell(Event::Drain);
    rig.seconds(5);
    assert_eq!(rig.clouds[0].len(), 1, "that of the job");
    // A job that was here before, and is moved.
    rig.want("2");
    rig.seconds(31);
    assert_eq!(rig.clouds[0].len(), 2);
    rig.tell(Event::Policies(Policies::always(wanted(3, 3600))));
    rig.seconds(90);
    assert_eq!(rig.clouds[0].len(), 2, "other policies do not matter any more");
}
