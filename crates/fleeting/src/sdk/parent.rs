//! Ends a plugin when its host is gone (P15). The Go host leaves its plugins running when it is killed.
//!
//! ```text
//! no stream yet --opened--> streams stand --the last one broke--> broken --COME_BACK--> gone
//!                                ^                                  |
//!                                +-------------opened---------------+
//! ```
//!
//! The number of streams ever opened decides, not the number seen at each poll: two streams that opened and broke before the first poll
//! also mean that the host is gone.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::sys::Parent;

/// Interval at which the parent process is polled. The protocol has no event for the death of a host that opened no stream.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Time that a host whose streams broke has to reconnect.
const COME_BACK: Duration = Duration::from_secs(5);

/// Numbers of the host's streams.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    /// Number of open streams.
    open: usize,
    /// Number of streams ever opened.
    opened: u64,
}

/// Counts the host's streams.
#[derive(Debug, Clone, Default)]
pub(super) struct Host(watch::Sender<Count>);

/// One open stream. Counted until it is dropped.
#[derive(Debug)]
pub(super) struct Stream(Host);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| count.open = count.open.saturating_sub(1));
    }
}

impl Host {
    /// Counts a new stream.
    pub(super) fn stream(&self) -> Stream {
        self.0.send_modify(|count| {
            count.open += 1;
            count.opened += 1;
        });
        Stream(self.clone())
    }

    /// Returns when the host is gone: it is no longer the parent process, or its streams broke and it did not reconnect.
    pub(super) async fn gone(self) {
        let parent = Parent::new();
        let mut count = self.0.subscribe();
        let mut look = tokio::time::interval(LOOK_EVERY);
        // Number of streams opened before the last one broke, and the time when it broke.
        let mut broken: Option<(u64, Instant)> = None;
        loop {
            let Count { open, opened } = *count.borrow_and_update();
            broken = match broken {
                _ if open > 0 || opened == 0 => None,
                Some((before, since)) if before == opened => Some((before, since)),
                _ => Some((opened, Instant::now())),
            };
            let came_back_by = broken.map(|(_, since)| since + COME_BACK);
            tokio::select! {
                _ = look.tick() => {
                    if parent.is_gone() {
                        return;
                    }
                }
                // `self` holds the sender, so this cannot fail.
                _ = count.changed() => {}
                () = sleep_until(came_back_by.unwrap_or_else(Instant::now)), if came_back_by.is_some() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time until the host counts as gone; `None` if it does not within a day.
    async fn gone_after(host: Host) -> Option<Duration> {
        let since = Instant::now();
        let gone = tokio::time::timeout(Duration::from_secs(24 * 3600), host.gone()).await;
        gone.ok().map(|()| since.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn p15_streams_that_broke_before_the_first_look_count() {
        let host = Host::default();
        drop((host.stream(), host.stream()));
        assert_eq!(gone_after(host).await, Some(COME_BACK));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_a_host_has_its_time_to_come_back_however_many_streams_broke() {
        let host = Host::default();
        let streams = (host.stream(), host.stream());
        let waiting = tokio::spawn(gone_after(host));
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(streams);
        assert_eq!(waiting.await.ok().flatten(), Some(Duration::from_secs(60) + COME_BACK));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_a_host_that_comes_back_keeps_it_alive() {
        let host = Host::default();
        let waiting = tokio::spawn(gone_after(host.clone()));
        drop(host.stream());
        tokio::time::sleep(COME_BACK / 2).await;
        let back = host.stream();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!waiting.is_finished());
        drop(back);
        // A short reconnect counts as well and restarts the timeout.
        tokio::time::sleep(COME_BACK / 2).await;
        drop(host.stream());
        let expected = COME_BACK / 2 + Duration::from_secs(60) + COME_BACK / 2 + COME_BACK;
        assert_eq!(waiting.await.ok().flatten(), Some(expected));
    }

    #[tokio::test(start_paused = true)]
    async fn p15_a_host_that_opens_no_stream_is_known_by_its_process_only() {
        assert_eq!(gone_after(Host::default()).await, None);
    }
}
