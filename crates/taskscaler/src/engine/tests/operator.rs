//! Operator actions.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::fixture::{Fixture, G, config, fixture_with_adopted, id, idle_target, key};
use crate::config::UnmanagedPolicy;
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::ledger::{Row, RowKey};
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::Policies;
use muster_fleeting::model::InstanceState;

const DELETE: OperatorAction = OperatorAction::Delete { force: false };
const FORCE_DELETE: OperatorAction = OperatorAction::Delete { force: true };

fn names(fixture: &Fixture) -> Vec<String> {
    fixture.clouds[0].keys().map(ToString::to_string).collect()
}

fn state(fixture: &Fixture, name: &str) -> (String, Option<String>) {
    let instances = fixture.engine.status(fixture.now).instances;
    let found = instances.into_iter().find(|instance| instance.id == name).unwrap();
    (found.state, found.reason)
}

fn decreases(fixture: &Fixture) -> usize {
    fixture.count(|action| matches!(action, Action::Decrease { .. }))
}

fn restart(mut fixture: Fixture, rows: &mut BTreeMap<RowKey, Row>) -> Fixture {
    write(&mut fixture, rows);
    let rows = rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    let (mut engine, unknown) = Engine::restore(fixture.engine.config().clone(), rows, fixture.now);
    assert!(unknown.is_empty());
    engine.handle(fixture.now, Event::ClaimsComplete);
    Fixture::from_engine(engine, fixture.clouds.remove(0))
}

fn write(fixture: &mut Fixture, rows: &mut BTreeMap<RowKey, Row>) {
    for change in fixture.engine.changes() {
        match change.row {
            Some(row) => rows.insert(change.key, row),
            None => rows.remove(&change.key),
        };
    }
}

#[test]
fn cordoned_instance_gets_no_jobs_and_is_kept() {
    let mut config = config(3, 2);
    config.policies = Policies::always(idle_target(0, 60));
    let mut fixture = fixture_with_adopted(config, &["a"]);
    fixture.acquire("1");
    assert_eq!(
        fixture.apply_operator_action(Some("a"), OperatorAction::Cordon),
        Ok(OperatorOutcome::Cordoned { jobs: 1 })
    );
    assert_eq!(
        fixture.apply_operator_action(Some("a"), OperatorAction::Cordon),
        Ok(OperatorOutcome::Cordoned { jobs: 1 }),
        "a repeated operation must change nothing"
    );
    fixture.acquire("2");
    fixture.seconds(40);
    assert_eq!(
        (fixture.slot_of("1").as_str(), fixture.slot_of("2").as_str()),
        ("a/0", "i1/0"),
        "the job of the cordoned instance must continue"
    );
    fixture.release("1");
    fixture.release("2");
    fixture.seconds(3600);
    assert_eq!(names(&fixture), ["a"], "a cordoned instance counts as neither idle nor surplus");
    assert_eq!(state(&fixture, "a"), ("cordoned".to_owned(), Some("ann".to_owned())));
    assert_eq!(fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon), Ok(OperatorOutcome::Uncordoned));
    fixture.seconds(3);
    fixture.acquire("3");
    assert_eq!(fixture.slot_of("3"), "a/0");
    assert_eq!(fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon), Err(OperatorError::NotCordoned));
}

#[test]
fn cordon_survives_restart_and_shutdown() {
    let mut rows = BTreeMap::new();
    let mut config = config(3, 1);
    config.delete_on_shutdown = true;
    let mut fixture = fixture_with_adopted(config, &["a", "b"]);
    fixture.apply_operator_action(Some("a"), OperatorAction::Cordon).unwrap();
    fixture.handle(Event::Stop);
    assert_eq!(names(&fixture), ["a"], "delete_instances_on_shutdown does not delete cordoned instances");
    let mut fixture = restart(fixture, &mut rows);
    fixture.seconds(600);
    assert_eq!(state(&fixture, "a"), ("cordoned".to_owned(), Some("ann".to_owned())));
    fixture.acquire("1");
    fixture.seconds(40);
    assert_ne!(fixture.slot_of("1"), "a/0");
    fixture.release("1");
    fixture.handle(Event::DeleteAllOnStop);
    fixture.handle(Event::Stop);
    assert_eq!(names(&fixture), [""; 0]);
}

#[test]
fn scaler_of_removed_runner_leaves_new_instances_alone() {
    for policy in [UnmanagedPolicy::Adopt, UnmanagedPolicy::Delete] {
        let mut config = config(3, 1);
        config.unmanaged = policy;
        let mut fixture = Fixture::new(config);
        fixture.handle(Event::DeleteAllOnStop);
        fixture.clouds[0].insert(id("of-another-scaler"), InstanceState::Running);
        fixture.seconds(60);
        fixture.handle(Event::Stop);
        fixture.seconds(60);
        assert_eq!(fixture.clouds[0].keys().collect::<Vec<_>>(), [&id("of-another-scaler")]);
    }
}

#[test]
fn cordon_postpones_removal_until_uncordoned() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    fixture.handle(Event::Retire { group: G, id: id("a"), reason: "disk warning".to_owned() });
    fixture.apply_operator_action(Some("a"), OperatorAction::Cordon).unwrap();
    fixture.handle(Event::Retire { group: G, id: id("a"), reason: "disk failure".to_owned() });
    fixture.release("1");
    fixture.seconds(600);
    assert_eq!(decreases(&fixture), 0);
    let reason = "retired: disk failure".to_owned();
    assert_eq!(
        fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon),
        Ok(OperatorOutcome::UncordonedForRemoval { reason })
    );
    assert_eq!(names(&fixture), [""; 0]);
}

#[test]
fn drain_waits_for_jobs_and_forced_delete_does_not() {
    let mut fixture = fixture_with_adopted(config(3, 2), &["a", "b"]);
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.acquire("3");
    assert_eq!(
        fixture.apply_operator_action(Some("a"), OperatorAction::Drain),
        Ok(OperatorOutcome::Draining { jobs: 2 })
    );
    assert_eq!(state(&fixture, "a"), ("draining".to_owned(), Some("deleted by ann".to_owned())));
    fixture.release("1");
    assert!(
        fixture.lost.is_empty() && names(&fixture).contains(&"a".to_owned()),
        "the instance is kept while one of its jobs still runs"
    );
    fixture.release("2");
    assert_eq!(names(&fixture), ["b"]);
    assert_eq!(fixture.apply_operator_action(Some("b"), DELETE), Err(OperatorError::HasJobs { jobs: 1 }));
    assert_eq!(fixture.apply_operator_action(Some("b"), FORCE_DELETE), Ok(OperatorOutcome::Deleting { jobs: 1 }));
    assert_eq!((fixture.lost.as_slice(), names(&fixture).len()), ([key("3")].as_slice(), 0));
    fixture.seconds(2);
    assert_eq!(fixture.apply_operator_action(Some("b"), OperatorAction::Drain), Err(OperatorError::NoInstance));
}

#[test]
fn uncordon_reverts_drain_that_waits_for_jobs() {
    let mut fixture = fixture_with_adopted(config(3, 2), &["a"]);
    fixture.acquire("1");
    fixture.apply_operator_action(Some("a"), OperatorAction::Drain).unwrap();
    assert_eq!(fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon), Ok(OperatorOutcome::Uncordoned));
    fixture.seconds(3);
    fixture.release("1");
    fixture.acquire("2");
    assert_eq!((fixture.slot_of("2").as_str(), decreases(&fixture)), ("a/0", 0));
    // A drain for another reason cannot be reverted.
    fixture.handle(Event::Retire { group: G, id: id("a"), reason: "disk warning".to_owned() });
    let reason = "retired: disk warning".to_owned();
    assert_eq!(
        fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon),
        Err(OperatorError::AlreadyDeleting { reason })
    );
}

#[test]
fn operators_drain_does_not_make_a_retirement_revertible() {
    for is_cordoned in [false, true] {
        let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
        fixture.acquire("1");
        if is_cordoned {
            fixture.apply_operator_action(Some("a"), OperatorAction::Cordon).unwrap();
        }
        fixture.handle(Event::Retire { group: G, id: id("a"), reason: "spot interruption".to_owned() });
        assert_eq!(
            fixture.apply_operator_action(Some("a"), OperatorAction::Drain),
            Ok(OperatorOutcome::Draining { jobs: 1 })
        );
        let reason = "retired: spot interruption".to_owned();
        assert_eq!(state(&fixture, "a"), ("draining".to_owned(), Some(reason.clone())));
        assert_eq!(
            fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon),
            Err(OperatorError::AlreadyDeleting { reason: reason.clone() })
        );
        fixture.apply_operator_action(Some("a"), OperatorAction::Cordon).unwrap();
        fixture.release("1");
        assert_eq!(names(&fixture), ["a"]);
        assert_eq!(
            fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon),
            Ok(OperatorOutcome::UncordonedForRemoval { reason })
        );
        assert_eq!(names(&fixture), [""; 0]);
    }
}

#[test]
fn unmanaged_instance_can_only_be_deleted() {
    let mut fixture = Fixture::with_instances(config(3, 1), [(id("x"), InstanceState::Running)].into());
    assert_eq!(fixture.apply_operator_action(Some("x"), OperatorAction::Cordon), Err(OperatorError::Unmanaged));
    assert_eq!(fixture.apply_operator_action(Some("x"), OperatorAction::Uncordon), Err(OperatorError::Unmanaged));
    assert_eq!(fixture.apply_operator_action(Some("x"), DELETE), Ok(OperatorOutcome::Deleting { jobs: 0 }));
    fixture.seconds(2);
    assert_eq!((names(&fixture).len(), fixture.instances()), (0, 0));
}

#[test]
fn drained_group_creates_no_instances_and_deletes_its_own() {
    let mut config = config(3, 1);
    config.policies = Policies::always(idle_target(1, 60));
    let mut fixture = fixture_with_adopted(config, &["a", "b"]);
    fixture.acquire("1");
    fixture.apply_operator_action(Some("b"), OperatorAction::Cordon).unwrap();
    fixture.seconds(40);
    fixture.create(G);
    assert_eq!(
        fixture.apply_operator_action(None, OperatorAction::Drain),
        Ok(OperatorOutcome::GroupDrained { instances: 2 })
    );
    let refusal = fixture.reserve("2").unwrap_err().to_string();
    assert!(refusal.contains("group main: it was drained by ann"), "{refusal}");
    fixture.release("1");
    fixture.seconds(120);
    // The instance that was created without a request is adopted and then deleted.
    assert_eq!(names(&fixture), ["b"], "the cordoned instance is kept");
    let mut rows = BTreeMap::new();
    let mut fixture = restart(fixture, &mut rows);
    fixture.seconds(120);
    assert_eq!(
        (names(&fixture).len(), fixture.increases().len()),
        (1, 0),
        "after the restart, the cordoned instance is kept and none is created"
    );
    assert_eq!(
        fixture.apply_operator_action(Some("b"), OperatorAction::Uncordon),
        Ok(OperatorOutcome::UncordonedForRemoval { reason: "its group was drained by ann".to_owned() })
    );
    assert_eq!(fixture.apply_operator_action(None, OperatorAction::Uncordon), Ok(OperatorOutcome::GroupUndrained));
    assert_eq!(fixture.apply_operator_action(None, OperatorAction::Uncordon), Err(OperatorError::NotCordoned));
    assert_eq!(fixture.apply_operator_action(None, DELETE), Err(OperatorError::NotAnInstance));
    assert_eq!(fixture.apply_operator_action(None, OperatorAction::Cordon), Err(OperatorError::NotAnInstance));
    fixture.seconds(40);
    assert_eq!(fixture.increases(), [1], "the idle instance of the policy");
}

#[test]
fn uncordoned_group_keeps_instances_with_jobs() {
    let mut fixture = fixture_with_adopted(config(3, 2), &["a"]);
    fixture.acquire("1");
    fixture.apply_operator_action(None, OperatorAction::Drain).unwrap();
    assert_eq!(
        fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon),
        Err(OperatorError::GroupDrained { by: "ann".to_owned() })
    );
    fixture.apply_operator_action(None, OperatorAction::Uncordon).unwrap();
    fixture.seconds(3);
    fixture.acquire("2");
    assert_eq!((fixture.slot_of("2").as_str(), decreases(&fixture)), ("a/1", 0));
}

#[test]
fn instance_that_appears_in_drained_group_is_deleted() {
    let mut config = config(3, 1);
    config.groups.push(crate::config::GroupConfig::new("spare", 3));
    let mut fixture = Fixture::new(config);
    fixture.behaviors[0] = super::fixture::CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.apply_operator_action(None, OperatorAction::Drain).unwrap();
    fixture.seconds(31);
    assert_eq!((fixture.slot_of("1").as_str(), fixture.clouds[1].len()), ("i1/0", 1), "the other group replaces it");
    fixture.create(G);
    fixture.seconds(5);
    assert_eq!(names(&fixture), [""; 0]);
}

#[test]
fn used_up_cordoned_instance_is_kept() {
    let mut config = config(3, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut fixture = fixture_with_adopted(config, &["a"]);
    fixture.acquire("1");
    fixture.apply_operator_action(Some("a"), OperatorAction::Cordon).unwrap();
    fixture.release("1");
    fixture.seconds(600);
    assert_eq!(names(&fixture), ["a"]);
    fixture.apply_operator_action(Some("a"), OperatorAction::Uncordon).unwrap();
    fixture.seconds(5);
    assert_eq!(names(&fixture), [""; 0], "the instance has had its only job");
}

#[test]
fn history_names_operator_of_each_action() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    fixture.apply_operator_action(Some("a"), OperatorAction::Cordon).unwrap();
    fixture.apply_operator_action(Some("a"), FORCE_DELETE).unwrap();
    let messages: Vec<String> = fixture.decisions.iter().map(|decision| decision.kind.to_string()).collect();
    for expected in [
        "instance a: cordon by ann: cordoned; its running job continues",
        "instance a: delete by ann: deleting; its running job is lost",
        "instance a lost with 1 job: instance deleted by ann",
        "deleting instance a: deleted by ann",
    ] {
        assert!(messages.iter().any(|message| message == expected), "{expected}\n{messages:#?}");
    }
}
