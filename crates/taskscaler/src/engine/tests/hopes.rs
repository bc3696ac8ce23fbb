//! What those who wait are told.

use super::rig::{Mood, Rig, config, key};

#[test]
fn a_machine_that_goes_is_not_one_that_comes() {
    let mut rig = Rig::with_a_machine_that_stays(2);
    rig.seconds(120);
    rig.want("second");
    rig.seconds(10);
    let wait = rig.engine.why_waiting(rig.now, &key("second")).unwrap();
    let ready_in = wait.ready_in_ms.unwrap();
    assert!((15_000..25_000).contains(&ready_in), "a boot takes 30 s, and began 10 s ago: {ready_in}");
}

#[test]
fn a_pause_that_is_told_later_is_shorter() {
    let mut rig = Rig::new(config(100, 1));
    rig.moods[0] = Mood::Refusing("no");
    rig.want("job");
    let left = |rig: &Rig| {
        let held = rig.engine.status(rig.now).held.join(" ");
        let seconds =
            held.split("next attempt in ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        seconds.unwrap_or_else(|| panic!("{held}"))
    };
    rig.seconds(200);
    while left(&rig) < 12 {
        rig.seconds(1);
    }
    let at_first = left(&rig);
    rig.pass(std::time::Duration::from_secs(10));
    assert_eq!(left(&rig), at_first - 10);
}
