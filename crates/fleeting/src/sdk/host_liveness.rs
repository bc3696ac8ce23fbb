//! Detects the loss of the host, so that its plugin exits (case P15).
//!
//! ```text
//! no stream yet --opened--> streams open --the last one broke--> broken --RECONNECT_TIMEOUT--> lost
//!                               ^                                  |
//!                               +-------------opened---------------+
//! ```
//!
//! Opened streams are counted, so that streams that open and break between two polls are noticed.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::sys::Parent;

/// Interval at which the parent process is polled, because the exit of a host that opened no stream causes no event.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time in which a host whose streams broke can reconnect.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Default)]
struct StreamCounts {
    open: usize,
    /// Number of streams ever opened.
    opened: u64,
}

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
    /// Counts a stream as open until the returned value is dropped.
    pub(super) fn count_open_stream(&self) -> OpenStream {
        self.0.send_modify(|count| {
            count.open += 1;
            count.opened += 1;
        });
        OpenStream(self.clone())
    }

    /// Waits until the host is no longer the parent process, or its streams broke and it did not reconnect.
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
                Some((before, broke_at)) if before == opened => Some((before, broke_at)),
                _ => Some((opened, Instant::now())),
            };
            let reconnect_by = broken.map(|(_, broke_at)| broke_at + RECONNECT_TIMEOUT);
            tokio::select! {
                _ = poll.tick() => {
                    if parent.has_changed() {
                        return;
                    }
                }
                // `self` holds the sender, so `changed` cannot fail.
                _ = count.changed() => {}
                () = sleep_until(reconnect_by.unwrap_or_else(Instant::now)), if reconnect_by.is_some() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time until the host is lost. `None` means that it is not lost within a day.
    async fn lost_after(host: PluginHost) -> Option<Duration> {
        let start = Instant::now();
        let lost = tokio::time::timeout(Duration::from_secs(24 * 3600), host.wait_lost()).await;
        lost.ok().map(|()| start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn p15_host_is_lost_if_streams_broke_before_first_poll() {
        let host = PluginHost::default();
        drop((host.count_open_stream(), host.count_open_stream()));
        assert_eq!(lost_after(host).await, Some(RECONNECT_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_reconnect_timeout_starts_when_the_last_stream_breaks() {
        let host = PluginHost::default();
        let streams = (host.count_open_stream(), host.count_open_stream());
        let waiting = tokio::spawn(lost_after(host));
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(streams);
        assert_eq!(waiting.await.ok().flatten(), Some(Duration::from_secs(60) + RECONNECT_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_reconnected_host_keeps_plugin_running() {
        let host = PluginHost::default();
        let waiting = tokio::spawn(lost_after(host.clone()));
        drop(host.count_open_stream());
        tokio::time::sleep(RECONNECT_TIMEOUT / 2).await;
        let reconnected = host.count_open_stream();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        drop(reconnected);
        // A short reconnect counts as well and restarts the timeout.
        tokio::time::sleep(RECONNECT_TIMEOUT / 2).await;
        drop(host.count_open_stream());
        let expected = RECONNECT_TIMEOUT / 2 + Duration::from_secs(60) + RECONNECT_TIMEOUT / 2 + RECONNECT_TIMEOUT;
        assert_eq!(waiting.await.ok().flatten(), Some(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_host_that_opened_no_stream_is_not_lost() {
        assert_eq!(lost_after(PluginHost::default()).await, None);
    }
}
