//! Reservations ahead of free slots, while each job request is answered with a job at once.

use super::rig::{Rig, config, key, wanted};
use crate::config::Config;
use crate::event::Event;
use crate::policy::Policies;
use crate::words::Request;

/// Instances of one job each, two of them idle.
fn one_use(max: u32) -> Config {
    let mut config = config(max, 1);
    config.uses_max = std::num::NonZeroU32::new(1);
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
                self.rig.engine.acquire(self.rig.now, job, &Request::default()).unwrap();
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
    assert_eq!(burst.rounds(), [2, 2, 4, 8, 4], "no time passes, and no instance boots meanwhile");
    assert_eq!(burst.rig.made, 20, "never more than max_instances");
}
