//! Plugins of a runner's instance groups: how they are started, and which of their reports are forwarded.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_config::settings::{AutoscalerSettings, GroupSettings};
use muster_fleeting::host::{Group, PluginSpec};
use muster_job::error_chain;
use muster_taskscaler::driver::{DeferredGroup, FileLedger, InstanceGroupPort, Scaler};
use muster_taskscaler::types::GroupId;

use super::plugin_group::PluginGroup;
use super::prepare::InstancePreparer;
use super::provider::{InstanceOptions, Shared};
use super::settings::{self, SettingsError};
use super::{extension, resources};

/// Initial and maximum delay before a plugin that failed to start is started again.
const START_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Returns a running scaler. Retries until it starts.
pub(super) async fn started(shared: &Arc<Shared>) -> (Scaler, Vec<Member>) {
    let (mut wait, cap) = START_AGAIN;
    loop {
        let settings = shared.settings();
        let error = match start(shared, &settings).await {
            Ok((scaler, members)) => {
                shared.runs(&scaler, &settings);
                return (scaler, members);
            }
            Err(error) => error,
        };
        let (error, is_lasting) = match error {
            StartError::Settings(error) => (error, true),
            StartError::Trouble(error) => (error, false),
        };
        if is_lasting {
            let what_then = "no instances can be had, and no jobs are requested, until the configuration is mended";
            tracing::error!(runner = shared.options.name, error, "{what_then}");
        } else {
            tracing::error!(
                runner = shared.options.name,
                error,
                wait_ms = wait.as_millis(),
                "no instances can be had, and no jobs are requested, until this is mended; it is tried again"
            );
        }
        shared.publish(0, Some(error.into()));
        tokio::select! {
            () = tokio::time::sleep(wait), if !is_lasting => wait = (wait * 2).min(cap),
            // The new settings may work: retry at once, with the initial delay.
            () = shared.changed.notified() => wait = START_AGAIN.0,
        }
    }
}

/// Reason why the scaler does not start.
enum StartError {
    /// The configuration is not valid. Only a change of the configuration helps.
    Settings(String),
    /// Any other error. A retry may succeed.
    Trouble(String),
}

impl From<String> for StartError {
    fn from(error: String) -> Self {
        Self::Trouble(error)
    }
}

impl From<SettingsError> for StartError {
    fn from(error: SettingsError) -> Self {
        match error {
            // The key file may be created later.
            SettingsError::Key { .. } => Self::Trouble(error_chain(&error)),
            _ => Self::Settings(error_chain(&error)),
        }
    }
}

/// Starts the scaler on the plugins that start. Groups whose plugins do not start are deferred.
async fn start(shared: &Arc<Shared>, settings: &Arc<AutoscalerSettings>) -> Result<(Scaler, Vec<Member>), StartError> {
    let InstanceOptions { name, books, find_plugin, .. } = &shared.options;
    let (config, buckets) = settings::scaling(settings, name, rand::random())?;
    settings::check(settings)?;
    let groups = settings.all_groups(name);
    let begun = futures::future::join_all(groups.iter().map(|group| plugin(spec(shared, group, *find_plugin)))).await;
    if begun.iter().all(Result::is_err) {
        let errors = begun.into_iter().filter_map(Result::err);
        return Err(errors.collect::<Vec<_>>().join("; ").into());
    }
    let all = begun.into_iter().zip(groups).enumerate();
    let (hosts, members) = all.map(|(index, (begun, group))| Member::of(GroupId(index), begun, group.name)).unzip();
    let ready = InstancePreparer { shared: Arc::downgrade(shared), settings: Arc::clone(settings) };
    let store = Box::new(FileLedger::new(books));
    let scaler = Scaler::start(config, hosts, Arc::new(ready), store, &buckets, unix_now).await;
    Ok((scaler.map_err(|error| error_chain(&error))?, members))
}

/// Returns how to start the plugin of a group, with the settings of the group.
fn spec(
    shared: &Shared,
    group: &GroupSettings,
    find: fn(&str) -> Result<PluginSpec, String>,
) -> Result<PluginSpec, String> {
    let plugin = find(&group.plugin)?;
    let connector = settings::of_plugins(&group.connector).map_err(|error| error_chain(&error))?;
    let meter = shared.meter(&group.name);
    Ok(PluginSpec { config: group.plugin_config.clone(), connector, meter, ..plugin })
}

/// Starts a plugin. The error names it.
async fn plugin(spec: Result<PluginSpec, String>) -> Result<Arc<PluginGroup>, String> {
    let spec = spec?;
    let name = spec.name();
    let group = Group::start(spec).await.map_err(|error| format!("plugin {name}: {}", error_chain(&error)))?;
    Ok(PluginGroup::new(group))
}

/// Plugin of one group that the scaler uses.
pub(super) struct Member {
    group: GroupId,
    state: State,
}

enum State {
    Here(Weak<PluginGroup>),
    /// The plugin did not start and is retried. Has the name of its group.
    Late(Arc<DeferredGroup>, String),
}

impl Member {
    fn of(group: GroupId, begun: Result<Arc<PluginGroup>, String>, name: String) -> (Arc<dyn InstanceGroupPort>, Self) {
        match begun {
            Ok(plugin) => {
                let state = State::Here(Arc::downgrade(&plugin));
                (plugin, Self { group, state })
            }
            Err(error) => {
                tracing::error!(
                    group = name,
                    error,
                    "a group has no instances until this is mended; the others stand in for it"
                );
                let late = DeferredGroup::new(error);
                (Arc::<DeferredGroup>::clone(&late), Self { group, state: State::Late(late, name) })
            }
        }
    }

    /// Starts the plugin if it does not run yet, and forwards its reports to the scaler. Cancel-safe.
    pub(super) async fn follow(self, scaler: Scaler, shared: &Shared) {
        let runner = &shared.options.name;
        let weak = match self.state {
            State::Here(weak) => weak,
            State::Late(late, group) => arrive(&late, &group, shared).await,
        };
        let uses = resources::follow(weak.clone(), scaler.clone(), self.group, &shared.usage, runner);
        tokio::join!(extension::follow(weak, scaler, self.group, runner), uses);
    }
}

/// Starts the plugin of a deferred group, with the newest settings of that group.
async fn arrive(late: &DeferredGroup, group: &str, shared: &Shared) -> Weak<PluginGroup> {
    let InstanceOptions { name: runner, find_plugin, .. } = &shared.options;
    let (mut wait, cap) = START_AGAIN;
    loop {
        tokio::time::sleep(wait).await;
        let groups = shared.newest().all_groups(runner);
        let of = |settings: &GroupSettings| spec(shared, settings, *find_plugin);
        // A group that was removed from the configuration is not started. The next start of the manager drops it.
        let gone = || Err(format!("group {group} is not in the configuration any more"));
        match plugin(groups.iter().find(|settings| settings.name == group).map_or_else(gone, of)).await {
            Ok(plugin) => {
                tracing::info!(runner, group, "the plugin runs");
                let weak = Arc::downgrade(&plugin);
                late.attach(plugin);
                return weak;
            }
            Err(error) => {
                tracing::warn!(runner, group, error, "a group's plugin does not start, it is tried again");
                late.failed(error);
            }
        }
        wait = (wait * 2).min(cap);
    }
}

/// Returns the current time in seconds since 1970.
pub(super) fn unix_now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}
