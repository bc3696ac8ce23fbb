//! Files from URLs: fetched in parallel, within a common timeout, and cached for use without a network.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_job::error_chain;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::config::{IncludeConfig, RemotePolicy};
use super::pins::write_atomically;

/// Maximum size of a remote file in bytes, the same as GitLab's.
const MAX_REMOTE_BYTES: usize = 2 << 20;
/// Default of the maximum time for fetching all files of a configuration, the same as GitLab's.
pub(super) const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout divided by this is the time until [`WaitCallback`] is called.
const WAIT_CALLBACK_DIVISOR: u32 = 15;

#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RemoteError {
    #[error("the network is switched off by `--offline` or `[remote] offline`, and no copy is cached")]
    Offline,
    #[error("the server returned {0}")]
    Status(reqwest::StatusCode),
    #[error("the file is larger than {} MiB", MAX_REMOTE_BYTES >> 20)]
    TooLarge,
    #[error("no answer within {} s, the timeout for all remote files together", .0.as_secs_f32())]
    TimeOut(Duration),
    #[error("{0}")]
    Http(String),
}

pub(super) type Fetched = Result<Vec<u8>, RemoteError>;

#[derive(Debug, Default)]
pub(super) struct Remotes {
    time: Mutex<FetchTime>,
    fetched: Mutex<HashMap<String, Fetched>>,
}

/// Time that fetches have taken since the configuration began to load. Fetches at the same time count once.
#[derive(Debug, Default)]
struct FetchTime {
    /// Time that earlier fetches have taken.
    spent: Duration,
    running: usize,
    /// Time since which at least one fetch has run.
    since: Option<Instant>,
}

impl FetchTime {
    /// Starts a fetch at `now`. Returns the time that fetches have taken.
    fn start(&mut self, now: Instant) -> Duration {
        self.running += 1;
        self.spent + now.duration_since(*self.since.get_or_insert(now))
    }

    fn end(&mut self, now: Instant) {
        self.running -= 1;
        if self.running == 0
            && let Some(since) = self.since.take()
        {
            self.spent += now.duration_since(since);
        }
    }
}

impl Remotes {
    /// Starts the timeout again, and forgets failed fetches. Another configuration of the pipeline may be loaded much
    /// later than the first.
    pub(super) fn begin_load(&self) {
        let mut time = self.time.lock();
        time.spent = Duration::ZERO;
        time.since = time.since.map(|_| Instant::now());
        self.fetched.lock().retain(|_, fetched| fetched.is_ok());
    }

    pub(super) async fn fetch(&self, urls: Vec<String>, config: &IncludeConfig) {
        let urls: Vec<String> = urls.into_iter().filter(|url| !self.fetched.lock().contains_key(url)).collect();
        if urls.is_empty() {
            return;
        }
        let (now, timeout) = (Instant::now(), config.remote_timeout);
        let deadline = now + timeout.saturating_sub(self.time.lock().start(now));
        self.fetch_until(urls, config, deadline, now + timeout / WAIT_CALLBACK_DIVISOR).await;
        self.time.lock().end(Instant::now());
    }

    /// Calls [`WaitCallback`] at `callback_at` if the fetches are not finished then.
    async fn fetch_until(&self, urls: Vec<String>, config: &IncludeConfig, deadline: Instant, callback_at: Instant) {
        let mut pending = urls.clone();
        let mut tasks = JoinSet::new();
        for url in urls {
            let config = config.clone();
            tasks.spawn(async move {
                let fetched = fetch_or_cached(&url, &config, deadline).await;
                (url, fetched)
            });
        }
        let mut was_called = false;
        while !pending.is_empty() {
            tokio::select! {
                joined = tasks.join_next() => match joined {
                    Some(Ok((url, fetched))) => {
                        pending.retain(|other| *other != url);
                        self.fetched.lock().insert(url, fetched);
                    }
                    // A task panicked. A later read of its URL returns an error.
                    Some(Err(_)) => {}
                    None => return,
                },
                () = tokio::time::sleep_until(callback_at), if !was_called => {
                    was_called = true;
                    if let Some(on_wait) = &config.on_wait {
                        on_wait(&pending, deadline.saturating_duration_since(Instant::now()));
                    }
                }
            }
        }
    }

    /// Returns the result of the last fetch. `None` if there was none, or if it failed and another configuration began
    /// to load since then.
    pub(super) fn get(&self, url: &str) -> Option<Fetched> {
        self.fetched.lock().get(url).cloned()
    }
}

/// Called with the URLs that are still being fetched, and the time until the timeout.
pub type WaitCallback = Arc<dyn Fn(&[String], Duration) + Send + Sync>;

/// Fetches a URL. Returns the cached copy if the network fails or must not be used.
async fn fetch_or_cached(url: &str, config: &IncludeConfig, deadline: Instant) -> Fetched {
    let cached = config.cache.as_ref().map(|directory| directory.join(hex::encode(Sha256::digest(url))));
    if config.remote == RemotePolicy::Offline {
        return read_cached(&cached).ok_or(RemoteError::Offline);
    }
    let fetched = tokio::time::timeout_at(deadline, fetch(url));
    match fetched.await.unwrap_or(Err(RemoteError::TimeOut(config.remote_timeout))) {
        Ok(bytes) => {
            if let Some(file) = &cached
                && let Err(error) = write_atomically(file, &bytes)
            {
                tracing::debug!(%error, file = %file.display(), "failed to cache an included file");
            }
            Ok(bytes)
        }
        // Use the cached copy if the network fails, but not if the server answers with an error.
        Err(error @ (RemoteError::Http(_) | RemoteError::TimeOut(_))) => match read_cached(&cached) {
            Some(bytes) => {
                tracing::warn!(url, %error, "failed to fetch an included file, using the copy of an earlier run");
                Ok(bytes)
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

fn read_cached(file: &Option<PathBuf>) -> Option<Vec<u8>> {
    file.as_ref().and_then(|file| std::fs::read(file).ok())
}

async fn fetch(url: &str) -> Fetched {
    let http_error = |error: reqwest::Error| RemoteError::Http(error_chain(&error));
    let client = reqwest::Client::builder().http1_only().build().map_err(http_error)?;
    let mut response = client.get(url).send().await.map_err(http_error)?;
    if !response.status().is_success() {
        return Err(RemoteError::Status(response.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(http_error)? {
        if bytes.len() + chunk.len() > MAX_REMOTE_BYTES {
            return Err(RemoteError::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use axum::routing::get;

    use super::*;

    async fn server() -> String {
        let routes = axum::Router::new()
            .route("/a.yml", get(|| async { "a" }))
            .route("/b.yml", get(|| async { "b" }))
            .route("/never.yml", get(std::future::pending::<&str>));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("failed to listen");
        let url = format!("http://{}", listener.local_addr().expect("no address"));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        url
    }

    async fn fetch(remotes: &Remotes, url: String) -> Fetched {
        remotes.fetch(vec![url.clone()], &IncludeConfig::default()).await;
        remotes.get(&url).unwrap()
    }

    #[tokio::test]
    async fn time_between_fetches_does_not_count() {
        let (server, remotes) = (server().await, Remotes::default());
        assert_eq!(fetch(&remotes, format!("{server}/a.yml")).await.expect("failed to fetch"), b"a");
        tokio::time::pause();
        tokio::time::advance(TOTAL_TIMEOUT * 2).await;
        tokio::time::resume();
        assert_eq!(fetch(&remotes, format!("{server}/b.yml")).await.expect("failed to fetch"), b"b");
    }

    #[tokio::test]
    async fn timeout_applies_to_all_files_of_one_configuration() {
        let (server, remotes) = (server().await, Remotes::default());
        // The paused clock advances to the deadline, because the server does not answer.
        tokio::time::pause();
        assert!(matches!(fetch(&remotes, format!("{server}/never.yml")).await, Err(RemoteError::TimeOut(_))));
        tokio::time::resume();
        assert!(matches!(fetch(&remotes, format!("{server}/a.yml")).await, Err(RemoteError::TimeOut(_))));
        remotes.begin_load();
        assert_eq!(fetch(&remotes, format!("{server}/a.yml")).await.expect("failed to fetch"), b"a");
    }
}
