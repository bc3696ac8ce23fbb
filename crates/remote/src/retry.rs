//! Retries connections until a machine responds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::{Backoff, DialError, KnownHosts, Target};

/// Delay after the first attempt. Doubles after each further attempt, up to [`MAX_DELAY`] (docs/spec/fleeting.md, case
/// C5).
const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);
/// Timeout of the first attempt. Booting machines may drop packets, so one attempt must not take all the time.
///
/// Doubles after each attempt that exceeds it, because some logins are slow.
const FIRST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// Minimum and maximum delay between logins to a new machine that rejects them.
const NEW_MACHINE_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

pub(super) enum AttemptError {
    /// Further attempts would fail.
    Permanent(DialError),
    /// The machine may not be ready yet.
    Transient(String),
}

/// Retries with increasing delays within the target's timeout.
pub(super) async fn retry<T, F: Future<Output = Result<T, AttemptError>>>(
    target: &Target,
    address: &str,
    attempt: impl Fn() -> F,
) -> Result<T, DialError> {
    let (machine, timeout) = (&target.machine, target.timeout);
    let deadline = Instant::now() + timeout;
    let mut tries = 0;
    let (mut backoff, mut attempt_timeout) = (Backoff::new(FIRST_DELAY, MAX_DELAY), FIRST_ATTEMPT_TIMEOUT);
    loop {
        tries += 1;
        let current_timeout = attempt_timeout.min(deadline.saturating_duration_since(Instant::now()));
        let cause = match tokio::time::timeout(current_timeout, attempt()).await {
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
        let delay = backoff.next_delay();
        if Instant::now() + delay >= deadline {
            return Err(DialError::Unreachable { address: address.to_owned(), timeout, tries, cause });
        }
        tracing::debug!(machine, address, tries, cause, "failed to connect, retrying");
        tokio::time::sleep(delay).await;
    }
}

pub(super) async fn retry_new_machine<T, F: Future<Output = Result<T, DialError>>>(
    target: &Target,
    hosts: &KnownHosts,
    grace: Duration,
    attempt: impl Fn() -> F,
) -> Result<T, DialError> {
    let deadline = Instant::now() + grace;
    let (mut delay, max_delay) = NEW_MACHINE_DELAYS;
    loop {
        let error = match attempt().await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        if target.expires.is_some_and(is_past) {
            return Err(DialError::Expired);
        }
        // Without a further attempt, the key must be kept: otherwise, the next connection would accept any key.
        let is_last_attempt = Instant::now() + delay >= deadline;
        let may_succeed_later = match &error {
            _ if is_last_attempt => false,
            DialError::Auth { .. } => true,
            DialError::HostKey { .. } => hosts.forget_first_seen(&target.machine),
            _ => false,
        };
        if !may_succeed_later {
            return Err(error);
        }
        tracing::info!(machine = target.machine, %error, "new machine rejected the connection, retrying");
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(max_delay);
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

    /// Takes long, as a login does if sshd looks up names.
    async fn slow_login(seconds: u64) -> Result<(), AttemptError> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(())
    }

    /// With the same timeout of 2 s, GitLab's implementation makes 86,000 attempts.
    #[tokio::test(start_paused = true)]
    async fn c05_retries_of_a_refused_port_have_delays() {
        let refused = || async { Err::<(), _>(AttemptError::Transient("refused".to_owned())) };
        let error = retry(&target(2), "a", refused).await.unwrap_err();
        // The delays are 50, 100, 200, 400 and 800 ms, plus or minus 25 %. The next delay would always exceed the
        // timeout.
        assert!(matches!(error, DialError::Unreachable { tries: 6, .. }), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_login_can_use_the_whole_timeout() {
        for seconds in [25, 100] {
            retry(&target(600), "a", || slow_login(seconds)).await.unwrap();
        }
        let error = retry(&target(30), "a", || slow_login(100)).await.unwrap_err();
        assert!(matches!(error, DialError::Unreachable { .. }), "{error}");
    }
}
