//! The limit on the cost of all instances.

use super::fixture::{Fixture, G, config, idle_target};
use crate::event::Event;
use crate::policy::Policies;

#[test]
fn unknown_price_blocks_scale_up_under_cost_limit() {
    let mut config = config(10, 1);
    config.max_cost_per_hour = Some(2.0);
    config.policies = Policies::always(idle_target(3, 600));
    let mut fixture = Fixture::new(config);
    fixture.seconds(60);
    let status = fixture.engine.status(fixture.now);
    assert!(
        status.scale_up_blocked[0].contains("its price is unknown; set price_per_hour"),
        "{:?}",
        status.scale_up_blocked
    );
    assert_eq!(fixture.created, 0, "nothing is created before the price is known");
    fixture.handle(Event::PriceChanged { group: G, per_hour: 1.0 });
    fixture.seconds(60);
    assert_eq!(fixture.created, 2, "the limit allows two instances");
}

#[test]
fn reported_price_of_zero_counts_as_known() {
    let mut config = config(10, 1);
    config.max_cost_per_hour = Some(2.0);
    config.policies = Policies::always(idle_target(3, 600));
    let mut fixture = Fixture::new(config);
    fixture.handle(Event::PriceChanged { group: G, per_hour: 0.0 });
    assert_eq!(fixture.created, 3);
}

#[test]
fn rising_price_deletes_idle_instances_only() {
    let mut config = config(10, 1);
    config.max_cost_per_hour = Some(4.0);
    config.groups[0].price_per_hour = 1.0;
    config.policies = Policies::always(idle_target(3, 600));
    let mut fixture = Fixture::new(config);
    fixture.acquire("job");
    fixture.seconds(60);
    assert_eq!((fixture.created, fixture.instances()), (4, 4));
    fixture.handle(Event::PriceChanged { group: G, per_hour: 2.0 });
    fixture.seconds(5);
    assert_eq!(
        (fixture.instances(), fixture.lost.len(), fixture.created),
        (2, 0, 4),
        "the limit allows two instances at the new price"
    );
    fixture.handle(Event::PriceChanged { group: G, per_hour: 5.0 });
    fixture.seconds(5);
    assert_eq!((fixture.instances(), fixture.lost.len(), fixture.created), (1, 0, 4), "instances with jobs are kept");
}
