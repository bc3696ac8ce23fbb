//! How far a job request is: whether it can still be taken back, since when its server may work on it, whether the answer has begun.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use parking_lot::Mutex;
use reqwest::Body;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// A connection is waited for or made.
    #[default]
    Unsent,
    TakenBack,
    /// The connection has its body since then.
    Sent(Instant),
    /// The head of the answer is there.
    Answered,
}

/// How far one job request is. Clones tell of the same one.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Stage>>);

impl Progress {
    /// Takes the request back if its body was not given to a connection, and returns whether it did: no server acts on it then.
    #[must_use]
    pub fn take_back(&self) -> bool {
        let mut stage = self.0.lock();
        if *stage == Stage::Unsent {
            *stage = Stage::TakenBack;
        }
        *stage == Stage::TakenBack
    }

    /// Since when a server may work on the request; none before that, and from its answer on.
    #[must_use]
    pub fn sent_at(&self) -> Option<Instant> {
        match *self.0.lock() {
            Stage::Sent(at) => Some(at),
            Stage::Unsent | Stage::TakenBack | Stage::Answered => None,
        }
    }

    /// Whether the head of the answer is there.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        *self.0.lock() == Stage::Answered
    }

    pub(super) fn answered(&self) {
        *self.0.lock() = Stage::Answered;
    }

    /// The request's body, which notes when a connection takes it. A redirect takes it once more.
    pub(super) fn body(&self, bytes: Bytes) -> Body {
        let stage = Arc::clone(&self.0);
        Body::wrap_stream(stream::once(async move {
            let mut stage = stage.lock();
            if *stage == Stage::TakenBack {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the request was taken back"));
            }
            *stage = Stage::Sent(Instant::now());
            Ok(bytes)
        }))
    }
}
