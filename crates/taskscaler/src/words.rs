//! The words that the engine shares with those around it.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use muster_fleeting::model::InstanceId;
use serde::{Deserialize, Serialize};

/// Who wants a slot: the name of a reservation, then of a waiting request, then of a lease. The caller makes it unique.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// A key of this text.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().into())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// A group, by its place in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub usize);

/// A kind of job: those of one name in one project are alike. A hash, made by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Work(pub u64);

/// A sticky context: what jobs of one project and protection level leave on an instance for each other. A hash, made by the
/// caller; two contexts of one hash cost a wrong preference, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Context(pub u64);

/// An instance that a job has tried, as a request names it. A hash; another instance of the same hash costs a wrong preference,
/// and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tried(u64);

impl Tried {
    /// That instance.
    #[must_use]
    pub fn of(id: &InstanceId) -> Self {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// CPU and memory; none: not known, or not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// Thousandths of a CPU.
    pub cpu_milli: Option<u32>,
    /// Bytes.
    pub memory_bytes: Option<u64>,
}

impl Need {
    /// Where this says nothing, `other` does.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { cpu_milli: self.cpu_milli.or(other.cpu_milli), memory_bytes: self.memory_bytes.or(other.memory_bytes) }
    }
}

/// What a request for a slot asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// What the job declares that it needs.
    pub need: Need,
    /// Its kind, for what earlier runs used.
    pub work: Option<Work>,
    /// Instances that have this are preferred.
    pub context: Option<Context>,
    /// The job could not be started there: any other instance with a slot is preferred.
    pub avoid: Option<Tried>,
}

/// One job's right to one slot of one instance, or to several where the job needs more than one stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Whose it is.
    pub key: Key,
    /// The instance's group.
    pub group: GroupId,
    /// The instance.
    pub instance: InstanceId,
    /// The slot: the lowest free one, from 0.
    pub slot: u32,
    /// How many slots it holds, this one included.
    pub slots: u32,
    /// How many jobs the instance has had, with this one.
    pub use_number: u32,
}

impl Lease {
    /// Whether it has the same slots as another one.
    #[must_use]
    pub fn is_where(&self, other: &Self) -> bool {
        let place = |lease: &Self| (lease.group, lease.slot, lease.slots);
        place(self) == place(other) && self.instance == other.instance
    }
}

/// Why an instance goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Removal {
    /// Nobody needed it for the policy's idle time.
    Idle {
        /// How long, in milliseconds.
        idle_ms: u64,
    },
    /// It has had as many jobs as it may.
    UsedUp {
        /// Jobs.
        uses: u32,
    },
    /// Too many failures in a row.
    Unhealthy {
        /// The last one.
        error: String,
    },
    /// It runs, but could not be made ready.
    NeverReady {
        /// Why.
        error: String,
    },
    /// It did not run in time.
    NeverRan,
    /// There are more than the limit allows.
    OverMax,
    /// They cost more than the bound on spending allows.
    OverSpend,
    /// It came back after it was given up: its jobs are elsewhere.
    Returned,
    /// Nobody asked for it, and the configuration says that such ones are removed.
    Foreign,
    /// The provider takes it, or it was gone before it was asked to go.
    Provider,
    /// Its plugin, or a job that it left without an answer, says that it should not be used any more.
    Disowned {
        /// Why.
        why: String,
    },
    /// Its jobs did not survive a restart of the manager.
    Unclaimed,
    /// No job has asked for the environment on it in time.
    Expired,
    /// A job asked for the environment on it, and could not be given it.
    NotResumed {
        /// Why.
        error: String,
    },
    /// It is suspended, and takes the last place, or what may be spent for it.
    LastPlace,
    /// An operator drained its group.
    GroupDrained {
        /// Who, and why.
        by: String,
    },
    /// The scaler ends.
    Shutdown,
    /// An operator said so.
    Operator {
        /// Who, and why.
        by: String,
    },
}

impl Removal {
    /// Whether an instance that an operator keeps goes for it all the same.
    pub(crate) fn overrules_who_keeps(&self) -> bool {
        matches!(self, Self::Operator { .. } | Self::Shutdown | Self::Returned | Self::Foreign | Self::Provider)
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle { idle_ms } => write!(f, "idle for {}.{:03} s and not needed", idle_ms / 1000, idle_ms % 1000),
            Self::UsedUp { uses } => write!(f, "used up: it has had its {uses} jobs"),
            Self::Unhealthy { error } => write!(f, "unhealthy: {error}"),
            Self::NeverReady { error } => write!(f, "could not be made ready: {error}"),
            Self::NeverRan => f.write_str("did not run in time"),
            Self::OverMax => f.write_str("more than max_instances"),
            Self::OverSpend => f.write_str("prices rose, and more runs than spend_max_per_hour allows"),
            Self::Returned => f.write_str("came back after it had been given up"),
            Self::Foreign => f.write_str("foreign, and the configuration removes such instances"),
            Self::Provider => f.write_str("taken by the provider"),
            Self::Disowned { why } => write!(f, "not to be used any more: {why}"),
            Self::Unclaimed => f.write_str("its jobs did not survive a restart"),
            Self::Expired => f.write_str("no job has asked for the environment on it in time"),
            Self::NotResumed { error } => write!(f, "the environment on it could not be resumed: {error}"),
            Self::LastPlace => f.write_str("suspended, and no other instance may be made beside it"),
            Self::GroupDrained { by } => write!(f, "its group was drained by {by}"),
            Self::Shutdown => f.write_str("the scaler ends"),
            Self::Operator { by } => write!(f, "removed by {by}"),
        }
    }
}

/// Why a lease ended before its job did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// The provider does not list the instance any more.
    Missing,
    /// The provider says that it is going or gone.
    TakenByProvider,
    /// It was not found after a restart.
    NotFoundAgain,
    /// An operator removes the instance, with its jobs.
    Operator {
        /// Who, and why.
        by: String,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("instance unexpectedly removed: the provider does not list it any more"),
            Self::TakenByProvider => f.write_str("instance unexpectedly removed: the provider takes it back"),
            Self::NotFoundAgain => {
                f.write_str("instance unexpectedly removed: it was gone when the manager started again")
            }
            Self::Operator { by } => write!(f, "instance removed at once by {by}"),
        }
    }
}
