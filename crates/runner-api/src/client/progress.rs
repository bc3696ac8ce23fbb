//! Progress of a job request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use reqwest::Body;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Unsent,
    Canceled,
    /// Time at which the request was passed to a connection.
    Sent(Instant),
    /// The response headers arrived. If a gRPC response then breaks off, HTTP sends the request again.
    Answered,
}

/// Progress of a job request. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<watch::Sender<Stage>>);

impl Progress {
    /// Cancels an unsent request. Returns whether no server will process it.
    #[must_use]
    pub fn cancel_unsent(&self) -> bool {
        self.0.send_if_modified(|stage| {
            let is_unsent = *stage == Stage::Unsent;
            if is_unsent {
                *stage = Stage::Canceled;
            }
            is_unsent
        });
        self.is_canceled()
    }

    pub(super) fn is_canceled(&self) -> bool {
        *self.0.borrow() == Stage::Canceled
    }

    /// Returns when the request was sent. `None` before that and after the response.
    #[must_use]
    pub fn sent_at(&self) -> Option<Instant> {
        match *self.0.borrow() {
            Stage::Sent(at) => Some(at),
            Stage::Unsent | Stage::Canceled | Stage::Answered => None,
        }
    }

    /// Waits until the sent request has had no response for `hold`.
    ///
    /// After a response, waits until the request is sent again, by a redirect or by HTTP after a failure of gRPC.
    pub async fn wait_held(&self, hold: Duration) {
        let mut stages = self.0.subscribe();
        loop {
            match self.sent_at().map(|sent| sent + hold) {
                Some(held) if held <= Instant::now() => return,
                Some(held) => sleep_until(held).await,
                None => {
                    // The channel is open, because `self` has the sender.
                    let _ = stages.changed().await;
                }
            }
        }
    }

    /// Returns whether the response headers have arrived.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        *self.0.borrow() == Stage::Answered
    }

    pub(super) fn mark_answered(&self) {
        self.0.send_replace(Stage::Answered);
    }

    /// Returns the body. Sending it records the time, or fails after a cancellation.
    pub(super) fn body(&self, bytes: Bytes) -> Body {
        let stage = Arc::clone(&self.0);
        Body::wrap_stream(stream::once(async move {
            let is_sent = stage.send_if_modified(|stage| {
                let is_wanted = *stage != Stage::Canceled;
                if is_wanted {
                    *stage = Stage::Sent(Instant::now());
                }
                is_wanted
            });
            if is_sent {
                Ok(bytes)
            } else {
                Err(io::Error::new(io::ErrorKind::Interrupted, "the request was canceled"))
            }
        }))
    }
}
