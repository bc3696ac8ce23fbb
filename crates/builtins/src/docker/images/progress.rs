//! Progress of a pull, as a line for the log every few seconds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bollard::models::CreateImageInfo;

/// Minimum time before the first line, and between lines.
const INTERVAL: Duration = Duration::from_secs(3);

/// Maximum number of layers to count. Engines may send any number of IDs.
const MAX_LAYERS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    Waiting,
    Downloading { received: u64, size: u64 },
    Downloaded { size: u64 },
    Ready { size: u64 },
}

#[derive(Debug)]
pub(super) struct PullProgress {
    layers: BTreeMap<String, Layer>,
    /// Time of the last line, or of the start of the pull.
    last: Instant,
    /// Last line, initially empty.
    line: String,
}

impl PullProgress {
    pub(super) fn new(now: Instant) -> Self {
        Self { layers: BTreeMap::new(), last: now, line: String::new() }
    }

    /// Records an event of the engine. Returns a line for the log if one is due and has changed.
    pub(super) fn on_event(&mut self, event: &CreateImageInfo, now: Instant) -> Option<String> {
        self.record(event);
        if now.duration_since(self.last) < INTERVAL {
            return None;
        }
        let line = self.summary()?;
        if line == self.line {
            return None;
        }
        self.last = now;
        self.line.clone_from(&line);
        Some(line)
    }

    fn record(&mut self, event: &CreateImageInfo) {
        let (Some(id), Some(status)) = (event.id.as_deref(), event.status.as_deref()) else { return };
        if self.layers.len() >= MAX_LAYERS && !self.layers.contains_key(id) {
            return;
        }
        let detail = event.progress_detail.as_ref();
        let bytes = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        let size = match self.layers.get(id) {
            Some(Layer::Downloading { size, .. } | Layer::Downloaded { size } | Layer::Ready { size }) => *size,
            Some(Layer::Waiting) | None => 0,
        };
        let layer = match status {
            "Pulling fs layer" | "Waiting" => Layer::Waiting,
            "Downloading" => Layer::Downloading {
                received: bytes(detail.and_then(|detail| detail.current)).unwrap_or(0),
                size: bytes(detail.and_then(|detail| detail.total)).unwrap_or(size),
            },
            "Verifying Checksum" | "Download complete" | "Extracting" => Layer::Downloaded { size },
            "Pull complete" | "Already exists" => Layer::Ready { size },
            // Other messages are about the whole image, and have its tag as ID.
            _ => return,
        };
        self.layers.insert(id.to_owned(), layer);
    }

    /// Returns the summary of all layers, if there are any.
    fn summary(&self) -> Option<String> {
        let (mut ready, mut received, mut size) = (0_usize, 0_u64, 0_u64);
        let mut is_downloading = false;
        for layer in self.layers.values() {
            let (layer_received, layer_size) = match *layer {
                Layer::Waiting => (0, 0),
                Layer::Downloading { received, size } => (received, size.max(received)),
                Layer::Downloaded { size } | Layer::Ready { size } => (size, size),
            };
            received = received.saturating_add(layer_received);
            size = size.saturating_add(layer_size);
            ready += usize::from(matches!(layer, Layer::Ready { .. }));
            is_downloading |= matches!(layer, Layer::Waiting | Layer::Downloading { .. });
        }
        let count = self.layers.len();
        if count == 0 {
            return None;
        }
        let layers = format!("{ready} of {count} layers are ready");
        let downloaded = match (is_downloading, size) {
            (_, 0) => String::new(),
            (true, _) => format!(", {} of {} MB downloaded", megabytes(received), megabytes(size)),
            (false, _) => format!(", {} MB downloaded", megabytes(received)),
        };
        let extracting = if is_downloading || ready == count { "" } else { ", extracting" };
        Some(format!("{layers}{downloaded}{extracting}"))
    }
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn event(id: &str, status: &str, bytes: Option<(i64, i64)>) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: bytes
                .map(|(current, total)| ProgressDetail { current: Some(current), total: Some(total) }),
            error_detail: None,
        }
    }

    #[test]
    fn lines_have_a_minimum_interval_and_appear_only_after_a_change() {
        let start = Instant::now();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        let mut progress = PullProgress::new(start);
        assert_eq!(progress.on_event(&event("latest", "Pulling from library/app", None), at(4000)), None);
        assert_eq!(progress.on_event(&event("a", "Pulling fs layer", None), at(100)), None);
        assert_eq!(progress.on_event(&event("b", "Already exists", None), at(200)), None);
        let first = progress.on_event(&event("a", "Downloading", Some((1_000_000, 30_500_000))), at(3000));
        assert_eq!(first.as_deref(), Some("1 of 2 layers are ready, 1.0 of 30.5 MB downloaded"));
        assert_eq!(progress.on_event(&event("a", "Downloading", Some((9_000_000, 30_500_000))), at(5999)), None);
        let second = progress.on_event(&event("a", "Downloading", Some((20_000_000, 30_500_000))), at(6000));
        assert_eq!(second.as_deref(), Some("1 of 2 layers are ready, 20.0 of 30.5 MB downloaded"));
        assert_eq!(progress.on_event(&event("a", "Downloading", Some((20_000_000, 30_500_000))), at(60_000)), None);
        let third = progress.on_event(&event("a", "Extracting", Some((1, 2))), at(61_000));
        assert_eq!(third.as_deref(), Some("1 of 2 layers are ready, 30.5 MB downloaded, extracting"));
        let last = progress.on_event(&event("a", "Pull complete", None), at(70_000));
        assert_eq!(last.as_deref(), Some("2 of 2 layers are ready, 30.5 MB downloaded"));
    }

    #[test]
    fn sizes_that_are_unknown_or_invalid_are_not_shown() {
        let start = Instant::now();
        let mut progress = PullProgress::new(start);
        let later = start + Duration::from_secs(10);
        let line = progress.on_event(&event("a", "Downloading", Some((-5, -1))), later);
        assert_eq!(line.as_deref(), Some("0 of 1 layers are ready"));
    }
}
