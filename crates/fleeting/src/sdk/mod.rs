//! Implements a plugin.
//! Write a [`Provider`], and [`main`] makes the executable a plugin for every host of the protocol.
//!
//! ```no_run
//! use muster_fleeting::sdk::{self, Error, Init, PartialFailure, Provider};
//! use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
//!
//! struct Example;
//!
//! #[async_trait::async_trait]
//! impl Provider for Example {
//!     const NAME: &'static str = "example";
//!     const VERSION: &'static str = env!("CARGO_PKG_VERSION");
//!     type Config = sdk::NoConfig;
//!
//!     async fn init(_config: sdk::NoConfig, _settings: sdk::Settings) -> Result<(Self, Init), Error> {
//!         Ok((Example, Init { id: "example/local".to_owned(), max_size: 1, can_suspend: false }))
//!     }
//!     async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> { Ok(Vec::new()) }
//!     async fn increase(&self, _n: u32) -> Result<u32, PartialFailure<u32>> { Ok(0) }
//!     async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> { Ok(ids) }
//!     async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> { Err(format!("no instance {id}").into()) }
//! }
//!
//! fn main() -> std::process::ExitCode { sdk::main::<Example>() }
//! ```
//!
//! Log with `tracing`: the host shows events with their level and fields. Do not print to stdout before the handshake, which [`main`]
//! prints.

mod command_line;
mod config;
mod erased;
mod extension;
mod host_liveness;
mod log;
pub mod program;
mod serve;
mod service;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use crate::extension::{Notice, Offer, Price, ResourceUsage};
pub use crate::model::Features;
pub use crate::model::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState, Platform};
pub use command_line::{main, main_with};
pub use config::{ConfigError, reference};
pub use extension::{Extension, Notices};
use muster_job::error_chain;

/// Error of the provider. The operator sees its message and the messages of its sources.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Failure of a call, which may have succeeded for some instances.
///
/// The responses to `Increase` and `Decrease` cannot contain both fields (docs/spec/fleeting.md, section 2.4): the host
/// receives what succeeded, or the error if nothing succeeded.
/// For `Suspend` and `Resume`, the details of the error contain what succeeded.
#[derive(Debug)]
pub struct PartialFailure<T> {
    /// The part that succeeded.
    pub succeeded: T,
    /// Reason why the rest failed.
    pub error: Error,
}

impl<T: Default, E: std::error::Error + Send + Sync + 'static> From<E> for PartialFailure<T> {
    /// Wraps the error of a call that changed nothing.
    fn from(error: E) -> Self {
        Self { succeeded: T::default(), error: Box::new(error) }
    }
}

impl<T: Default> PartialFailure<T> {
    /// Wraps the error of a call that changed nothing.
    #[must_use]
    pub fn none_succeeded(error: impl Into<Error>) -> Self {
        Self { succeeded: T::default(), error: error.into() }
    }
}

/// The user's settings for connections to instances.
/// A plugin fills in the empty values and does not change the others.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `connector_config`.
    pub connector: ConnectorConfig,
}

/// Properties of a group that its plugin reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Init {
    /// Human-readable ID of the group: `<provider>/<location>/<name>`.
    pub id: String,
    /// Maximum number of instances in the group, at least 1.
    pub max_size: u32,
    /// Whether [`Provider::suspend`] and [`Provider::resume`] are implemented.
    pub can_suspend: bool,
}

/// Empty settings, for a plugin without configuration.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub struct NoConfig {}

/// A source of machines.
///
/// All calls after `init` may run at the same time, including several `increase` and `decrease` calls, so the methods take `&self`.
#[async_trait]
pub trait Provider: Sized + Send + Sync + 'static {
    /// Name of the plugin. Its executable is `fleeting-plugin-NAME`.
    const NAME: &'static str;
    /// Version of the plugin, `MAJOR.MINOR.PATCH`.
    const VERSION: &'static str;
    /// Type of `plugin_config`.
    /// Keys match in any letter case. Unknown keys are ignored, as in Go plugins, and logged.
    type Config: DeserializeOwned + JsonSchema + Send;

    /// Creates the provider from the settings. Called once, before all other calls.
    ///
    /// # Errors
    /// The settings are invalid. The message should name the key and how to fix it.
    async fn init(config: Self::Config, settings: Settings) -> Result<(Self, Init), Error>;

    /// Lists all instances of the group.
    /// The list must include instances with an uncertain state, because a missing instance counts as lost.
    ///
    /// # Errors
    /// The provider does not respond. The host keeps its previous list.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error>;

    /// Requests `n` more instances without waiting for them.
    /// Returns the number of instances that the provider accepted.
    ///
    /// # Errors
    /// The provider refused some or all of the requests.
    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>>;

    /// Requests the deletion of these instances.
    /// Returns the instances whose deletion was accepted, and those that do not exist.
    ///
    /// # Errors
    /// The provider refused some or all of the requests.
    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>>;

    /// Returns how to connect to an instance.
    ///
    /// # Errors
    /// The instance is unknown or not ready.
    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error>;

    /// Checks whether the instance is healthy.
    ///
    /// # Errors
    /// The instance is not healthy.
    async fn heartbeat(&self, _id: InstanceId) -> Result<(), Error> {
        Ok(())
    }

    /// Requests the suspension of instances.
    /// Returns the instances whose suspension was accepted, and those that are suspended already.
    ///
    /// # Errors
    /// The provider refused some or all of the requests.
    async fn suspend(&self, _ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        Err(PartialFailure::none_succeeded("this plugin cannot suspend"))
    }

    /// Requests that instances are resumed. Returns the instances for which this was accepted.
    ///
    /// # Errors
    /// The provider refused some or all of the requests.
    async fn resume(&self, _ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        Err(PartialFailure::none_succeeded("this plugin cannot resume"))
    }

    /// Returns the provider's implementation of the protocol extension.
    /// `None`, the default, means that it has none.
    fn extension(&self) -> Option<&dyn Extension> {
        None
    }

    /// Removes resources that the plugin created for itself, such as keys, before the plugin exits.
    /// Instances must not be deleted.
    ///
    /// # Errors
    /// Errors are logged.
    async fn shutdown(&self) -> Result<(), Error> {
        Ok(())
    }
}
