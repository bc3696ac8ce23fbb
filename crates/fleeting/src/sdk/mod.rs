//! The plugin side: write a [`Provider`], and [`main`] makes the executable a plugin that any host of the protocol runs.
//!
//! ```no_run
//! use muster_fleeting::sdk::{self, Error, Init, Partial, Provider};
//! use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
//!
//! struct Mine;
//!
//! #[async_trait::async_trait]
//! impl Provider for Mine {
//!     const NAME: &'static str = "mine";
//!     const VERSION: &'static str = env!("CARGO_PKG_VERSION");
//!     type Config = sdk::NoConfig;
//!
//!     async fn init(_config: sdk::NoConfig, _settings: sdk::Settings) -> Result<(Self, Init), Error> {
//!         Ok((Mine, Init { id: "mine/here".to_owned(), max_size: 1, can_suspend: false }))
//!     }
//!     async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> { Ok(Vec::new()) }
//!     async fn increase(&self, _n: u32) -> Result<u32, Partial<u32>> { Ok(0) }
//!     async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> { Ok(ids) }
//!     async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> { Err(format!("no instance {id}").into()) }
//! }
//!
//! fn main() -> std::process::ExitCode { sdk::main::<Mine>() }
//! ```
//!
//! Logs go through `tracing`: the host shows them with their level and fields. Nothing may be printed to stdout before
//! the handshake, which [`main`] prints.

mod command_line;
mod config;
mod extension;
mod log;
mod parent;
pub mod program;
mod serve;
mod service;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::causes::causes as text;
pub use crate::extension::{Notice, Offer, Price, Resources};
pub use crate::model::Features;
pub use crate::model::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState, Platform};
pub use command_line::{main, main_with};
pub use config::{ConfigError, reference};
pub use extension::{Extension, Notices};

/// Whatever went wrong at the provider. Its text, with its causes, is what the operator reads.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// A call that failed after it had done a part. What was done counts: the protocol would lose it with an error
/// (fleeting.md 2.4), so the host is told of the part, and the error goes to the log.
#[derive(Debug)]
pub struct Partial<T> {
    /// What was done.
    pub succeeded: T,
    /// Why not all.
    pub error: Error,
}

impl<T: Default, E: std::error::Error + Send + Sync + 'static> From<E> for Partial<T> {
    /// Nothing was done.
    fn from(error: E) -> Self {
        Self { succeeded: T::default(), error: Box::new(error) }
    }
}

impl<T: Default> Partial<T> {
    /// Nothing was done.
    #[must_use]
    pub fn nothing(error: impl Into<Error>) -> Self {
        Self { succeeded: T::default(), error: error.into() }
    }
}

/// What the user said about reaching instances. A plugin fills what is empty, and keeps what is not.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// `connector_config`.
    pub connector: ConnectorConfig,
}

/// What a plugin says of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Init {
    /// The group's name for people: `<provider>/<place>/<name>`.
    pub id: String,
    /// The most instances that the group can have; at least 1.
    pub max_size: u32,
    /// [`Provider::suspend`] and [`Provider::resume`] work.
    pub can_suspend: bool,
}

/// The settings of a plugin that has none.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub struct NoConfig {}

/// A source of machines.
///
/// `update`, `increase` and `decrease` come one after the other; `connect_info`, `heartbeat` and the extension's calls may come beside them,
/// hence `&self`.
#[async_trait]
pub trait Provider: Sized + Send + Sync + 'static {
    /// The plugin's name: its executable is `fleeting-plugin-NAME`.
    const NAME: &'static str;
    /// Its version, `MAJOR.MINOR.PATCH`.
    const VERSION: &'static str;
    /// `plugin_config`. Keys are matched in any letter case, unknown ones are told and ignored, as Go plugins do.
    type Config: DeserializeOwned + JsonSchema + Send;

    /// Called once, first.
    ///
    /// # Errors
    /// Settings that cannot work: the text should name the key and the remedy.
    async fn init(config: Self::Config, settings: Settings) -> Result<(Self, Init), Error>;

    /// All instances of the group, also those that could not be looked at closely: one that is missing counts as lost.
    ///
    /// # Errors
    /// The provider cannot be asked; the host keeps what it knew.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error>;

    /// Asks the provider for `n` more instances, and does not wait for them. How many requests it took.
    ///
    /// # Errors
    /// With the part that was taken.
    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>>;

    /// Asks the provider to remove exactly these. Those whose removal was accepted; one that is unknown is gone.
    ///
    /// # Errors
    /// With those that were accepted.
    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>>;

    /// How to reach an instance.
    ///
    /// # Errors
    /// It is unknown, or not ready.
    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error>;

    /// Whether the instance is well.
    ///
    /// # Errors
    /// It is not.
    async fn heartbeat(&self, _id: InstanceId) -> Result<(), Error> {
        Ok(())
    }

    /// Puts instances to sleep. Those that sleep already are accepted.
    ///
    /// # Errors
    /// With those that were accepted.
    async fn suspend(&self, _ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        Err(Partial::nothing("this plugin cannot suspend"))
    }

    /// Wakes instances.
    ///
    /// # Errors
    /// With those that were accepted.
    async fn resume(&self, _ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        Err(Partial::nothing("this plugin cannot resume"))
    }

    /// What the provider offers beside the protocol: prices, notices, resource use, hooks. Most have nothing.
    fn extension(&self) -> Option<&dyn Extension> {
        None
    }

    /// The manager ends: removes what the plugin made for itself, such as keys. Instances stay.
    ///
    /// # Errors
    /// Are logged.
    async fn shutdown(&self) -> Result<(), Error> {
        Ok(())
    }
}
