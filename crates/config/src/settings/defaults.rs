//! Defaults that differ from the zero value of the field's type. Each function has the name of its field.

use std::time::Duration;

pub(super) fn request_concurrency() -> usize {
    1
}

pub(super) fn executor() -> String {
    "shell".to_owned()
}

pub(super) fn shell() -> String {
    "bash".to_owned()
}

pub(super) fn unhealthy_requests_limit() -> u32 {
    3
}

pub(super) fn unhealthy_interval() -> Duration {
    Duration::from_secs(3600)
}

pub(super) fn final_update_retry_limit() -> u32 {
    10
}
