//! Prices, stock, and instances that their plugin retires.

use super::fixture::{Fixture, G, config, fixture_with_adopted, id, key};
use crate::config::{GroupConfig, GroupSelection};
use crate::decision::{DecisionKind, ScaleUpBlock};
use crate::event::Event;
use crate::types::{GroupId, RemovalReason};
use muster_fleeting::model::InstanceState;

const OTHER: GroupId = GroupId(1);

/// Each group has at most one instance.
fn two_groups(selection: GroupSelection) -> Fixture {
    let mut config = config(1, 1);
    config.groups.push(GroupConfig::new("other", 1));
    config.group_selection = selection;
    Fixture::new(config)
}

fn instances(fixture: &Fixture) -> [usize; 2] {
    [fixture.clouds[0].len(), fixture.clouds[1].len()]
}

#[test]
fn job_of_retired_instance_continues_and_no_job_is_added() {
    let mut fixture = fixture_with_adopted(config(3, 2), &["a"]);
    fixture.acquire("1");
    fixture.handle(Event::Retire { group: G, id: id("a"), reason: "spot reclaim".to_owned() });
    fixture.acquire("2");
    fixture.seconds(40);
    assert_eq!(fixture.slot_of("1"), "a/0");
    assert_ne!(fixture.slot_of("2"), "a/1", "job 2 gets a new instance");
    assert!(fixture.lost.is_empty());
    let expected = RemovalReason::Retired { reason: "spot reclaim".to_owned() };
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Drain { reason, .. } if *reason == expected)));
    fixture.release("1");
    assert!(!fixture.clouds[0].contains_key(&id("a")));
}

#[test]
fn retired_instance_without_job_is_deleted_immediately() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.handle(Event::Retire { group: G, id: id("a"), reason: String::new() });
    fixture.handle(Event::Retire { group: G, id: id("unknown"), reason: String::new() });
    assert!(fixture.clouds[0].is_empty());
}

#[test]
fn instance_retired_before_first_list_gets_no_job() {
    let mut fixture = fixture_with_adopted(config(3, 1), &[]);
    fixture.handle(Event::Retire { group: G, id: id("a"), reason: "interrupted".to_owned() });
    fixture.clouds[0].insert(id("a"), InstanceState::Running);
    fixture.acquire("1");
    fixture.seconds(120);
    assert_ne!(fixture.slot_of("1"), "a/0");
}

#[test]
fn cheapest_group_is_used_first() {
    let mut fixture = two_groups(GroupSelection::Price);
    fixture.handle(Event::PriceChanged { group: G, per_hour: 0.30 });
    fixture.handle(Event::PriceChanged { group: OTHER, per_hour: 0.10 });
    fixture.handle(Event::PriceChanged { group: OTHER, per_hour: f64::NAN });
    fixture.acquire("1");
    assert_eq!(instances(&fixture), [0, 1]);
    fixture.acquire("2");
    assert_eq!(instances(&fixture), [1, 1], "the more expensive group is the fallback");
}

#[test]
fn price_does_not_change_configured_order() {
    let mut fixture = two_groups(GroupSelection::Order);
    fixture.handle(Event::PriceChanged { group: OTHER, per_hour: 0.10 });
    fixture.handle(Event::PriceChanged { group: G, per_hour: 0.30 });
    fixture.acquire("1");
    assert_eq!(instances(&fixture), [1, 0]);
}

#[test]
fn group_out_of_stock_is_skipped_until_it_has_stock() {
    let mut fixture = two_groups(GroupSelection::Order);
    fixture.handle(Event::StockChanged { group: G, available: false });
    fixture.acquire("1");
    fixture.acquire("2");
    assert_eq!(instances(&fixture), [0, 1]);
    let is_out_of_stock = |kind: &DecisionKind| matches!(kind, DecisionKind::ScaleUpBlocked { reasons, .. } if reasons.contains(&(G, ScaleUpBlock::OutOfStock)));
    assert!(fixture.decided(is_out_of_stock));
    assert!(fixture.engine.reserve(fixture.now, key("3")).is_err(), "no job is requested without a possible instance");
    fixture.handle(Event::StockChanged { group: G, available: true });
    assert_eq!(instances(&fixture), [1, 1]);
}
