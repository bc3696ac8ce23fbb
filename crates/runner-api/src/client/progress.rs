//! Progress of a job request: whether it can be canceled, when it was sent, and whether the response has begun.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use parking_lot::Mutex;
use reqwest::Body;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// The request waits for a connection.
    #[default]
    Unsent,
    Canceled,
    /// The request was passed to a connection at this time.
    Sent(Instant),
    /// The response headers have arrived.
    Answered,
}

/// Progress of a job request. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Stage>>);

impl Progress {
    /// Cancels the request if it has not been sent. Returns true if no server will process it.
    #[must_use]
    pub fn cancel_unsent(&self) -> bool {
        let mut stage = self.0.lock();
        if *stage == Stage::Unsent {
            *stage = Stage::Canceled;
        }
        *stage == Stage::Canceled
    }

    /// Returns true if the request was canceled before it was sent.
    pub(super) fn is_canceled(&self) -> bool {
        *self.0.lock() == Stage::Canceled
    }

    /// Returns the time at which the request was sent. `None` before that, and after the response.
    #[must_use]
    pub fn sent_at(&self) -> Option<Instant> {
        match *self.0.lock() {
            Stage::Sent(at) => Some(at),
            Stage::Unsent | Stage::Canceled | Stage::Answered => None,
        }
    }

    /// Returns true if the response headers have arrived.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        *self.0.lock() == Stage::Answered
    }

    /// Records that the response headers have arrived.
    pub(super) fn mark_answered(&self) {
        *self.0.lock() = Stage::Answered;
    }

    /// Returns the body of the request. The body records the time when it is sent. A redirect sends it again, and so
    /// does HTTP after a failure of gRPC.
    pub(super) fn body(&self, bytes: Bytes) -> Body {
        let stage = Arc::clone(&self.0);
        Body::wrap_stream(stream::once(async move {
            let mut stage = stage.lock();
            if *stage == Stage::Canceled {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the request was canceled"));
            }
            *stage = Stage::Sent(Instant::now());
            Ok(bytes)
        }))
    }
}
