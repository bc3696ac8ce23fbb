//! Inputs of the step that starts a service on the job's machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Inputs, record};

/// Starts a process that runs until the end of the job, and waits until the process accepts connections.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostService {
    /// Name and version of the service for the log, such as `postgres:16`.
    pub title: String,
    /// Number of the service in its job, for the name of its initially empty working directory.
    pub index: u32,
    /// Program with its arguments.
    pub command: Vec<String>,
    /// Variables in addition to those of the job.
    pub env: BTreeMap<String, String>,
    /// TCP port on the loopback address that must accept connections. 0 means no check.
    pub port: u16,
    /// Maximum time until connections are accepted, in milliseconds.
    pub timeout_ms: u64,
}

impl Inputs for HostService {
    const BUILTIN: &'static str = "service";

    fn record(&self) -> Map<String, Value> {
        record::host_service(self)
    }
}
