//! What the engine must not forget: rows that a store keeps, and from which a new engine goes on.
//!
//! The provider's list is the truth for what exists; the books are the truth for why it exists, who uses it, and how
//! often it was used. Credentials are not in them. Version 1.

use serde::{Deserialize, Serialize};

use crate::need::Usage;
use crate::sleep::Environment;
use crate::words::{Context, Removal, Work};

/// The version of [`Row`]'s format.
pub const VERSION: u32 = 1;

/// A row's name. Groups are named, so that the books survive another order in the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKey {
    /// An instance of the group.
    Instance {
        /// The group's name.
        group: String,
        /// The instance.
        id: String,
    },
    /// A request for instances of the group.
    Ask {
        /// The group's name.
        group: String,
        /// Its number.
        call: u64,
    },
    /// An instance that is gone; a list that still has it is old.
    Gone {
        /// The group's name.
        group: String,
        /// The instance.
        id: String,
    },
    /// An instance that nobody here asked for: it is not taken for one that was, also after a restart.
    Foreign {
        /// The group's name.
        group: String,
        /// The instance.
        id: String,
    },
    /// An operator drained the group.
    Drained {
        /// The group's name.
        group: String,
    },
    /// The last runs of a kind of job.
    Work(Work),
    /// The most slots in use at once, for the forecast.
    Load {
        /// Which five minutes since 1970.
        bucket: i64,
    },
    /// What the forecast has kept idle in a day, which bounds what it may.
    Spent {
        /// Which day since 1970.
        day: i64,
    },
}

impl RowKey {
    /// The group that it is of, if it is of one.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Instance { group, .. }
            | Self::Ask { group, .. }
            | Self::Gone { group, .. }
            | Self::Foreign { group, .. }
            | Self::Drained { group } => Some(group),
            Self::Work(_) | Self::Load { .. } | Self::Spent { .. } => None,
        }
    }

    /// The same, of a group that has another name now.
    #[must_use]
    pub(crate) fn renamed(&self, name: &str) -> Self {
        let mut renamed = self.clone();
        match &mut renamed {
            Self::Instance { group, .. }
            | Self::Ask { group, .. }
            | Self::Gone { group, .. }
            | Self::Foreign { group, .. }
            | Self::Drained { group } => name.clone_into(group),
            Self::Work(_) | Self::Load { .. } | Self::Spent { .. } => {}
        }
        renamed
    }
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    /// See [`RowKey::Instance`].
    Instance {
        /// Who holds which slot; who holds several stands in each.
        slots: Vec<Option<String>>,
        /// Jobs so far.
        used: u32,
        /// When it was seen first, in seconds since 1970.
        seen_unix: i64,
        /// Since when it has had no job, in seconds since 1970; earlier books do not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idle_unix: Option<i64>,
        /// What is meant with it.
        intent: Intent,
        /// Sticky contexts that it has, the one used last at the end.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        contexts: Vec<Context>,
        /// It was ready once: what is done to a new instance has been done.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        was_ready: bool,
        /// What a job left on it for a later one, or what its job was resumed with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        environment: Option<Environment>,
    },
    /// See [`RowKey::Ask`].
    Ask {
        /// How many it was for.
        n: u32,
        /// How many of it may still appear.
        open: u32,
        /// When, in seconds since 1970.
        asked_unix: i64,
        /// The provider said that it makes them.
        granted: bool,
        /// It was given up; what appears until then, in seconds since 1970, is ours nevertheless.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owed_unix: Option<i64>,
    },
    /// See [`RowKey::Gone`].
    Gone {
        /// Since when, in seconds since 1970.
        unix: i64,
    },
    /// See [`RowKey::Foreign`].
    Foreign {
        /// When it was seen first, in seconds since 1970.
        unix: i64,
    },
    /// See [`RowKey::Drained`].
    Drained {
        /// Who, and why.
        by: String,
    },
    /// See [`RowKey::Work`].
    Work(Usage),
    /// See [`RowKey::Load`].
    Load {
        /// Slots.
        most: u32,
    },
    /// See [`RowKey::Spent`].
    Spent {
        /// Seconds of idle slots.
        slot_seconds: u64,
    },
}

/// What is meant with an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// Jobs get its slots. Earlier books may say `sleep` of one.
    #[serde(alias = "sleep")]
    Use,
    /// An operator keeps it: it gets no jobs, and is not removed.
    Keep {
        /// Who, and why.
        by: String,
        /// Why it goes when it is not kept any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        then: Option<Removal>,
    },
    /// It is suspended for a later job.
    Suspend,
    /// It goes when its jobs have ended.
    Drain(Removal),
    /// It goes.
    Delete(Removal),
}

/// A row that is new or changed, or (without one) gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its name.
    pub key: RowKey,
    /// What it is now.
    pub row: Option<Row>,
}
