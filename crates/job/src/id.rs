//! Identifiers that cannot be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map($name)
            }
        }
    };
}

id! {
    /// A job, as the coordinator numbers it. A retried job is a new job with a new id.
    JobId(i64)
}
id! {
    /// A pipeline; a child pipeline has an id of its own.
    PipelineId(i64)
}
id! {
    /// A project of the coordinator.
    ProjectId(i64)
}
id! {
    /// A runner: one authentication token at the coordinator, shared by any number of managers.
    RunnerId(i64)
}
id! {
    /// The how-manieth time the manager hands one job to an agent, from 1.
    ///
    /// A second attempt exists only before the user's first command has started (invariant J2).
    Attempt(u32)
}
