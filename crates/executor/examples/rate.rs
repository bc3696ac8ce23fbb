//! Measures how fast a fleet grows on a cloud that limits the creations per second, and how long a running instance
//! waits for its job.
//!
//! cargo run --release -p muster-executor --example rate [INSTANCES] [CREATIONS_PER_SECOND] [BOOT_MS]
//!
//! Prints one line of JSON. This program is also the plugin, which simulates a cloud. The cloud accepts
//! CREATIONS_PER_SECOND instances at once in the beginning, and then that number per second.

#![expect(
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement prints its results and panics if it fails"
)]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use muster_executor::instance::PluginGroup;
use muster_fleeting::host::{Group, PluginSpec};
use muster_fleeting::sdk::{
    self, ConnectInfo, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};
use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::driver::{Buckets, FileLedger, InstanceGroupPort, ReadyWhenReachable, Scaler};
use muster_taskscaler::policy::{IdleTarget, Policies};
use muster_taskscaler::types::{SlotRequest, TaskKey};
use tokio::task::JoinSet;

const TIMEOUT: Duration = Duration::from_secs(120);
const PLUGIN: &str = "plugin";

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct CloudConfig {
    max_size: u32,
    creations_per_second: u32,
    boot_ms: u64,
}

struct Cloud {
    config: CloudConfig,
    settings: Settings,
    state: Mutex<State>,
}

struct State {
    tokens: f64,
    tokens_updated_at: Instant,
    /// Time from which each instance runs.
    instances: BTreeMap<InstanceId, Instant>,
    created: u32,
}

impl Cloud {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Provider for Cloud {
    const NAME: &'static str = "rate";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = CloudConfig;

    async fn init(config: CloudConfig, settings: Settings) -> Result<(Self, Init), Error> {
        let init = Init { id: "rate/cloud".to_owned(), max_size: config.max_size, can_suspend: false };
        let tokens = f64::from(config.creations_per_second);
        let state = State { tokens, tokens_updated_at: Instant::now(), instances: BTreeMap::new(), created: 0 };
        Ok((Self { config, settings, state: Mutex::new(state) }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let now = Instant::now();
        let state = |runs_at: &Instant| if now >= *runs_at { InstanceState::Running } else { InstanceState::Creating };
        Ok(self.state().instances.iter().map(|(id, runs_at)| (id.clone(), state(runs_at))).collect())
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let (now, boot) = (Instant::now(), Duration::from_millis(self.config.boot_ms));
        let rate = f64::from(self.config.creations_per_second);
        let mut state = self.state();
        state.tokens = (state.tokens + (now - state.tokens_updated_at).as_secs_f64() * rate).min(rate);
        state.tokens_updated_at = now;
        let mut accepted = 0;
        while accepted < n && state.tokens >= 1.0 {
            (state.tokens, state.created, accepted) = (state.tokens - 1.0, state.created + 1, accepted + 1);
            // The ID contains the time at which the instance begins to run, for the measurement.
            let runs_at = now + boot;
            let runs_at_micros = micros() + boot.as_micros();
            let id = InstanceId::new(format!("{}-{runs_at_micros}", state.created));
            state.instances.insert(id, runs_at);
        }
        Ok(accepted)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.state().instances.retain(|id, _| !ids.contains(id));
        Ok(ids)
    }

    async fn connect_info(&self, _: InstanceId) -> Result<ConnectInfo, Error> {
        let connector = self.settings.connector.clone();
        Ok(ConnectInfo {
            connector,
            external_addr: String::new(),
            internal_addr: "127.0.0.1".to_owned(),
            expires: None,
        })
    }
}

fn micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

fn unix_seconds() -> i64 {
    i64::try_from(micros() / 1_000_000).unwrap()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == PLUGIN) {
        return sdk::main::<Cloud>();
    }
    let number =
        |index: usize, default: u32| arguments.get(index).map_or(default, |argument| argument.parse().unwrap());
    let (instances, rate, boot_ms) = (number(0, 500), number(1, 100), number(2, 2000));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure(instances, rate, boot_ms));
    ExitCode::SUCCESS
}

async fn measure(instances: u32, rate: u32, boot_ms: u32) {
    let directory = tempfile::tempdir().unwrap();
    let mut spec = PluginSpec::new(std::env::current_exe().unwrap());
    spec.arguments = vec![PLUGIN.to_owned()];
    spec.config = serde_json::json!({ "max_size": instances, "creations_per_second": rate, "boot_ms": boot_ms });
    let group: Arc<dyn InstanceGroupPort> = PluginGroup::new(Group::start(spec).await.unwrap());
    // Each job has a separate instance.
    let mut config = Config::new(GroupConfig::new("rate", instances));
    config.max_uses = Some(NonZeroU32::MIN);
    config.policies = Policies::always(IdleTarget::default());
    let store = Box::new(FileLedger::new(directory.path().join("ledger")));
    let scaler =
        Scaler::start(config, vec![group], Arc::new(ReadyWhenReachable), store, &Buckets::default(), unix_seconds)
            .await
            .unwrap();
    let begin = micros();
    let mut jobs = JoinSet::new();
    for job in 0..instances {
        let scaler = scaler.clone();
        jobs.spawn(async move {
            let lease =
                scaler.admit(TaskKey::new(job.to_string())).acquire(SlotRequest::default(), TIMEOUT).await.unwrap();
            let leased = micros();
            let runs_at: u128 = lease.instance().as_str().rsplit_once('-').unwrap().1.parse().unwrap();
            // Keeping the lease ensures that no instance serves two jobs.
            (lease, runs_at, leased)
        });
    }
    let all = jobs.join_all().await;
    let boot = u128::from(boot_ms) * 1000;
    let last = all.iter().map(|(_, runs_at, _)| runs_at - boot).max().unwrap();
    let seconds = |micros: u128| micros as f64 / 1e6;
    // Minimum time in which the rate limit permits all creations.
    let allowed = f64::from(instances.saturating_sub(rate)) / f64::from(rate);
    let took = seconds(last - begin);
    let mut delays: Vec<f64> =
        all.iter().map(|(_, runs_at, leased)| seconds(leased.saturating_sub(*runs_at))).collect();
    delays.sort_by(f64::total_cmp);
    let percentile = |percent: usize| delays[(delays.len() * percent).div_ceil(100).saturating_sub(1)];
    let figures = serde_json::json!({
        "instances": instances,
        "creations_per_second": rate,
        "boot_ms": boot_ms,
        "created_within_s": took,
        "allowed_s": allowed,
        "share_of_allowed_rate": allowed / took,
        "running_to_job_s": { "p50": percentile(50), "p95": percentile(95), "max": percentile(100) },
    });
    println!("{figures}");
    drop(all);
    scaler.shutdown(Duration::from_secs(10)).await;
}
