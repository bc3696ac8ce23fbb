//! Retry policy for requests to a registry.

use std::time::Duration;

/// Maximum number of attempts. In a download, progress resets the count.
pub(crate) const MAX_ATTEMPTS: u32 = 4;
/// Delay before the next attempt if the failed one made progress. Each consecutive failure without progress doubles it.
const BASE_DELAY: Duration = Duration::from_millis(250);

pub(crate) async fn wait(failures: u32) {
    tokio::time::sleep(BASE_DELAY * 2_u32.pow(failures)).await;
}
