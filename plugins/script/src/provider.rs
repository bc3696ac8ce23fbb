//! Implements the plugin protocol with programs of the user.

use async_trait::async_trait;
use muster_fleeting::sdk::program::{Finished, ProgramError};
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};

use crate::call::Call;
use crate::config::Config;
use crate::output;
use crate::programs::Programs;

pub(crate) struct Script {
    programs: Programs,
    connector: ConnectorConfig,
}

fn output_error(call: Call, error: output::OutputError) -> Error {
    format!("{}: {error}", call.name()).into()
}

/// Returns an error if no program implements the call.
fn required_output(call: Call, finished: Result<Option<Finished>, ProgramError>) -> Result<Finished, Error> {
    let missing = || format!("{}: the script does not implement this call (exit status 64)", call.name());
    Ok(finished?.ok_or_else(missing)?)
}

impl Script {
    /// Runs the program of a call, and returns the accepted IDs. Success without output means that all are accepted.
    async fn run_for_ids(
        &self,
        call: Call,
        ids: Vec<InstanceId>,
    ) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let finished = required_output(call, self.programs.run_with_ids(call, &ids).await)
            .map_err(PartialFailure::none_succeeded)?;
        let accepted = output::parse_ids(&finished.stdout)
            .map_err(|error| PartialFailure::none_succeeded(output_error(call, error)))?;
        if finished.status.success() {
            return Ok(accepted.unwrap_or(ids));
        }
        Err(PartialFailure { succeeded: accepted.unwrap_or_default(), error: finished.failure(call.name()).into() })
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
        let output = match programs.run(Call::Init, Vec::new()).await? {
            Some(finished) => {
                let finished = finished.success(Call::Init.name())?;
                output::parse_init(&finished.stdout).map_err(|error| output_error(Call::Init, error))?
            }
            None => output::InitOutput::default(),
        };
        let has_both_programs = programs.has_executable(Call::Suspend) && programs.has_executable(Call::Resume);
        let init = Init {
            id: output.id.unwrap_or_else(|| format!("script/{name}")),
            max_size: output.max_size.unwrap_or(max_size),
            can_suspend: output.can_suspend.unwrap_or(has_both_programs),
        };
        tracing::info!(group = init.id, max_size = init.max_size, can_suspend = init.can_suspend, "ready");
        Ok((Self { programs, connector: settings.connector }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let finished = required_output(Call::Update, self.programs.run(Call::Update, Vec::new()).await)?;
        // A partial list would make instances count as lost, so the program must succeed.
        let finished = finished.success(Call::Update.name())?;
        output::parse_update(&finished.stdout).map_err(|error| output_error(Call::Update, error))
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let finished = required_output(Call::Increase, self.programs.run(Call::Increase, vec![n.to_string()]).await);
        let finished = finished.map_err(PartialFailure::none_succeeded)?;
        let accepted = output::parse_increase(&finished.stdout).unwrap_or_else(|error| {
            // If the program succeeded, it has created instances although its output is invalid. A retry would create
            // more.
            tracing::warn!(%error, "invalid output of increase ignored");
            None
        });
        if finished.status.success() {
            return Ok(accepted.unwrap_or(n));
        }
        Err(PartialFailure { succeeded: accepted.unwrap_or(0), error: finished.failure(Call::Increase.name()).into() })
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.run_for_ids(Call::Decrease, ids).await
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let finished = required_output(Call::ConnectInfo, self.programs.run_with_ids(Call::ConnectInfo, &[id]).await)?;
        let finished = finished.success(Call::ConnectInfo.name())?;
        let (mut info, path) = output::parse_connect_info(&finished.stdout, &self.connector)
            .map_err(|error| output_error(Call::ConnectInfo, error))?;
        if let Some(path) = path {
            info.connector.key = tokio::fs::read(&path)
                .await
                .map_err(|error| format!("connect-info: failed to read key_path {path}: {error}"))?;
        }
        Ok(info)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        if let Some(finished) = self.programs.run_with_ids(Call::Heartbeat, &[id]).await? {
            finished.success(Call::Heartbeat.name())?;
        }
        Ok(())
    }

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.run_for_ids(Call::Suspend, ids).await
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.run_for_ids(Call::Resume, ids).await
    }

    async fn shutdown(&self) -> Result<(), Error> {
        if let Some(finished) = self.programs.run(Call::Shutdown, Vec::new()).await? {
            finished.success(Call::Shutdown.name())?;
        }
        Ok(())
    }
}
