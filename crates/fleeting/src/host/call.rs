//! The calls of the protocol over one connection. Each call has a timeout, and each response is validated.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt;
use prost::Message;
use tonic::{Code, Status};

use super::Limits;
use super::connection::{Connection, is_broken};
use super::mask::Mask;
use super::meter::{CallResult, Meter};
use crate::causes::causes;
use crate::model::{ConnectInfo, ConnectorConfig, ConnectorConfigError, GroupInfo, InstanceId, InstanceState};
use crate::protocol::{RichStatus, SUSPEND_RESUME, group};

/// Maximum number of instances in one snapshot.
const INSTANCES_MAX: usize = 100_000;
/// Maximum length of an instance id in bytes. The longest real ids are URLs.
const ID_MAX_BYTES: usize = 4 * 1024;

/// All instances of the group, as the provider lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// State of each instance. If the plugin lists an id twice, the later state counts.
    pub instances: HashMap<InstanceId, InstanceState>,
}

/// Reason why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin's process does not run.
    #[error("plugin {plugin} is not running: {cause}")]
    Down {
        /// Name of the plugin.
        plugin: String,
        /// Reason why the process ended or could not be started.
        cause: String,
    },
    /// The plugin did not respond in time, so the outcome is unknown. A process that hangs is killed and restarted ([`super::Limits`]).
    #[error("plugin {plugin}: {call} had no answer within {} s", limit.as_secs())]
    Deadline {
        /// Name of the plugin.
        plugin: String,
        /// Name of the call.
        call: &'static str,
        /// Time that the plugin had.
        limit: Duration,
    },
    /// The connection to the plugin broke during the call.
    #[error("plugin {plugin}: the connection broke in {call}: {cause}")]
    Broken {
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
    /// The plugin does not have the capability, so the call was not made.
    #[error("plugin {plugin}: capability not supported: {capability}")]
    NoCapability {
        /// Name of the plugin.
        plugin: String,
        /// Name of the capability.
        capability: &'static str,
    },
    /// The plugin's response is invalid.
    #[error("plugin {plugin}: {call} answered nonsense: {what}")]
    Nonsense {
        /// Name of the plugin.
        plugin: String,
        /// Name of the call.
        call: &'static str,
        /// What is wrong with the response.
        what: String,
    },
}

/// Client for the calls of one plugin process.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) plugin: String,
    pub(super) connection: Connection,
    pub(super) limits: Limits,
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
            // Go plugins dereference both messages without a check, so neither is empty (docs/spec/fleeting.md, section 1.10).
            config: config.to_string().into_bytes(),
            settings: Some(group::Settings { connector_config: Some(connector.to_wire()) }),
        };
        let mut client = self.connection.group();
        let answer = self.timed("Init", self.limits.init, client.init(request)).await?.into_inner();
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
                if instance.is_empty() || instance.len() > ID_MAX_BYTES {
                    let what = format!("an instance id of {} bytes (1 to {ID_MAX_BYTES} are possible)", instance.len());
                    return Ok(Err(what));
                }
                instances.insert(InstanceId::new(instance), InstanceState::from_number(state));
                if instances.len() > INSTANCES_MAX {
                    return Ok(Err(format!("more than {INSTANCES_MAX} instances")));
                }
            }
            Ok(Ok(Snapshot { instances }))
        };
        self.timed(CALL, self.limits.update, read).await?.map_err(|what| self.nonsense(CALL, what))
    }

    pub(super) async fn increase(&self, n: u32) -> Result<u32, CallError> {
        let mut client = self.connection.group();
        let call = client.increase(group::IncreaseRequest { n });
        let succeeded = self.timed("Increase", self.limits.change, call).await?.into_inner().succeeded;
        if succeeded > n {
            self.meter.heard_nonsense("Increase");
            tracing::error!(
                plugin = self.plugin,
                asked = n,
                succeeded,
                "Increase made more than was asked; counted as asked"
            );
        }
        Ok(succeeded.min(n))
    }

    pub(super) async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        let mut client = self.connection.group();
        let call = client.decrease(group::DecreaseRequest { instances: texts(ids) });
        let succeeded = self.timed("Decrease", self.limits.change, call).await?.into_inner().succeeded;
        Ok(self.only_asked("Decrease", ids, succeeded))
    }

    pub(super) async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, CallError> {
        const CALL: &str = "ConnectInfo";
        let mut client = self.connection.group();
        let call = client.connect_info(group::ConnectInfoRequest { instance: id.as_str().to_owned() });
        let answer = self.timed(CALL, self.limits.connect_info, call).await?.into_inner();
        let connector = answer.connector.ok_or_else(|| self.nonsense(CALL, format!("no connector for {id}")))?;
        let connector = ConnectorConfig::from_wire(connector)
            .map_err(|error: ConnectorConfigError| self.nonsense(CALL, error.to_string()))?;
        Ok(ConnectInfo {
            connector,
            external_addr: answer.external_addr,
            internal_addr: answer.internal_addr,
            expires: Some(answer.expires).filter(|expires| *expires > 0),
        })
    }

    /// Calls `Heartbeat`. A plugin that does not implement it reports every instance as healthy.
    pub(super) async fn heartbeat(&self, id: &InstanceId) -> Result<(), CallError> {
        let mut client = self.connection.group();
        let call = client.heartbeat(group::HeartbeatRequest { instance: id.as_str().to_owned() });
        unimplemented_is_fine(self.raw("Heartbeat", self.limits.heartbeat, call).await)
            .map_err(|error| self.judge("Heartbeat", error))
    }

    pub(super) async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        const CALL: &str = "Suspend";
        let mut client = self.connection.group();
        let call = client.suspend(group::SuspendRequest { instances: texts(ids) });
        let answer = self.raw(CALL, self.limits.change, call).await.map(|answer| answer.into_inner().succeeded);
        self.slept(CALL, ids, answer)
    }

    pub(super) async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        const CALL: &str = "Resume";
        let mut client = self.connection.group();
        let call = client.resume(group::ResumeRequest { instances: texts(ids) });
        let answer = self.raw(CALL, self.limits.change, call).await.map(|answer| answer.into_inner().succeeded);
        self.slept(CALL, ids, answer)
    }

    /// Calls `Shutdown`. A plugin that does not implement it has nothing to clean up.
    pub(super) async fn shutdown(&self) -> Result<(), CallError> {
        let mut client = self.connection.group();
        let call = client.shutdown(group::Empty {});
        unimplemented_is_fine(self.raw("Shutdown", self.limits.shutdown, call).await)
            .map_err(|error| self.judge("Shutdown", error))
    }

    /// Evaluates a response to `Suspend` or `Resume`. Their errors list in the details the instances for which the call succeeded.
    fn slept(
        &self,
        call: &'static str,
        ids: &[InstanceId],
        answer: Result<Vec<String>, Ended>,
    ) -> Result<Vec<InstanceId>, CallError> {
        let error = match answer {
            Ok(succeeded) => return Ok(self.only_asked(call, ids, succeeded)),
            Err(Ended::Status(status)) if status.code() == Code::Unimplemented => {
                return Err(CallError::NoCapability { plugin: self.plugin.clone(), capability: SUSPEND_RESUME });
            }
            Err(error) => error,
        };
        let partial = match &error {
            Ended::Status(status) => partial(status, call),
            Ended::Late(_) => None,
        };
        match partial {
            Some(succeeded) if !succeeded.is_empty() => {
                let error = self.judge(call, error);
                tracing::warn!(plugin = self.plugin, %error, done = succeeded.len(), asked = ids.len(), "{call} was done in part");
                Ok(self.only_asked(call, ids, succeeded))
            }
            _ => Err(self.judge(call, error)),
        }
    }

    /// Drops ids that were not part of the request, and duplicates.
    fn only_asked(&self, call: &'static str, asked: &[InstanceId], succeeded: Vec<String>) -> Vec<InstanceId> {
        let asked: HashSet<&str> = asked.iter().map(InstanceId::as_str).collect();
        let mut seen = HashSet::new();
        let (known, unknown): (Vec<_>, Vec<_>) =
            succeeded.into_iter().filter(|id| seen.insert(id.clone())).partition(|id| asked.contains(id.as_str()));
        if let Some(first) = unknown.first() {
            self.meter.heard_nonsense(call);
            tracing::error!(
                plugin = self.plugin,
                unknown = unknown.len(),
                first,
                "{call} answered about instances that it was not asked for"
            );
        }
        known.into_iter().map(InstanceId::from).collect()
    }

    fn nonsense(&self, call: &'static str, what: String) -> CallError {
        self.meter.heard_nonsense(call);
        CallError::Nonsense { plugin: self.plugin.clone(), call, what }
    }

    pub(super) async fn timed<T>(
        &self,
        call: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, CallError> {
        self.raw(call, limit, work).await.map_err(|error| self.judge(call, error))
    }

    pub(super) async fn raw<T>(
        &self,
        call: &'static str,
        limit: Duration,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Ended> {
        let started = tokio::time::Instant::now();
        let ended = tokio::time::timeout(limit, work).await;
        let elapsed = started.elapsed();
        tracing::trace!(plugin = self.plugin, call, elapsed_ms = elapsed.as_millis(), "call");
        let (result, answer) = match ended {
            Err(_) => (CallResult::Late, Err(Ended::Late(limit))),
            Ok(Ok(value)) => (CallResult::Ok, Ok(value)),
            Ok(Err(status)) => {
                let result = match status.code() {
                    _ if is_broken(&status) => CallResult::Broken,
                    Code::Unimplemented => CallResult::Unimplemented,
                    _ => CallResult::Refused,
                };
                (result, Err(Ended::Status(status)))
            }
        };
        self.meter.called(call, elapsed, result);
        answer
    }

    pub(super) fn judge(&self, call: &'static str, error: Ended) -> CallError {
        let plugin = self.plugin.clone();
        match error {
            Ended::Late(limit) => CallError::Deadline { plugin, call, limit },
            Ended::Status(status) if is_broken(&status) => {
                CallError::Broken { plugin, call, cause: self.mask.hide(causes(&status)) }
            }
            Ended::Status(status) => {
                CallError::Refused { plugin, call, message: self.mask.hide(status.message().to_owned()) }
            }
        }
    }
}

/// Reason why a call ended without a response.
pub(super) enum Ended {
    Late(Duration),
    Status(Status),
}

fn unimplemented_is_fine<T>(answer: Result<T, Ended>) -> Result<(), Ended> {
    match answer {
        Ok(_) => Ok(()),
        Err(Ended::Status(status)) if status.code() == Code::Unimplemented => Ok(()),
        Err(error) => Err(error),
    }
}

fn partial(status: &Status, call: &str) -> Option<Vec<String>> {
    let status = RichStatus::decode(status.details()).ok()?;
    let wanted = format!("type.googleapis.com/proto.{call}Response");
    let detail = status.details.into_iter().find(|detail| detail.type_url == wanted)?;
    // `SuspendResponse` and `ResumeResponse` have the same single field.
    Some(group::SuspendResponse::decode(detail.value.as_slice()).ok()?.succeeded)
}

fn texts(ids: &[InstanceId]) -> Vec<String> {
    ids.iter().map(|id| id.as_str().to_owned()).collect()
}
