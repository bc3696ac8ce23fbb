//! What happens to a manager beside jobs and lies: plugins that go, prices and stocks that change, clocks that jump, people.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::cloud::chance;
use crate::config::{Config, UnmanagedPolicy};
use crate::operator::OperatorAction;
use crate::policy::{IdleTarget, Placement, Policies};
use crate::time::Time;

/// One of these. Machines are named by a number: of those that are there then, in their order, after as many as there are the
/// first again.
#[derive(Debug, Clone)]
pub enum Disturbance {
    /// A group's plugin ends, and runs again after so long. Calls under way have no answer but that.
    Down {
        /// Which group.
        group: usize,
        /// For so long.
        lasts: Duration,
    },
    /// A plugin disowns a machine.
    Retire {
        /// Of which group.
        group: usize,
        /// Which.
        machine: usize,
    },
    /// A group's machines cost something else.
    PriceChanged {
        /// Which group.
        group: usize,
        /// So much.
        per_hour: f64,
    },
    /// A group's plugin says whether there are machines to be had.
    StockChanged {
        /// Which group.
        group: usize,
        /// It has.
        available: bool,
    },
    /// A person does something to a group, or to a machine of it.
    Operator {
        /// Which group.
        group: usize,
        /// Which machine; none: the group.
        machine: Option<usize>,
        /// What.
        act: OperatorAction,
    },
    /// The configuration has other policies.
    Policies(Policies),
    /// The wall clock is set: so many seconds forward, or back.
    Clock(i64),
    /// No more jobs are requested until the manager starts again.
    Drain,
    /// The manager ends in order, and starts again after so long.
    Stop(Duration),
}

impl Disturbance {
    /// The group that it happens to, where it is one.
    pub(super) fn group(&self) -> Option<usize> {
        match self {
            Self::Down { group, .. }
            | Self::Retire { group, .. }
            | Self::PriceChanged { group, .. }
            | Self::StockChanged { group, .. }
            | Self::Operator { group, .. } => Some(*group),
            Self::Policies(_) | Self::Clock(_) | Self::Drain | Self::Stop(_) => None,
        }
    }
}

/// Turns before `heals`, one after the other, for `groups` groups.
pub(super) fn random(groups: usize, heals: Time, random: &mut ChaCha8Rng) -> Vec<(Time, Disturbance)> {
    let mut turns: Vec<(Time, Disturbance)> = (0..random.random_range(0..12))
        .map(|_| {
            let at = Time::from_millis(random.random_range(0..heals.as_millis()));
            (at, one(random.random_range(0..groups), random))
        })
        .collect();
    turns.sort_by_key(|(at, _)| *at);
    turns
}

fn one(group: usize, random: &mut ChaCha8Rng) -> Disturbance {
    let machine = random.random_range(0..8);
    match random.random_range(0..12) {
        0 => Disturbance::Down { group, lasts: Duration::from_millis(random.random_range(100..300_000)) },
        1 => Disturbance::Retire { group, machine },
        2 => Disturbance::PriceChanged { group, per_hour: random.random_range(1..8u32).into() },
        3 => Disturbance::StockChanged { group, available: chance(random, 0.4) },
        4..8 => {
            let machine = chance(random, 0.7).then_some(machine);
            let act = match random.random_range(0..5) {
                0 | 1 if machine.is_none() => OperatorAction::Drain,
                0 | 1 => OperatorAction::Cordon,
                2 => OperatorAction::Uncordon,
                3 => OperatorAction::Drain,
                _ => OperatorAction::Delete { force: true },
            };
            Disturbance::Operator { group, machine, act }
        }
        8 => Disturbance::Policies(Policies::always(wanted(random))),
        // After a leap forward a manager that starts takes what comes late for someone else's, and reports it: no leak that
        // nobody sees, and nothing that could be told apart.
        9 => Disturbance::Clock(random.random_range(-100_000..60)),
        10 => Disturbance::Drain,
        _ => Disturbance::Stop(Duration::from_millis(random.random_range(100..120_000))),
    }
}

fn wanted(random: &mut ChaCha8Rng) -> IdleTarget {
    IdleTarget {
        idle_count: random.random_range(0..5),
        idle_time: Duration::from_secs(random.random_range(0..600)),
        preemptive: chance(random, 0.5),
        placement: if chance(random, 0.5) { Placement::Pack } else { Placement::Spread },
        ..IdleTarget::default()
    }
}

/// What is done with machines of others, and with those that are there at the end.
pub(super) fn configure(config: &mut Config, random: &mut ChaCha8Rng) {
    config.delete_on_shutdown = chance(random, 0.5);
    config.unmanaged = match random.random_range(0..4) {
        0 => UnmanagedPolicy::Adopt,
        1 => UnmanagedPolicy::Delete,
        _ => UnmanagedPolicy::Ignore,
    };
}
