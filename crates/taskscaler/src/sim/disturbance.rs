//! What disturbs a simulated manager besides provider faults.

use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::cloud::chance;
use crate::config::{Config, UnmanagedPolicy};
use crate::operator::OperatorAction;
use crate::policy::{IdleTarget, Placement, Policies};
use crate::time::Time;

/// A disturbance. A machine is an index into the group's existing machines, modulo their number.
#[derive(Debug, Clone)]
pub enum Disturbance {
    /// The plugin of a group fails and restarts later. Calls in progress fail.
    PluginDown {
        /// Index of the group.
        group: usize,
        /// Time until the restart.
        duration: Duration,
    },
    /// The plugin reports that a machine must get no more jobs.
    Retire {
        /// Index of the group.
        group: usize,
        /// The machine.
        machine: usize,
    },
    /// The price of a group's machines changes.
    PriceChanged {
        /// Index of the group.
        group: usize,
        /// New price per hour.
        per_hour: f64,
    },
    /// The plugin reports whether the provider has machines in stock.
    StockChanged {
        /// Index of the group.
        group: usize,
        /// Whether machines are in stock.
        available: bool,
    },
    /// An operator changes a group or a machine.
    Operator {
        /// Index of the group.
        group: usize,
        /// The machine. `None` means the whole group.
        machine: Option<usize>,
        /// The change.
        action: OperatorAction,
    },
    /// The configured policies are replaced.
    Policies(Policies),
    /// The wall clock jumps by this number of seconds, forward or back.
    ClockJump(i64),
    /// The manager requests no more jobs until it restarts.
    Drain,
    /// The manager shuts down gracefully and restarts after this time.
    Stop(Duration),
}

impl Disturbance {
    /// `None` means that the disturbance affects the whole manager.
    pub(super) fn group(&self) -> Option<usize> {
        match self {
            Self::PluginDown { group, .. }
            | Self::Retire { group, .. }
            | Self::PriceChanged { group, .. }
            | Self::StockChanged { group, .. }
            | Self::Operator { group, .. } => Some(*group),
            Self::Policies(_) | Self::ClockJump(_) | Self::Drain | Self::Stop(_) => None,
        }
    }
}

/// Generates disturbances before `faults_end`, ordered by time.
pub(super) fn random(groups: usize, faults_end: Time, random: &mut ChaCha8Rng) -> Vec<(Time, Disturbance)> {
    let mut disturbances: Vec<(Time, Disturbance)> = (0..random.random_range(0..12))
        .map(|_| {
            let at = Time::from_millis(random.random_range(0..faults_end.as_millis()));
            (at, random_disturbance(random.random_range(0..groups), random))
        })
        .collect();
    disturbances.sort_by_key(|(at, _)| *at);
    disturbances
}

fn random_disturbance(group: usize, random: &mut ChaCha8Rng) -> Disturbance {
    let machine = random.random_range(0..8);
    match random.random_range(0..12) {
        0 => Disturbance::PluginDown { group, duration: Duration::from_millis(random.random_range(100..300_000)) },
        1 => Disturbance::Retire { group, machine },
        2 => Disturbance::PriceChanged { group, per_hour: random.random_range(1..8u32).into() },
        3 => Disturbance::StockChanged { group, available: chance(random, 0.4) },
        4..8 => {
            let machine = chance(random, 0.7).then_some(machine);
            let action = match random.random_range(0..5) {
                0 | 1 if machine.is_none() => OperatorAction::Drain,
                0 | 1 => OperatorAction::Cordon,
                2 => OperatorAction::Uncordon,
                3 => OperatorAction::Drain,
                _ => OperatorAction::Delete { force: true },
            };
            Disturbance::Operator { group, machine, action }
        }
        8 => Disturbance::Policies(Policies::always(random_target(random))),
        // After a jump far forward, a restarted manager would give up its pending create requests, and their machines
        // would count as leaked.
        9 => Disturbance::ClockJump(random.random_range(-100_000..60)),
        10 => Disturbance::Drain,
        _ => Disturbance::Stop(Duration::from_millis(random.random_range(100..120_000))),
    }
}

fn random_target(random: &mut ChaCha8Rng) -> IdleTarget {
    IdleTarget {
        idle_count: random.random_range(0..5),
        idle_time: Duration::from_secs(random.random_range(0..600)),
        preemptive: chance(random, 0.5),
        placement: if chance(random, 0.5) { Placement::Pack } else { Placement::Spread },
        ..IdleTarget::default()
    }
}

/// Chooses what happens to instances on shutdown and to unmanaged instances.
pub(super) fn configure(config: &mut Config, random: &mut ChaCha8Rng) {
    config.delete_on_shutdown = chance(random, 0.5);
    config.unmanaged = match random.random_range(0..4) {
        0 => UnmanagedPolicy::Adopt,
        1 => UnmanagedPolicy::Delete,
        _ => UnmanagedPolicy::Ignore,
    };
}
