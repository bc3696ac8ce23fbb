//! One type for every plugin, without the type parameter of its [`Provider`], so that server and command line are
//! compiled once.

use async_trait::async_trait;
use schemars::{Schema, schema_for};
use serde_json::Value;

use super::config::{self, ConfigError};
use super::{ConnectInfo, Error, Extension, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings};

/// Name, version and constructor of a plugin that has not received its settings yet.
#[derive(Clone, Copy)]
pub(super) struct Plugin {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) schema: fn() -> Schema,
    create: Create,
}

type Create = fn(Value, Settings) -> Result<Creation, ConfigError>;
type Creation = futures::future::BoxFuture<'static, Result<(Box<dyn DynProvider>, Init), Error>>;

impl Plugin {
    pub(super) fn of<P: Provider>() -> Self {
        Self { name: P::NAME, version: P::VERSION, schema: || schema_for!(P::Config), create: create::<P> }
    }

    /// Deserializes `config`, and returns the future of [`Provider::init`].
    /// The caller must have removed unknown keys from `config`.
    ///
    /// # Errors
    /// A value has the wrong type or is missing.
    pub(super) fn create(&self, config: Value, settings: Settings) -> Result<Creation, ConfigError> {
        (self.create)(config, settings)
    }
}

fn create<P: Provider>(config: Value, settings: Settings) -> Result<Creation, ConfigError> {
    let config = config::deserialize::<P::Config>(config)?;
    Ok(Box::pin(async {
        let (provider, init) = P::init(config, settings).await?;
        Ok((Box::new(provider) as Box<dyn DynProvider>, init))
    }))
}

/// The calls of a [`Provider`]. Its constants and its type of settings are in [`Plugin`].
#[async_trait]
pub(super) trait DynProvider: Send + Sync {
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error>;
    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>>;
    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>>;
    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error>;
    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error>;
    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>>;
    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>>;
    fn extension(&self) -> Option<&dyn Extension>;
    async fn shutdown(&self) -> Result<(), Error>;
}

#[async_trait]
impl<P: Provider> DynProvider for P {
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        Provider::update(self).await
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        Provider::increase(self, n).await
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        Provider::decrease(self, ids).await
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        Provider::connect_info(self, id).await
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        Provider::heartbeat(self, id).await
    }

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        Provider::suspend(self, ids).await
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        Provider::resume(self, ids).await
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Provider::extension(self)
    }

    async fn shutdown(&self) -> Result<(), Error> {
        Provider::shutdown(self).await
    }
}
