//! Properties of admission against a world of chance, and its single rules.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

mod world;

use world::World;

fn key(name: &str) -> RunnerKey {
    let url = format!("http://{name}.example").parse().unwrap();
    RunnerKey::new(&url, 1, &muster_job::Secret::default())
}

fn runner(name: &str) -> Limits {
    Limits {
        key: key(name),
        generation: 1,
        enabled: true,
        limit: None,
        request_concurrency: 1,
        adaptive: true,
        strict: false,
        unhealthy_requests_limit: 3,
        unhealthy_interval: Duration::from_secs(3600),
    }
}

const CHECK: Duration = Duration::from_secs(3);
const PACE: Pace = Pace { check_interval: CHECK, cut_after: CUT_AFTER };

/// An engine with these runners, and room for `concurrent`.
fn engine(concurrent: usize, runners: Vec<Limits>) -> Admission {
    let mut engine = Admission::new(1);
    configure(&mut engine, concurrent, runners);
    engine
}

/// These runners, whose providers have no limit.
fn configure(engine: &mut Admission, concurrent: usize, runners: Vec<Limits>) {
    let keys: Vec<RunnerKey> = runners.iter().map(|limits| limits.key.clone()).collect();
    engine.configure(concurrent, PACE, runners);
    keys.iter().for_each(|key| engine.set_capacity(key, usize::MAX));
}

fn names(decisions: &Decisions) -> Vec<RunnerKey> {
    decisions.start.iter().map(|(_, runner)| runner.clone()).collect()
}

#[test]
fn properties_hold_in_a_world_of_chance() {
    let seed = std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("MUSTER_TEST_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..200 {
        let mut world = World::new(SmallRng::seed_from_u64(rng.random()));
        for _ in 0..400 {
            world.step();
            world.check();
        }
    }
}

#[test]
fn every_runner_has_a_request_before_one_has_two() {
    let now = Instant::now();
    let greedy = Limits { request_concurrency: 4, adaptive: false, ..runner("a") };
    let mut engine = engine(5, vec![greedy, runner("b"), runner("c")]);
    let decisions = engine.decide(now);
    assert_eq!(names(&decisions), [key("a"), key("b"), key("c"), key("a"), key("a")]);
    assert_eq!(decisions.wake, None, "nobody waits");
}

#[test]
fn with_one_place_the_runners_take_turns_in_the_order_of_the_file() {
    let mut now = Instant::now();
    let mut engine = engine(1, vec![runner("a"), runner("b"), runner("c")]);
    let mut order = Vec::new();
    let mut decisions = engine.decide(now);
    for _ in 0..6 {
        order.extend(names(&decisions));
        let (held, _) = decisions.start[0];
        assert_eq!(engine.decide(now).wake, Some(now + CUT_AFTER));
        now += CUT_AFTER;
        assert_eq!(engine.decide(now).cut, [held]);
        assert_eq!(engine.decide(now), Decisions::default(), "no place before the answer: it may bring a job");
        engine.answered(held, Outcome::Cut, now);
        decisions = engine.decide(now);
    }
    assert_eq!(order, ["a", "b", "c", "a", "b", "c"].map(key));
}

#[test]
fn a_cut_request_that_brought_a_job_has_its_place() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a"), runner("b")]);
    let (held, _) = engine.decide(now).start[0];
    let later = now + CUT_AFTER;
    assert_eq!(engine.decide(later).cut, [held]);
    engine.answered(held, Outcome::Job, later);
    assert_eq!(engine.decide(later), Decisions::default(), "the place is the job's");
    engine.job_ended(&key("a"));
    assert_eq!(names(&engine.decide(later)), [key("b")]);
}

#[test]
fn a_request_reserves_a_place_of_its_runners_limit() {
    let now = Instant::now();
    let limited = Limits { limit: Some(2), request_concurrency: 5, adaptive: false, ..runner("a") };
    let mut engine = engine(9, vec![limited]);
    engine.job_recovered(&key("a"));
    let decisions = engine.decide(now);
    assert_eq!(decisions.start.len(), 1);
    engine.answered(decisions.start[0].0, Outcome::Job, now);
    assert_eq!(engine.decide(now).start, []);
    engine.job_ended(&key("a"));
    assert_eq!(engine.decide(now).start.len(), 1);
}

#[test]
fn jobs_of_an_earlier_start_count_also_those_of_a_runner_that_is_gone() {
    let now = Instant::now();
    let mut engine = engine(3, vec![Limits { request_concurrency: 9, adaptive: false, ..runner("a") }]);
    engine.job_recovered(&key("gone"));
    engine.job_recovered(&key("a"));
    assert_eq!(engine.decide(now).start.len(), 1);
    engine.job_ended(&key("gone"));
    assert_eq!(engine.decide(now).start.len(), 1);
}

#[test]
fn requests_double_with_jobs_shrink_with_empty_answers_and_halve_when_the_server_suffers() {
    let now = Instant::now();
    let mut engine = engine(100, vec![Limits { request_concurrency: 6, ..runner("a") }]);
    let jobs = |engine: &mut Admission| {
        let started = engine.decide(now).start;
        for (poll, _) in &started {
            engine.answered(*poll, Outcome::Job, now);
        }
        started.len()
    };
    assert_eq!([jobs(&mut engine), jobs(&mut engine), jobs(&mut engine)], [1, 2, 6], "never more than its own limit");
    let started = engine.decide(now).start;
    let later = now + Duration::from_secs(50);
    let (first, rest) = started.split_first().unwrap();
    engine.answered(first.0, Outcome::Empty { changed: false }, later);
    assert_eq!(engine.figures(later)[0].requests_adaptive, 5);
    let busy = Outcome::Failed { overloaded: true, rate_limited: false, retry_after: None };
    engine.answered(rest[0].0, busy, later);
    assert_eq!(engine.figures(later)[0].requests_adaptive, 1, "one request to see whether it works again");
    for (poll, _) in &rest[1..] {
        engine.answered(*poll, Outcome::Cut, later);
    }
    let (probe, _) = engine.decide(later + Duration::from_secs(1)).start[0];
    engine.answered(probe, Outcome::Repeated, later + Duration::from_secs(1));
    assert_eq!(engine.figures(later)[0].requests_adaptive, 2);
}

#[test]
fn a_coordinator_that_holds_nothing_is_asked_every_check_interval() {
    let mut now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let mut asked = 0;
    let start = now;
    while now < start + Duration::from_secs(60) {
        let decisions = engine.decide(now);
        for (poll, _) in &decisions.start {
            asked += 1;
            // As GitLab's Rails without its front end: the first answer tells a version.
            engine.answered(*poll, Outcome::Empty { changed: asked == 1 }, now);
        }
        if decisions.start.is_empty() {
            now = decisions.wake.expect("something is to come");
        }
    }
    assert!((19..=24).contains(&asked), "{asked} requests in a minute");
}

#[test]
fn a_held_request_is_repeated_at_once_and_one_after_a_change_too() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Empty { changed: true }, now);
    let (poll, _) = engine.decide(now).start[0];
    let held = now + Duration::from_secs(50);
    engine.answered(poll, Outcome::Empty { changed: false }, held);
    assert_eq!(engine.decide(held).start.len(), 1);
}

#[test]
fn a_coordinator_that_gives_the_same_job_again_and_again_is_not_asked_at_full_speed() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Repeated, now);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Repeated, now);
    let decisions = engine.decide(now);
    assert_eq!(decisions.start, [], "the first one was the answer to a request whose answer was lost");
    assert!(decisions.wake.unwrap() >= now + CHECK.mul_f64(0.9));
}

#[test]
fn a_strict_check_interval_is_kept_after_a_job() {
    let now = Instant::now();
    let mut engine = engine(9, vec![Limits { strict: true, ..runner("a") }]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Job, now);
    let decisions = engine.decide(now);
    assert_eq!(decisions.start, []);
    assert!(decisions.wake.unwrap() >= now + CHECK.mul_f64(0.9));
}

#[test]
fn a_coordinator_that_is_back_is_found_within_seconds_however_long_it_was_away() {
    let mut now = Instant::now();
    let mut engine = engine(4, vec![Limits { request_concurrency: 4, adaptive: false, ..runner("a") }, runner("b")]);
    let down = Outcome::Failed { overloaded: false, rate_limited: false, retry_after: None };
    for _ in 0..200 {
        for (poll, runner) in engine.decide(now).start {
            engine.answered(poll, if runner == key("a") { down } else { Outcome::Cut }, now);
        }
        let b: Vec<PollId> = engine.live().filter(|(_, poll)| poll.runner == key("b")).map(|(id, _)| id).collect();
        for poll in b {
            engine.answered(poll, Outcome::Cut, now);
        }
        let waits = engine.figures(now)[0].waits.unwrap_or_default();
        assert!(waits <= Duration::from_secs(10), "{waits:?}");
        assert_eq!(engine.figures(now)[1].waits, None, "the other coordinator works");
        now += waits;
    }
}

#[test]
fn what_failed_together_counts_once_and_what_the_server_asks_for_is_kept() {
    let now = Instant::now();
    let mut engine = engine(9, vec![Limits { request_concurrency: 8, adaptive: false, ..runner("a") }]);
    let polls = engine.decide(now).start;
    let wait = Duration::from_secs(40);
    for (poll, _) in polls {
        let slow_down = Outcome::Failed { overloaded: true, rate_limited: true, retry_after: Some(wait) };
        let notice = engine.answered(poll, slow_down, now);
        assert!(notice.is_none_or(|notice| notice == Notice::Failed { failures: 1, wait }), "{notice:?}");
    }
    assert_eq!(engine.decide(now), Decisions { wake: Some(now + wait), ..Decisions::default() });
    assert_eq!(engine.decide(now + wait).start.len(), 1, "one first");
}

#[test]
fn a_refused_runner_is_probed_at_a_modest_pace_and_heals_with_the_first_good_answer() {
    let mut now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let mut notices = Vec::new();
    for _ in 0..8 {
        now = engine.decide(now).wake.unwrap_or(now);
        let poll = engine.polls.keys().next().copied().or_else(|| Some(engine.decide(now).start[0].0)).unwrap();
        let Some(Notice::Refused { wait, unhealthy, .. }) = engine.answered(poll, Outcome::Refused, now) else {
            panic!("a refusal is told")
        };
        notices.push((unhealthy, wait.as_secs()));
    }
    assert!(notices[..2].iter().all(|(unhealthy, wait)| !unhealthy && *wait < 10), "{notices:?}");
    assert!(notices[2..].iter().all(|(unhealthy, wait)| *unhealthy && (15..=300).contains(wait)), "{notices:?}");
    now = engine.decide(now).wake.unwrap();
    let (poll, _) = engine.decide(now).start[0];
    let notice = engine.answered(poll, Outcome::Empty { changed: true }, now);
    assert_eq!(notice, Some(Notice::Recovered { failures: 8 }));
    assert!(engine.figures(now)[0].healthy);
    assert_eq!(engine.decide(now).start.len(), 1);
}

#[test]
fn requests_in_flight_stay_when_there_may_be_fewer_jobs_and_no_more_are_sent() {
    let now = Instant::now();
    let many = Limits { request_concurrency: 4, adaptive: false, ..runner("a") };
    let mut engine = engine(8, vec![many.clone()]);
    let polls = engine.decide(now).start;
    assert_eq!(polls.len(), 4);
    configure(&mut engine, 2, vec![Limits { limit: Some(1), ..many }]);
    engine.set_capacity(&key("a"), 0);
    let long_after = now + 10 * CUT_AFTER;
    assert_eq!(engine.decide(long_after), Decisions::default());
    for (poll, _) in polls {
        engine.answered(poll, Outcome::Job, long_after);
        assert_eq!(engine.decide(long_after), Decisions::default());
    }
    assert_eq!(engine.jobs(), 4, "each is taken");
}

#[test]
fn requests_of_settings_that_are_not_in_force_are_cut_when_they_were_held_long_enough() {
    let now = Instant::now();
    let mut engine = engine(8, vec![runner("a"), runner("b")]);
    let polls: Vec<PollId> = engine.decide(now).start.iter().map(|(id, _)| *id).collect();
    let later = now + CUT_AFTER / 2;
    configure(&mut engine, 8, vec![Limits { generation: 2, ..runner("a") }]);
    assert_eq!(engine.decide(later), Decisions { wake: Some(now + CUT_AFTER), ..Decisions::default() });
    let due = now + CUT_AFTER;
    assert_eq!(engine.decide(due), Decisions { cut: polls.clone(), ..Decisions::default() });
    for poll in polls {
        engine.answered(poll, Outcome::Cut, due);
    }
    assert_eq!(names(&engine.decide(due)), [key("a")]);
}

#[test]
fn at_the_end_requests_are_cut_when_they_were_held_long_enough_and_at_once_where_the_server_repeats() {
    let now = Instant::now();
    let mut engine = engine(8, vec![runner("a"), runner("b")]);
    engine.set_repeats(&key("b"));
    let polls = engine.decide(now).start;
    engine.stop();
    let at_once = polls.iter().find(|(_, runner)| *runner == key("b")).unwrap().0;
    assert_eq!(
        engine.decide(now),
        Decisions { cut: vec![at_once], wake: Some(now + CUT_AFTER), ..Decisions::default() }
    );
    engine.answered(at_once, Outcome::Cut, now);
    let decisions = engine.decide(now + CUT_AFTER);
    assert_eq!((decisions.start, decisions.cut.len(), decisions.wake), (Vec::new(), 1, None));
}

#[test]
fn a_request_is_waited_for_until_it_is_held_also_while_another_runner_has_none_and_at_the_end() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a"), runner("b")]);
    let (first, _) = engine.decide(now).start[0];
    let held_at = now + 3 * CUT_AFTER;
    engine.set_held_at(first, held_at);
    let waits = Decisions { wake: Some(held_at), ..Decisions::default() };
    assert_eq!(engine.decide(now + CUT_AFTER), waits);
    engine.stop();
    assert_eq!(engine.decide(now + CUT_AFTER), waits);
    assert_eq!(engine.decide(held_at).cut, [first]);
}

#[test]
fn a_server_of_other_settings_is_not_known_to_repeat() {
    let now = Instant::now();
    let mut engine = engine(8, vec![runner("a")]);
    engine.set_repeats(&key("a"));
    configure(&mut engine, 8, vec![Limits { generation: 2, ..runner("a") }]);
    engine.decide(now);
    engine.stop();
    assert_eq!(engine.decide(now).cut, []);
}

#[test]
fn new_settings_forget_what_was_wrong() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Refused, now);
    assert_eq!(engine.decide(now).start, []);
    configure(&mut engine, 1, vec![Limits { generation: 2, ..runner("a") }]);
    assert_eq!(engine.decide(now).start.len(), 1);
}
