//! A plugin ends when its host is gone (P15): the Go host leaves its plugins behind when it is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::getppid;
use tokio::sync::Notify;

/// How often the parent is looked at. The protocol gives no event for the death of a host that opens no stream.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a host whose streams broke has to come back.
const COME_BACK: Duration = Duration::from_secs(5);

/// Counts the host's standing streams.
#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    open: Arc<AtomicUsize>,
    changed: Arc<Notify>,
}

/// One standing stream; counted until it is dropped.
#[derive(Debug)]
pub(super) struct Stream(Host);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}

impl Host {
    /// A stream was opened.
    pub(super) fn stream(&self) -> Stream {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
        Stream(self.clone())
    }

    fn has_streams(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Returns when the host is gone: its process is another one's parent no more, or its streams broke and none came.
    pub(super) async fn gone(self) {
        let parent = getppid();
        let mut had_any = false;
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = look.tick() => {
                    if getppid() != parent {
                        return;
                    }
                }
                () = self.changed.notified() => {
                    had_any |= self.has_streams();
                    if had_any && !self.has_streams() {
                        let _ = tokio::time::timeout(COME_BACK, self.changed.notified()).await;
                        if !self.has_streams() {
                            return;
                        }
                    }
                }
            }
        }
    }
}
