//! Reservations ahead of free slots, while each job request is answered with a job at once.

use super::fixture::{Rig, config, differs, key, wanted};
use crate::config::Config;
use crate::event::Event;
use crate::policy::Policies;
use crate::types::SlotRequest;

/// Instances of one job each, two of them idle.
fn one_use(max: u32) -> Config {
    let mut config = config(max, 1);
    config.max_uses = std::num::NonZeroU32::new(1);
    config.policies = Policies::always(wanted(2, 300));
    config
}

/// A fleet with its idle instances, and a queue of jobs at the coordinator.
struct Burst {
    rig: Rig,
    queued: u32,
    requested: u32,
    /// Reservations whose requests are in flight.
    open: Vec<String>,
}

impl Burst {
    fn new(config: Config, queued: u32) -> Self {
        let mut rig = Rig::new(config);
        rig.seconds(40);
        Self { rig, queued, requested: 0, open: Vec::new() }
    }

    /// Requests jobs for everything that can be reserved. Returns the number of requests.
    fn request(&mut self) -> u32 {
        let before = self.open.len();
        while self.open.len() < 1000 {
            let name = format!("request {:04}", self.requested);
            if self.rig.reserve(&name).is_err() {
                break;
            }
            self.requested += 1;
            self.open.push(name);
        }
        u32::try_from(self.open.len() - before).unwrap()
    }

    /// Answers all requests in flight at once, with the jobs that there are.
    fn answer(&mut self) {
        for name in std::mem::take(&mut self.open) {
            let at_once = self.queued > 0;
            if at_once {
                self.queued -= 1;
                let job = key(&format!("job of {name}"));
                self.rig.engine.rename(&key(&name), job.clone());
                self.rig.tell(Event::Answered { at_once });
                // A job that has come is admitted, also when its reservation was revoked meanwhile.
                self.rig.engine.admit(job.clone());
                self.rig.engine.acquire(self.rig.now, job, &SlotRequest::default()).unwrap();
                self.rig.answer();
            } else {
                self.rig.tell(Event::Answered { at_once });
                self.rig.tell(Event::Unreserve { key: key(&name) });
            }
        }
    }

    /// Rounds of requests until the queue is empty or no slot is offered. Returns the number of requests of each.
    fn rounds(&mut self) -> Vec<u32> {
        let mut offered = Vec::new();
        while self.queued > 0 {
            match self.request() {
                0 => break,
                requests => offered.push(requests),
            }
            self.answer();
        }
        offered
    }
}

#[test]
fn twenty_waiting_jobs_are_offered_in_rounds_that_double_and_not_two_at_a_time() {
    let mut burst = Burst::new(one_use(20), 20);
    // No time passes, and no instance boots meanwhile.
    differs("requests for 20 jobs, two slots being idle", (vec![2], vec![2, 2, 4, 8, 4]), burst.rounds());
    burst.rig.seconds(1);
    assert_eq!(burst.rig.made, 20, "all are created before the first boots, and never more than max_instances");
}

/// After 2, 2 and 4 jobs of a long queue. Returns the instances that were created by then, too.
fn after_three_rounds(config: Config) -> (Burst, u32) {
    let mut burst = Burst::new(config, 100);
    for wanted in [2, 2, 4] {
        assert_eq!(burst.request(), wanted);
        burst.answer();
    }
    let made = burst.rig.made;
    (burst, made)
}

#[test]
fn the_first_empty_answer_leads_back_to_the_free_slots() {
    let (mut burst, _) = after_three_rounds(one_use(40));
    assert_eq!(burst.request(), 8);
    burst.queued = 0;
    burst.rig.tell(Event::Answered { at_once: false });
    assert_eq!(burst.rig.withdrawn.len(), 8, "all of them are ahead: no slot is free");
    let refusal = burst.rig.reserve("one more").unwrap_err();
    assert!(matches!(refusal, crate::engine::NoCapacity::NoneAvailable { .. }), "{refusal}");
}

#[test]
fn requests_that_are_held_lead_back_to_the_free_slots() {
    let (mut burst, _) = after_three_rounds(one_use(40));
    assert_eq!(burst.request(), 8);
    burst.rig.pass(std::time::Duration::from_millis(900));
    assert_eq!(burst.rig.withdrawn.len(), 0, "they may yet be answered at once");
    burst.rig.pass(std::time::Duration::from_millis(100));
    assert_eq!(burst.rig.withdrawn.len(), 8);
}

/// The cost of a queue that turns out to be empty: nothing beyond the jobs that came and the idle slots of the policy.
#[test]
fn reservations_ahead_create_no_instance_that_no_job_needs() {
    let mut burst = Burst::new(one_use(40), 9);
    assert_eq!(burst.rounds(), [2, 2, 4, 8]);
    assert_eq!(burst.rig.made, 9 + 2, "one for each job, and two idle ones");
    burst.rig.seconds(40);
    assert_eq!(burst.rig.granted.len(), 9, "every job has its slot after one boot");
}

#[test]
fn it_can_be_turned_off() {
    let mut config = one_use(20);
    config.policies = Policies::always(crate::policy::IdleTarget { ahead: false, ..wanted(2, 300) });
    assert_eq!(Burst::new(config, 20).rounds(), [2]);
}

#[test]
fn no_more_is_reserved_ahead_than_max_instances_allows() {
    assert_eq!(Burst::new(one_use(7), 20).rounds(), [2, 2, 3]);
}

#[test]
fn no_more_is_reserved_ahead_than_may_be_spent() {
    let mut config = one_use(40);
    config.groups[0].price_per_hour = 1.0;
    config.max_cost_per_hour = Some(5.5);
    assert_eq!(Burst::new(config, 20).rounds(), [2, 2, 1]);
}

#[test]
fn no_more_is_reserved_ahead_than_may_be_created_at_once() {
    let mut config = one_use(40);
    config.groups[0].throttle = crate::config::Throttle { limit: 1, burst: 3 };
    let mut burst = Burst::new(config, 20);
    assert_eq!(burst.rounds(), [2, 2, 1], "two boot for the idle slots, and one more may be created");
    burst.rig.seconds(1);
    assert_eq!(burst.rounds(), [1], "one in each second");
}

#[test]
fn after_a_failed_creation_no_more_is_reserved_than_boots() {
    let (mut burst, made) = after_three_rounds(one_use(40));
    burst.rig.moods[0] = super::fixture::Mood::Refusing("quota");
    burst.rig.want("another job");
    assert_eq!((burst.request(), burst.rig.made), (1, made), "eight instances boot, and seven jobs wait");
    assert_eq!(burst.request(), 0);
}

#[test]
fn a_provider_that_grants_too_few_is_not_counted_on_for_more() {
    let (mut burst, _) = after_three_rounds(one_use(40));
    burst.rig.moods[0] = super::fixture::Mood::Short(1);
    assert_eq!(burst.request(), 8);
    burst.answer();
    burst.rig.pass(std::time::Duration::from_millis(200));
    assert!(burst.rig.made < 16, "16 jobs came, and as many instances are not granted: {}", burst.rig.made);
    assert_eq!(burst.request(), 0);
}

#[test]
fn instances_that_do_not_get_ready_are_not_counted_on() {
    let mut config = one_use(40);
    config.policies = Policies::always(wanted(2, 300));
    let mut burst = Burst::new(config, 100);
    burst.rig.readying = Err("no ssh".to_owned());
    assert_eq!(burst.request(), 2);
    burst.answer();
    burst.rig.seconds(31);
    assert_eq!(burst.request(), 0, "the two that booted were useless");
}

#[test]
fn a_full_fleet_goes_on_with_the_queue_as_soon_as_there_is_room_again() {
    let mut burst = Burst::new(one_use(10), 20);
    assert_eq!(burst.rounds(), [2, 2, 4, 2]);
    burst.rig.seconds(40);
    let first: Vec<String> = burst.rig.granted.iter().map(|lease| lease.key.to_string()).collect();
    assert_eq!((first.len(), burst.request()), (10, 0));
    first.iter().for_each(|job| burst.rig.release(job));
    burst.rig.seconds(2);
    assert_eq!(burst.request(), 10, "no instance boots before its job is requested");
    burst.answer();
    burst.rig.seconds(40);
    assert_eq!((burst.rig.granted.len(), burst.rig.made), (20, 20));
}
