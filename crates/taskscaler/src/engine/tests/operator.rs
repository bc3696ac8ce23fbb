//! What operators do by hand.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::fixture::{G, Rig, adopted, config, id, key, wanted};
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::ledger::{Row, RowKey};
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::Policies;
use muster_fleeting::model::InstanceState;

const DELETE: OperatorAction = OperatorAction::Delete { force: false };
const FORCE_DELETE: OperatorAction = OperatorAction::Delete { force: true };

fn names(rig: &Rig) -> Vec<String> {
    rig.clouds[0].keys().map(ToString::to_string).collect()
}

fn state(rig: &Rig, name: &str) -> (String, Option<String>) {
    let instances = rig.engine.status(rig.now).instances;
    let found = instances.into_iter().find(|instance| instance.id == name).unwrap();
    (found.state, found.reason)
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
    engine.handle(rig.now, Event::ClaimsComplete);
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
    assert_eq!(rig.operate(Some("a"), OperatorAction::Cordon), Ok(OperatorOutcome::Cordoned { jobs: 1 }));
    assert_eq!(
        rig.operate(Some("a"), OperatorAction::Cordon),
        Ok(OperatorOutcome::Cordoned { jobs: 1 }),
        "said twice, it is the same"
    );
    rig.want("2");
    rig.seconds(40);
    assert_eq!((rig.place("1").as_str(), rig.place("2").as_str()), ("a/0", "i1/0"), "its own job runs on");
    rig.release("1");
    rig.release("2");
    rig.seconds(3600);
    assert_eq!(names(&rig), ["a"], "it is neither idle nor too many");
    assert_eq!(state(&rig, "a"), ("cordoned".to_owned(), Some("ann".to_owned())));
    assert_eq!(rig.operate(Some("a"), OperatorAction::Uncordon), Ok(OperatorOutcome::Uncordoned));
    rig.seconds(3);
    rig.want("3");
    assert_eq!(rig.place("3"), "a/0");
    assert_eq!(rig.operate(Some("a"), OperatorAction::Uncordon), Err(OperatorError::NotCordoned));
}

#[test]
fn a_drained_instance_stays_drained_over_a_restart() {
    let mut rows = BTreeMap::new();
    let mut config = config(3, 1);
    config.delete_on_shutdown = true;
    let mut rig = adopted(config, &["a", "b"]);
    rig.operate(Some("a"), OperatorAction::Cordon).unwrap();
    rig.tell(Event::Stop);
    assert_eq!(names(&rig), ["a"], "delete_instances_on_shutdown does not take what somebody keeps");
    let mut rig = restarted(rig, &mut rows);
    rig.seconds(600);
    assert_eq!(state(&rig, "a"), ("cordoned".to_owned(), Some("ann".to_owned())));
    rig.want("1");
    rig.seconds(40);
    assert_ne!(rig.place("1"), "a/0");
    // The runner leaves the configuration: nobody will have these books.
    rig.release("1");
    rig.tell(Event::DeleteAllOnStop);
    rig.tell(Event::Stop);
    assert_eq!(names(&rig), [""; 0]);
}

#[test]
fn what_is_to_go_is_kept_while_it_is_drained_and_goes_when_it_is_resumed() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    rig.tell(Event::Retire { group: G, id: id("a"), reason: "spoilt".to_owned() });
    rig.operate(Some("a"), OperatorAction::Cordon).unwrap();
    rig.tell(Event::Retire { group: G, id: id("a"), reason: "spoilt for good".to_owned() });
    rig.release("1");
    rig.seconds(600);
    assert_eq!(decreases(&rig), 0);
    let reason = "retired: spoilt for good".to_owned();
    assert_eq!(rig.operate(Some("a"), OperatorAction::Uncordon), Ok(OperatorOutcome::UncordonedForRemoval { reason }));
    assert_eq!(names(&rig), [""; 0]);
}

#[test]
fn a_removal_waits_for_jobs_unless_it_is_to_be_now() {
    let mut rig = adopted(config(3, 2), &["a", "b"]);
    rig.want("1");
    rig.want("2");
    rig.want("3");
    assert_eq!(rig.operate(Some("a"), OperatorAction::Drain), Ok(OperatorOutcome::Draining { jobs: 2 }));
    assert_eq!(state(&rig, "a"), ("draining".to_owned(), Some("deleted by ann".to_owned())));
    rig.release("1");
    assert!(rig.lost.is_empty() && names(&rig).contains(&"a".to_owned()), "a job runs on");
    rig.release("2");
    assert_eq!(names(&rig), ["b"]);
    assert_eq!(rig.operate(Some("b"), DELETE), Err(OperatorError::HasJobs { jobs: 1 }));
    assert_eq!(rig.operate(Some("b"), FORCE_DELETE), Ok(OperatorOutcome::Deleting { jobs: 1 }));
    assert_eq!((rig.lost.as_slice(), names(&rig).len()), ([key("3")].as_slice(), 0));
    rig.seconds(2);
    assert_eq!(rig.operate(Some("b"), OperatorAction::Drain), Err(OperatorError::NoInstance));
}

#[test]
fn a_removal_that_still_waits_can_be_taken_back() {
    let mut rig = adopted(config(3, 2), &["a"]);
    rig.want("1");
    rig.operate(Some("a"), OperatorAction::Drain).unwrap();
    assert_eq!(rig.operate(Some("a"), OperatorAction::Uncordon), Ok(OperatorOutcome::Uncordoned));
    rig.seconds(3);
    rig.release("1");
    rig.want("2");
    assert_eq!((rig.place("2").as_str(), decreases(&rig)), ("a/0", 0));
    // Not so one that goes for another reason.
    rig.tell(Event::Retire { group: G, id: id("a"), reason: "spoilt".to_owned() });
    let reason = "retired: spoilt".to_owned();
    assert_eq!(rig.operate(Some("a"), OperatorAction::Uncordon), Err(OperatorError::AlreadyDeleting { reason }));
}

#[test]
fn a_foreign_instance_can_be_removed_and_nothing_else() {
    let mut rig = Rig::with(config(3, 1), [(id("x"), InstanceState::Running)].into());
    assert_eq!(rig.operate(Some("x"), OperatorAction::Cordon), Err(OperatorError::Unmanaged));
    assert_eq!(rig.operate(Some("x"), OperatorAction::Uncordon), Err(OperatorError::Unmanaged));
    assert_eq!(rig.operate(Some("x"), DELETE), Ok(OperatorOutcome::Deleting { jobs: 0 }));
    rig.seconds(2);
    assert_eq!((names(&rig).len(), rig.instances()), (0, 0));
}

#[test]
fn a_drained_group_makes_no_more_and_empties_after_its_jobs() {
    let mut config = config(3, 1);
    config.policies = Policies::always(wanted(1, 60));
    let mut rig = adopted(config, &["a", "b"]);
    rig.want("1");
    rig.operate(Some("b"), OperatorAction::Cordon).unwrap();
    rig.seconds(40);
    rig.make(G);
    assert_eq!(rig.operate(None, OperatorAction::Drain), Ok(OperatorOutcome::GroupDrained { instances: 2 }));
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
    assert_eq!(
        rig.operate(Some("b"), OperatorAction::Uncordon),
        Ok(OperatorOutcome::UncordonedForRemoval { reason: "its group was drained by ann".to_owned() })
    );
    assert_eq!(rig.operate(None, OperatorAction::Uncordon), Ok(OperatorOutcome::GroupUndrained));
    assert_eq!(rig.operate(None, OperatorAction::Uncordon), Err(OperatorError::NotCordoned));
    assert_eq!(rig.operate(None, DELETE), Err(OperatorError::NotAnInstance));
    assert_eq!(rig.operate(None, OperatorAction::Cordon), Err(OperatorError::NotAnInstance));
    rig.seconds(40);
    assert_eq!(rig.increases(), [1], "the idle one that the policy wants");
}

#[test]
fn instances_of_a_group_that_is_resumed_in_time_are_used_on() {
    let mut rig = adopted(config(3, 2), &["a"]);
    rig.want("1");
    rig.operate(None, OperatorAction::Drain).unwrap();
    assert_eq!(
        rig.operate(Some("a"), OperatorAction::Uncordon),
        Err(OperatorError::GroupDrained { by: "ann".to_owned() })
    );
    rig.operate(None, OperatorAction::Uncordon).unwrap();
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
    rig.moods[0] = super::fixture::Mood::Empty;
    rig.want("1");
    rig.operate(None, OperatorAction::Drain).unwrap();
    rig.seconds(31);
    assert_eq!((rig.place("1").as_str(), rig.clouds[1].len()), ("i1/0", 1), "the other group stands in for it");
    rig.make(G);
    rig.seconds(5);
    assert_eq!(names(&rig), [""; 0]);
}

#[test]
fn a_drained_instance_that_is_used_up_stays_to_be_looked_at() {
    let mut config = config(3, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut rig = adopted(config, &["a"]);
    rig.want("1");
    rig.operate(Some("a"), OperatorAction::Cordon).unwrap();
    rig.release("1");
    rig.seconds(600);
    assert_eq!(names(&rig), ["a"]);
    rig.operate(Some("a"), OperatorAction::Uncordon).unwrap();
    rig.seconds(5);
    assert_eq!(names(&rig), [""; 0], "it has had its job");
}

#[test]
fn an_act_is_told_in_words_that_say_who_and_why() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    rig.operate(Some("a"), OperatorAction::Cordon).unwrap();
    rig.operate(Some("a"), FORCE_DELETE).unwrap();
    let told: Vec<String> = rig.decisions.iter().map(|decision| decision.kind.to_string()).collect();
    for expected in [
        "instance a: cordon by ann: cordoned; 1 running jobs continue",
        "instance a: delete by ann: deleting; its 1 running jobs are lost",
        "instance a lost with 1 jobs: instance deleted by ann",
        "deleting instance a: deleted by ann",
    ] {
        assert!(told.iter().any(|line| line == expected), "{expected}\n{told:#?}");
    }
}
