use std::num::NonZeroU32;
use std::time::Duration;

use super::fixture::{CloudBehavior, Fixture, G, MONDAY, assert_differs_from_upstream, config, idle_target, key};
use crate::config::{GroupConfig, GroupSelection};
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::event::{Action, Event};
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::types::{GroupId, SlotRequest};

#[test]
fn each_queued_job_requests_an_instance_immediately() {
    let mut fixture = Fixture::new(config(20, 1));
    for job in 1..=8 {
        fixture.acquire(&job.to_string());
    }
    assert_eq!(fixture.increases(), [1; 8], "no job waits for a periodic check, and no call waits for another");
    fixture.seconds(31);
    assert_eq!(fixture.assignments.len(), 8);
    assert_eq!(fixture.created, 8);
}

#[test]
fn increase_calls_are_rate_limited_and_batched() {
    let mut fixture = Fixture::new(config(500, 1));
    for job in 1..=300 {
        fixture.acquire(&job.to_string());
    }
    fixture.seconds(60);
    assert_eq!(fixture.created, 300);
    assert!(fixture.increases().len() < 14, "ten calls at once, then the rest in few: {:?}", fixture.increases());
}

#[test]
fn slot_is_assigned_within_a_fiftieth_of_boot_time_after_boot() {
    let mut fixture = Fixture::new(config(20, 1));
    fixture.acquire("first");
    fixture.seconds(60);
    fixture.release("first");
    fixture.acquire("first-again");
    for round in 0..10 {
        let job = round.to_string();
        fixture.acquire(&job);
        // Boot time of 30 s, a fiftieth of it, and the minimum list interval of 50 ms.
        fixture.advance(Duration::from_millis(30_650));
        assert_ne!(fixture.slot_of(&job), "none", "round {round}");
    }
    let lists = fixture.count(|action| matches!(action, Action::List { .. }));
    assert!(lists < 300, "{lists} lists");
}

#[test]
fn completed_deletion_is_detected_despite_long_boot_time() {
    let mut config = config(1, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut fixture = Fixture::new(config);
    fixture.acquire("first");
    fixture.seconds(60);
    fixture.acquire("second");
    fixture.deletions_work = false;
    fixture.release("first");
    fixture.advance(Duration::from_millis(200));
    assert_eq!(fixture.created, 1, "the first instance still exists");
    fixture.clouds[0].clear();
    fixture.advance(Duration::from_millis(100));
    assert_eq!(fixture.created, 2, "an instance is requested for the waiting job");
}

#[test]
fn idle_fleet_is_listed_once_a_minute() {
    let mut config = config(20, 1);
    config.policies = Policies::always(idle_target(2, 3600));
    let mut fixture = Fixture::new(config);
    fixture.seconds(40);
    let before = fixture.count(|action| matches!(action, Action::List { .. }));
    fixture.seconds(600);
    let lists = fixture.count(|action| matches!(action, Action::List { .. })) - before;
    assert!((9..=11).contains(&lists), "{lists} lists in ten minutes");
}

#[test]
fn hung_list_does_not_delay_later_lists() {
    let mut fixture = Fixture::new(config(2, 1));
    fixture.now = Now::steady(Time::from_millis(60_000), MONDAY);
    fixture.engine.handle(fixture.now, Event::Tick);
    let hung = fixture.engine.actions();
    let [Action::List { call, .. }] = hung[..] else { panic!("{hung:?}") };
    fixture.now = Now::steady(Time::from_millis(360_000), MONDAY);
    let before = fixture.count(|action| matches!(action, Action::List { .. }));
    fixture.handle(Event::Listed { group: G, call, result: Ok(Vec::new()) });
    fixture.seconds(300);
    let lists = fixture.count(|action| matches!(action, Action::List { .. })) - before;
    assert!((4..=7).contains(&lists), "{lists} lists in five minutes, after a list that took five minutes");
}

#[test]
fn failing_provider_is_retried_with_backoff_and_its_error_is_shown() {
    let mut fixture = Fixture::new(config(10, 1));
    fixture.behaviors[0] = CloudBehavior::Reject("quota CPUS exceeded in europe-west1");
    fixture.acquire("1");
    fixture.seconds(300);
    let calls = fixture.increases().len();
    let upstream_calls = 300 / 2;
    assert!(
        (8..=14).contains(&calls) && calls * 10 < upstream_calls,
        "expected 8 to 14 calls, and less than a tenth of gitlab-runner's {upstream_calls} (one in two seconds): {:?}",
        fixture.increases()
    );
    let status = fixture.engine.status(fixture.now);
    assert_eq!(status.groups[0].error.as_deref(), Some("quota CPUS exceeded in europe-west1"));
    let wait = fixture.engine.explain_waiting(fixture.now, &key("1")).unwrap();
    assert!(
        wait.scale_up_blocked[0].contains("next attempt in") && wait.scale_up_blocked[0].ends_with("europe-west1"),
        "{wait:?}"
    );
    let refusal = fixture.reserve("2").unwrap_err().to_string();
    assert!(refusal.contains("quota CPUS exceeded"), "{refusal}");
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(120);
    assert_eq!(fixture.slot_of("1"), "i1/0");
    fixture.reserve("2").unwrap();
}

#[test]
fn request_size_shrinks_after_failures() {
    let mut fixture = Fixture::new(config(100, 1));
    fixture.behaviors[0] = CloudBehavior::Reject("out of stock");
    for job in 1..=64 {
        fixture.engine.admit(key(&job.to_string()));
        fixture.engine.acquire(fixture.now, key(&job.to_string()), &SlotRequest::default()).unwrap();
    }
    fixture.answer();
    fixture.seconds(40);
    let before = fixture.increases().len();
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(90);
    assert_eq!(fixture.created, 64);
    assert!(fixture.increases()[before] <= 16, "the first request is small: {:?}", fixture.increases());
}

#[test]
fn next_group_creates_rest_of_partially_accepted_request() {
    let mut config = config(10, 1);
    config.groups.push(GroupConfig::new("spare", 10));
    let mut fixture = Fixture::new(config);
    fixture.behaviors[0] = CloudBehavior::Partial(1);
    fixture.engine.handle(fixture.now, Event::Policies(Policies::always(idle_target(4, 30))));
    fixture.answer();
    assert_eq!((fixture.clouds[0].len(), fixture.clouds[1].len()), (1, 3));
    assert!(
        fixture
            .decisions
            .iter()
            .any(|decision| matches!(decision.kind, DecisionKind::ScaleUpAccepted { requested: 4, accepted: 1, .. }))
    );
}

#[test]
fn refused_reservation_speeds_up_lists_like_a_waiting_job() {
    let mut config = config(10, 1);
    config.policies = Policies::always(idle_target(2, 60));
    let mut fixture = Fixture::new(config);
    fixture.boot = Duration::from_millis(300);
    fixture.handle(Event::Tick);
    assert!(fixture.reserve("1").is_err(), "a preemptive policy reserves only ready slots");
    for _ in 0..6 {
        fixture.advance(Duration::from_millis(100));
    }
    fixture.reserve("1").expect("the instance is discovered before the usual two seconds");
}

#[test]
fn rate_limited_provider_is_called_at_its_rate() {
    let mut fixture = Fixture::new(config(100, 1));
    fixture.behaviors[0] = CloudBehavior::Partial(10);
    fixture.engine.handle(fixture.now, Event::Policies(Policies::always(idle_target(100, 30))));
    fixture.answer();
    assert_eq!(fixture.clouds[0].len(), 10);
    fixture.seconds(2);
    assert_eq!(fixture.clouds[0].len(), 100, "{:?}", fixture.increases());

    let mut fixture = Fixture::new(config(100, 1));
    fixture.behaviors[0] = CloudBehavior::Partial(10);
    fixture.engine.handle(fixture.now, Event::Policies(Policies::always(idle_target(100, 30))));
    fixture.answer();
    fixture.behaviors[0] = CloudBehavior::Partial(0);
    let before = fixture.increases().len();
    fixture.seconds(5);
    assert!(fixture.increases().len() - before <= 6, "requests become rarer while none is accepted");
    assert!(
        fixture.decided(|kind| matches!(kind, DecisionKind::CreationFailed { .. })),
        "several rejections in a row must count as a failure"
    );
}

#[test]
fn next_group_replaces_failing_group_until_it_recovers() {
    let mut config = config(10, 1);
    config.groups[0].price_per_hour = 0.1;
    config.groups.push(GroupConfig { price_per_hour: 0.3, ..GroupConfig::new("on-demand", 10) });
    config.group_selection = GroupSelection::Price;
    let mut fixture = Fixture::new(config);
    fixture.behaviors[0] = CloudBehavior::Reject("no spot capacity");
    fixture.acquire("1");
    assert_eq!(fixture.clouds[1].len(), 1, "the next group must be used immediately");
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(5);
    fixture.acquire("2");
    assert_eq!(
        (fixture.clouds[0].len(), fixture.clouds[1].len()),
        (1, 1),
        "the cheap group is used again after its pause"
    );
}

#[test]
fn idle_instance_of_last_group_is_deleted_first() {
    let mut config = config(1, 1);
    config.policies = Policies::always(idle_target(0, 60));
    config.groups.push(GroupConfig::new("second", 10));
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.seconds(31);
    fixture.release("1");
    fixture.release("2");
    fixture.handle(Event::Policies(Policies::always(idle_target(1, 10))));
    fixture.seconds(20);
    assert_eq!((fixture.clouds[0].len(), fixture.clouds[1].len()), (1, 0));
}

#[test]
fn accepted_instances_that_never_appear_are_replaced() {
    let mut fixture = Fixture::new(config(2, 1));
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.seconds(300);
    assert_eq!(fixture.engine.status(fixture.now).groups[0].requested, 2);
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(400);
    assert_differs_from_upstream(
        "jobs that run after accepted instances never appeared",
        (0, 2),
        fixture.assignments.len(),
    );
    assert!(fixture.decided(
        |kind| matches!(kind, DecisionKind::CreationFailed { error, .. } if error.contains("did not appear"))
    ));
}

#[test]
fn overdue_instance_is_not_treated_as_unmanaged() {
    let mut config = config(2, 1);
    config.policies = Policies::always(idle_target(0, 30));
    let mut fixture = Fixture::new(config);
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.seconds(700);
    fixture.handle(Event::Cancel { key: key("1") });
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.create(G);
    fixture.seconds(200);
    assert!(fixture.clouds[0].is_empty() && fixture.engine.status(fixture.now).groups[0].unmanaged.is_empty());
}

#[test]
fn instances_of_failed_call_are_used() {
    let mut config = config(2, 1);
    config.policies = Policies::always(idle_target(0, 30));
    let mut fixture = Fixture::new(config);
    fixture.behaviors[0] = CloudBehavior::Reject("502 bad gateway");
    fixture.handle(Event::Policies(Policies::always(idle_target(2, 30))));
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.handle(Event::Policies(Policies::always(idle_target(0, 30))));
    fixture.behaviors[0] = CloudBehavior::Accept;
    // Both instances were created although the answer was an error.
    fixture.create(G);
    fixture.create(G);
    fixture.seconds(100);
    assert_eq!(fixture.assignments.len(), 2);
    assert_eq!(fixture.clouds[0].len(), 2, "never more than the maximum");
}

#[test]
fn unanswered_requests_count_towards_max_instances() {
    let mut fixture = Fixture::new(config(3, 1));
    fixture.behaviors[0] = CloudBehavior::NoAnswer;
    for job in 1..=5 {
        fixture.acquire(&job.to_string());
    }
    fixture.seconds(300);
    assert_eq!(fixture.increases().iter().sum::<u32>(), 3, "unanswered requests count as instances");
}

#[test]
fn scale_up_backs_off_when_instances_never_become_ready() {
    let mut fixture = Fixture::new(config(50, 1));
    fixture.boot = Duration::from_secs(5);
    fixture.prepare_result = Err("instance_ready_command: exit status 1".to_owned());
    fixture.acquire("1");
    fixture.seconds(600);
    assert!(fixture.created < 25, "{} instances in ten minutes", fixture.created);
    let error = fixture.engine.status(fixture.now).groups[0].error.clone().unwrap();
    assert!(error.ends_with("instance_ready_command: exit status 1"), "{error}");
    fixture.prepare_result = Ok(());
    fixture.seconds(120);
    assert_ne!(fixture.slot_of("1"), "none");
}

#[test]
fn instance_that_never_runs_is_replaced() {
    let mut config = config(1, 1);
    config.boot_timeout = Duration::from_secs(120);
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.stop_boots();
    fixture.seconds(100);
    assert_eq!((fixture.slot_of("1").as_str(), fixture.created), ("none", 1));
    fixture.seconds(60);
    assert_eq!((fixture.slot_of("1").as_str(), fixture.created), ("i2/0", 2));
}

#[test]
fn max_cost_per_hour_limits_instances() {
    let mut config = config(0, 1);
    config.groups[0].price_per_hour = 0.5;
    config.max_cost_per_hour = Some(2.0);
    let mut fixture = Fixture::new(config);
    for job in 1..=9 {
        fixture.acquire(&job.to_string());
    }
    fixture.seconds(60);
    assert_eq!(fixture.created, 4);
    let wait = fixture.engine.explain_waiting(fixture.now, &key("9")).unwrap();
    assert_eq!(wait.scale_up_blocked, ["group main: one more instance would exceed max_cost_per_hour (2)"]);
}

#[test]
fn acquire_only_queues_demand_while_plugin_is_down() {
    let mut fixture = Fixture::new(config(0, 1));
    fixture.handle(Event::PluginDown { group: GroupId(0), cause: "plugin process exited (signal 9)".to_owned() });
    fixture.acquire("1");
    assert_eq!((fixture.created, fixture.engine.slot_counts().pending), (0, 1), "R039: acquire queues a request");
    let refusal = fixture.reserve("2").unwrap_err().to_string();
    assert!(refusal.contains("its plugin is not running: plugin process exited (signal 9)"), "{refusal}");
}

#[test]
fn max_uses_below_capacity_limits_slots_per_instance() {
    let mut config = config(20, 4);
    config.max_uses = NonZeroU32::new(2);
    let mut fixture = Fixture::new(config);
    fixture.handle(Event::Policies(Policies::always(idle_target(8, 30))));
    assert_eq!(fixture.created, 4);
}

#[test]
fn overdue_instance_is_replaced_and_still_managed_when_it_appears() {
    let mut config = config(10, 1);
    config.create_timeout = Duration::from_secs(600);
    let mut fixture = Fixture::new(config);
    for job in 1..=8 {
        fixture.acquire(&format!("early-{job}"));
    }
    fixture.seconds(60);
    assert_eq!(fixture.assignments.len(), 8, "all early instances appeared in the next list");
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("late");
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(10);
    assert_eq!((fixture.increases().len(), fixture.created), (9, 8), "the ninth instance is not overdue yet");
    fixture.seconds(60);
    assert_eq!(fixture.slot_of("late"), "i9/0", "an instance is requested again, and the late job uses it");
    // The overdue instance appears, too.
    fixture.create(G);
    fixture.seconds(2);
    assert_eq!(fixture.instances(), 10);
    assert!(
        fixture.decided(|kind| matches!(kind, DecisionKind::Discovered { origin: InstanceOrigin::RequestedLate, .. }))
    );
    fixture.seconds(700);
    assert_eq!(fixture.instances(), 9);
}

#[test]
fn overdue_instance_is_awaited_at_max_instances() {
    let mut config = config(9, 1);
    config.create_timeout = Duration::from_secs(600);
    let mut fixture = Fixture::new(config);
    for job in 1..=8 {
        fixture.acquire(&format!("early-{job}"));
    }
    fixture.seconds(60);
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("late");
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(590);
    assert_eq!(fixture.created, 8, "the overdue instance may still appear, and another would exceed the maximum");
    let wait = fixture.engine.explain_waiting(fixture.now, &key("late")).unwrap();
    let reason = "instance limit of 9 reached (1 may still appear after a failed or overdue creation)";
    assert!(wait.scale_up_blocked[0].ends_with(reason), "{wait:?}");
    fixture.seconds(70);
    assert_eq!(fixture.slot_of("late"), "i9/0");
}
