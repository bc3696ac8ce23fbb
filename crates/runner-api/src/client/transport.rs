//! The connections of one client: they are made anew when they are old, and when a file of certificates changes.
//!
//! A call under way keeps the connections that it began with. New files that cannot be used are told once, and those
//! before them stay in use: a person may be replacing them just now.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use url::Url;

use super::{CONNECT_LIMIT, ClientError, IDLE_LIMIT, TlsFiles, chain, is_loopback, redirect, user_agent};

/// How long the connections to a coordinator may be used again (`connection_max_age`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionAge {
    /// Whatever their age.
    #[default]
    Any,
    /// Until they are that old.
    UpTo(Duration),
    /// Never: each call has a connection of its own.
    NoReuse,
}

/// What the system says of a file: it changes with the content.
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
    made: Instant,
    stamps: Stamps,
}

/// How a coordinator is reached.
#[derive(Debug)]
pub(super) struct Transport {
    base: Url,
    tls: TlsFiles,
    age: ConnectionAge,
    current: Mutex<Current>,
}

impl Transport {
    /// # Errors
    /// [`ClientError::Setup`] where a file of certificates cannot be used.
    pub(super) fn new(base: Url, tls: TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let stamps = stamps(&tls);
        let current = Mutex::new(Current { http: build(&base, &tls, age)?, made: Instant::now(), stamps });
        Ok(Self { base, tls, age, current })
    }

    /// One that waits for files of certificates that can be used.
    ///
    /// # Errors
    /// [`ClientError::Setup`] where there is no client without such files either.
    pub(super) fn patient(base: Url, tls: TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let stamps = stamps(&tls);
        let http = build(&base, &tls, age).or_else(|error| {
            tracing::error!(%error, "the runner's certificates cannot be used, they are read when they change");
            build(&base, &TlsFiles::default(), age)
        })?;
        Ok(Self { base, tls, age, current: Mutex::new(Current { http, made: Instant::now(), stamps }) })
    }

    /// What the next call goes over.
    pub(super) fn http(&self) -> reqwest::Client {
        let mut current = self.current.lock();
        let stamps = stamps(&self.tls);
        let old = matches!(self.age, ConnectionAge::UpTo(age) if current.made.elapsed() >= age);
        if old || stamps != current.stamps {
            current.stamps = stamps;
            current.made = Instant::now();
            match build(&self.base, &self.tls, self.age) {
                Ok(http) => current.http = http,
                Err(error) => {
                    tracing::warn!(%error, "the runner's certificates cannot be read anew, those before stay")
                }
            }
        }
        current.http.clone()
    }
}

/// Nothing is looked at where no file is named.
fn stamps(tls: &TlsFiles) -> Stamps {
    let stamp = |path: &Option<PathBuf>| std::fs::metadata(path.as_ref()?).ok().map(Stamp::from);
    [stamp(&tls.ca), stamp(&tls.certificate), stamp(&tls.key)]
}

fn build(base: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<reqwest::Client, ClientError> {
    let mut http = reqwest::Client::builder()
        .user_agent(user_agent())
        .connect_timeout(CONNECT_LIMIT)
        // No `read_timeout`: it would count while a large body is sent. Each call has a limit of its own.
        .pool_idle_timeout(IDLE_LIMIT)
        .tcp_nodelay(true)
        .tcp_keepalive(CONNECT_LIMIT)
        .redirect(redirect::policy())
        // It would tell one server of another one's paths.
        .referer(false);
    if age == ConnectionAge::NoReuse {
        http = http.pool_max_idle_per_host(0);
    }
    if is_loopback(base) {
        // `muster ci` talks to itself: no proxy can help, and reading the certificates would cost more than the job.
        http = http.no_proxy();
        if base.scheme() == "http" && tls.is_empty() {
            http = http.tls_built_in_root_certs(false);
        }
    }
    match tls.config() {
        Ok(Some(config)) => http = http.use_preconfigured_tls(config),
        Err(error) if base.scheme() == "https" => return Err(error),
        // For http they count only where the coordinator sends on to https, and that call then says what is missing.
        Ok(None) | Err(_) => {}
    }
    http.build().map_err(|error| ClientError::Setup(chain(&error)))
}

#[cfg(test)]
mod tests;
