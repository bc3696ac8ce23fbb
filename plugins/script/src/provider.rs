//! Implements each call of the plugin protocol by running a program of the user.

use async_trait::async_trait;
use muster_fleeting::sdk::program::{Finished, ProgramError};
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};

use crate::call::Call;
use crate::config::Config;
use crate::output;
use crate::programs::Programs;

/// A group whose calls are programs of the user.
pub(crate) struct Script {
    programs: Programs,
    connector: ConnectorConfig,
}

fn words(call: Call, error: output::OutputError) -> Error {
    format!("{}: {error}", call.name()).into()
}

/// Returns the output of a call that the script must support.
fn required_output(call: Call, finished: Result<Option<Finished>, ProgramError>) -> Result<Finished, Error> {
    let missing = || format!("{}: the script does not support this call (exit status 64)", call.name());
    Ok(finished?.ok_or_else(missing)?)
}

impl Script {
    /// Runs a call that returns IDs. Success without output means all IDs.
    async fn on(&self, call: Call, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let finished = required_output(call, self.programs.about(call, &ids).await).map_err(PartialFailure::nothing)?;
        let said = output::ids(&finished.stdout).map_err(|error| PartialFailure::nothing(words(call, error)))?;
        if finished.status.success() {
            return Ok(said.unwrap_or(ids));
        }
        Err(PartialFailure { succeeded: said.unwrap_or_default(), error: finished.failed(call.name()).into() })
    }
}

#[async_trait]
impl Provider for Script {
    const NAME: &'static str = "script";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        config.check()?;
        let (name, max_size) = (config.name.clone(), config.max_size);
        let programs = Programs::new(config, settings.connector.clone());
        let said = match programs.run(Call::Init, Vec::new()).await? {
            Some(finished) => {
                let finished = finished.success(Call::Init.name())?;
                output::init(&finished.stdout).map_err(|error| words(Call::Init, error))?
            }
            None => output::InitOutput::default(),
        };
        let both = programs.has_executable(Call::Suspend) && programs.has_executable(Call::Resume);
        let init = Init {
            id: said.id.unwrap_or_else(|| format!("script/{name}")),
            max_size: said.max_size.unwrap_or(max_size),
            can_suspend: said.can_suspend.unwrap_or(both),
        };
        tracing::info!(group = init.id, max_size = init.max_size, can_suspend = init.can_suspend, "ready");
        Ok((Self { programs, connector: settings.connector }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let finished = required_output(Call::Update, self.programs.run(Call::Update, Vec::new()).await)?;
        // A partial list would make instances count as lost, so it is accepted only if the program succeeds.
        let finished = finished.success(Call::Update.name())?;
        output::snapshot(&finished.stdout).map_err(|error| words(Call::Update, error))
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let finished = required_output(Call::Increase, self.programs.run(Call::Increase, vec![n.to_string()]).await);
        let finished = finished.map_err(PartialFailure::nothing)?;
        let said = output::count(&finished.stdout).unwrap_or_else(|error| {
            // The program has created instances even if its output is invalid. A retry would create more.
            tracing::warn!(%error, "ignoring invalid output of increase");
            None
        });
        if finished.status.success() {
            return Ok(said.unwrap_or(n));
        }
        Err(PartialFailure { succeeded: said.unwrap_or(0), error: finished.failed(Call::Increase.name()).into() })
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.on(Call::Decrease, ids).await
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let finished = required_output(Call::ConnectInfo, self.programs.about(Call::ConnectInfo, &[id]).await)?;
        let finished = finished.success(Call::ConnectInfo.name())?;
        let (mut info, path) =
            output::connect_info(&finished.stdout, &self.connector).map_err(|error| words(Call::ConnectInfo, error))?;
        if let Some(path) = path {
            info.connector.key =
                tokio::fs::read(&path).await.map_err(|error| format!("connect-info: key_path {path}: {error}"))?;
        }
        Ok(info)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        if let Some(finished) = self.programs.about(Call::Heartbeat, &[id]).await? {
            finished.success(Call::Heartbeat.name())?;
        }
        Ok(())
    }

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.on(Call::Suspend, ids).await
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.on(Call::Resume, ids).await
    }

    async fn shutdown(&self) -> Result<(), Error> {
        if let Some(finished) = self.programs.run(Call::Shutdown, Vec::new()).await? {
            finished.success(Call::Shutdown.name())?;
        }
        Ok(())
    }
}
