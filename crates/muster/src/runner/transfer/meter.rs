//! How far a transfer is, on one line of standard output that is written again and again.

use std::io::Write as _;
use std::time::{Duration, Instant};

const LEAST: Duration = Duration::from_secs(1);

/// One transfer. Dropped, it shows the end.
pub(super) struct Watch {
    label: String,
    total: Option<u64>,
    every: Duration,
    moved: u64,
    started: Instant,
    shown: Instant,
}

impl Watch {
    /// Shows it from now on; not more often than `every`, nor than each second.
    pub(super) fn start(label: &str, total: Option<u64>, every: Duration) -> Self {
        let now = Instant::now();
        let watch =
            Self { label: label.to_owned(), total, every: every.max(LEAST), moved: 0, started: now, shown: now };
        watch.show("");
        watch
    }

    /// So many bytes more.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.moved += bytes as u64;
        if self.shown.elapsed() >= self.every {
            self.shown = Instant::now();
            self.show("");
        }
    }

    fn show(&self, end: &str) {
        let text = line(&self.label, self.moved, self.total, self.started.elapsed());
        let mut out = std::io::stdout().lock();
        // Who does not read it does not need it.
        let _ = write!(out, "{text}{end}").and_then(|()| out.flush());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.show("\n");
    }
}

fn line(label: &str, moved: u64, total: Option<u64>, since: Duration) -> String {
    let of = total.map(|total| format!("/{}", size(total, 2))).unwrap_or_default();
    let rate = u128::from(moved) * 1_000_000_000 / since.as_nanos().max(1);
    let rate = size(u64::try_from(rate).unwrap_or(u64::MAX), 1);
    format!("\r{label} {}{of} ({rate}/s)                ", size(moved, 2))
}

/// With a prefix of thousands, and so many digits behind the point.
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
    fn sizes_and_rates_are_told_in_thousands() {
        assert_eq!(
            [size(0, 2), size(999, 2), size(1000, 2), size(1_234_567, 1)],
            ["0 B", "999 B", "1.00 KB", "1.2 MB"]
        );
        assert_eq!(size(u64::MAX, 2), "18.44 EB");
        let shown = line("Uploading cache", 1500, Some(3_000_000), Duration::from_millis(500));
        assert_eq!(shown.trim_end(), "\rUploading cache 1.50 KB/3.00 MB (3.0 KB/s)");
    }
}
