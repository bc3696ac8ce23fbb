use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

mod simulation;

use simulation::Simulation;

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

const CHECK_INTERVAL: Duration = Duration::from_secs(3);
const TIMINGS: PollTimings = PollTimings { check_interval: CHECK_INTERVAL, min_hold: MIN_HOLD };

fn engine(concurrent: usize, runners: Vec<Limits>) -> Admission {
    let mut engine = Admission::new(1);
    configure(&mut engine, concurrent, runners);
    engine
}

/// Configures runners whose executors have unlimited capacity.
fn configure(engine: &mut Admission, concurrent: usize, runners: Vec<Limits>) {
    let keys: Vec<RunnerKey> = runners.iter().map(|limits| limits.key.clone()).collect();
    engine.configure(concurrent, TIMINGS, runners);
    keys.iter().for_each(|key| engine.set_capacity(key, usize::MAX));
}

fn started_runners(decisions: &Decisions) -> Vec<RunnerKey> {
    decisions.start.iter().map(|(_, runner)| runner.clone()).collect()
}

#[test]
fn invariants_hold_in_random_simulation() {
    let seed = std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("MUSTER_TEST_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..200 {
        let mut simulation = Simulation::new(SmallRng::seed_from_u64(rng.random()));
        for _ in 0..400 {
            simulation.step();
            simulation.check();
        }
    }
}

#[test]
fn every_runner_has_one_request_before_any_has_two() {
    let now = Instant::now();
    let greedy = Limits { request_concurrency: 4, adaptive: false, ..runner("a") };
    let mut engine = engine(5, vec![greedy, runner("b"), runner("c")]);
    let decisions = engine.decide(now);
    assert_eq!(started_runners(&decisions), [key("a"), key("b"), key("c"), key("a"), key("a")]);
    assert_eq!(decisions.wake, None, "no runner has to wait");
}

#[test]
fn adaptive_limit_allows_needed_requests() {
    let now = Instant::now();
    let mut engine = engine(9, vec![Limits { request_concurrency: 3, ..runner("a") }]);
    engine.set_needed_requests(&key("a"), 2);
    let decisions = engine.decide(now);
    assert_eq!(decisions.start.len(), 2);
    engine.set_needed_requests(&key("a"), 0);
    assert_eq!(engine.decide(now).start, []);
    engine.set_needed_requests(&key("a"), 5);
    assert_eq!(engine.decide(now).start.len(), 1, "request_concurrency still applies");
    let failed = Outcome::Failed { overloaded: false, rate_limited: false, retry_after: None };
    for (poll, _) in decisions.start {
        engine.answered(poll, failed, now);
    }
    assert_eq!(engine.decide(now + Duration::from_secs(60)).start, [], "one request is enough to notice a recovery");
}

#[test]
fn runners_take_turns_if_capacity_is_one() {
    let mut now = Instant::now();
    let mut engine = engine(1, vec![runner("a"), runner("b"), runner("c")]);
    let mut order = Vec::new();
    let mut decisions = engine.decide(now);
    for _ in 0..6 {
        order.extend(started_runners(&decisions));
        let (held, _) = decisions.start[0];
        assert_eq!(engine.decide(now).wake, Some(now + MIN_HOLD));
        now += MIN_HOLD;
        assert_eq!(engine.decide(now).cancel, [held]);
        assert_eq!(
            engine.decide(now),
            Decisions::default(),
            "a canceled request keeps its capacity until its answer, which may be a job"
        );
        engine.answered(held, Outcome::Canceled, now);
        decisions = engine.decide(now);
    }
    assert_eq!(order, ["a", "b", "c", "a", "b", "c"].map(key));
}

#[test]
fn job_of_canceled_request_uses_capacity() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a"), runner("b")]);
    let (held, _) = engine.decide(now).start[0];
    let later = now + MIN_HOLD;
    assert_eq!(engine.decide(later).cancel, [held]);
    engine.answered(held, Outcome::Job, later);
    assert_eq!(engine.decide(later), Decisions::default(), "the job uses the capacity");
    engine.job_ended(&key("a"));
    assert_eq!(started_runners(&engine.decide(later)), [key("b")]);
}

#[test]
fn request_counts_against_limit_of_its_runner() {
    let now = Instant::now();
    let limited = Limits { limit: Some(2), request_concurrency: 5, adaptive: false, ..runner("a") };
    let mut engine = engine(9, vec![limited]);
    engine.count_job(&key("a"));
    let decisions = engine.decide(now);
    assert_eq!(decisions.start.len(), 1);
    engine.answered(decisions.start[0].0, Outcome::Job, now);
    assert_eq!(engine.decide(now).start, []);
    engine.job_ended(&key("a"));
    assert_eq!(engine.decide(now).start.len(), 1);
}

#[test]
fn jobs_of_removed_runners_use_capacity() {
    let now = Instant::now();
    let mut engine = engine(3, vec![Limits { request_concurrency: 9, adaptive: false, ..runner("a") }]);
    engine.count_job(&key("removed"));
    engine.count_job(&key("a"));
    assert_eq!(engine.decide(now).start.len(), 1);
    engine.job_ended(&key("removed"));
    assert_eq!(engine.decide(now).start.len(), 1);
}

#[test]
fn request_limit_adapts_to_jobs_and_overload() {
    let now = Instant::now();
    let mut engine = engine(100, vec![Limits { request_concurrency: 6, ..runner("a") }]);
    let answer_with_jobs = |engine: &mut Admission| {
        let started = engine.decide(now).start;
        for (poll, _) in &started {
            engine.answered(*poll, Outcome::Job, now);
        }
        started.len()
    };
    // Each job doubles the number: one job gives 2. The next two jobs give 8, which `request_concurrency` limits to 6.
    assert_eq!(
        [answer_with_jobs(&mut engine), answer_with_jobs(&mut engine), answer_with_jobs(&mut engine)],
        [1, 2, 6],
        "the number of requests grows up to `request_concurrency`"
    );
    let started = engine.decide(now).start;
    let later = now + Duration::from_secs(50);
    let (first, rest) = started.split_first().unwrap();
    engine.answered(first.0, Outcome::Empty { changed: false }, later);
    assert_eq!(engine.stats(later)[0].requests_adaptive, 5);
    let busy = Outcome::Failed { overloaded: true, rate_limited: false, retry_after: None };
    engine.answered(rest[0].0, busy, later);
    assert_eq!(engine.stats(later)[0].requests_adaptive, 1, "an overloaded coordinator gets only one request");
    for (poll, _) in &rest[1..] {
        engine.answered(*poll, Outcome::Canceled, later);
    }
    let (probe, _) = engine.decide(later + Duration::from_secs(1)).start[0];
    engine.answered(probe, Outcome::Duplicate, later + Duration::from_secs(1));
    // Half of the 5 before the overload.
    assert_eq!(engine.stats(later)[0].requests_adaptive, 2);
}

#[test]
fn coordinator_without_long_poll_is_polled_at_check_interval() {
    let mut now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let mut requested = 0;
    let start = now;
    while now < start + Duration::from_secs(60) {
        let decisions = engine.decide(now);
        for (poll, _) in &decisions.start {
            requested += 1;
            // Like GitLab's Rails without its front end, only the first answer reports another version of the queue.
            engine.answered(*poll, Outcome::Empty { changed: requested == 1 }, now);
        }
        if decisions.start.is_empty() {
            now = decisions.wake.expect("a waiting engine must have a wake-up");
        }
    }
    assert!((19..=24).contains(&requested), "{requested} requests in a minute");
}

#[test]
fn requests_answered_together_skip_one_pause() {
    let now = Instant::now();
    let mut engine = engine(9, vec![Limits { request_concurrency: 2, adaptive: false, ..runner("a") }]);
    let polls = engine.decide(now).start;
    let answered = now + Duration::from_millis(1);
    for (poll, _) in polls {
        engine.answered(poll, Outcome::Empty { changed: true }, answered);
    }
    let polls = engine.decide(answered).start;
    assert_eq!(polls.len(), 2);
    engine.answered(polls[0].0, Outcome::Empty { changed: true }, answered);
    assert_eq!(engine.decide(answered).start, [], "the next answer must not skip a pause");
}

#[test]
fn held_request_is_repeated_at_once() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let (poll, _) = engine.decide(now).start[0];
    // The first answer skips the pause because the queue changed, the next one because its request was held.
    engine.answered(poll, Outcome::Empty { changed: true }, now);
    let (poll, _) = engine.decide(now).start[0];
    let held = now + Duration::from_secs(50);
    engine.answered(poll, Outcome::Empty { changed: false }, held);
    assert_eq!(engine.decide(held).start.len(), 1);
}

#[test]
fn repeated_duplicates_slow_down_polling() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Duplicate, now);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Duplicate, now);
    let decisions = engine.decide(now);
    assert_eq!(decisions.start, [], "the second duplicate in a row must delay the next request");
    assert!(decisions.wake.unwrap() >= now + CHECK_INTERVAL.mul_f64(0.9));
}

#[test]
fn strict_check_interval_applies_after_job() {
    let now = Instant::now();
    let mut engine = engine(9, vec![Limits { strict: true, ..runner("a") }]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Job, now);
    let decisions = engine.decide(now);
    assert_eq!(decisions.start, []);
    assert!(decisions.wake.unwrap() >= now + CHECK_INTERVAL.mul_f64(0.9));
}

#[test]
fn recovered_coordinator_is_polled_within_seconds() {
    let mut now = Instant::now();
    let mut engine = engine(4, vec![Limits { request_concurrency: 4, adaptive: false, ..runner("a") }, runner("b")]);
    let down = Outcome::Failed { overloaded: false, rate_limited: false, retry_after: None };
    for _ in 0..200 {
        for (poll, runner) in engine.decide(now).start {
            engine.answered(poll, if runner == key("a") { down } else { Outcome::Canceled }, now);
        }
        let polls_of_b: Vec<PollId> =
            engine.active_polls().filter(|(_, poll)| poll.runner == key("b")).map(|(id, _)| id).collect();
        for poll in polls_of_b {
            engine.answered(poll, Outcome::Canceled, now);
        }
        let wait = engine.stats(now)[0].wait.unwrap_or_default();
        assert!(wait <= Duration::from_secs(10), "{wait:?}");
        assert_eq!(engine.stats(now)[1].wait, None, "runner b must not wait, because its coordinator works");
        now += wait;
    }
}

#[test]
fn simultaneous_failures_count_once() {
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
    assert_eq!(engine.decide(now + wait).start.len(), 1, "only one request probes the coordinator");
}

#[test]
fn refused_runner_is_probed_and_recovers_with_first_answer() {
    let mut now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let mut notices = Vec::new();
    for _ in 0..8 {
        now = engine.decide(now).wake.unwrap_or(now);
        let poll = engine.polls.keys().next().copied().or_else(|| Some(engine.decide(now).start[0].0)).unwrap();
        let Some(Notice::Refused { wait, unhealthy, .. }) = engine.answered(poll, Outcome::Refused, now) else {
            panic!("a refusal must have a notice")
        };
        notices.push((unhealthy, wait.as_secs()));
    }
    assert!(notices[..2].iter().all(|(unhealthy, wait)| !unhealthy && *wait < 10), "{notices:?}");
    // The backoff shortens the 30 s before the first probe to at least 15 s.
    assert!(notices[2..].iter().all(|(unhealthy, wait)| *unhealthy && (15..=300).contains(wait)), "{notices:?}");
    now = engine.decide(now).wake.unwrap();
    let (poll, _) = engine.decide(now).start[0];
    let notice = engine.answered(poll, Outcome::Empty { changed: true }, now);
    assert_eq!(notice, Some(Notice::Recovered { failures: 8 }));
    assert!(engine.stats(now)[0].healthy);
    assert_eq!(engine.decide(now).start.len(), 1);
}

#[test]
fn requests_in_flight_continue_when_concurrent_falls() {
    let now = Instant::now();
    let many = Limits { request_concurrency: 4, adaptive: false, ..runner("a") };
    let mut engine = engine(8, vec![many.clone()]);
    let polls = engine.decide(now).start;
    assert_eq!(polls.len(), 4);
    configure(&mut engine, 2, vec![Limits { limit: Some(1), ..many }]);
    engine.set_capacity(&key("a"), 0);
    let long_after = now + 10 * MIN_HOLD;
    assert_eq!(engine.decide(long_after), Decisions::default());
    for (poll, _) in polls {
        engine.answered(poll, Outcome::Job, long_after);
        assert_eq!(engine.decide(long_after), Decisions::default());
    }
    assert_eq!(engine.jobs(), 4, "every job counts");
}

#[test]
fn requests_of_old_settings_are_canceled_after_min_hold() {
    let now = Instant::now();
    let mut engine = engine(8, vec![runner("a"), runner("b")]);
    let polls: Vec<PollId> = engine.decide(now).start.iter().map(|(id, _)| *id).collect();
    let later = now + MIN_HOLD / 2;
    configure(&mut engine, 8, vec![Limits { generation: 2, ..runner("a") }]);
    assert_eq!(engine.decide(later), Decisions { wake: Some(now + MIN_HOLD), ..Decisions::default() });
    let due = now + MIN_HOLD;
    assert_eq!(engine.decide(due), Decisions { cancel: polls.clone(), ..Decisions::default() });
    for poll in polls {
        engine.answered(poll, Outcome::Canceled, due);
    }
    assert_eq!(started_runners(&engine.decide(due)), [key("a")]);
}

#[test]
fn stop_cancels_held_or_repeatable_requests() {
    let now = Instant::now();
    let mut engine = engine(8, vec![runner("a"), runner("b")]);
    engine.set_repeatable(&key("b"));
    let polls = engine.decide(now).start;
    engine.stop();
    let repeatable = polls.iter().find(|(_, runner)| *runner == key("b")).unwrap().0;
    assert_eq!(
        engine.decide(now),
        Decisions { cancel: vec![repeatable], wake: Some(now + MIN_HOLD), ..Decisions::default() }
    );
    engine.answered(repeatable, Outcome::Canceled, now);
    let decisions = engine.decide(now + MIN_HOLD);
    assert_eq!((decisions.start, decisions.cancel.len(), decisions.wake), (Vec::new(), 1, None));
}

#[test]
fn request_is_canceled_only_from_the_set_time_on() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a"), runner("b")]);
    let (first, _) = engine.decide(now).start[0];
    let cancelable_from = now + 3 * MIN_HOLD;
    engine.set_cancelable_from(first, cancelable_from);
    let unchanged = Decisions { wake: Some(cancelable_from), ..Decisions::default() };
    assert_eq!(engine.decide(now + MIN_HOLD), unchanged);
    engine.stop();
    assert_eq!(engine.decide(now + MIN_HOLD), unchanged);
    assert_eq!(engine.decide(cancelable_from).cancel, [first]);
}

#[test]
fn new_settings_reset_repeatability() {
    let now = Instant::now();
    let mut engine = engine(8, vec![runner("a")]);
    engine.set_repeatable(&key("a"));
    configure(&mut engine, 8, vec![Limits { generation: 2, ..runner("a") }]);
    engine.decide(now);
    engine.stop();
    assert_eq!(engine.decide(now).cancel, []);
}

#[test]
fn new_settings_reset_health() {
    let now = Instant::now();
    let mut engine = engine(1, vec![runner("a")]);
    let (poll, _) = engine.decide(now).start[0];
    engine.answered(poll, Outcome::Refused, now);
    assert_eq!(engine.decide(now).start, []);
    configure(&mut engine, 1, vec![Limits { generation: 2, ..runner("a") }]);
    assert_eq!(engine.decide(now).start.len(), 1);
}
