//! What an operator can do to a fleet by hand, what comes of it, and how both are said over a manager's socket: one line of
//! JSON each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is done to an instance, or to a whole group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// An instance gets no more jobs, and stays until it is resumed or removed. A group makes no more instances, and each of
    /// its instances goes after its jobs. Both last over restarts.
    Drain,
    /// The end of [`Self::Drain`]; also of a removal that still waits for jobs.
    Resume,
    /// An instance gets no more jobs and is removed after those that it has.
    Remove {
        /// It does not wait for its jobs: they are given up.
        now: bool,
    },
}

/// The version of [`Order`] and [`Answer`] as JSON: fields are added within it, never changed.
pub const VERSION: u32 = 1;

/// An act as a manager is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// [`VERSION`].
    pub version: u32,
    /// What.
    pub act: Act,
    /// Of which instance, by its name at the provider, or of which group.
    pub name: String,
    /// Of which runner; none: the only one that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// In which group; none: the only one that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Who says so, by his own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What an act is done to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The group, by its place in [`crate::engine::Status::groups`].
    pub group: usize,
    /// The instance; none: the group.
    pub instance: Option<String>,
}

/// What the manager says of an [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u32,
    /// It is done, and in the books.
    pub done: bool,
    /// What is done, or why it is not.
    pub text: String,
}

/// What is done; it is in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// The instance gets no more jobs, and stays.
    Drained {
        /// Jobs that it has.
        jobs: u32,
    },
    /// The group makes no more instances.
    GroupDrained {
        /// Instances that go after their jobs.
        instances: u32,
    },
    /// The instance gets jobs again once it is ready.
    Resumed,
    /// It is not kept any more, and goes after its jobs for another reason.
    Goes {
        /// Why.
        why: String,
    },
    /// The group makes instances again.
    GroupResumed,
    /// The instance goes after its jobs; without any, at once.
    Removing {
        /// Jobs that it has.
        jobs: u32,
    },
    /// The instance goes at once.
    Removed {
        /// Jobs that were given up.
        jobs: u32,
    },
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained { jobs: 0 } => f.write_str("it gets no jobs, and stays until it is resumed or removed"),
            Self::Drained { jobs } => {
                write!(f, "it gets no more jobs ({jobs} run), and stays until it is resumed or removed")
            }
            Self::GroupDrained { instances } => {
                write!(f, "it makes no more instances, and {instances} go, each after its jobs")
            }
            Self::Resumed => f.write_str("it gets jobs again once it is ready"),
            Self::Goes { why } => write!(f, "it is not kept any more, and goes: {why}"),
            Self::GroupResumed => f.write_str("it makes instances again"),
            Self::Removing { jobs: 0 } | Self::Removed { jobs: 0 } => f.write_str("it is removed"),
            Self::Removing { jobs } => write!(f, "it gets no more jobs, and is removed after the {jobs} that it has"),
            Self::Removed { jobs } => write!(f, "it is removed, and {jobs} jobs are given up"),
        }
    }
}

/// Why an act is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its group does not have it (any more).
    #[error("there is no such instance")]
    NoInstance,
    /// There is no such group.
    #[error("there is no such group")]
    NoGroup,
    /// Somebody else made it.
    #[error("it was not asked for here, and gets no jobs; it can be removed")]
    Foreign,
    /// Its removal is under way, or is not an operator's to stop.
    #[error("it goes already: {why}")]
    Goes {
        /// Why.
        why: String,
    },
    /// There is nothing to resume.
    #[error("it is not drained")]
    NotDrained,
    /// A job left its environment there.
    #[error("it is suspended for a later job, and goes at its time; it can be removed before")]
    Suspended,
    /// Its whole group is drained.
    #[error("its group was drained by {by}: resume the group")]
    GroupDrained {
        /// Who, and why.
        by: String,
    },
    /// Only instances are removed.
    #[error("a group is not removed: drain it, and its instances go after their jobs")]
    WholeGroup,
}
