//! Typed IDs.

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
    /// ID of a job at the coordinator. A retried job is a new job with a new ID.
    JobId(i64)
}
id! {
    /// ID of a pipeline. A child pipeline has its own ID.
    PipelineId(i64)
}
id! {
    /// ID of a project at the coordinator.
    ProjectId(i64)
}
id! {
    /// ID of a runner at the coordinator. Several managers can share a runner.
    RunnerId(i64)
}
id! {
    /// Number of an attempt to run a job on an agent, starting at 1.
    ///
    /// A second one requires that the user's first command has not started (invariant J2 of ARCHITECTURE.md).
    Attempt(u32)
}
