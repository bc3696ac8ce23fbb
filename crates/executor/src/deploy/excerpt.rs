//! Output of a command on a machine, shortened for an error message.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

const EXCERPT_BYTES: usize = 4 * 1024;
/// Maximum size of an output. Login profiles print far less.
const MAX_OUTPUT_BYTES: u64 = 1024 * 1024;

/// Start and end of an output, and the number of bytes between them.
///
/// Writing more than [`MAX_OUTPUT_BYTES`] fails, which ends the command.
#[derive(Debug, Default)]
pub(super) struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
    exceeded_limit: bool,
}

impl Excerpt {
    pub(super) fn exceeded_limit(&self) -> bool {
        self.exceeded_limit
    }

    fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(EXCERPT_BYTES.saturating_sub(self.head.len())));
        self.head.extend(head);
        // Only the end of a long write can be kept.
        self.tail.extend(rest.get(rest.len().saturating_sub(EXCERPT_BYTES)..).unwrap_or_default());
        let excess = self.tail.len().saturating_sub(EXCERPT_BYTES);
        self.tail.drain(..excess);
        self.total = self.total.saturating_add(bytes.len() as u64);
    }
}

impl AsyncWrite for Excerpt {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.total.saturating_add(bytes.len() as u64) > MAX_OUTPUT_BYTES {
            self.exceeded_limit = true;
            return Poll::Ready(Err(io::Error::other("the output is too long")));
        }
        self.push(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let omitted = self.total.saturating_sub((self.head.len() + self.tail.len()) as u64);
        let (first, second) = self.tail.as_slices();
        let tail = [first, second].concat();
        if omitted == 0 {
            return f.write_str(&String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()));
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        write!(f, "{head}\n[{omitted} bytes omitted]\n{tail}")
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn start_and_end_are_kept_and_the_rest_is_counted() {
        let mut short = Excerpt::default();
        short.write_all(b"one\n").await.unwrap();
        short.write_all("b\u{e4}r".as_bytes()).await.unwrap();
        assert_eq!(short.to_string(), "one\nb\u{e4}r");

        for chunk in [1, 1000, EXCERPT_BYTES, 100_000] {
            let mut long = Excerpt::default();
            let text = [b"start".as_slice(), &vec![b'x'; 200_000], b"end"].concat();
            for part in text.chunks(chunk) {
                long.write_all(part).await.unwrap();
            }
            let shown = long.to_string();
            let omitted = text.len() - 2 * EXCERPT_BYTES;
            assert!(shown.starts_with("startx") && shown.ends_with("xend"), "{shown}");
            assert!(shown.contains(&format!("x\n[{omitted} bytes omitted]\nx")), "{chunk}: {shown}");
            assert!(shown.len() < 3 * EXCERPT_BYTES, "{}", shown.len());
        }
    }
}
