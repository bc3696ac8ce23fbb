//! What those who wait are told.

use super::fixture::{G, MONDAY, Mood, Rig, config, key};
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::time::{Now, Time};

#[test]
fn a_machine_that_goes_is_not_one_that_comes() {
    let mut rig = Rig::with_a_machine_that_stays(2);
    rig.seconds(120);
    rig.want("second");
    rig.seconds(10);
    let wait = rig.engine.explain_waiting(rig.now, &key("second")).unwrap();
    let ready_in = wait.next_ready_in_ms.unwrap();
    assert!((15_000..25_000).contains(&ready_in), "a boot takes 30 s, and began 10 s ago: {ready_in}");
}

#[test]
fn a_pause_that_is_told_later_is_shorter() {
    let mut rig = Rig::new(config(100, 1));
    rig.moods[0] = Mood::Refusing("no");
    rig.want("job");
    let left = |rig: &Rig| {
        let held = rig.engine.status(rig.now).scale_up_blocked.join(" ");
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

#[test]
fn a_provider_that_does_not_list_its_instances_is_quoted() {
    let now = Now::steady(Time::ZERO, MONDAY);
    let mut engine = Engine::new(config(3, 1), now);
    engine.handle(now, Event::PluginUp { group: G, max_size: 0 });
    let refused = |engine: &mut Engine, name| engine.reserve(now, key(name)).unwrap_err().to_string();
    assert!(refused(&mut engine, "1").contains("its instances have not been listed yet"));
    let call = engine.actions().into_iter().find_map(|action| match action {
        Action::List { call, .. } => Some(call),
        _ => None,
    });
    let result = Err("cloud says no: 403".to_owned());
    engine.handle(now, Event::Listed { group: G, call: call.unwrap(), result });
    let why = refused(&mut engine, "2");
    assert!(why.contains("failed to list its instances: cloud says no: 403"), "{why}");
    let status = engine.status(now);
    let told = "failed to list its instances: cloud says no: 403";
    assert_eq!(status.groups[0].unlisted().as_deref(), Some(told));
}
