//! Starts the plugins of a runner's instance groups, and forwards their reports to the scaler.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_config::settings::{AutoscalerSettings, GroupSettings};
use muster_fleeting::host::{Group, PluginSpec};
use muster_job::error_chain;
use muster_taskscaler::driver::{DeferredGroup, FileLedger, InstanceGroupPort, Scaler};
use muster_taskscaler::types::GroupId;

use super::plugin_group::PluginGroup;
use super::prepare::InstancePreparer;
use super::provider::{ExecutorContext, InstanceOptions};
use super::settings::{self, SettingsError};
use super::{extension, resources};

/// Initial and maximum delay before the scaler or a plugin is started again.
const START_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

pub(super) async fn start_scaler(shared: &Arc<ExecutorContext>) -> (Scaler, Vec<GroupPlugin>) {
    let (mut wait, cap) = START_BACKOFF;
    loop {
        let settings = shared.settings();
        let error = match start(shared, &settings).await {
            Ok((scaler, plugins)) => {
                shared.scaler_started(&scaler, &settings);
                return (scaler, plugins);
            }
            Err(error) => error,
        };
        let (error, is_permanent) = match error {
            StartError::Settings(error) => (error, true),
            StartError::Transient(error) => (error, false),
        };
        if is_permanent {
            let message =
                "failed to start the scaler; this runner requests no jobs until its configuration is corrected";
            tracing::error!(runner = shared.options.name, error, "{message}");
        } else {
            tracing::error!(
                runner = shared.options.name,
                error,
                wait_ms = wait.as_millis(),
                "failed to start the scaler, retrying; this runner requests no jobs meanwhile"
            );
        }
        shared.publish_capacity(0, Some(error.into()));
        tokio::select! {
            () = tokio::time::sleep(wait), if !is_permanent => wait = (wait * 2).min(cap),
            // The new settings may work.
            () = shared.settings_changed.notified() => wait = START_BACKOFF.0,
        }
    }
}

enum StartError {
    /// Only a change of the configuration helps.
    Settings(String),
    /// A retry may succeed.
    Transient(String),
}

impl From<String> for StartError {
    fn from(error: String) -> Self {
        Self::Transient(error)
    }
}

impl From<SettingsError> for StartError {
    fn from(error: SettingsError) -> Self {
        match error {
            // The key file may be created later.
            SettingsError::Key { .. } => Self::Transient(error_chain(&error)),
            _ => Self::Settings(error_chain(&error)),
        }
    }
}

/// Starts the scaler if at least one plugin starts.
///
/// Groups whose plugins do not start are deferred.
async fn start(
    shared: &Arc<ExecutorContext>,
    settings: &Arc<AutoscalerSettings>,
) -> Result<(Scaler, Vec<GroupPlugin>), StartError> {
    let InstanceOptions { name, ledger, find_plugin, .. } = &shared.options;
    let (config, buckets) = settings::scaler_config(settings, name, rand::random())?;
    settings::validate_isolation(settings)?;
    let groups = settings.all_groups(name);
    let started =
        futures::future::join_all(groups.iter().map(|group| start_plugin(spec(shared, group, *find_plugin)))).await;
    if started.iter().all(Result::is_err) {
        let errors = started.into_iter().filter_map(Result::err);
        return Err(errors.collect::<Vec<_>>().join("; ").into());
    }
    let all = started.into_iter().zip(groups).enumerate();
    let (group_ports, plugins) =
        all.map(|(index, (started, group))| GroupPlugin::new(GroupId(index), started, group.name)).unzip();
    let preparer = InstancePreparer { shared: Arc::downgrade(shared), settings: Arc::clone(settings) };
    let store = Box::new(FileLedger::new(ledger));
    let scaler = Scaler::start(config, group_ports, Arc::new(preparer), store, &buckets, unix_now).await;
    Ok((scaler.map_err(|error| error_chain(&error))?, plugins))
}

fn spec(
    shared: &ExecutorContext,
    group: &GroupSettings,
    find: fn(&str) -> Result<PluginSpec, String>,
) -> Result<PluginSpec, String> {
    let plugin = find(&group.plugin)?;
    let connector = settings::plugin_connector(&group.connector).map_err(|error| error_chain(&error))?;
    let meter = shared.meter(&group.name);
    Ok(PluginSpec { config: group.plugin_config.clone(), connector, meter, ..plugin })
}

async fn start_plugin(spec: Result<PluginSpec, String>) -> Result<Arc<PluginGroup>, String> {
    let spec = spec?;
    let name = spec.name();
    let group = Group::start(spec).await.map_err(|error| format!("plugin {name}: {}", error_chain(&error)))?;
    Ok(PluginGroup::new(group))
}

pub(super) struct GroupPlugin {
    group: GroupId,
    state: PluginState,
}

enum PluginState {
    Running(Weak<PluginGroup>),
    /// Contains the name of the group.
    Deferred(Arc<DeferredGroup>, String),
}

impl GroupPlugin {
    fn new(
        group: GroupId,
        started: Result<Arc<PluginGroup>, String>,
        name: String,
    ) -> (Arc<dyn InstanceGroupPort>, Self) {
        match started {
            Ok(plugin) => {
                let state = PluginState::Running(Arc::downgrade(&plugin));
                (plugin, Self { group, state })
            }
            Err(error) => {
                tracing::error!(group = name, error, "failed to start the plugin of a group, retrying");
                let deferred = DeferredGroup::new(error);
                (Arc::<DeferredGroup>::clone(&deferred), Self { group, state: PluginState::Deferred(deferred, name) })
            }
        }
    }

    /// Forwards the plugin's reports to the scaler. First starts the plugin if it is deferred. Cancel-safe.
    pub(super) async fn follow(self, scaler: Scaler, shared: &ExecutorContext) {
        let runner = &shared.options.name;
        let plugin = match self.state {
            PluginState::Running(plugin) => plugin,
            PluginState::Deferred(deferred, group) => start_deferred(&deferred, &group, shared).await,
        };
        let usage = resources::follow(plugin.clone(), scaler.clone(), self.group, &shared.usage, runner);
        tokio::join!(extension::follow(plugin, scaler, self.group, runner), usage);
    }
}

/// Starts the plugin of a deferred group with the newest settings of the group. Retries until it has started.
async fn start_deferred(deferred: &DeferredGroup, group: &str, shared: &ExecutorContext) -> Weak<PluginGroup> {
    let InstanceOptions { name: runner, find_plugin, .. } = &shared.options;
    let (mut wait, cap) = START_BACKOFF;
    loop {
        tokio::time::sleep(wait).await;
        let groups = shared.newest_settings().all_groups(runner);
        let plugin_spec = |settings: &GroupSettings| spec(shared, settings, *find_plugin);
        // A removed group is not started. The next start of the manager drops it.
        let removed = || Err(format!("group {group} was removed from the configuration"));
        match start_plugin(groups.iter().find(|settings| settings.name == group).map_or_else(removed, plugin_spec))
            .await
        {
            Ok(plugin) => {
                tracing::info!(runner, group, "plugin of a group started");
                let weak = Arc::downgrade(&plugin);
                deferred.attach(plugin);
                return weak;
            }
            Err(error) => {
                tracing::warn!(runner, group, error, "failed to start the plugin of a group, retrying");
                deferred.set_cause(error);
            }
        }
        wait = (wait * 2).min(cap);
    }
}

pub(super) fn unix_now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}
