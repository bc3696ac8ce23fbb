//! Inputs of the step that starts a service on the machine of the job.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Inputs, record};

/// Starts a process that serves the job, and waits until it accepts connections. The process is terminated with the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostService {
    /// Name and version of the service for the log, such as `postgres:16`.
    pub title: String,
    /// Number of the service in its job. It is part of the name of the service's working directory, which is empty at the start.
    pub index: u32,
    /// Program with its arguments.
    pub command: Vec<String>,
    /// Variables of the service in addition to those of the job.
    pub env: BTreeMap<String, String>,
    /// TCP port on the loopback address that the service must accept connections on. 0 means that nothing is checked.
    pub port: u16,
    /// Maximum time until the service accepts connections, in milliseconds.
    pub timeout_ms: u64,
}

impl Inputs for HostService {
    const BUILTIN: &'static str = "service";

    fn record(&self) -> Map<String, Value> {
        record::host_service(self)
    }
}
