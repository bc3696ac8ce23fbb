//! Ends a plugin when its host is gone (P15). The Go host leaves its plugins running when it is killed.
//!
//! ```text
//! no stream yet --opened--> streams open --the last one broke--> broken --RECONNECT_TIMEOUT--> lost
//!                               ^                                  |
//!                               +-------------opened---------------+
//! ```
//!
//! The number of streams ever opened decides, not the number seen at each poll: two streams that opened and broke before the first poll
//! also mean that the host is gone.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::sys::Parent;

/// Interval at which the parent process is polled.
/// The protocol has no event for the death of a host that opened no stream.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time that a host whose streams broke has to reconnect.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Numbers of the host's streams.
#[derive(Debug, Clone, Copy, Default)]
struct StreamCounts {
    /// Number of open streams.
    open: usize,
    /// Number of streams ever opened.
    opened: u64,
}

/// Counts the host's streams.
#[derive(Debug, Clone, Default)]
pub(super) struct PluginHost(watch::Sender<StreamCounts>);

/// One open stream. Counted until it is dropped.
#[derive(Debug)]
pub(super) struct OpenStream(PluginHost);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.open = count.open.saturating_sub(1));
    }
}

impl PluginHost {
    /// Counts a new stream.
    pub(super) fn open_stream(&self) -> OpenStream {
        self.0.send_modify(|count| {
            count.open += 1;
            count.opened += 1;
        });
        OpenStream(self.clone())
    }

    /// Returns when the host is gone.
    /// Then it is no longer the parent process, or its streams broke and it did not reconnect.
    pub(super) async fn wait_lost(self) {
        let parent = Parent::new();
        let mut count = self.0.subscribe();
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        // Number of streams opened before the last one broke, and the time when it broke.
        let mut broken: Option<(u64, Instant)> = None;
        loop {
            let StreamCounts { open, opened } = *count.borrow_and_update();
            broken = match broken {
                _ if open > 0 || opened == 0 => None,
                Some((before, since)) if before == opened => Some((before, since)),
                _ => Some((opened, Instant::now())),
            };
            let reconnect_by = broken.map(|(_, since)| since + RECONNECT_TIMEOUT);
            tokio::select! {
                _ = poll.tick() => {
                    if parent.has_changed() {
                        return;
                    }
                }
                // `self` holds the sender, so this cannot fail.
                _ = count.changed() => {}
                () = sleep_until(reconnect_by.unwrap_or_else(Instant::now)), if reconnect_by.is_some() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time until the host counts as gone; `None` if it does not within a day.
    async fn lost_after(host: PluginHost) -> Option<Duration> {
        let since = Instant::now();
        let lost = tokio::time::timeout(Duration::from_secs(24 * 3600), host.wait_lost()).await;
        lost.ok().map(|()| since.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn p15_streams_that_broke_before_first_poll_count() {
        let host = PluginHost::default();
        drop((host.open_stream(), host.open_stream()));
        assert_eq!(lost_after(host).await, Some(RECONNECT_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_host_has_full_reconnect_timeout() {
        let host = PluginHost::default();
        let streams = (host.open_stream(), host.open_stream());
        let waiting = tokio::spawn(lost_after(host));
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(streams);
        assert_eq!(waiting.await.ok().flatten(), Some(Duration::from_secs(60) + RECONNECT_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_reconnected_host_keeps_plugin_running() {
        let host = PluginHost::default();
        let waiting = tokio::spawn(lost_after(host.clone()));
        drop(host.open_stream());
        tokio::time::sleep(RECONNECT_TIMEOUT / 2).await;
        let back = host.open_stream();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        drop(back);
        // A short reconnect counts as well and restarts the timeout.
        tokio::time::sleep(RECONNECT_TIMEOUT / 2).await;
        drop(host.open_stream());
        let expected = RECONNECT_TIMEOUT / 2 + Duration::from_secs(60) + RECONNECT_TIMEOUT / 2 + RECONNECT_TIMEOUT;
        assert_eq!(waiting.await.ok().flatten(), Some(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_host_without_streams_is_watched_by_process_only() {
        assert_eq!(lost_after(PluginHost::default()).await, None);
    }
}
