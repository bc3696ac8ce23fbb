//! The provisioner's conformance cases (fleeting.md section 9), by number. V1 and V14 stand with the driver.

use std::num::NonZeroU32;
use std::time::Duration;

use super::fixture::{G, MONDAY, Mood, Rig, adopted, config, differs, id, key, wanted};
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::event::{Action, Event};
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::types::LossReason;
use muster_fleeting::model::InstanceState;

fn decreases(rig: &Rig) -> usize {
    rig.count(|action| matches!(action, Action::Decrease { .. }))
}

fn updates(rig: &Rig) -> usize {
    rig.count(|action| matches!(action, Action::List { .. }))
}

/// At most `max` instances, and `idle` of them wanted at once.
fn floor(max: u32, idle: u32) -> Rig {
    let mut rig = Rig::new(config(max, 1));
    rig.tell(Event::Policies(Policies::always(wanted(idle, 3600))));
    rig
}

/// One instance had the only job that it may have. Its removal was requested; it has `effect` or not.
fn used_up(effect: bool) -> Rig {
    let mut config = config(1, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut rig = Rig::new(config);
    rig.want("1");
    rig.seconds(40);
    rig.removing = effect;
    rig.release("1");
    rig
}

#[test]
fn v02_without_any_limit_instances_are_created() {
    let rig = floor(0, 7);
    assert_eq!((rig.made, rig.engine.status(rig.now).groups[0].max), (7, None), "unlimited");
}

/// A list that fails ends no start: its group gives no capacity, and says why, until one arrives.
#[test]
fn v03_a_first_list_that_fails_is_repeated() {
    for failures in [4, 5, 50] {
        let mut engine = crate::engine::Engine::new(config(3, 1), Now::steady(Time::ZERO, MONDAY));
        let mut at = Time::ZERO;
        let mut event = Event::PluginUp { group: G, max_size: 0 };
        for _ in 0..failures {
            let now = Now::steady(at, MONDAY);
            engine.handle(now, event);
            let actions = engine.actions();
            let [Action::List { call, .. }] = actions[..] else { panic!("one list, nothing else: {actions:?}") };
            event = Event::Listed { group: G, call, result: Err("503 from the provider".to_owned()) };
            engine.handle(now, event);
            let refused = engine.reserve(now, key("1")).unwrap_err().to_string();
            assert!(refused.contains("failed to list its instances: 503 from the provider"), "{refused}");
            at = engine.next_wake(now).expect("the next list");
            assert!(at.since(now.at) <= Duration::from_secs(75), "at most a minute, and a quarter: {at:?}");
            event = Event::Tick;
        }
        let mut rig = Rig::around_at(Now::steady(at, MONDAY), engine, std::collections::BTreeMap::new());
        rig.want("1");
        rig.seconds(40);
        assert_eq!(rig.place("1"), "i1/0", "after {failures} failures; five end the start of the peer");
    }
}

#[test]
fn v04_what_runs_at_the_first_list_existed_before() {
    let rig = adopted(config(3, 1), &["i1"]);
    assert!(rig.told(|what| matches!(what, DecisionKind::Discovered { origin: InstanceOrigin::Adopted, .. })));
    let rig = Rig::with(config(3, 1), [(id("i1"), InstanceState::Running)].into());
    assert!(
        rig.told(|what| matches!(what, DecisionKind::Unmanaged { id: it, .. } if *it == id("i1"))),
        "nobody adopts it"
    );
}

#[test]
fn v05_a_request_is_cut_to_the_limit_and_the_rest_stays_wanted() {
    let mut rig = Rig::new(config(2, 1));
    rig.engine.handle(rig.now, Event::Policies(Policies::always(wanted(3, 3600))));
    rig.answer();
    assert_eq!((rig.increases(), rig.made), (vec![2], 2));
    (1..=3).for_each(|job| rig.want(&job.to_string()));
    rig.seconds(60);
    assert_eq!((rig.made, rig.engine.slot_counts().pending), (2, 1), "the third waits for a slot");
}

#[test]
fn v06_what_was_not_granted_is_requested_again() {
    let mut rig = Rig::new(config(3, 1));
    rig.moods[0] = Mood::Short(1);
    rig.engine.handle(rig.now, Event::Policies(Policies::always(wanted(3, 3600))));
    rig.answer();
    assert_eq!((rig.increases(), rig.made), (vec![3], 1));
    rig.moods[0] = Mood::Obliging;
    rig.seconds(2);
    assert_eq!((rig.increases(), rig.made), (vec![3, 2], 3));
}

#[test]
fn v07_after_a_failure_the_pause_grows_exponentially() {
    let mut rig = Rig::new(config(3, 1));
    rig.moods[0] = Mood::Refusing("quota");
    rig.want("1");
    rig.seconds(600);
    let pauses: Vec<Duration> = (rig.decisions.iter())
        .filter_map(|decision| match decision.kind {
            DecisionKind::CreationFailed { pause, .. } => Some(pause),
            _ => None,
        })
        .collect();
    // Doubled from one second to a minute, each up to a quarter more or less.
    for (failures, pause) in pauses.iter().enumerate() {
        let seconds = (1_u64 << failures.min(10)).min(60);
        let (least, most) = (Duration::from_millis(seconds * 750), Duration::from_millis(seconds * 1250));
        assert!((least..=most).contains(pause), "pause {failures} is {pause:?}, and not about {seconds} s");
    }
    assert_eq!(pauses.len(), rig.increases().len());
    assert!((13..=18).contains(&pauses.len()), "the peer makes 300 requests in ten minutes: {pauses:?}");
}

#[test]
fn v08_what_appears_was_requested_or_is_unexpected() {
    let mut rig = Rig::new(config(3, 1));
    rig.want("1");
    rig.seconds(40);
    assert!(rig.told(|what| matches!(what, DecisionKind::Discovered { origin: InstanceOrigin::Requested, .. })));
    assert_eq!(rig.engine.status(rig.now).groups[0].requested, 0);
    rig.clouds[0].insert(id("unexpected"), InstanceState::Creating);
    rig.seconds(60);
    assert!(rig.told(|what| matches!(what, DecisionKind::Unmanaged { id: it, .. } if *it == id("unexpected"))));
    assert_eq!(rig.instances(), 1, "it is not managed");
}

#[test]
fn v09_an_accepted_removal_is_not_repeated_within_its_interval() {
    let mut rig = used_up(false);
    assert_eq!(decreases(&rig), 1);
    rig.seconds(59);
    assert_eq!(decreases(&rig), 1, "the instance is still listed as running");
    let counts = rig.engine.totals().by_state;
    assert!(counts.contains(&("deleting", 1)) && counts.contains(&("running", 0)), "{counts:?}");
    rig.seconds(2);
    assert_eq!(decreases(&rig), 2);
}

#[test]
fn v10_a_removal_that_was_not_accepted_is_repeated_soon() {
    let mut rig = used_up(true);
    rig.want("2");
    rig.seconds(40);
    let removed = decreases(&rig);
    // By hand: the provider accepts none.
    rig.engine.handle(rig.now, Event::Release { key: key("2") });
    let actions = rig.engine.actions();
    let removal = actions.iter().find_map(|action| match action {
        Action::Decrease { ids, .. } => Some(ids.clone()),
        _ => None,
    });
    rig.tell(Event::Decreased { group: G, ids: removal.expect("a removal"), result: Ok(Vec::new()) });
    assert_eq!(decreases(&rig), removed, "not at once");
    rig.seconds(2);
    assert_eq!(decreases(&rig), removed + 1, "the peer's next pass is two seconds later, too");
    assert!(rig.clouds[0].is_empty());
}

/// The peer takes six lists, which are about six minutes; here it takes two, of which the second follows after a second.
const MISSES: (u32, u32) = (6, 2);

#[test]
fn v11_an_instance_that_reappears_in_time_is_kept_and_counted_anew() {
    let mut rig = adopted(config(3, 1), &["a"]);
    rig.want("1");
    for _ in 0..3 {
        let before = rig
            .decisions
            .iter()
            .filter(|decision| matches!(decision.kind, DecisionKind::MissingFromList { .. }))
            .count();
        let there = std::mem::take(&mut rig.clouds[0]);
        for _ in 0..61 {
            rig.seconds(1);
            if rig
                .decisions
                .iter()
                .filter(|decision| matches!(decision.kind, DecisionKind::MissingFromList { .. }))
                .count()
                > before
            {
                break;
            }
        }
        rig.clouds[0] = there;
        rig.seconds(120);
        assert!(rig.lost.is_empty(), "one list without it is not enough, however often that happens");
    }
    assert_eq!(rig.place("1"), "a/0");
}

#[test]
fn v12_an_instance_that_stays_away_is_lost_and_one_that_is_removed_is_gone_at_once() {
    let mut rig = Rig::new(config(3, 1));
    rig.want("1");
    rig.seconds(40);
    rig.clouds[0].clear();
    let before = updates(&rig);
    while rig.lost.is_empty() {
        rig.seconds(1);
        assert!(updates(&rig) - before <= 2, "it is not given up");
    }
    differs(
        "V12: lists without a running instance until it is lost",
        MISSES,
        u32::try_from(updates(&rig) - before).unwrap(),
    );
    assert!(rig.told(|what| matches!(what, DecisionKind::Lost { reason: LossReason::Missing, .. })));

    let mut rig = used_up(false);
    rig.clouds[0].clear();
    let before = updates(&rig);
    while rig.instances() > 0 {
        rig.seconds(1);
        assert!(updates(&rig) - before <= 1, "the first list without it ends its removal");
    }
    assert!(rig.told(|what| matches!(what, DecisionKind::Deleted { deletion: Some(_), .. })));
}

/// The host gives up a list whose stream breaks (`v13_...` in `fleeting`): here it has failed as a whole.
#[test]
fn v13_a_list_that_fails_removes_nothing() {
    let mut rig = adopted(config(3, 1), &["a", "b"]);
    rig.want("1");
    rig.now = Now::steady(rig.now.at + Duration::from_secs(60), MONDAY);
    rig.engine.handle(rig.now, Event::Tick);
    let actions = rig.engine.actions();
    let [Action::List { call, .. }] = actions[..] else { panic!("{actions:?}") };
    rig.tell(Event::Listed { group: G, call, result: Err("the stream broke after 1 of 2".to_owned()) });
    assert_eq!((rig.instances(), rig.lost.len(), decreases(&rig)), (2, 0, 0));
    assert!(!rig.told(|what| matches!(what, DecisionKind::MissingFromList { .. })), "it says nothing of any instance");
    assert!(rig.told(|what| matches!(what, DecisionKind::ListFailed { failures: 1, .. })));
}

#[test]
fn v15_lists_are_rare_until_something_is_expected() {
    let mut rig = floor(3, 1);
    rig.seconds(120);
    let before = updates(&rig);
    rig.seconds(600);
    assert_eq!(updates(&rig) - before, 10, "one a minute");
    // One that nobody waits for is created.
    rig.boot = Duration::from_secs(3600);
    rig.tell(Event::Policies(Policies::always(wanted(2, 3600))));
    rig.seconds(2);
    let before = updates(&rig);
    rig.seconds(60);
    assert_eq!(updates(&rig) - before, 30, "one in two seconds");
}

#[test]
fn v16_a_request_that_never_materialises_expires() {
    let mut config = config(2, 1);
    config.create_timeout = Duration::from_secs(600);
    let mut rig = Rig::new(config);
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    rig.want("2");
    rig.seconds(599);
    assert_eq!((rig.engine.status(rig.now).groups[0].requested, rig.increases().len()), (2, 2), "in flight");
    rig.moods[0] = Mood::Obliging;
    rig.seconds(200);
    differs("V16: jobs that run after instances that were granted never came", (0, 2), rig.granted.len());
}
