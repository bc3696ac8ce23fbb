//! Shows the progress of a transfer in one line of standard output, which it overwrites.

use std::io::Write as _;
use std::time::{Duration, Instant};

const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Progress of one transfer. Dropping shows the final state.
pub(super) struct TransferProgress {
    label: String,
    total: Option<u64>,
    interval: Duration,
    transferred: u64,
    started_at: Instant,
    last_shown_at: Instant,
}

impl TransferProgress {
    /// Shows the progress at `interval`, but at most once per second.
    pub(super) fn start(label: &str, total: Option<u64>, interval: Duration) -> Self {
        let now = Instant::now();
        let progress = Self {
            label: label.to_owned(),
            total,
            interval: interval.max(MIN_INTERVAL),
            transferred: 0,
            started_at: now,
            last_shown_at: now,
        };
        progress.show("");
        progress
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.transferred += bytes as u64;
        if self.last_shown_at.elapsed() >= self.interval {
            self.last_shown_at = Instant::now();
            self.show("");
        }
    }

    fn show(&self, end: &str) {
        let text = line(&self.label, self.transferred, self.total, self.started_at.elapsed());
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{text}{end}").and_then(|()| out.flush());
    }
}

impl Drop for TransferProgress {
    fn drop(&mut self) {
        self.show("\n");
    }
}

fn line(label: &str, transferred: u64, total: Option<u64>, elapsed: Duration) -> String {
    let total = total.map(|total| format!("/{}", size(total, 2))).unwrap_or_default();
    let rate = u128::from(transferred) * 1_000_000_000 / elapsed.as_nanos().max(1);
    let rate = size(u64::try_from(rate).unwrap_or(u64::MAX), 1);
    format!("\r{label} {}{total} ({rate}/s)                ", size(transferred, 2))
}

fn size(bytes: u64, digits: usize) -> String {
    let mut divisor = 1_u64;
    let mut prefix = "";
    for next in ["K", "M", "G", "T", "P", "E"] {
        if bytes / divisor < 1000 {
            break;
        }
        (divisor, prefix) = (divisor * 1000, next);
    }
    if prefix.is_empty() {
        return format!("{bytes} B");
    }
    let part = u128::from(bytes % divisor) * 10_u128.pow(u32::try_from(digits).unwrap_or(2)) / u128::from(divisor);
    format!("{}.{part:0digits$} {prefix}B", bytes / divisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_have_decimal_prefixes() {
        assert_eq!(
            [size(0, 2), size(999, 2), size(1000, 2), size(1_234_567, 1)],
            ["0 B", "999 B", "1.00 KB", "1.2 MB"]
        );
        assert_eq!(size(u64::MAX, 2), "18.44 EB");
        let shown = line("Uploading cache", 1500, Some(3_000_000), Duration::from_millis(500));
        assert_eq!(shown.trim_end(), "\rUploading cache 1.50 KB/3.00 MB (3.0 KB/s)");
    }
}
