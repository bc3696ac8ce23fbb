//! The bound on what instances may cost.

use super::fixture::{G, Rig, config, wanted};
use crate::event::Event;
use crate::policy::Policies;

#[test]
fn nothing_is_bought_whose_price_is_not_known() {
    let mut config = config(10, 1);
    config.max_cost_per_hour = Some(2.0);
    config.policies = Policies::always(wanted(3, 600));
    let mut rig = Rig::new(config);
    rig.seconds(60);
    let status = rig.engine.status(rig.now);
    assert!(
        status.scale_up_blocked[0].contains("its price is unknown; set price_per_hour"),
        "{:?}",
        status.scale_up_blocked
    );
    assert_eq!(rig.made, 0, "the first list comes before the prices");
    rig.tell(Event::PriceChanged { group: G, per_hour: 1.0 });
    rig.seconds(60);
    assert_eq!(rig.made, 2);
}

#[test]
fn a_price_of_nothing_that_was_told_is_a_price() {
    let mut config = config(10, 1);
    config.max_cost_per_hour = Some(2.0);
    config.policies = Policies::always(wanted(3, 600));
    let mut rig = Rig::new(config);
    rig.tell(Event::PriceChanged { group: G, per_hour: 0.0 });
    assert_eq!(rig.made, 3);
}

#[test]
fn when_prices_rise_idle_instances_go_and_jobs_stay() {
    let mut config = config(10, 1);
    config.max_cost_per_hour = Some(4.0);
    config.groups[0].price_per_hour = 1.0;
    config.policies = Policies::always(wanted(3, 600));
    let mut rig = Rig::new(config);
    rig.want("job");
    rig.seconds(60);
    assert_eq!((rig.made, rig.instances()), (4, 4));
    rig.tell(Event::PriceChanged { group: G, per_hour: 2.0 });
    rig.seconds(5);
    assert_eq!((rig.instances(), rig.lost.len(), rig.made), (2, 0, 4));
    rig.tell(Event::PriceChanged { group: G, per_hour: 5.0 });
    rig.seconds(5);
    assert_eq!((rig.instances(), rig.lost.len(), rig.made), (1, 0, 4), "what runs is not taken from its job");
}
