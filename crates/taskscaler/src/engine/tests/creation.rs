//! What is asked for, when, and what becomes of it.

use std::num::NonZeroU32;
use std::time::Duration;

use super::fixture::{G, MONDAY, Mood, Rig, config, differs, key, wanted};
use crate::config::{GroupConfig, GroupSelection};
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::event::{Action, Event};
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::types::{GroupId, SlotRequest};

#[test]
fn demand_is_asked_for_at_once_and_in_one_call_each() {
    let mut rig = Rig::new(config(20, 1));
    for job in 1..=8 {
        rig.want(&job.to_string());
    }
    assert_eq!(rig.increases(), [1; 8], "no loop to wait for, and no call waits for another");
    rig.seconds(31);
    assert_eq!(rig.granted.len(), 8);
    assert_eq!(rig.made, 8);
}

#[test]
fn calls_are_bounded_and_grow_instead() {
    let mut rig = Rig::new(config(500, 1));
    for job in 1..=300 {
        rig.want(&job.to_string());
    }
    rig.seconds(60);
    assert_eq!(rig.made, 300);
    assert!(rig.increases().len() < 14, "ten at once, then the rest together: {:?}", rig.increases());
}

#[test]
fn a_job_has_its_slot_within_a_fiftieth_of_the_boot_time() {
    let mut rig = Rig::new(config(20, 1));
    rig.want("first");
    rig.seconds(60);
    rig.release("first");
    rig.want("first-again");
    for round in 0..10 {
        let job = round.to_string();
        rig.want(&job);
        rig.pass(Duration::from_millis(30_650));
        assert_ne!(rig.place(&job), "nowhere", "round {round}");
    }
    let lists = rig.count(|action| matches!(action, Action::List { .. }));
    assert!(lists < 300, "{lists} lists: it does not poll all the time");
}

/// How long a machine takes to come says nothing of how long it takes to go.
#[test]
fn a_place_that_becomes_free_is_seen_at_once_however_long_a_boot_takes() {
    let mut config = config(1, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut rig = Rig::new(config);
    rig.want("first");
    rig.seconds(60);
    rig.want("second");
    rig.removing = false;
    rig.release("first");
    rig.pass(Duration::from_millis(200));
    assert_eq!(rig.made, 1, "the first machine is still there");
    rig.clouds[0].clear();
    rig.pass(Duration::from_millis(100));
    assert_eq!(rig.made, 2, "it is gone, and the job that waits has its machine asked for");
}

#[test]
fn nothing_is_listed_more_often_than_needed() {
    let mut config = config(20, 1);
    config.policies = Policies::always(wanted(2, 3600));
    let mut rig = Rig::new(config);
    rig.seconds(40);
    let before = rig.count(|action| matches!(action, Action::List { .. }));
    rig.seconds(600);
    let lists = rig.count(|action| matches!(action, Action::List { .. })) - before;
    assert!((9..=11).contains(&lists), "{lists} in ten quiet minutes");
}

#[test]
fn a_list_that_hung_does_not_keep_the_next_from_being_made() {
    let mut rig = Rig::new(config(2, 1));
    rig.now = Now::steady(Time::from_millis(60_000), MONDAY);
    rig.engine.handle(rig.now, Event::Tick);
    let hung = rig.engine.actions();
    let [Action::List { call, .. }] = hung[..] else { panic!("{hung:?}") };
    rig.now = Now::steady(Time::from_millis(360_000), MONDAY);
    let before = rig.count(|action| matches!(action, Action::List { .. }));
    rig.tell(Event::Listed { group: G, call, result: Ok(Vec::new()) });
    rig.seconds(300);
    let lists = rig.count(|action| matches!(action, Action::List { .. })) - before;
    assert!((4..=7).contains(&lists), "{lists} in the five minutes after one that took five");
}

#[test]
fn a_failing_provider_is_left_alone_and_quoted() {
    let mut rig = Rig::new(config(10, 1));
    rig.moods[0] = Mood::Refusing("quota CPUS exceeded in europe-west1");
    rig.want("1");
    rig.seconds(300);
    let calls = rig.increases().len();
    let by_the_peer = 300 / 2;
    assert!(
        (8..=14).contains(&calls) && calls * 10 < by_the_peer,
        "peer: {by_the_peer}, one in two seconds; {:?}",
        rig.increases()
    );
    let status = rig.engine.status(rig.now);
    assert_eq!(status.groups[0].error.as_deref(), Some("quota CPUS exceeded in europe-west1"));
    let why = rig.engine.explain_waiting(rig.now, &key("1")).unwrap();
    assert!(
        why.scale_up_blocked[0].contains("next attempt in") && why.scale_up_blocked[0].ends_with("europe-west1"),
        "{why:?}"
    );
    let refused = rig.reserve("2").unwrap_err().to_string();
    assert!(refused.contains("quota CPUS exceeded"), "jobs are not requested any more, and it says why: {refused}");
    rig.moods[0] = Mood::Obliging;
    rig.seconds(120);
    assert_eq!(rig.place("1"), "i1/0");
    rig.reserve("2").unwrap();
}

#[test]
fn after_failures_less_is_asked_for_until_it_works() {
    let mut rig = Rig::new(config(100, 1));
    rig.moods[0] = Mood::Refusing("out of stock");
    for job in 1..=64 {
        rig.engine.admit(key(&job.to_string()));
        rig.engine.acquire(rig.now, key(&job.to_string()), &SlotRequest::default()).unwrap();
    }
    rig.answer();
    rig.seconds(40);
    let before = rig.increases().len();
    rig.moods[0] = Mood::Obliging;
    rig.seconds(90);
    assert_eq!(rig.made, 64);
    assert!(rig.increases()[before] <= 16, "it begins small: {:?}", rig.increases());
}

#[test]
fn a_short_grant_is_filled_by_the_next_group() {
    let mut config = config(10, 1);
    config.groups.push(GroupConfig::new("spare", 10));
    let mut rig = Rig::new(config);
    rig.moods[0] = Mood::Short(1);
    rig.engine.handle(rig.now, Event::Policies(Policies::always(wanted(4, 30))));
    rig.answer();
    assert_eq!((rig.clouds[0].len(), rig.clouds[1].len()), (1, 3));
    assert!(
        rig.decisions
            .iter()
            .any(|decision| matches!(decision.kind, DecisionKind::ScaleUpAccepted { requested: 4, accepted: 1, .. }))
    );
}

#[test]
fn who_waits_to_request_a_job_is_looked_after_like_a_job_that_waits() {
    let mut config = config(10, 1);
    config.policies = Policies::always(wanted(2, 60));
    let mut rig = Rig::new(config);
    rig.boot = Duration::from_millis(300);
    rig.tell(Event::Tick);
    assert!(rig.reserve("1").is_err(), "preemptive: only what is there is promised");
    for _ in 0..6 {
        rig.pass(Duration::from_millis(100));
    }
    rig.reserve("1").expect("an instance that boots within 300 ms is known before the usual two seconds are over");
}

#[test]
fn what_a_provider_gives_at_a_rate_is_fetched_at_that_rate() {
    let mut rig = Rig::new(config(100, 1));
    rig.moods[0] = Mood::Short(10);
    rig.engine.handle(rig.now, Event::Policies(Policies::always(wanted(100, 30))));
    rig.answer();
    assert_eq!(rig.clouds[0].len(), 10);
    rig.seconds(2);
    assert_eq!(rig.clouds[0].len(), 100, "{:?}", rig.increases());

    let mut rig = Rig::new(config(100, 1));
    rig.moods[0] = Mood::Short(10);
    rig.engine.handle(rig.now, Event::Policies(Policies::always(wanted(100, 30))));
    rig.answer();
    rig.moods[0] = Mood::Short(0);
    let before = rig.increases().len();
    rig.seconds(5);
    assert!(rig.increases().len() - before <= 6, "one that gives nothing more is asked less and less");
    assert!(rig.told(|what| matches!(what, DecisionKind::CreationFailed { .. })), "and then it counts as a failure");
}

#[test]
fn a_group_without_stock_is_replaced_by_the_next_and_tried_again() {
    let mut config = config(10, 1);
    config.groups[0].price_per_hour = 0.1;
    config.groups.push(GroupConfig { price_per_hour: 0.3, ..GroupConfig::new("on-demand", 10) });
    config.group_selection = GroupSelection::Price;
    let mut rig = Rig::new(config);
    rig.moods[0] = Mood::Refusing("no spot capacity");
    rig.want("1");
    assert_eq!(rig.clouds[1].len(), 1, "at once");
    rig.moods[0] = Mood::Obliging;
    rig.seconds(5);
    rig.want("2");
    assert_eq!((rig.clouds[0].len(), rig.clouds[1].len()), (1, 1), "the cheap one again, after its pause");
}

#[test]
fn the_dearest_idle_instance_goes_first() {
    let mut config = config(1, 1);
    config.policies = Policies::always(wanted(0, 60));
    config.groups.push(GroupConfig::new("second", 10));
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.want("2");
    rig.seconds(31);
    rig.release("1");
    rig.release("2");
    rig.tell(Event::Policies(Policies::always(wanted(1, 10))));
    rig.seconds(20);
    assert_eq!((rig.clouds[0].len(), rig.clouds[1].len()), (1, 0));
}

#[test]
fn what_was_granted_and_does_not_come_is_no_capacity_for_ever() {
    let mut rig = Rig::new(config(2, 1));
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    rig.want("2");
    rig.seconds(300);
    assert_eq!(rig.engine.status(rig.now).groups[0].requested, 2);
    rig.moods[0] = Mood::Obliging;
    rig.seconds(400);
    differs("V16: jobs that run after instances that were granted never came", (0, 2), rig.granted.len());
    assert!(
        rig.told(|what| matches!(what, DecisionKind::CreationFailed { error, .. } if error.contains("did not appear")))
    );
}

#[test]
fn what_comes_late_is_used_or_removed_but_not_forgotten() {
    let mut config = config(2, 1);
    config.policies = Policies::always(wanted(0, 30));
    let mut rig = Rig::new(config);
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    rig.seconds(700);
    rig.tell(Event::Cancel { key: key("1") });
    rig.moods[0] = Mood::Obliging;
    rig.make(G);
    rig.seconds(200);
    assert!(rig.clouds[0].is_empty() && rig.engine.status(rig.now).groups[0].unmanaged.is_empty());
}

#[test]
fn a_call_that_failed_may_have_worked() {
    let mut config = config(2, 1);
    config.policies = Policies::always(wanted(0, 30));
    let mut rig = Rig::new(config);
    rig.moods[0] = Mood::Refusing("502 bad gateway");
    rig.tell(Event::Policies(Policies::always(wanted(2, 30))));
    rig.want("1");
    rig.want("2");
    rig.tell(Event::Policies(Policies::always(wanted(0, 30))));
    rig.moods[0] = Mood::Obliging;
    // Both were made, though the answer was an error.
    rig.make(G);
    rig.make(G);
    rig.seconds(100);
    assert_eq!(rig.granted.len(), 2);
    assert_eq!(rig.clouds[0].len(), 2, "never more than the limit, though it could have asked again");
}

#[test]
fn the_limit_counts_what_is_unknown() {
    let mut rig = Rig::new(config(3, 1));
    rig.moods[0] = Mood::Silent;
    for job in 1..=5 {
        rig.want(&job.to_string());
    }
    rig.seconds(300);
    assert_eq!(rig.increases().iter().sum::<u32>(), 3, "calls without an answer count as if they had worked");
}

#[test]
fn instances_that_never_get_ready_are_no_storm() {
    let mut rig = Rig::new(config(50, 1));
    rig.boot = Duration::from_secs(5);
    rig.readying = Err("instance_ready_command: exit status 1".to_owned());
    rig.want("1");
    rig.seconds(600);
    assert!(rig.made < 25, "{} in ten minutes", rig.made);
    let error = rig.engine.status(rig.now).groups[0].error.clone().unwrap();
    assert!(error.ends_with("instance_ready_command: exit status 1"), "{error}");
    rig.readying = Ok(());
    rig.seconds(120);
    assert_ne!(rig.place("1"), "nowhere");
}

#[test]
fn an_instance_that_never_runs_is_replaced() {
    let mut config = config(1, 1);
    config.boot_timeout = Duration::from_secs(120);
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.jam();
    rig.seconds(100);
    assert_eq!((rig.place("1").as_str(), rig.made), ("nowhere", 1));
    rig.seconds(60);
    assert_eq!((rig.place("1").as_str(), rig.made), ("i2/0", 2));
}

#[test]
fn spending_is_bounded() {
    let mut config = config(0, 1);
    config.groups[0].price_per_hour = 0.5;
    config.max_cost_per_hour = Some(2.0);
    let mut rig = Rig::new(config);
    for job in 1..=9 {
        rig.want(&job.to_string());
    }
    rig.seconds(60);
    assert_eq!(rig.made, 4);
    let why = rig.engine.explain_waiting(rig.now, &key("9")).unwrap();
    assert_eq!(why.scale_up_blocked, ["group main: one more instance would exceed max_cost_per_hour (2)"]);
}

#[test]
fn nobody_acquires_an_instance_into_being() {
    let mut rig = Rig::new(config(0, 1));
    rig.tell(Event::PluginDown { group: GroupId(0), cause: "plugin process exited (signal 9)".to_owned() });
    rig.want("1");
    assert_eq!((rig.made, rig.engine.slot_counts().pending), (0, 1), "R039: acquiring queues a demand");
    let refused = rig.reserve("2").unwrap_err().to_string();
    assert!(refused.contains("its plugin is not running: plugin process exited (signal 9)"), "{refused}");
}

#[test]
fn instances_for_few_jobs_are_made_for_the_jobs_there_are() {
    let mut config = config(20, 4);
    config.max_uses = NonZeroU32::new(2);
    let mut rig = Rig::new(config);
    rig.tell(Event::Policies(Policies::always(wanted(8, 30))));
    assert_eq!(rig.made, 4);
}

/// What a group has shown says when an instance is late; up to `create_timeout` it may appear all the same.
#[test]
fn a_granted_instance_that_is_late_is_asked_for_again_and_used_or_removed_when_it_comes() {
    let mut config = config(10, 1);
    config.create_timeout = Duration::from_secs(600);
    let mut rig = Rig::new(config);
    for job in 1..=8 {
        rig.want(&format!("early-{job}"));
    }
    rig.seconds(60);
    assert_eq!(rig.granted.len(), 8, "all appeared at the next list");
    rig.moods[0] = Mood::Empty;
    rig.want("late");
    rig.moods[0] = Mood::Obliging;
    rig.seconds(10);
    assert_eq!((rig.increases().len(), rig.made), (9, 8), "not yet late");
    rig.seconds(60);
    assert_eq!(rig.place("late"), "i9/0", "asked for again, and used");
    // The late one comes, too: there are never more than allowed, and it goes when nobody needs it.
    rig.make(G);
    rig.seconds(2);
    assert_eq!(rig.instances(), 10);
    assert!(rig.told(|what| matches!(what, DecisionKind::Discovered { origin: InstanceOrigin::RequestedLate, .. })));
    rig.seconds(700);
    assert_eq!(rig.instances(), 9);
}

#[test]
fn without_room_beside_a_late_instance_it_is_waited_for_up_to_the_deadline() {
    let mut config = config(9, 1);
    config.create_timeout = Duration::from_secs(600);
    let mut rig = Rig::new(config);
    for job in 1..=8 {
        rig.want(&format!("early-{job}"));
    }
    rig.seconds(60);
    rig.moods[0] = Mood::Empty;
    rig.want("late");
    rig.moods[0] = Mood::Obliging;
    rig.seconds(590);
    assert_eq!(rig.made, 8, "it may yet appear, and be one too many");
    rig.seconds(70);
    assert_eq!(rig.place("late"), "i9/0");
}
