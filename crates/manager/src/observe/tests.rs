use proptest::prelude::*;

use super::stages::{Marks, known};

const LOG: &[u8] = b"Running with muster\nsection_start:1700000000:get_sources\r\x1b[0Ka\nsection_end:1700000001:get_sources\r\
    \x1b[0K2024-01-01T00:00:00Z 01O section_start:1700000002:step_script\r\x1b[0Ksection_start:1:my_own[collapsed=true]\r\
    section_start:x:after_script\rsection_start:2:step_of_mine\rlast words";

#[test]
fn the_stage_is_read_from_the_marks_of_the_log() {
    assert_eq!(Marks::default().feed(b"section_start:1:get_sources\rx"), Some("get_sources"));
    assert_eq!(Marks::default().feed(b"no mark at all"), None);
    assert_eq!(Marks::default().feed(b"section_start:1:my_own\rsection_start:0a:get_sources\r"), None);
    assert_eq!(Marks::default().feed(LOG), Some("step_script"));
}

#[test]
fn names_of_stages_are_a_bounded_few() {
    assert_eq!(known("archive_cache"), Some("archive_cache"));
    assert_eq!((known("step_by_step"), known("anything")), (Some("step_script"), None));
}

proptest! {
    /// The same stages are found however the log is cut into pieces.
    #[test]
    fn marks_on_a_border_are_seen(cuts in proptest::collection::vec(0..LOG.len(), 0..12)) {
        let mut cuts = cuts;
        cuts.extend([0, LOG.len()]);
        cuts.sort_unstable();
        let (mut marks, mut seen) = (Marks::default(), Vec::new());
        for pair in cuts.windows(2) {
            seen.extend(marks.feed(&LOG[pair[0]..pair[1]]));
        }
        prop_assert_eq!(seen.last(), Some(&"step_script"));
    }
}
