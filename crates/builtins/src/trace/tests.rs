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
fn secret_that_becomes_known_is_masked_in_all_later_output() {
    for timestamps in [false, true] {
        let memory = MemorySink::default();
        let options = TraceOptions { timestamps, secrets: Secrets::new(["hunter22"], []), ..TraceOptions::default() };
        let trace = Trace::new(&options, Box::new(memory.clone()), 0, Box::new(|_| {}));
        assert!(trace.secrets_with_added().is_none());
        trace.write(Stream::Output, b"vault-4711 is not known yet, and this is held back: hunt");
        trace.add_secret("vault-4711");
        trace.write(Stream::Output, b"\nvault-");
        trace.write(Stream::Output, b"4711 and hunter22\n");
        trace.write(Stream::Runner, b"vault-4711\n");
        trace.close(b"");
        let text = memory.text();
        assert_eq!(text.matches("vault-4711").count(), 1, "{text}");
        assert!(text.contains("held back: hunt\n") && text.contains("[MASKED] and [MASKED]\n"), "{text}");
        assert_eq!(trace.secrets_with_added().unwrap().mask("a vault-4711 hunter22"), "a [MASKED] [MASKED]");
    }
}

#[test]
fn values_added_in_one_piece_are_masked_from_the_line_after_their_command() {
    let options = TraceOptions { adds_masks: true, ..TraceOptions::default() };
    let piece = b"hunter22 other33\n::add-mask::hunter22\nhunter22 other33\n::add-mask::first44\n::add-mask::other33\nhunter22 other33 first44\n";
    let marker = "::add-mask::[MASKED]\n";
    let expected = format!("hunter22 other33\n{marker}[MASKED] other33\n{marker}{marker}[MASKED] [MASKED] [MASKED]\n");
    for size in 1..=piece.len() {
        let pieces: Vec<_> = piece.chunks(size).map(|piece| (Stream::Output, piece)).collect();
        assert_eq!(written(&options, &pieces), expected, "{size}");
    }
}

#[test]
fn c117_stamps_mark_streams_and_continuations() {
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
    // The header has 32 bytes: UTC time with microseconds, a space, the stream, and a space or `+`.
    for line in text.lines() {
        let shape: String = line[..28].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z ", "{line}");
    }
}

#[test]
fn c117_line_over_8_kib_is_split_and_continued_per_stream() {
    let options = TraceOptions { timestamps: true, ..TraceOptions::default() };
    // The other stream's line in between neither is a continuation nor ends the first line.
    let pieces: [(Stream, &[u8]); 3] =
        [(Stream::Output, &[b'x'; 9000]), (Stream::Runner, b"other\n"), (Stream::Output, b"y\n")];
    let text = written(&options, &pieces);
    let lines: Vec<&str> = text.lines().collect();
    let [first, other, last] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&first[28..32], first.len()), ("01O ", 32 + 9000));
    assert_eq!((&other[28..], &last[28..]), ("00O other", "01O+y"));
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
