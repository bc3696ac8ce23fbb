//! The protocol's service, on top of a [`super::Provider`].

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures::Stream;
use prost::Message;
use tonic::{Code, Request, Response, Status};

use super::config;
use super::erased::{DynProvider, Plugin};
use super::{PartialFailure, Settings, error_chain};
use crate::model::{ConnectorConfig, InstanceId};
use crate::protocol::group::instance_group_server::InstanceGroup;
use crate::protocol::group::{
    ConnectInfoRequest, ConnectInfoResponse, DecreaseRequest, DecreaseResponse, Empty, HeartbeatRequest,
    IncreaseRequest, IncreaseResponse, InitRequest, InitResponse, ResumeRequest, ResumeResponse, SuspendRequest,
    SuspendResponse, UpdateResponse,
};
use crate::protocol::{RichStatus, SUSPEND_RESUME};

/// The gRPC service. The provider exists after `Init`.
pub(super) struct Service {
    plugin: Plugin,
    provider: Arc<OnceLock<Box<dyn DynProvider>>>,
    /// Whether the provider can suspend instances ([`super::Init::can_suspend`]). False before `Init`.
    can_suspend: AtomicBool,
    init_lock: tokio::sync::Mutex<()>,
}

impl Service {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self {
            plugin,
            provider: Arc::default(),
            can_suspend: AtomicBool::new(false),
            init_lock: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the cell that will hold the provider, for the service of the extension.
    pub(super) fn provider_cell(&self) -> Arc<OnceLock<Box<dyn DynProvider>>> {
        Arc::clone(&self.provider)
    }

    fn provider(&self) -> Result<&dyn DynProvider, Status> {
        self.provider.get().map(AsRef::as_ref).ok_or_else(|| Status::failed_precondition("Init was not called"))
    }

    /// Returns the provider if it declared that it can suspend. Otherwise returns an error, because hosts do not track
    /// suspended instances of such a provider (case H13).
    fn provider_with_suspend(&self) -> Result<&dyn DynProvider, Status> {
        let provider = self.provider()?;
        if self.can_suspend.load(Ordering::Acquire) {
            return Ok(provider);
        }
        Err(Status::unimplemented(format!("capability not supported: {SUSPEND_RESUME}")))
    }
}

/// Converts a provider's error as Go plugins do: code Unknown and the message (case P10).
fn unknown_status(error: &super::Error) -> Status {
    Status::unknown(error_chain(error.as_ref()))
}

/// Returns the part that succeeded, or the error if nothing succeeded.
fn accept_partial<T: Default + PartialEq>(call: &str, result: Result<T, PartialFailure<T>>) -> Result<T, Status> {
    match result {
        Ok(succeeded) => Ok(succeeded),
        Err(PartialFailure { succeeded, error }) if succeeded == T::default() => {
            tracing::error!(call, error = error_chain(error.as_ref()), "call failed");
            Err(unknown_status(&error))
        }
        Err(PartialFailure { succeeded, error }) => {
            tracing::error!(call, error = error_chain(error.as_ref()), "call succeeded for some instances only");
            Ok(succeeded)
        }
    }
}

/// Puts the part that succeeded into the details of the error (case P11).
/// Only the errors of `Suspend` and `Resume` have such details.
fn partial_details(
    result: Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>>,
    response_type: &str,
) -> Result<Vec<String>, Status> {
    let PartialFailure { succeeded, error } = match result {
        Ok(succeeded) => return Ok(id_strings(succeeded)),
        Err(partial) => partial,
    };
    let text = error_chain(error.as_ref());
    // `SuspendResponse` and `ResumeResponse` have the same single field.
    let detail = SuspendResponse { succeeded: id_strings(succeeded) };
    let rich = RichStatus {
        code: Code::Unknown as i32,
        message: text.clone(),
        details: vec![prost_types::Any {
            type_url: format!("type.googleapis.com/proto.{response_type}"),
            value: detail.encode_to_vec(),
        }],
    };
    Err(Status::with_details(Code::Unknown, text, rich.encode_to_vec().into()))
}

fn to_ids(texts: Vec<String>) -> Vec<InstanceId> {
    texts.into_iter().map(InstanceId::from).collect()
}

fn id_strings(ids: Vec<InstanceId>) -> Vec<String> {
    ids.into_iter().map(|id| id.as_str().to_owned()).collect()
}

#[tonic::async_trait]
impl InstanceGroup for Service {
    type UpdateStream = Pin<Box<dyn Stream<Item = Result<UpdateResponse, Status>> + Send>>;

    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        let InitRequest { config, settings } = request.into_inner();
        let _guard = self.init_lock.lock().await;
        if self.provider.get().is_some() {
            return Err(Status::failed_precondition("Init has already been called"));
        }
        let (config, unknown_keys) =
            config::read(&config, &(self.plugin.schema)()).map_err(|error| Status::unknown(error.to_string()))?;
        for config::UnknownKey { key, suggestion } in unknown_keys {
            match suggestion {
                Some(suggestion) => {
                    tracing::warn!(key, "plugin_config: unknown key ignored; did you mean `{suggestion}`?")
                }
                None => tracing::warn!(key, "plugin_config: unknown key ignored"),
            }
        }
        // Without settings, the defaults apply (case P8). Go plugins crash if the settings are missing.
        let connector = settings.and_then(|settings| settings.connector_config).unwrap_or_default();
        let connector = ConnectorConfig::from_wire(connector).map_err(|error| Status::unknown(error.to_string()))?;
        let create = self.plugin.create(config, Settings { connector });
        let create = create.map_err(|error| Status::unknown(error.to_string()))?;
        let (provider, init) = create.await.map_err(|error| unknown_status(&error))?;
        self.can_suspend.store(init.can_suspend, Ordering::Release);
        // The lock is held, so the cell is empty.
        let _ = self.provider.set(provider);
        Ok(Response::new(InitResponse {
            id: init.id,
            max_size: init.max_size,
            version: self.plugin.version.to_owned(),
            build_info: super::command_line::build_info(),
            capabilities: if init.can_suspend { vec![SUSPEND_RESUME.to_owned()] } else { Vec::new() },
        }))
    }

    async fn update(&self, _: Request<Empty>) -> Result<Response<Self::UpdateStream>, Status> {
        let instances = self.provider()?.update().await.map_err(|error| unknown_status(&error))?;
        let message = |(id, state): (InstanceId, crate::model::InstanceState)| {
            Ok(UpdateResponse { instance: id.as_str().to_owned(), state: state.number() })
        };
        Ok(Response::new(Box::pin(futures::stream::iter(instances.into_iter().map(message)))))
    }

    async fn increase(&self, request: Request<IncreaseRequest>) -> Result<Response<IncreaseResponse>, Status> {
        let n = request.into_inner().n;
        let succeeded = accept_partial("Increase", self.provider()?.increase(n).await)?;
        Ok(Response::new(IncreaseResponse { succeeded: succeeded.min(n) }))
    }

    async fn decrease(&self, request: Request<DecreaseRequest>) -> Result<Response<DecreaseResponse>, Status> {
        let requested = to_ids(request.into_inner().instances);
        let succeeded = accept_partial("Decrease", self.provider()?.decrease(requested).await)?;
        Ok(Response::new(DecreaseResponse { succeeded: id_strings(succeeded) }))
    }

    async fn connect_info(
        &self,
        request: Request<ConnectInfoRequest>,
    ) -> Result<Response<ConnectInfoResponse>, Status> {
        let id = InstanceId::from(request.into_inner().instance);
        let info = self.provider()?.connect_info(id).await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(ConnectInfoResponse {
            connector: Some(info.connector.to_wire()),
            external_addr: info.external_addr,
            internal_addr: info.internal_addr,
            expires: info.expires.unwrap_or(0),
        }))
    }

    async fn heartbeat(&self, request: Request<HeartbeatRequest>) -> Result<Response<Empty>, Status> {
        let id = InstanceId::from(request.into_inner().instance);
        self.provider()?.heartbeat(id).await.map_err(|error| unknown_status(&error))?;
        Ok(Response::new(Empty {}))
    }

    async fn suspend(&self, request: Request<SuspendRequest>) -> Result<Response<SuspendResponse>, Status> {
        let result = self.provider_with_suspend()?.suspend(to_ids(request.into_inner().instances)).await;
        Ok(Response::new(SuspendResponse { succeeded: partial_details(result, "SuspendResponse")? }))
    }

    async fn resume(&self, request: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        let result = self.provider_with_suspend()?.resume(to_ids(request.into_inner().instances)).await;
        Ok(Response::new(ResumeResponse { succeeded: partial_details(result, "ResumeResponse")? }))
    }

    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        if let Some(provider) = self.provider.get() {
            provider.shutdown().await.map_err(|error| unknown_status(&error))?;
        }
        Ok(Response::new(Empty {}))
    }
}
