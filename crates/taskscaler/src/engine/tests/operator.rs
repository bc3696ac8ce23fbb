//! What operators do by hand.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::rig::{G, Rig, adopted, config, id, key, wanted};
use crate::books::{Row, RowKey};
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::operator::{Act, Done, Refused};
use crate::policy::Policies;
use muster_fleeting::model::InstanceState;

const REMOVE: Act = Act::Remove { now: false };
const REMOVE_NOW: Act = Act::Remove { now: true };

fn names(rig: &Rig) -> Vec<String> {
    rig.clouds[0].keys().map(ToString::to_string).collect()
}

fn state(rig: &Rig, name: &str) -> (String, Option<String>) {
    let instances = rig.engine.status(rig.now).instances;
    let found = instances.into_iter().find(|instance| instance.id == name).unwrap();
    (found.state, found.why)
}

fn decreases(rig: &Rig) -> usize {
    rig.count(|action| matches!(action, Action::Decrease { .. }))
}

/// The manager is killed, and starts again on its books.
fn restarted(mut rig: Rig, rows: &mut BTreeMap<RowKey, Row>) -> Rig {
    write(&mut rig, rows);
    let rows = rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    let (mut engine, unknown) = Engine::restore(rig.engine.config().clone(), rows, rig.now);
    assert!(unknown.is_empty());
    engine.handle(rig.now, Event::Settled);
    Rig::around(engine, rig.clouds.remove(0))
}

fn write(rig: &mut Rig, rows: &mut BTreeMap<RowKey, Row>) {
    for change in rig.engine.changes() {
        match change.row {
            Some(row) => rows.insert(change.key, row),
            None => rows.remove(&change.key),
        };
    }
}

#[test]
fn a_drained_instance_gets_no_jobs_and_stays_until_it_is_resumed() {
    let mut config = config(3, 2);
    config.policies = Policies::always(wanted(0, 60));
    let mut rig = adopted(config, &["a"]);
    rig.want("1");
    assert_eq!(rig.operate(Some("a"), Act::Drain), Ok(Done::Drained { jobs: 1 }));
    assert_eq!(rig.operate(Some("a"), Act::Drain), Ok(Done::Drained { jobs: 1 }), "said twice, it is the same");
    rig.want("2");
    rig.seconds(40);
    assert_eq!((rig.place("1").as_str(), rig.place("2").as_str()), ("a/0", "i1/0"), "its own job runs on");
    rig.release("1");
    rig.release("2");
    rig.seconds(3600);
    assert_eq!(names(&rig), ["a"], "it is neither idle nor too many");
    assert_eq!(state(&rig, "a"), ("drained".to_owned(), Some("ann".to_owned())));
    assert_eq!(rig.operate(Some("a"), Act::Resume), Ok(Done::Resumed));
    rig.seconds(3);
    rig.want("3");
    assert_eq!(rig.place("3"), "a/0");
    assert_eq!(rig.operate(Some("a"), Act::Resume), Err(Refused::NotDrained));
}

#[test]
fn a_drained_instance_stays_drained_over_a_restart() {
    let mut rows = BTreeMap::new();
    let mut config = config(3, 1);
    config.delete_on_shutdown = true;
    let mut rig = adopted(config, &["a", "b"]);
    rig.operate(Some("a"), Act::Drain).unwrap();
    rig.tell(Event::Stop);
    assert_eq!(names(&rig), ["a"], "delete_instances_on_shutdown does not take what somebody keeps");
    let mut rig = restarted(rig, &mut rows);
    rig.seconds(600);
    assert_eq!(state(&rig, "a"), ("drained".to_owned(), Some("ann".to_owned())));
    rig.want("1");
    rig.seconds(40);
    assert_ne!(rig.place("1"), "a/0");
    // The runner leaves the configuration: nobody will have these books.
    rig.release("1");
    rig.tell(Event::RemoveAtTheEnd);
    rig.tell(Event::Stop);
    assert_eq!(names(&rig), [""; 0]);
}

#[test]
fn what_is_to_go_is_kept_while_it_is_drained_and_goes_when_it_is_resumed() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    rig.tell(Event::Disowned { group: G, id: id("a"), why: "spoilt".to_owned() });
    rig.operate(Some("a"), Act::Drain).unwrap();
    rig.tell(Event::Disowned { group: G, id: id("a"), why: "spoilt for good".to_owned() });
    rig.release("1");
    rig.seconds(600);
    assert_eq!(decreases(&rig), 0);
    let why = "not to be used any more: spoilt for good".to_owned();
    assert_eq!(rig.operate(Some("a"), Act::Resume), Ok(Done::Goes { why }));
    assert_eq!(names(&rig), [""; 0]);
}

#[test]
fn a_removal_waits_for_jobs_unless_it_is_to_be_now() {
    let mut rig = adopted(config(3, 2), &["a", "b"]);
    rig.want("1");
    rig.want("2");
    rig.want("3");
    assert_eq!(rig.operate(Some("a"), REMOVE), Ok(Done::Removing { jobs: 2 }));
    assert_eq!(state(&rig, "a"), ("draining".to_owned(), Some("removed by ann".to_owned())));
    rig.release("1");
    assert!(rig.lost.is_empty() && names(&rig).contains(&"a".to_owned()), "a job runs on");
    rig.release("2");
    assert_eq!(names(&rig), ["b"]);
    assert_eq!(rig.operate(Some("b"), REMOVE_NOW), Ok(Done::Removed { jobs: 1 }));
    assert_eq!((rig.lost.as_slice(), names(&rig).len()), ([key("3")].as_slice(), 0));
    rig.seconds(2);
    assert_eq!(rig.operate(Some("b"), REMOVE), Err(Refused::NoInstance));
}

#[test]
fn a_removal_that_still_waits_can_be_taken_back() {
    let mut rig = adopted(config(3, 2), &["a"]);
    rig.want("1");
    rig.operate(Some("a"), REMOVE).unwrap();
    assert_eq!(rig.operate(Some("a"), Act::Resume), Ok(Done::Resumed));
    rig.seconds(3);
    rig.release("1");
    rig.want("2");
    assert_eq!((rig.place("2").as_str(), decreases(&rig)), ("a/0", 0));
    // Not so one that goes for another reason.
    rig.tell(Event::Disowned { group: G, id: id("a"), why: "spoilt".to_owned() });
    let why = "not to be used any more: spoilt".to_owned();
    assert_eq!(rig.operate(Some("a"), Act::Resume), Err(Refused::Goes { why }));
}

#[test]
fn a_foreign_instance_can_be_removed_and_nothing_else() {
    let mut rig = Rig::with(config(3, 1), [(id("x"), InstanceState::Running)].into());
    assert_eq!(rig.operate(Some("x"), Act::Drain), Err(Refused::Foreign));
    assert_eq!(rig.operate(Some("x"), Act::Resume), Err(Refused::Foreign));
    assert_eq!(rig.operate(Some("x"), REMOVE), Ok(Done::Removing { jobs: 0 }));
    rig.seconds(2);
    assert_eq!((names(&rig).len(), rig.instances()), (0, 0));
}

#[test]
fn a_drained_group_makes_no_more_and_empties_after_its_jobs() {
    let mut config = config(3, 1);
    config.policies = Policies::always(wanted(1, 60));
    let mut rig = adopted(config, &["a", "b"]);
    rig.want("1");
    rig.operate(Some("b"), Act::Drain).unwrap();
    rig.seconds(40);
    rig.make(G);
    assert_eq!(rig.operate(None, Act::Drain), Ok(Done::GroupDrained { instances: 2 }));
    let refused = rig.reserve("2").unwrap_err().to_string();
    assert!(refused.contains("group main: it was drained by ann"), "{refused}");
    rig.release("1");
    rig.seconds(120);
    // One that nobody asked for is adopted here; that goes, too.
    assert_eq!(names(&rig), ["b"], "what somebody keeps stays");
    let mut rows = BTreeMap::new();
    let mut rig = restarted(rig, &mut rows);
    rig.seconds(120);
    assert_eq!((names(&rig).len(), rig.increases().len()), (1, 0), "also after a restart");
    assert_eq!(rig.operate(Some("b"), Act::Resume), Ok(Done::Goes { why: "its group was drained by ann".to_owned() }));
    assert_eq!(rig.operate(None, Act::Resume), Ok(Done::GroupResumed));
    assert_eq!(rig.operate(None, Act::Resume), Err(Refused::NotDrained));
    assert_eq!(rig.operate(None, REMOVE), Err(Refused::WholeGroup));
    rig.seconds(40);
    assert_eq!(rig.increases(), [1], "the idle one that the policy wants");
}

#[test]
fn instances_of_a_group_that_is_resumed_in_time_are_used_on() {
    let mut rig = adopted(config(3, 2), &["a"]);
    rig.want("1");
    rig.operate(None, Act::Drain).unwrap();
    assert_eq!(rig.operate(Some("a"), Act::Resume), Err(Refused::GroupDrained { by: "ann".to_owned() }));
    rig.operate(None, Act::Resume).unwrap();
    rig.seconds(3);
    rig.want("2");
    assert_eq!((rig.place("2").as_str(), decreases(&rig)), ("a/1", 0));
}

/// One that was asked for before its group was drained appears after it, and is no capacity before.
#[test]
fn what_was_asked_for_before_its_group_was_drained_goes_when_it_appears() {
    let mut config = config(3, 1);
    config.groups.push(crate::config::GroupConfig::new("spare", 3));
    let mut rig = Rig::new(config);
    rig.moods[0] = super::rig::Mood::Empty;
    rig.want("1");
    rig.operate(None, Act::Drain).unwrap();
    rig.seconds(31);
    assert_eq!((rig.place("1").as_str(), rig.clouds[1].len()), ("i1/0", 1), "the other group stands in for it");
    rig.make(G);
    rig.seconds(5);
    assert_eq!(names(&rig), [""; 0]);
}

#[test]
fn a_drained_instance_that_is_used_up_stays_to_be_looked_at() {
    let mut config = config(3, 1);
    config.uses_max = NonZeroU32::new(1);
    let mut rig = adopted(config, &["a"]);
    rig.want("1");
    rig.operate(Some("a"), Act::Drain).unwrap();
    rig.release("1");
    rig.seconds(600);
    assert_eq!(names(&rig), ["a"]);
    rig.operate(Some("a"), Act::Resume).unwrap();
    rig.seconds(5);
    assert_eq!(names(&rig), [""; 0], "it has had its job");
}

#[test]
fn an_act_is_told_in_words_that_say_who_and_why() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    rig.operate(Some("a"), Act::Drain).unwrap();
    rig.operate(Some("a"), REMOVE_NOW).unwrap();
    let told: Vec<String> = rig.decisions.iter().map(|decision| decision.what.to_string()).collect();
    for expected in [
        "instance a was drained by ann: it gets no more jobs (1 run), and stays until it is resumed or removed",
        "instance a was removed by ann: it is removed, and 1 jobs are given up",
        "instance a with 1 jobs: instance removed at once by ann",
        "instance a is removed: removed by ann",
    ] {
        assert!(told.iter().any(|line| line == expected), "{expected}\n{told:#?}");
    }
}
