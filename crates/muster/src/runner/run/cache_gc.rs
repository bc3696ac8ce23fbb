//! Deletes the unused chunks of caches at intervals, if `[runners.cache]` has `ChunksGcInterval`.
//!
//! A separate process (`muster cache gc --due`) does this, and may be killed at any time.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use muster_config::settings::Settings;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until};

/// Time from the start of the manager to the first check. The manager resumes jobs first.
const FIRST_CHECK: Duration = Duration::from_secs(5 * 60);
/// Time between two checks. Each check collects only what is due.
const CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Schedule of the garbage collections of a manager's caches. At most one collection runs at a time.
pub(super) struct CacheGc {
    program: PathBuf,
    /// Configuration file. `None` means that nothing is collected.
    config: Option<PathBuf>,
    next: Instant,
    running: Option<Child>,
}

impl CacheGc {
    pub(super) fn new(program: PathBuf, config: Option<PathBuf>) -> Self {
        Self { program, config, next: Instant::now() + FIRST_CHECK, running: None }
    }

    /// Waits for the end of the running collection, or else for the next check, which may start a collection.
    /// Cancel-safe.
    pub(super) async fn step(&mut self, settings: &Settings) {
        let Some(config) = &self.config else { return std::future::pending().await };
        if let Some(child) = &mut self.running {
            match child.wait().await {
                Ok(status) if status.success() => tracing::info!("cache collection finished"),
                Ok(status) => {
                    tracing::warn!(%status, "failed to delete unused data of caches; run `muster cache gc` to see the reason");
                }
                Err(error) => tracing::warn!(%error, "failed to wait for the collection of caches"),
            }
            self.running = None;
            return;
        }
        sleep_until(self.next).await;
        self.next = Instant::now() + CHECK_INTERVAL;
        if settings.runners.iter().all(|runner| runner.cache.collection.is_none()) {
            return;
        }
        let mut command = Command::new(&self.program);
        // Under the name `gitlab-runner`, there is no command `cache`.
        command.arg0("muster").args(["cache", "gc", "--due", "--config"]).arg(config);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        match command.spawn() {
            Ok(child) => self.running = Some(child),
            Err(error) => tracing::warn!(%error, "failed to start the collection of caches"),
        }
    }
}

#[cfg(test)]
mod tests {

    use muster_config::settings::{ChunkGcSettings, RunnerSettings};
    use muster_job::Secret;

    use super::*;

    fn settings(collects: bool) -> Settings {
        let mut runner = RunnerSettings::new("http://127.0.0.1:1".parse().unwrap(), Secret::new("t"), 0);
        runner.cache.collection = collects.then(ChunkGcSettings::default);
        let mut settings = Settings::new();
        settings.runners.push(runner.into());
        settings
    }

    #[tokio::test(start_paused = true)]
    async fn one_process_at_a_time_collects_while_a_runner_requires_it() {
        let home = tempfile::tempdir().unwrap();
        let (program, calls) = (home.path().join("program"), home.path().join("calls"));
        muster_test_prerequisites::create_program(&program, format!("#!/bin/sh\necho \"$@\" >> {}\n", calls.display()));
        let mut cache_gc = CacheGc::new(program, Some("/etc/c.toml".into()));
        cache_gc.step(&settings(false)).await;
        assert!(cache_gc.running.is_none() && !calls.exists());
        for runs in 1..=2 {
            let start = Instant::now();
            cache_gc.step(&settings(true)).await;
            assert!(
                start.elapsed() >= CHECK_INTERVAL.saturating_sub(Duration::from_secs(1)),
                "the check must not start before its interval has passed"
            );
            assert!(cache_gc.running.is_some());
            cache_gc.step(&settings(true)).await;
            assert!(cache_gc.running.is_none());
            assert_eq!(std::fs::read_to_string(&calls).unwrap(), "cache gc --due --config /etc/c.toml\n".repeat(runs));
        }
    }
}
