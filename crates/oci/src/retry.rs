//! Retry policy for requests to a registry.

use std::time::Duration;

/// Maximum number of attempts for a request. For a download, maximum number of consecutive attempts without progress.
pub(crate) const MAX_ATTEMPTS: u32 = 4;
/// Delay before a retry if the last attempt made progress. Each consecutive failure without progress doubles the delay.
const BASE_DELAY: Duration = Duration::from_millis(250);

/// Waits before the next attempt. `failures` is the number of consecutive failures without progress.
pub(crate) async fn wait(failures: u32) {
    tokio::time::sleep(BASE_DELAY * 2_u32.pow(failures)).await;
}
