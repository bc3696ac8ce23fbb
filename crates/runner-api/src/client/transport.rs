//! Connections of a client, replaced at their maximum age and when a certificate file changes. Calls in progress keep
//! theirs.
//!
//! Invalid new files only cause a warning, because an update of the files may be in progress.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use muster_job::error_chain;
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use url::Url;

use super::{CONNECT_TIMEOUT, ClientError, POOL_IDLE_TIMEOUT, TlsFiles, redirect, user_agent};

/// Time between two pings of a waiting gRPC call. gRPC servers reject frequent pings.
const GRPC_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// Time without an answer to a ping after which a gRPC call fails, and is repeated over HTTP/1.1.
const GRPC_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum age of reused connections (`connection_max_age`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionAge {
    /// Reuses all connections.
    #[default]
    Any,
    /// Reuses connections up to this age.
    UpTo(Duration),
    /// Reuses no connection.
    NoReuse,
}

/// Minimum time between two attempts to read certificate files that did not change.
const RELOAD_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Metadata of a file, of which at least one value changes with its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<Metadata> for Stamp {
    fn from(file: Metadata) -> Self {
        Self {
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

type Stamps = [Option<Stamp>; 3];

#[derive(Debug)]
struct Current {
    http: reqwest::Client,
    http_without_redirects: Option<reqwest::Client>,
    grpc: Option<reqwest::Client>,
    created: Instant,
    stamps: Stamps,
    /// Last failed attempt to replace the clients.
    failure: Option<ReloadFailure>,
}

/// `stamps` are those of the files at the time of the failure.
#[derive(Debug, Clone, Copy)]
struct ReloadFailure {
    stamps: Stamps,
    at: Instant,
}

impl Current {
    fn new(http: reqwest::Client, stamps: Stamps) -> Self {
        Self { http, http_without_redirects: None, grpc: None, created: Instant::now(), stamps, failure: None }
    }
}

#[derive(Debug)]
pub(super) struct Transport {
    base: Url,
    tls: TlsFiles,
    age: ConnectionAge,
    current: Mutex<Current>,
}

impl Transport {
    /// Creates a transport. For HTTPS, invalid certificate files are errors.
    ///
    /// # Errors
    /// [`ClientError::Setup`].
    pub(super) fn new(base: Url, tls: TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let stamps = stamps(&tls);
        let current = Current::new(build(&base, &tls, age, Protocol::Http)?, stamps);
        Ok(Self { base, tls, age, current: Mutex::new(current) })
    }

    /// Creates a transport despite invalid certificate files, which are read again later.
    ///
    /// # Errors
    /// [`ClientError::Setup`] if no client can be created without the files.
    pub(super) fn with_deferred_tls(base: Url, tls: TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let stamps = stamps(&tls);
        let current = match build(&base, &tls, age, Protocol::Http) {
            Ok(http) => Current::new(http, stamps),
            Err(error) => {
                tracing::error!(%error, "failed to read the runner's certificates, retrying later");
                let http = build(&base, &TlsFiles::default(), age, Protocol::Http)?;
                let failure = Some(ReloadFailure { stamps, at: Instant::now() });
                Current { failure, ..Current::new(http, stamps) }
            }
        };
        Ok(Self { base, tls, age, current: Mutex::new(current) })
    }

    pub(super) fn http(&self) -> reqwest::Client {
        let mut current = self.current.lock();
        self.refresh(&mut current);
        current.http.clone()
    }

    /// Returns the client for the next call whose redirects the caller follows.
    ///
    /// # Errors
    /// [`ClientError::Setup`].
    pub(super) fn http_without_redirects(&self) -> Result<reqwest::Client, ClientError> {
        let mut current = self.current.lock();
        self.refresh(&mut current);
        if let Some(http) = &current.http_without_redirects {
            return Ok(http.clone());
        }
        let http = build(&self.base, &self.tls, self.age, Protocol::HttpWithoutRedirects)?;
        Ok(current.http_without_redirects.insert(http).clone())
    }

    /// Returns the client for the next gRPC call.
    ///
    /// # Errors
    /// [`ClientError::Setup`].
    pub(super) fn grpc(&self) -> Result<reqwest::Client, ClientError> {
        let mut current = self.current.lock();
        self.refresh(&mut current);
        if let Some(grpc) = &current.grpc {
            return Ok(grpc.clone());
        }
        let grpc = build(&self.base, &self.tls, self.age, Protocol::Grpc)?;
        Ok(current.grpc.insert(grpc).clone())
    }

    fn refresh(&self, current: &mut Current) {
        let stamps = stamps(&self.tls);
        let expired = matches!(self.age, ConnectionAge::UpTo(age) if current.created.elapsed() >= age);
        // A failed read may succeed later, although the files do not change.
        let failure = current.failure.filter(|failure| failure.stamps == stamps);
        let is_due = match failure {
            Some(failure) => failure.at.elapsed() >= RELOAD_RETRY_DELAY,
            None => expired || stamps != current.stamps,
        };
        if !is_due {
            return;
        }
        match build(&self.base, &self.tls, self.age, Protocol::Http) {
            Ok(http) => *current = Current::new(http, stamps),
            Err(error) => {
                current.failure = Some(ReloadFailure { stamps, at: Instant::now() });
                if failure.is_none() {
                    tracing::warn!(%error, "failed to reload the runner's certificates, keeping the previous ones");
                }
            }
        }
    }
}

fn stamps(tls: &TlsFiles) -> Stamps {
    let stamp = |path: &Option<PathBuf>| std::fs::metadata(path.as_ref()?).ok().map(Stamp::from);
    [stamp(&tls.ca), stamp(&tls.certificate), stamp(&tls.key)]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    HttpWithoutRedirects,
    /// HTTP/2 without negotiation.
    Grpc,
}

fn build(base: &Url, tls: &TlsFiles, age: ConnectionAge, protocol: Protocol) -> Result<reqwest::Client, ClientError> {
    let mut http = reqwest::Client::builder()
        .user_agent(user_agent())
        .connect_timeout(CONNECT_TIMEOUT)
        // `read_timeout` is not set, because it would include the time to send a body. Each call has its own timeout.
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(CONNECT_TIMEOUT)
        // The header would reveal paths to another server.
        .referer(false);
    http = match protocol {
        Protocol::Http => http.http1_only().redirect(redirect::policy()),
        Protocol::HttpWithoutRedirects => http.http1_only().redirect(Policy::none()),
        Protocol::Grpc => http
            .http2_prior_knowledge()
            .http2_keep_alive_interval(GRPC_KEEPALIVE_INTERVAL)
            .http2_keep_alive_timeout(GRPC_KEEPALIVE_TIMEOUT)
            .redirect(Policy::none()),
    };
    if age == ConnectionAge::NoReuse {
        http = http.pool_max_idle_per_host(0);
    }
    let is_local = base.host_str().is_some_and(muster_job::is_loopback);
    if is_local {
        // `muster ci` sends its requests to a server in its own process.
        http = http.no_proxy();
    }
    if is_local && base.scheme() == "http" && tls.is_empty() {
        // Reading the system's certificates would take longer than a job of `muster ci`.
        http = http.tls_built_in_root_certs(false);
        return http.build().map_err(|error| ClientError::Setup(error_chain(&error)));
    }
    match tls.config() {
        Ok(Some(mut config)) => {
            if protocol == Protocol::Grpc {
                config.alpn_protocols = vec![b"h2".to_vec()];
            }
            http = http.use_preconfigured_tls(config);
        }
        Err(error) if base.scheme() == "https" => return Err(error),
        // For HTTP, certificates are needed only after a redirect to HTTPS, which then reports the error.
        Ok(None) | Err(_) => {}
    }
    http.build().map_err(|error| ClientError::Setup(error_chain(&error)))
}

#[cfg(test)]
mod tests;
