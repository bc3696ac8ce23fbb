//! Tests of the whole path from output to trace.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Default)]
struct MemorySink {
    bytes: Arc<Mutex<Vec<u8>>>,
    capacity: Option<usize>,
}

impl Sink for MemorySink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = self.bytes.lock();
        let capacity = self.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(written.len()));
        written.extend_from_slice(&bytes[..bytes.len().min(capacity)]);
        if capacity < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl MemorySink {
    fn text(&self) -> String {
        String::from_utf8(self.bytes.lock().clone()).expect("a trace must be UTF-8")
    }
}

fn written(options: &TraceOptions, pieces: &[(Stream, &[u8])]) -> String {
    let memory = MemorySink::default();
    let trace = Trace::new(options, Box::new(memory.clone()), 0, Box::new(|_| {}));
    for (stream, bytes) in pieces {
        trace.write(*stream, bytes);
    }
    trace.close(b"");
    memory.text()
}

#[test]
fn secret_is_masked_across_streams_without_timestamps() {
    let options = TraceOptions { secrets: Secrets::new(["hunter22"], []), ..TraceOptions::default() };
    assert_eq!(written(&options, &[(Stream::Output, b"hunt"), (Stream::Runner, b"er22\n")]), "[MASKED]\n");
}

#[test]
fn added_values_are_masked_in_all_later_output() {
    for timestamps in [false, true] {
        let options = TraceOptions { adds_masks: true, timestamps, ..TraceOptions::default() };
        let text = written(
            &options,
            &[
                (Stream::Output, b"one hunter22\n::add-mas"),
                (Stream::Output, b"k::hunter22\ntwo hunt"),
                (Stream::Output, b"er22\n"),
                (Stream::Runner, b"three hunter22\n::add-mask::two\n"),
                (Stream::Output, b"::add-mask::[MASKED]\n::add-mask::three"),
            ],
        );
        let lines: Vec<&str> = text.lines().map(|line| if timestamps { &line[32..] } else { line }).collect();
        let marker = "::add-mask::[MASKED]";
        let expected = ["one hunter22", marker, "two [MASKED]", "three [MASKED]", "::add-mask::two", marker, marker];
        assert_eq!(lines, expected);
    }
    let off = TraceOptions::default();
    assert_eq!(written(&off, &[(Stream::Output, b"::add-mask::a\na\n")]), "::add-mask::a\na\n");
}

#[test]
fn timestamps_mark_streams_and_continuations() {
    let options = TraceOptions { timestamps: true, ..TraceOptions::default() };
    let text = written(
        &options,
        &[
            (Stream::Output, b"one\ntw"),
            (Stream::Runner, b"own\n"),
            (Stream::Output, b"o\n10%\r"),
            (Stream::Output, b"20%\r"),
            (Stream::Output, b"30%\n"),
            (Stream::Runner, b"end"),
        ],
    );
    let lines: Vec<(&str, &str)> = text.split_terminator('\n').map(|line| (&line[28..32], &line[32..])).collect();
    let expected =
        [("01O ", "one"), ("00O ", "own"), ("01O ", "two"), ("01O ", "10%\r20%\r"), ("01O+", "30%"), ("00O ", "end")];
    assert_eq!(lines, expected);
    assert!(text.lines().all(|line| line.as_bytes()[26] == b'Z' && line.as_bytes()[27] == b' '));
}

#[test]
fn long_line_is_split_and_continued() {
    let options = TraceOptions { timestamps: true, ..TraceOptions::default() };
    let text = written(&options, &[(Stream::Output, &[b'x'; 9000]), (Stream::Output, b"y\n")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(&lines[1][28..], "01O+y");
}

#[test]
fn limit_truncates_at_character_with_notice() {
    let options = TraceOptions { limit: 10, ..TraceOptions::default() };
    let text = written(&options, &[(Stream::Output, "123456789é".as_bytes()), (Stream::Output, b"dropped")]);
    let (output, notice) = text.split_at(9);
    assert_eq!(output, "123456789");
    assert!(notice.starts_with("\n\x1b[33;1mJob's log exceeded limit of 10 bytes.\n"), "{notice:?}");
    assert!(notice.ends_with("\x1b[0;m\n") && !notice.contains("dropped"));
}

#[test]
fn full_disk_is_reported_once() {
    let memory = MemorySink { capacity: Some(6), ..MemorySink::default() };
    let faults = Arc::new(Mutex::new(0));
    let count = Arc::clone(&faults);
    let trace = Trace::new(
        &TraceOptions::default(),
        Box::new(memory.clone()),
        0,
        Box::new(move |error| {
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            *count.lock() += 1;
        }),
    );
    trace.write(Stream::Output, b"abc");
    trace.write(Stream::Output, b"defghi");
    trace.write(Stream::Output, b"jkl");
    assert_eq!((*faults.lock(), memory.text().as_str()), (1, "abcdef"));
}

proptest! {
    #[test]
    fn binary_output_becomes_valid_utf8_for_any_split(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        split_at in any::<prop::sample::Index>(),
    ) {
        let options = TraceOptions::default();
        let split_at = split_at.index(bytes.len() + 1);
        let (left, right) = bytes.split_at(split_at);
        let split = written(&options, &[(Stream::Output, left), (Stream::Runner, right)]);
        prop_assert_eq!(split, String::from_utf8_lossy(&bytes));
    }
}
