//! Muster's protocol extension.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use muster_fleeting::sdk::{Error, Extension, Features, InstanceId, Notices, Offer, Price, ResourceUsage, program};
use tokio::process::Command;
use tokio_stream::wrappers::BroadcastStream;

use crate::provider::{Local, OFFER};
use crate::usage;

const HOOK_TIMEOUT: Duration = Duration::from_secs(60);

async fn run_hook(command: &[String], key: &str, id: &InstanceId, job: &str) -> Result<(), Error> {
    let Some((executable, arguments)) = command.split_first() else { return Ok(()) };
    let mut command = Command::new(executable);
    command.args(arguments).args([id.as_str(), job]);
    program::run(command, key, b"", HOOK_TIMEOUT).await?.success(key)?;
    Ok(())
}

#[async_trait]
impl Extension for Local {
    fn features(&self) -> Features {
        let config = self.config();
        let hooks = !config.prepare_command.is_empty() || !config.finish_command.is_empty();
        Features { offers: true, notices: true, resource_usage: true, host_keys: true, hooks }
    }

    async fn offers(&self) -> Result<Vec<Offer>, Error> {
        let config = self.config();
        let price = Price {
            micros_per_hour: config.price_micros_per_hour,
            currency: config.currency.clone(),
            minimum: Duration::ZERO,
        };
        Ok(vec![Offer {
            name: OFFER.to_owned(),
            zone: "localhost".to_owned(),
            interruptible: config.preemptions_per_minute > 0.0,
            available: Some(self.available_instances()),
            price: (config.price_micros_per_hour > 0).then_some(price),
            cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()).unwrap_or(0),
            memory_bytes: config.limits().memory_bytes,
        }])
    }

    fn notices(&self) -> Notices {
        // A plugin host that reads too slowly misses old notices.
        Box::pin(BroadcastStream::new(self.subscribe()).filter_map(|notice| std::future::ready(notice.ok())))
    }

    async fn resource_usage(&self, ids: Vec<InstanceId>) -> Result<Vec<ResourceUsage>, Error> {
        let limit = Some(self.config().limits().memory_bytes).filter(|bytes| *bytes > 0);
        let measure = |instance: InstanceId| {
            let usage = usage::measure(self.pid(&instance)?)?;
            Some(ResourceUsage {
                instance,
                cpu_seconds: usage.cpu_seconds,
                memory_bytes: usage.memory_bytes,
                memory_limit_bytes: limit,
                processes: usage.processes,
            })
        };
        Ok(ids.into_iter().filter_map(measure).collect())
    }

    async fn host_keys(&self, id: InstanceId) -> Result<Vec<String>, Error> {
        Ok(vec![self.host_key(&id).ok_or_else(|| format!("instance {id} does not exist or cannot be reached"))?])
    }

    async fn prepare(&self, id: InstanceId, job: String) -> Result<(), Error> {
        run_hook(&self.config().prepare_command, "prepare_command", &id, &job).await
    }

    async fn cleanup(&self, id: InstanceId, job: String) -> Result<(), Error> {
        run_hook(&self.config().finish_command, "finish_command", &id, &job).await
    }
}
