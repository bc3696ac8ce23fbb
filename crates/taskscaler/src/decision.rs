//! What the engine decided, with what it knew: for logs, metrics, and the answer to "why".

use std::fmt;
use std::time::Duration;

use muster_fleeting::model::{InstanceId, InstanceState};

use crate::formula::Inputs;
use crate::need::Used;
use crate::operator::{Act, Done};
use crate::sleep::Step;
use crate::words::{GroupId, Key, Loss, Removal};

/// One decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Seconds since 1970.
    pub unix: i64,
    /// What it is.
    pub what: What,
}

/// What was decided, or learned.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// Another policy holds.
    Policy {
        /// Its number in the file, from 0; none: the default.
        index: Option<usize>,
        /// Its idle slots.
        idle_count: u32,
    },
    /// Instances were asked for.
    Ask {
        /// Where.
        group: GroupId,
        /// How many.
        n: u32,
        /// How many were missing.
        missing: u64,
        /// Why so many.
        inputs: Inputs,
        /// Groups that come before this one, and why they were passed over.
        passed: Vec<(GroupId, Hold)>,
    },
    /// Instances are missing, and cannot be asked for.
    Hold {
        /// How many.
        missing: u64,
        /// Why, for each group in the order in which they are asked.
        reasons: Vec<(GroupId, Hold)>,
        /// Why so many.
        inputs: Inputs,
    },
    /// The provider answered a request for instances.
    Granted {
        /// Where.
        group: GroupId,
        /// How many were asked for.
        asked: u32,
        /// How many of them it makes.
        granted: u32,
    },
    /// A creation failed.
    CreationFailed {
        /// Where.
        group: GroupId,
        /// The provider's words.
        error: String,
        /// Failures in a row.
        failures: u32,
        /// Nothing is tried for so long.
        pause: Duration,
    },
    /// An instance appeared.
    Appeared {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Why it is here.
        cause: Cause,
        /// Since it was asked for, where it was.
        after: Duration,
    },
    /// The provider says that it runs.
    Running {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Since it was asked for.
        after: Duration,
    },
    /// An instance that nobody here asked for.
    Foreign {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// What the provider says of it.
        state: InstanceState,
    },
    /// Jobs can have it.
    Ready {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Since it runs.
        after: Duration,
        /// Time since the request for it. `None` means that it was ready before, or was not requested here.
        created: Option<Duration>,
    },
    /// A job has a slot.
    Leased {
        /// Whose.
        key: Key,
        /// Where.
        group: GroupId,
        /// On which.
        id: InstanceId,
        /// Which slot.
        slot: u32,
        /// How many slots it takes.
        slots: u32,
        /// Jobs on the instance, this one included.
        jobs: u32,
        /// Whether the instance has the sticky context that it asked for; none where it asked for none.
        sticky: Option<bool>,
        /// How long it waited.
        waited: Duration,
    },
    /// What a job used is known.
    Used {
        /// Whose.
        key: Key,
        /// What.
        used: Used,
        /// Other jobs on its instance, on average over its time.
        neighbours: f64,
        /// How many times longer it took than jobs of its kind do alone.
        slow_down: Option<f64>,
    },
    /// A job needs more slots than any instance has free: this one gets no others until it has room.
    Kept {
        /// Whose.
        key: Key,
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// How many slots it waits for.
        slots: u32,
    },
    /// A slot is free again.
    Released {
        /// Whose it was.
        key: Key,
    },
    /// Something happens to an environment that a job left for a later one.
    Environment {
        /// Where.
        group: GroupId,
        /// On which instance.
        id: InstanceId,
        /// The job that left it: its name.
        name: Key,
        /// What.
        step: Step,
    },
    /// An instance gets no more jobs and goes when its last one has ended.
    Drain {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Why.
        why: Removal,
        /// Its jobs.
        jobs: u32,
    },
    /// An instance is removed.
    Remove {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Why.
        why: Removal,
        /// What there was when that was decided.
        inputs: Inputs,
    },
    /// A removal has no effect for long; it is repeated until it has.
    Stuck {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Calls so far.
        attempts: u32,
    },
    /// An instance is gone.
    Gone {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// Since it was seen first.
        life: Duration,
        /// Since its removal was asked for; none where it was not.
        deletion: Option<Duration>,
    },
    /// An instance went with its jobs.
    Lost {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// How that was seen.
        cause: Loss,
        /// The jobs that were on it.
        jobs: Vec<Key>,
    },
    /// An operator did something by hand.
    Operator {
        /// Where.
        group: GroupId,
        /// To which; none: to the group.
        id: Option<InstanceId>,
        /// What.
        act: Act,
        /// Who, and why.
        by: String,
        /// What came of it.
        done: Done,
    },
    /// A listed instance was missing in a snapshot.
    Missed {
        /// Where.
        group: GroupId,
        /// Which.
        id: InstanceId,
    },
    /// The instances could not be listed.
    UpdateFailed {
        /// Where.
        group: GroupId,
        /// Why.
        error: String,
        /// In a row.
        failures: u32,
    },
}

/// Why an instance is in the books.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It was asked for.
    Requested,
    /// It was asked for, and was given up before it appeared.
    Late,
    /// Nobody asked for it; the configuration adopts such ones.
    Adopted,
    /// As [`Self::Adopted`], and it is removed.
    Unwanted,
}

/// Why a group gives no more instances now.
#[derive(Debug, Clone, PartialEq)]
pub enum Hold {
    /// Its plugin does not run.
    Down {
        /// Why.
        cause: String,
    },
    /// An operator drained it.
    Drained {
        /// Who, and why.
        by: String,
    },
    /// Its instances are not known yet.
    Unknown {
        /// Why the last list failed, in the provider's words; none where none has.
        error: Option<String>,
    },
    /// It has as many as it may.
    AtMax {
        /// How many.
        max: u32,
        /// Those that go, whose places will be free.
        leaving: u32,
        /// Of those, the ones that should be gone for long.
        stuck: Stuck,
    },
    /// The last creations failed.
    BackOff {
        /// The provider's words.
        error: String,
        /// In a row.
        failures: u32,
        /// For so long.
        pause: Duration,
    },
    /// After failures, one attempt is under way that will show whether it works again.
    Probing {
        /// The provider's words.
        error: String,
    },
    /// The provider granted fewer than were asked for, a moment ago.
    Short,
    /// Its plugin says that the provider has none now.
    OutOfStock,
    /// As many per second as `scale_throttle` allows.
    Throttled,
    /// What an instance costs is not known, and spending is bounded.
    Unpriced,
    /// More would cost more per hour than allowed.
    Spend {
        /// The bound.
        max_per_hour: f64,
    },
    /// The scaler ends.
    Stopping,
}

/// Instances that do not go, however often they are removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stuck {
    /// How many.
    pub count: u32,
    /// The one that should be gone for longest.
    pub first: Option<InstanceId>,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down { cause } => write!(f, "its plugin does not run: {cause}"),
            Self::Drained { by } => write!(f, "it was drained by {by}"),
            Self::Unknown { error: None } => f.write_str("its instances have not been listed yet"),
            Self::Unknown { error: Some(error) } => write!(f, "its instances cannot be listed: {error}"),
            Self::AtMax { max, leaving: 0, .. } => write!(f, "it has its {max} instances"),
            Self::AtMax { max, leaving, stuck } => {
                write!(f, "it has its {max} instances, of which {leaving} are going")?;
                match &stuck.first {
                    Some(id) => write!(
                        f,
                        "; {} of these should be gone for long, and {id} is still there: look at the provider's console",
                        stuck.count
                    ),
                    None => Ok(()),
                }
            }
            Self::BackOff { error, failures, pause } => {
                write!(f, "{failures} failures in a row, next attempt in {} s: {error}", pause.as_secs())
            }
            Self::Probing { error } => write!(f, "an attempt is under way after: {error}"),
            Self::Short => f.write_str("the provider gave fewer than were asked for"),
            Self::OutOfStock => f.write_str("the provider is out of stock"),
            Self::Throttled => f.write_str("scale_throttle is reached"),
            Self::Unpriced => f.write_str(
                "spend_max_per_hour bounds what it may cost, and no price is known: set price_per_hour, or use a plugin that tells prices",
            ),
            Self::Spend { max_per_hour } => write!(f, "more would cost over {max_per_hour} per hour"),
            Self::Stopping => f.write_str("the scaler ends"),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |duration: &Duration| format!("{:.3} s", duration.as_secs_f64());
        match self {
            Self::Policy { index: Some(index), idle_count } => {
                write!(f, "policy {} holds: {idle_count} idle slots", index + 1)
            }
            Self::Policy { index: None, .. } => f.write_str("no policy holds: nothing is kept idle"),
            Self::Ask { n, missing, inputs, .. } => write!(
                f,
                "{n} of {missing} missing instances asked for: {} in use, {} waiting, {} idle wanted, {} instances of {} slots",
                inputs.acquired,
                inputs.waiting,
                crate::formula::idle(inputs),
                inputs.instances,
                inputs.capacity
            ),
            Self::Hold { missing, reasons, .. } => {
                write!(f, "{missing} instances are missing and cannot be asked for")?;
                reasons.iter().try_for_each(|(group, hold)| write!(f, "; group {}: {hold}", group.0 + 1))
            }
            Self::Granted { asked, granted, .. } => write!(f, "{granted} of {asked} instances granted"),
            Self::CreationFailed { error, failures, pause, .. } => {
                write!(f, "creation failed ({failures} in a row; next in {}): {error}", seconds(pause))
            }
            Self::Appeared { id, cause, after, .. } => {
                write!(f, "instance {id} appeared ({cause:?}, {})", seconds(after))
            }
            Self::Running { id, after, .. } => write!(f, "instance {id} runs after {}", seconds(after)),
            Self::Foreign { id, state, .. } => {
                write!(f, "instance {id} ({state}) was not asked for here; it is left alone")
            }
            Self::Ready { id, after, .. } => write!(f, "instance {id} is ready after {}", seconds(after)),
            Self::Leased { key, id, slot, slots, sticky, waited, .. } => {
                write!(f, "{key} has slot {slot} of {id} after {}", seconds(waited))?;
                if *slots > 1 {
                    write!(f, ", and {} more", slots - 1)?;
                }
                match sticky {
                    Some(true) => f.write_str(", with its sticky context"),
                    Some(false) => f.write_str(", without its sticky context"),
                    None => Ok(()),
                }
            }
            Self::Used { key, used, neighbours, slow_down } => {
                write!(f, "{key} ran for {} beside {neighbours:.1} others", seconds(&used.wall))?;
                slow_down.map_or(Ok(()), |times| write!(f, ", {times:.2} times as long as alone"))
            }
            Self::Kept { key, id, slots, .. } => {
                write!(f, "instance {id} gets no more jobs until {slots} of its slots are free for {key}")
            }
            Self::Environment { id, name, step, .. } => write!(f, "environment of {name} on {id}: {step}"),
            Self::Released { key } => write!(f, "{key} gave its slot back"),
            Self::Drain { id, why, jobs, .. } => write!(f, "instance {id} gets no more jobs ({jobs} run): {why}"),
            Self::Remove { id, why, .. } => write!(f, "instance {id} is removed: {why}"),
            Self::Stuck { id, attempts, .. } => {
                write!(f, "instance {id} is still there after {attempts} removals; look at the provider's console")
            }
            Self::Gone { id, life, .. } => write!(f, "instance {id} is gone after {}", seconds(life)),
            Self::Lost { id, cause, jobs, .. } => write!(f, "instance {id} with {} jobs: {cause}", jobs.len()),
            Self::Operator { id, act, by, done, .. } => {
                match id {
                    Some(id) => write!(f, "instance {id}")?,
                    None => f.write_str("the group")?,
                }
                let act = match act {
                    Act::Drain => "drained",
                    Act::Resume => "resumed",
                    Act::Remove { .. } => "removed",
                };
                write!(f, " was {act} by {by}: {done}")
            }
            Self::Missed { id, .. } => write!(f, "instance {id} is missing in the provider's list"),
            Self::UpdateFailed { error, failures, .. } => {
                write!(f, "instances cannot be listed ({failures} in a row): {error}")
            }
        }
    }
}
