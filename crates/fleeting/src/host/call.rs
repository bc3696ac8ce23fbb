//! The calls of the protocol over one connection.
//! Each call has a timeout, and each response is validated.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use prost::Message;
use tonic::{Code, Status};

use super::Timeouts;
use super::connection::{Connection, is_transport_failure};
use super::mask::Mask;
use super::meter::{CallResult, Meter};
use crate::model::{ConnectInfo, ConnectorConfig, ConnectorConfigError, GroupInfo, InstanceId, InstanceState};
use crate::protocol::{RichStatus, SUSPEND_RESUME, group};
use muster_job::error_chain;

/// Maximum number of instances in one snapshot.
const MAX_INSTANCES: usize = 100_000;
/// Maximum length of an instance ID in bytes. The longest real IDs are URLs.
const MAX_ID_BYTES: usize = 4 * 1024;

/// All instances of the group, as the provider lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// State of each instance. If the plugin lists an ID twice, the later state is used.
    pub instances: HashMap<InstanceId, InstanceState>,
}

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin's process is not running.
    #[error("plugin {plugin} is not running: {cause}")]
    Down {
        /// Name of the plugin.
        plugin: String,
        /// Reason why the process ended or could not be started.
        cause: String,
    },
    /// The plugin did not respond in time, so the outcome is unknown.
    /// The process is killed and restarted after one such call about the group, or after several in a row about instances.
    #[error("plugin {plugin}: no response to {call} within {} s", timeout.as_secs())]
    Timeout {
        /// Name of the plugin.
        plugin: String,
        /// Name of the call.
        call: &'static str,
        /// Timeout of the call.
        timeout: Duration,
    },
    /// The connection to the plugin broke during the call.
    #[error("plugin {plugin}: connection lost during {call}: {cause}")]
    Disconnected {
        /// Name of the plugin.
        plugin: String,
        /// Name of the call.
        call: &'static str,
        /// Errors of the transport.
        cause: String,
    },
    /// The plugin returned an error. The protocol has no error codes, only a message.
    #[error("plugin {plugin}: {call} failed: {message}")]
    Refused {
        /// Name of the plugin.
        plugin: String,
        /// Name of the call.
        call: &'static str,
        /// Error message of the plugin, with secrets masked.
        message: String,
    },
    /// The plugin does not have the capability.
    #[error("plugin {plugin}: capability not supported: {capability}")]
    NoCapability {
        /// Name of the plugin.
        plugin: String,
        /// Name of the capability.
        capability: &'static str,
    },
    /// The plugin's response is invalid.
    #[error("plugin {plugin}: {call} returned an invalid response: {problem}")]
    InvalidResponse {
        /// Name of the plugin.
        plugin: String,
        /// Name of the call.
        call: &'static str,
        /// Problem with the response.
        problem: String,
    },
}

#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) plugin: String,
    pub(super) connection: Connection,
    pub(super) timeouts: Timeouts,
    pub(super) meter: Meter,
    pub(super) mask: Mask,
}

impl Caller {
    pub(super) async fn init(
        &self,
        config: &serde_json::Value,
        connector: &ConnectorConfig,
    ) -> Result<GroupInfo, CallError> {
        let request = group::InitRequest {
            config: config.to_string().into_bytes(),
            // Go plugins dereference `settings` and `connector_config` without a nil check, so both are always set (docs/spec/fleeting.md,
            // section 1.10).
            settings: Some(group::Settings { connector_config: Some(connector.to_wire()) }),
        };
        let mut client = self.connection.group();
        let answer = self.call("Init", self.timeouts.init, client.init(request)).await?.into_inner();
        Ok(GroupInfo {
            id: answer.id,
            max_size: answer.max_size,
            version: answer.version,
            build_info: answer.build_info,
            can_suspend: answer.capabilities.iter().any(|capability| capability == SUSPEND_RESUME),
            features: self.features().await,
        })
    }

    pub(super) async fn update(&self) -> Result<Snapshot, CallError> {
        const CALL: &str = "Update";
        let read = async {
            let mut stream = self.connection.group().update(group::Empty {}).await?.into_inner();
            let mut instances = HashMap::new();
            while let Some(message) = stream.next().await {
                let group::UpdateResponse { instance, state } = message?;
                if instance.is_empty() || instance.len() > MAX_ID_BYTES {
                    let problem =
                        format!("an instance ID of {} bytes (valid lengths: 1 to {MAX_ID_BYTES})", instance.len());
                    return Ok(Err(problem));
                }
                instances.insert(InstanceId::new(instance), InstanceState::from_number(state));
                if instances.len() > MAX_INSTANCES {
                    return Ok(Err(format!("more than {MAX_INSTANCES} instances")));
                }
            }
            Ok(Ok(Snapshot { instances }))
        };
        self.call(CALL, self.timeouts.update, read).await?.map_err(|problem| self.invalid_response(CALL, problem))
    }

    pub(super) async fn increase(&self, n: u32) -> Result<u32, CallError> {
        let mut client = self.connection.group();
        let call = client.increase(group::IncreaseRequest { n });
        let succeeded = self.call("Increase", self.timeouts.change, call).await?.into_inner().succeeded;
        if succeeded > n {
            self.meter.record_invalid_response("Increase");
            tracing::error!(
                plugin = self.plugin,
                requested = n,
                succeeded,
                "plugin accepted more instances than requested"
            );
        }
        Ok(succeeded.min(n))
    }

    pub(super) async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        let mut client = self.connection.group();
        let call = client.decrease(group::DecreaseRequest { instances: id_strings(ids) });
        let succeeded = self.call("Decrease", self.timeouts.change, call).await?.into_inner().succeeded;
        Ok(self.only_requested("Decrease", ids, succeeded))
    }

    pub(super) async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, CallError> {
        const CALL: &str = "ConnectInfo";
        let mut client = self.connection.group();
        let call = client.connect_info(group::ConnectInfoRequest { instance: id.as_str().to_owned() });
        let answer = self.call(CALL, self.timeouts.connect_info, call).await?.into_inner();
        let connector =
            answer.connector.ok_or_else(|| self.invalid_response(CALL, format!("no connector for {id}")))?;
        let connector = ConnectorConfig::from_wire(connector)
            .map_err(|error: ConnectorConfigError| self.invalid_response(CALL, error.to_string()))?;
        Ok(ConnectInfo {
            connector,
            external_addr: answer.external_addr,
            internal_addr: answer.internal_addr,
            expires: Some(answer.expires).filter(|expires| *expires > 0),
        })
    }

    /// Calls `Heartbeat`. If the plugin does not implement it, every instance counts as healthy.
    pub(super) async fn heartbeat(&self, id: &InstanceId) -> Result<(), CallError> {
        let mut client = self.connection.group();
        let call = client.heartbeat(group::HeartbeatRequest { instance: id.as_str().to_owned() });
        ignore_unimplemented(self.call_raw("Heartbeat", self.timeouts.heartbeat, call).await)
            .map_err(|error| self.call_error("Heartbeat", error))
    }

    pub(super) async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        const CALL: &str = "Suspend";
        let mut client = self.connection.group();
        let call = client.suspend(group::SuspendRequest { instances: id_strings(ids) });
        let answer = self.call_raw(CALL, self.timeouts.change, call).await.map(|answer| answer.into_inner().succeeded);
        self.accept_partial(CALL, ids, answer)
    }

    pub(super) async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        const CALL: &str = "Resume";
        let mut client = self.connection.group();
        let call = client.resume(group::ResumeRequest { instances: id_strings(ids) });
        let answer = self.call_raw(CALL, self.timeouts.change, call).await.map(|answer| answer.into_inner().succeeded);
        self.accept_partial(CALL, ids, answer)
    }

    /// Calls `Shutdown`. A plugin that does not implement it has nothing to clean up.
    pub(super) async fn shutdown(&self) -> Result<(), CallError> {
        let mut client = self.connection.group();
        let call = client.shutdown(group::Empty {});
        ignore_unimplemented(self.call_raw("Shutdown", self.timeouts.shutdown, call).await)
            .map_err(|error| self.call_error("Shutdown", error))
    }

    /// Evaluates a response to `Suspend` or `Resume`.
    /// If the call succeeded for some of the instances only, the details of the error contain the IDs of these instances.
    fn accept_partial(
        &self,
        call: &'static str,
        ids: &[InstanceId],
        answer: Result<Vec<String>, CallFailure>,
    ) -> Result<Vec<InstanceId>, CallError> {
        let error = match answer {
            Ok(succeeded) => return Ok(self.only_requested(call, ids, succeeded)),
            Err(CallFailure::Status(status)) if status.code() == Code::Unimplemented => {
                return Err(CallError::NoCapability { plugin: self.plugin.clone(), capability: SUSPEND_RESUME });
            }
            Err(error) => error,
        };
        let partial = match &error {
            CallFailure::Status(status) => decode_partial_success(status, call),
            CallFailure::Timeout(_) => None,
        };
        match partial {
            Some(succeeded) if !succeeded.is_empty() => {
                let error = self.call_error(call, error);
                tracing::warn!(plugin = self.plugin, %error, call, succeeded = succeeded.len(), requested = ids.len(), "plugin call succeeded for some instances only");
                Ok(self.only_requested(call, ids, succeeded))
            }
            _ => Err(self.call_error(call, error)),
        }
    }

    /// Drops IDs that were not part of the request, and duplicates.
    fn only_requested(&self, call: &'static str, requested: &[InstanceId], succeeded: Vec<String>) -> Vec<InstanceId> {
        let requested: HashSet<&str> = requested.iter().map(InstanceId::as_str).collect();
        let mut seen = HashSet::new();
        let (known, unknown): (Vec<_>, Vec<_>) =
            succeeded.into_iter().filter(|id| seen.insert(id.clone())).partition(|id| requested.contains(id.as_str()));
        if let Some(first) = unknown.first() {
            self.meter.record_invalid_response(call);
            tracing::error!(
                plugin = self.plugin,
                call,
                unknown = unknown.len(),
                first,
                "plugin returned instances that were not requested"
            );
        }
        known.into_iter().map(InstanceId::from).collect()
    }

    fn invalid_response(&self, call: &'static str, problem: String) -> CallError {
        self.meter.record_invalid_response(call);
        CallError::InvalidResponse { plugin: self.plugin.clone(), call, problem }
    }

    pub(super) async fn call<T>(
        &self,
        call: &'static str,
        timeout: Duration,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, CallError> {
        self.call_raw(call, timeout, work).await.map_err(|error| self.call_error(call, error))
    }

    /// Like [`Self::call`], but does not convert the error to a [`CallError`].
    pub(super) async fn call_raw<T>(
        &self,
        call: &'static str,
        timeout: Duration,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, CallFailure> {
        let started = tokio::time::Instant::now();
        let outcome = tokio::time::timeout(timeout, work).await;
        let elapsed = started.elapsed();
        tracing::trace!(plugin = self.plugin, call, elapsed_ms = elapsed.as_millis(), "call");
        let (result, answer) = match outcome {
            Err(_) => (CallResult::Timeout, Err(CallFailure::Timeout(timeout))),
            Ok(Ok(value)) => (CallResult::Ok, Ok(value)),
            Ok(Err(status)) => {
                let result = match status.code() {
                    _ if is_transport_failure(&status) => CallResult::Disconnected,
                    Code::Unimplemented => CallResult::Unimplemented,
                    _ => CallResult::Error,
                };
                (result, Err(CallFailure::Status(status)))
            }
        };
        self.meter.record_call(call, elapsed, result);
        answer
    }

    pub(super) fn call_error(&self, call: &'static str, error: CallFailure) -> CallError {
        let plugin = self.plugin.clone();
        match error {
            CallFailure::Timeout(timeout) => CallError::Timeout { plugin, call, timeout },
            CallFailure::Status(status) if is_transport_failure(&status) => {
                CallError::Disconnected { plugin, call, cause: self.mask.hide(error_chain(&status)) }
            }
            CallFailure::Status(status) => {
                CallError::Refused { plugin, call, message: self.mask.hide(status.message().to_owned()) }
            }
        }
    }
}

/// Reason why a call failed, before it is converted to a [`CallError`].
pub(super) enum CallFailure {
    Timeout(Duration),
    Status(Status),
}

fn ignore_unimplemented<T>(answer: Result<T, CallFailure>) -> Result<(), CallFailure> {
    match answer {
        Ok(_) => Ok(()),
        Err(CallFailure::Status(status)) if status.code() == Code::Unimplemented => Ok(()),
        Err(error) => Err(error),
    }
}

fn decode_partial_success(status: &Status, call: &str) -> Option<Vec<String>> {
    let status = RichStatus::decode(status.details()).ok()?;
    let type_url = format!("type.googleapis.com/proto.{call}Response");
    let detail = status.details.into_iter().find(|detail| detail.type_url == type_url)?;
    // `SuspendResponse` and `ResumeResponse` have the same single field.
    Some(group::SuspendResponse::decode(detail.value.as_slice()).ok()?.succeeded)
}

fn id_strings(ids: &[InstanceId]) -> Vec<String> {
    ids.iter().map(|id| id.as_str().to_owned()).collect()
}
