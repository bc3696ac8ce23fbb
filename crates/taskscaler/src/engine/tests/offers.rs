//! Prices, stock and instances that their plugin disowns.

use super::rig::{G, Rig, adopted, config, id, key};
use crate::config::{GroupConfig, GroupOrder};
use crate::decision::{Hold, What};
use crate::event::Event;
use crate::words::{GroupId, Removal};
use muster_fleeting::model::InstanceState;

const OTHER: GroupId = GroupId(1);

/// Two groups of one instance each.
fn two(order: GroupOrder) -> Rig {
    let mut config = config(1, 1);
    config.groups.push(GroupConfig::new("other", 1));
    config.order = order;
    Rig::new(config)
}

fn there(rig: &Rig) -> [usize; 2] {
    [rig.clouds[0].len(), rig.clouds[1].len()]
}

#[test]
fn a_disowned_instance_gets_no_more_jobs_and_keeps_its_own() {
    let mut rig = adopted(config(3, 2), &["a"]);
    rig.want("1");
    rig.tell(Event::Disowned { group: G, id: id("a"), why: "spot reclaim".to_owned() });
    rig.want("2");
    rig.seconds(40);
    assert_eq!(rig.place("1"), "a/0");
    assert_ne!(rig.place("2"), "a/1", "a new one is made for it");
    assert!(rig.lost.is_empty());
    let why = Removal::Disowned { why: "spot reclaim".to_owned() };
    assert!(rig.told(|what| matches!(what, What::Drain { why: told, .. } if *told == why)));
    rig.release("1");
    assert!(!rig.clouds[0].contains_key(&id("a")));
}

#[test]
fn a_disowned_instance_without_a_job_goes_at_once_and_a_foreign_one_stays() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.tell(Event::Disowned { group: G, id: id("a"), why: String::new() });
    rig.tell(Event::Disowned { group: G, id: id("nobody's"), why: String::new() });
    assert!(rig.clouds[0].is_empty());
}

#[test]
fn an_instance_that_is_disowned_before_it_is_listed_gets_no_job() {
    let mut rig = adopted(config(3, 1), &[]);
    rig.tell(Event::Disowned { group: G, id: id("a"), why: "at once".to_owned() });
    rig.clouds[0].insert(id("a"), InstanceState::Running);
    rig.want("1");
    rig.seconds(120);
    assert_ne!(rig.place("1"), "a/0");
}

#[test]
fn the_group_that_is_cheapest_now_is_asked_first() {
    let mut rig = two(GroupOrder::Price);
    rig.tell(Event::Priced { group: G, per_hour: 0.30 });
    rig.tell(Event::Priced { group: OTHER, per_hour: 0.10 });
    rig.tell(Event::Priced { group: OTHER, per_hour: f64::NAN });
    rig.want("1");
    assert_eq!(there(&rig), [0, 1]);
    rig.want("2");
    assert_eq!(there(&rig), [1, 1], "the dearer one is the fallback");
}

#[test]
fn a_price_changes_no_order_that_was_listed() {
    let mut rig = two(GroupOrder::Listed);
    rig.tell(Event::Priced { group: OTHER, per_hour: 0.10 });
    rig.tell(Event::Priced { group: G, per_hour: 0.30 });
    rig.want("1");
    assert_eq!(there(&rig), [1, 0]);
}

#[test]
fn a_group_out_of_stock_is_passed_over_until_it_has_some_again() {
    let mut rig = two(GroupOrder::Listed);
    rig.tell(Event::Stock { group: G, available: false });
    rig.want("1");
    rig.want("2");
    assert_eq!(there(&rig), [0, 1]);
    let held = |what: &What| matches!(what, What::Hold { reasons, .. } if reasons.contains(&(G, Hold::OutOfStock)));
    assert!(rig.told(held), "why the second job waits is told");
    assert!(rig.engine.reserve(rig.now, key("3")).is_err(), "no job is requested that no instance is in sight for");
    rig.tell(Event::Stock { group: G, available: true });
    assert_eq!(there(&rig), [1, 1]);
}
