//! Cases C003 to C050 and C114 to C118: keywords, default, inherit.

use crate::case::{job, jobs};

#[test]
fn c003_a_job_with_a_script_alone() {
    let a = job("a: {S}", "a");
    assert_eq!(a.stage, "test");
    assert_eq!(jobs("a: {S}"), ["a"]);
}
