//! Prices, stock and instances that their plugin disowns.

use super::fixture::{G, Rig, adopted, config, id, key};
use crate::config::{GroupConfig, GroupSelection};
use crate::decision::{DecisionKind, ScaleUpBlock};
use crate::event::Event;
use crate::types::{GroupId, RemovalReason};
use muster_fleeting::model::InstanceState;

const OTHER: GroupId = GroupId(1);

/// Two groups of one instance each.
fn two(order: GroupSelection) -> Rig {
    let mut config = config(1, 1);
    config.groups.push(GroupConfig::new("other", 1));
    config.group_selection = order;
    Rig::new(config)
}

fn there(rig: &Rig) -> [usize; 2] {
    [rig.clouds[0].len(), rig.clouds[1].len()]
}

#[test]
fn a_disowned_instance_gets_no_more_jobs_and_keeps_its_own() {
    let mut rig = adopted(config(3, 2), &["a"]);
    rig.want("1");
    rig.tell(Event::Retire { group: G, id: id("a"), reason: "spot reclaim".to_owned() });
    rig.want("2");
    rig.seconds(40);
    assert_eq!(rig.place("1"), "a/0");
    assert_ne!(rig.place("2"), "a/1", "a new one is made for it");
    assert!(rig.lost.is_empty());
    let why = RemovalReason::Retired { reason: "spot reclaim".to_owned() };
    assert!(rig.told(|what| matches!(what, DecisionKind::Drain { reason: told, .. } if *told == why)));
    rig.release("1");
    assert!(!rig.clouds[0].contains_key(&id("a")));
}

#[test]
fn a_disowned_instance_without_a_job_goes_at_once_and_a_foreign_one_stays() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.tell(Event::Retire { group: G, id: id("a"), reason: String::new() });
    rig.tell(Event::Retire { group: G, id: id("nobody's"), reason: String::new() });
    assert!(rig.clouds[0].is_empty());
}

#[test]
fn an_instance_that_is_disowned_before_it_is_listed_gets_no_job() {
    let mut rig = adopted(config(3, 1), &[]);
    rig.tell(Event::Retire { group: G, id: id("a"), reason: "at once".to_owned() });
    rig.clouds[0].insert(id("a"), InstanceState::Running);
    rig.want("1");
    rig.seconds(120);
    assert_ne!(rig.place("1"), "a/0");
}

#[test]
fn the_group_that_is_cheapest_now_is_asked_first() {
    let mut rig = two(GroupSelection::Price);
    rig.tell(Event::PriceChanged { group: G, per_hour: 0.30 });
    rig.tell(Event::PriceChanged { group: OTHER, per_hour: 0.10 });
    rig.tell(Event::PriceChanged { group: OTHER, per_hour: f64::NAN });
    rig.want("1");
    assert_eq!(there(&rig), [0, 1]);
    rig.want("2");
    assert_eq!(there(&rig), [1, 1], "the dearer one is the fallback");
}

#[test]
fn a_price_changes_no_order_that_was_listed() {
    let mut rig = two(GroupSelection::Order);
    rig.tell(Event::PriceChanged { group: OTHER, per_hour: 0.10 });
    rig.tell(Event::PriceChanged { group: G, per_hour: 0.30 });
    rig.want("1");
    assert_eq!(there(&rig), [1, 0]);
}

#[test]
fn a_group_out_of_stock_is_passed_over_until_it_has_some_again() {
    let mut rig = two(GroupSelection::Order);
    rig.tell(Event::StockChanged { group: G, available: false });
    rig.want("1");
    rig.want("2");
    assert_eq!(there(&rig), [0, 1]);
    let held = |what: &DecisionKind| matches!(what, DecisionKind::ScaleUpBlocked { reasons, .. } if reasons.contains(&(G, ScaleUpBlock::OutOfStock)));
    assert!(rig.told(held), "why the second job waits is told");
    assert!(rig.engine.reserve(rig.now, key("3")).is_err(), "no job is requested that no instance is in sight for");
    rig.tell(Event::StockChanged { group: G, available: true });
    assert_eq!(there(&rig), [1, 1]);
}
