use proptest::prelude::*;

use super::stages::{SectionMarkers, stage_name};

const LOG: &[u8] = b"Running with muster\nsection_start:1700000000:get_sources\r\x1b[0Ka\nsection_end:1700000001:get_sources\r\
    \x1b[0K2024-01-01T00:00:00Z 01O section_start:1700000002:step_script\r\x1b[0Ksection_start:1:my_own[collapsed=true]\r\
    section_start:x:after_script\rsection_start:2:step_of_mine\rend of log";

#[test]
fn stage_is_read_from_section_markers() {
    assert_eq!(SectionMarkers::default().feed(b"section_start:1:get_sources\rx"), Some("get_sources"));
    assert_eq!(SectionMarkers::default().feed(b"no marker at all"), None);
    assert_eq!(SectionMarkers::default().feed(b"section_start:1:my_own\rsection_start:0a:get_sources\r"), None);
    assert_eq!(SectionMarkers::default().feed(LOG), Some("step_script"));
}

#[test]
fn unknown_steps_are_step_script_and_other_sections_are_no_stage() {
    assert_eq!(stage_name("archive_cache"), Some("archive_cache"));
    assert_eq!((stage_name("step_by_step"), stage_name("anything")), (Some("step_script"), None));
}

proptest! {
    #[test]
    fn markers_across_pieces_are_found(cuts in proptest::collection::vec(0..LOG.len(), 0..12)) {
        let mut cuts = cuts;
        cuts.extend([0, LOG.len()]);
        cuts.sort_unstable();
        let (mut markers, mut found) = (SectionMarkers::default(), Vec::new());
        for pair in cuts.windows(2) {
            found.extend(markers.feed(&LOG[pair[0]..pair[1]]));
        }
        prop_assert_eq!(found.last(), Some(&"step_script"));
    }
}
