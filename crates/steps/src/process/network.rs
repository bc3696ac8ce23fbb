//! Traffic of a job with its own network, as the kernel counts it for each interface.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::procfs;

const COUNTERS: &str = "/proc/self/net/dev";
const LOOPBACK: &str = "lo";

/// Number of bytes that passed through a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

impl Traffic {
    /// Returns the traffic since `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
        }
    }
}

/// Network that only the processes of one job use.
///
/// Interfaces that the job creates, such as those of containers, are not counted, because their traffic also passes
/// through the initial interfaces.
#[derive(Debug, Clone)]
pub struct JobNetwork {
    interfaces: Arc<BTreeSet<String>>,
    at_start: Traffic,
}

impl JobNetwork {
    /// Returns the network of this process at the start of a job. `None` means that the kernel does not count traffic.
    #[must_use]
    pub fn at_start() -> Option<Self> {
        let text = procfs::read(COUNTERS).ok()?;
        let interfaces = counters(&text).map(|(name, _)| name.to_owned()).collect();
        let network = Self { interfaces: Arc::new(interfaces), at_start: Traffic::default() };
        Some(Self { at_start: network.sum(&text), ..network })
    }

    /// Returns the traffic since the start of the job.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        // No error is expected, because the counters were readable at the start of the job.
        procfs::read(COUNTERS).map(|text| self.sum(&text).since(self.at_start)).unwrap_or_default()
    }

    fn sum(&self, text: &str) -> Traffic {
        let own = counters(text).filter(|(name, _)| self.interfaces.contains(*name));
        own.fold(Traffic::default(), |sum, (_, traffic)| Traffic {
            received_bytes: sum.received_bytes.saturating_add(traffic.received_bytes),
            sent_bytes: sum.sent_bytes.saturating_add(traffic.sent_bytes),
        })
    }
}

/// Returns the name and the traffic of each interface except loopback. `text` is the content of the file [`COUNTERS`].
fn counters(text: &str) -> impl Iterator<Item = (&str, Traffic)> {
    let lines = text.lines().filter_map(|line| line.rsplit_once(':'));
    let lines = lines.map(|(name, numbers)| (name.trim(), numbers)).filter(|(name, _)| *name != LOOPBACK);
    lines.filter_map(|(name, numbers)| {
        // Eight numbers about received packets, then eight about sent packets. The first of each eight is the number of
        // bytes.
        let mut numbers = numbers.split_ascii_whitespace().map(str::parse);
        let received_bytes = numbers.next()?.ok()?;
        let sent_bytes = numbers.nth(7)?.ok()?;
        Some((name, Traffic { received_bytes, sent_bytes }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";

    fn interface(name: &str, received: u64, sent: u64) -> String {
        format!("{name:>6}: {received:7} 11 0 0 0 0 0 0 {sent:7} 12 0 0 0 0 0 0\n")
    }

    #[test]
    fn only_initial_interfaces_except_loopback_are_counted() {
        let text = |received, sent| format!("{HEADER}{}{}", interface("lo", 9, 9), interface("eth0", received, sent));
        let interfaces = counters(&text(5, 7)).map(|(name, _)| name.to_owned()).collect();
        let network = JobNetwork { interfaces: Arc::new(interfaces), at_start: Traffic::default() };
        assert_eq!(network.sum(&text(5, 7)), Traffic { received_bytes: 5, sent_bytes: 7 });
        let later = format!("{}{}", text(1_005, 7_000_000_000), interface("docker0", 50, 50));
        let traffic = network.sum(&later).since(network.sum(&text(5, 7)));
        assert_eq!(traffic, Traffic { received_bytes: 1_000, sent_bytes: 6_999_999_993 });
    }

    #[test]
    fn lines_that_are_not_counters_are_ignored() {
        for text in ["", "eth0", "eth0:", "eth0: 1 2 3", "eth0: x 2 3 4 5 6 7 8 9 10", HEADER] {
            assert_eq!(counters(text).count(), 0, "{text:?}");
        }
    }

    #[test]
    fn counters_of_this_system_are_readable() {
        let network = JobNetwork::at_start().unwrap();
        let earlier = network.traffic();
        let later = network.traffic();
        assert!(later.received_bytes >= earlier.received_bytes && later.sent_bytes >= earlier.sent_bytes);
    }
}
