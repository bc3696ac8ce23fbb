//! Reservations of more slots than are free, while job requests immediately return jobs.

use super::fixture::{Fixture, assert_differs_from_upstream, config, idle_target, key};
use crate::config::Config;
use crate::event::Event;
use crate::policy::Policies;
use crate::types::SlotRequest;

/// Each instance runs one job, and two instances are kept idle.
fn single_use_config(max: u32) -> Config {
    let mut config = config(max, 1);
    config.max_uses = std::num::NonZeroU32::new(1);
    config.policies = Policies::always(idle_target(2, 300));
    config
}

struct Burst {
    fixture: Fixture,
    /// Number of jobs that the coordinator has not yet returned.
    jobs_at_coordinator: u32,
    requested: u32,
    /// Reservations whose job requests are in flight.
    in_flight: Vec<String>,
}

impl Burst {
    fn new(config: Config, jobs_at_coordinator: u32) -> Self {
        let mut fixture = Fixture::new(config);
        fixture.seconds(40);
        Self { fixture, jobs_at_coordinator, requested: 0, in_flight: Vec::new() }
    }

    /// Returns the number of requests.
    fn request(&mut self) -> u32 {
        let before = self.in_flight.len();
        while self.in_flight.len() < 1000 {
            let name = format!("request {:04}", self.requested);
            if self.fixture.reserve(&name).is_err() {
                break;
            }
            self.requested += 1;
            self.in_flight.push(name);
        }
        u32::try_from(self.in_flight.len() - before).unwrap()
    }

    fn answer(&mut self) {
        for name in std::mem::take(&mut self.in_flight) {
            let is_immediate_job = self.jobs_at_coordinator > 0;
            if is_immediate_job {
                self.jobs_at_coordinator -= 1;
                let job = key(&format!("job of {name}"));
                self.fixture.engine.rename(&key(&name), job.clone());
                self.fixture.handle(Event::JobRequestAnswered { is_immediate_job });
                self.fixture.engine.admit(job.clone());
                self.fixture.engine.acquire(self.fixture.now, job, &SlotRequest::default()).unwrap();
                self.fixture.answer();
            } else {
                self.fixture.handle(Event::JobRequestAnswered { is_immediate_job });
                self.fixture.handle(Event::Unreserve { key: key(&name) });
            }
        }
    }

    /// Returns the number of requests of each round.
    fn run_rounds(&mut self) -> Vec<u32> {
        let mut rounds = Vec::new();
        while self.jobs_at_coordinator > 0 {
            match self.request() {
                0 => break,
                requests => rounds.push(requests),
            }
            self.answer();
        }
        rounds
    }
}

#[test]
fn reservations_ahead_double_with_each_round() {
    let mut burst = Burst::new(single_use_config(20), 20);
    // No time passes, so no instance boots.
    assert_differs_from_upstream(
        "requests for 20 jobs with two idle slots",
        (vec![2], vec![2, 2, 4, 8, 4]),
        burst.run_rounds(),
    );
    burst.fixture.seconds(1);
    assert_eq!(burst.fixture.created, 20, "all are requested before the first has booted, and at most max_instances");
}

/// Also returns the number of instances created so far.
fn run_three_rounds(config: Config) -> (Burst, u32) {
    let mut burst = Burst::new(config, 100);
    for expected in [2, 2, 4] {
        assert_eq!(burst.request(), expected);
        burst.answer();
    }
    let created = burst.fixture.created;
    (burst, created)
}

#[test]
fn empty_answer_revokes_reservations_ahead() {
    let (mut burst, _) = run_three_rounds(single_use_config(40));
    assert_eq!(burst.request(), 8);
    burst.jobs_at_coordinator = 0;
    burst.fixture.handle(Event::JobRequestAnswered { is_immediate_job: false });
    assert_eq!(burst.fixture.revoked.len(), 8, "all of them are ahead, because no slot is free");
    let refusal = burst.fixture.reserve("one more").unwrap_err();
    assert!(matches!(refusal, crate::engine::NoCapacity::NoneAvailable { .. }), "{refusal}");
}

#[test]
fn unanswered_requests_revoke_reservations_ahead() {
    let (mut burst, _) = run_three_rounds(single_use_config(40));
    assert_eq!(burst.request(), 8);
    burst.fixture.advance(std::time::Duration::from_millis(900));
    assert_eq!(burst.fixture.revoked.len(), 0, "the requests may still be answered immediately");
    burst.fixture.advance(std::time::Duration::from_millis(100));
    assert_eq!(burst.fixture.revoked.len(), 8);
}

/// More slots are reserved than the coordinator has jobs.
#[test]
fn reservations_ahead_create_no_instances() {
    let mut burst = Burst::new(single_use_config(40), 9);
    assert_eq!(burst.run_rounds(), [2, 2, 4, 8]);
    assert_eq!(burst.fixture.created, 9 + 2, "one instance for each job, and two idle instances");
    burst.fixture.seconds(40);
    assert_eq!(burst.fixture.assignments.len(), 9, "every job has its slot after one boot");
}

#[test]
fn reserving_ahead_can_be_disabled() {
    let mut config = single_use_config(20);
    config.policies = Policies::always(crate::policy::IdleTarget { reserve_ahead: false, ..idle_target(2, 300) });
    assert_eq!(Burst::new(config, 20).run_rounds(), [2]);
}

#[test]
fn reservations_ahead_respect_max_instances() {
    assert_eq!(Burst::new(single_use_config(7), 20).run_rounds(), [2, 2, 3]);
}

#[test]
fn reservations_ahead_respect_max_cost() {
    let mut config = single_use_config(40);
    config.groups[0].price_per_hour = 1.0;
    config.max_cost_per_hour = Some(5.5);
    assert_eq!(Burst::new(config, 20).run_rounds(), [2, 2, 1]);
}

#[test]
fn reservations_ahead_respect_scale_throttle() {
    let mut config = single_use_config(40);
    config.groups[0].throttle = crate::config::Throttle { limit: 1, burst: 3 };
    let mut burst = Burst::new(config, 20);
    assert_eq!(burst.run_rounds(), [2, 2, 1], "two boot for the idle slots, and one more can be created");
    burst.fixture.seconds(1);
    assert_eq!(burst.run_rounds(), [1], "the throttle allows one instance per second");
}

#[test]
fn failed_creation_limits_reservations_to_booting_instances() {
    let (mut burst, created) = run_three_rounds(single_use_config(40));
    burst.fixture.behaviors[0] = super::fixture::CloudBehavior::Reject("quota");
    burst.fixture.acquire("another job");
    assert_eq!((burst.request(), burst.fixture.created), (1, created), "eight instances boot, and seven jobs wait");
    assert_eq!(burst.request(), 0);
}

#[test]
fn partial_acceptance_stops_reservations_ahead() {
    let (mut burst, _) = run_three_rounds(single_use_config(40));
    burst.fixture.behaviors[0] = super::fixture::CloudBehavior::Partial(1);
    assert_eq!(burst.request(), 8);
    burst.answer();
    burst.fixture.advance(std::time::Duration::from_millis(200));
    assert!(
        burst.fixture.created < 16,
        "16 jobs arrived, but fewer instances were accepted: {}",
        burst.fixture.created
    );
    assert_eq!(burst.request(), 0);
}

#[test]
fn unready_instances_stop_reservations_ahead() {
    let mut config = single_use_config(40);
    config.policies = Policies::always(idle_target(2, 300));
    let mut burst = Burst::new(config, 100);
    burst.fixture.prepare_result = Err("no ssh".to_owned());
    assert_eq!(burst.request(), 2);
    burst.answer();
    burst.fixture.seconds(31);
    assert_eq!(burst.request(), 0, "the two instances that booted did not become ready");
}

#[test]
fn full_fleet_requests_jobs_again_once_instances_are_deleted() {
    let mut burst = Burst::new(single_use_config(10), 20);
    assert_eq!(burst.run_rounds(), [2, 2, 4, 2]);
    burst.fixture.seconds(40);
    let first: Vec<String> = burst.fixture.assignments.iter().map(|lease| lease.key.to_string()).collect();
    assert_eq!((first.len(), burst.request()), (10, 0));
    first.iter().for_each(|job| burst.fixture.release(job));
    burst.fixture.seconds(2);
    assert_eq!(burst.request(), 10, "as many slots can be reserved as the deleted instances had");
    burst.answer();
    burst.fixture.seconds(40);
    assert_eq!((burst.fixture.assignments.len(), burst.fixture.created), (20, 20));
}
