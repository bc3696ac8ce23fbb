//! Estimated waiting times of jobs, and reasons why jobs wait and reservations are refused.

use super::fixture::{CloudBehavior, Fixture, G, MONDAY, config, key};
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::time::{Now, Time};

#[test]
fn eta_ignores_instances_that_are_being_deleted() {
    let mut fixture = Fixture::with_stuck_deletion(2);
    fixture.seconds(120);
    fixture.acquire("second");
    fixture.seconds(10);
    let wait = fixture.engine.explain_waiting(fixture.now, &key("second")).unwrap();
    let ready_in = wait.next_ready_in_ms.unwrap();
    assert!((15_000..25_000).contains(&ready_in), "a boot takes 30 s, and began 10 s ago: {ready_in}");
}

#[test]
fn status_reports_remaining_backoff() {
    let mut fixture = Fixture::new(config(100, 1));
    fixture.behaviors[0] = CloudBehavior::Reject("quota");
    fixture.acquire("job");
    let remaining_s = |fixture: &Fixture| {
        let blocked = fixture.engine.status(fixture.now).scale_up_blocked.join(" ");
        let seconds =
            blocked.split("next attempt in ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        seconds.unwrap_or_else(|| panic!("{blocked}"))
    };
    fixture.seconds(200);
    while remaining_s(&fixture) < 12 {
        fixture.seconds(1);
    }
    let before = remaining_s(&fixture);
    fixture.advance(std::time::Duration::from_secs(10));
    assert_eq!(remaining_s(&fixture), before - 10);
}

#[test]
fn refusal_quotes_provider_error_of_failed_list() {
    let now = Now::steady(Time::ZERO, MONDAY);
    let mut engine = Engine::new(config(3, 1), now);
    engine.handle(now, Event::PluginUp { group: G, max_size: 0 });
    let refusal = |engine: &mut Engine, name| engine.reserve(now, key(name)).unwrap_err().to_string();
    assert!(refusal(&mut engine, "1").contains("its instances have not been listed yet"));
    let call = engine.actions().into_iter().find_map(|action| match action {
        Action::List { call, .. } => Some(call),
        _ => None,
    });
    let result = Err("403 from the provider".to_owned());
    engine.handle(now, Event::Listed { group: G, call: call.unwrap(), result });
    let reason = refusal(&mut engine, "2");
    assert!(reason.contains("failed to list its instances: 403 from the provider"), "{reason}");
    let status = engine.status(now);
    let message = "failed to list its instances: 403 from the provider";
    assert_eq!(status.groups[0].list_failure_message().as_deref(), Some(message));
}
