//! Tries until a machine answers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::Rng;
use tokio::time::Instant;

use crate::{DialError, KnownHosts, Target};

/// The first pause between two tries to connect; it doubles up to [`PAUSE_CAP`]. The Go host makes none (C5).
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_CAP: Duration = Duration::from_secs(2);
/// A machine that boots may swallow packets: the first try. One that was slow has longer at the next try: sshd may look up
/// names, or ask a directory who the user is.
const TRY_FIRST: Duration = Duration::from_secs(20);
/// Between two log-ins at a machine that refuses them while it is new.
const NEW_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Why a try failed.
pub(super) enum Failed {
    /// Another one would not help.
    ForGood(DialError),
    /// The machine may not be ready.
    ForNow(String),
}

/// Tries with growing pauses, within the target's timeout.
pub(super) async fn retry<T, F: Future<Output = Result<T, Failed>>>(
    target: &Target,
    address: &str,
    once: impl Fn() -> F,
) -> Result<T, DialError> {
    let (machine, limit) = (&target.machine, target.timeout);
    let end = Instant::now() + limit;
    let mut tries = 0;
    let (mut pause, mut try_limit) = (PAUSE_FIRST, TRY_FIRST);
    loop {
        tries += 1;
        let one = try_limit.min(end.saturating_duration_since(Instant::now()));
        let cause = match tokio::time::timeout(one, once()).await {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(Failed::ForGood(error))) => return Err(error),
            Ok(Err(Failed::ForNow(cause))) => cause,
            Err(_) => {
                try_limit *= 2;
                "no answer".to_owned()
            }
        };
        if target.expires.is_some_and(is_past) {
            return Err(DialError::Expired);
        }
        let wait = pause.mul_f64(rand::rng().random_range(0.75..1.25));
        if Instant::now() + wait >= end {
            return Err(DialError::Unreachable { address: address.to_owned(), limit, tries, cause });
        }
        tracing::debug!(machine, address, tries, cause, "no connection yet");
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(PAUSE_CAP);
    }
}

/// [`super::dial_new`], over `once`.
pub(super) async fn retry_new<T, F: Future<Output = Result<T, DialError>>>(
    target: &Target,
    hosts: &KnownHosts,
    grace: Duration,
    once: impl Fn() -> F,
) -> Result<T, DialError> {
    let end = Instant::now() + grace;
    let (mut pause, cap) = NEW_PAUSES;
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
            DialError::HostKey { .. } => hosts.forget_the_first(&target.machine),
            _ => false,
        };
        if !may_change || Instant::now() + pause >= end {
            return Err(error);
        }
        tracing::info!(machine = target.machine, %error, "the machine is new and may not be set up yet; tried again");
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

    /// A login that takes long, as where sshd looks up names, or asks a directory who the user is.
    async fn slow(seconds: u64) -> Result<(), Failed> {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_login_has_the_time_that_timeout_gives() {
        for seconds in [25, 100] {
            retry(&target(600), "a", || slow(seconds)).await.unwrap();
        }
        let error = retry(&target(30), "a", || slow(100)).await.unwrap_err();
        assert!(matches!(error, DialError::Unreachable { .. }), "{error}");
    }
}
