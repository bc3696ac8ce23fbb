//! Retries connections until a machine responds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::{Backoff, DialError, KnownHosts, Target};

/// Pause after the first attempt. It doubles up to [`MAX_PAUSE`]. The Go implementation does not pause (C5).
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Timeout of the first attempt, because booting machines may drop packets. It grows with each attempt: logins can be
/// slow if sshd looks up names or queries a directory service.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum and maximum pause between logins to a new machine that rejects them.
const NEW_MACHINE_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Result of a failed attempt.
pub(super) enum AttemptError {
    /// Another attempt would fail, too.
    Permanent(DialError),
    /// The machine may not be ready yet.
    Transient(String),
}

/// Retries with growing pauses within the target's timeout.
pub(super) async fn retry<T, F: Future<Output = Result<T, AttemptError>>>(
    target: &Target,
    address: &str,
    once: impl Fn() -> F,
) -> Result<T, DialError> {
    let (machine, limit) = (&target.machine, target.timeout);
    let end = Instant::now() + limit;
    let mut tries = 0;
    let (mut backoff, mut attempt_timeout) = (Backoff::new(FIRST_PAUSE, MAX_PAUSE), FIRST_ATTEMPT_TIMEOUT);
    loop {
        tries += 1;
        let one = attempt_timeout.min(end.saturating_duration_since(Instant::now()));
        let cause = match tokio::time::timeout(one, once()).await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(AttemptError::Permanent(error))) => return Err(error),
            Ok(Err(AttemptError::Transient(cause))) => cause,
            Err(_) => {
                attempt_timeout *= 2;
                "timeout".to_owned()
            }
        };
        if target.expires.is_some_and(is_past) {
            return Err(DialError::Expired);
        }
        let wait = backoff.next_delay();
        if Instant::now() + wait >= end {
            return Err(DialError::Unreachable { address: address.to_owned(), limit, tries, cause });
        }
        tracing::debug!(machine, address, tries, cause, "failed to connect, retrying");
        tokio::time::sleep(wait).await;
    }
}

/// Implements [`super::dial_new`] with `once`.
pub(super) async fn retry_new<T, F: Future<Output = Result<T, DialError>>>(
    target: &Target,
    hosts: &KnownHosts,
    grace: Duration,
    once: impl Fn() -> F,
) -> Result<T, DialError> {
    let end = Instant::now() + grace;
    let (mut pause, cap) = NEW_MACHINE_PAUSES;
    loop {
        let error = match once().await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        if target.expires.is_some_and(is_past) {
            return Err(DialError::Expired);
        }
        let may_change = match &error {
            DialError::Auth { .. } => true,
            DialError::HostKey { .. } => hosts.forget_first_seen(&target.machine),
            _ => false,
        };
        if !may_change || Instant::now() + pause >= end {
            return Err(error);
        }
        tracing::info!(machine = target.machine, %error, "new machine rejected the connection, retrying");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(cap);
    }
}

fn is_past(seconds: i64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    i64::try_from(now).is_ok_and(|now| now >= seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(timeout_s: u64) -> Target {
        Target { timeout: Duration::from_secs(timeout_s), ..Target::default() }
    }

    /// A slow login, as if sshd looked up names.
    async fn slow(seconds: u64) -> Result<(), AttemptError> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn slow_login_can_use_the_whole_timeout() {
        for seconds in [25, 100] {
            retry(&target(600), "a", || slow(seconds)).await.unwrap();
        }
        let error = retry(&target(30), "a", || slow(100)).await.unwrap_err();
        assert!(matches!(error, DialError::Unreachable { .. }), "{error}");
    }
}
