use proptest::prelude::*;

use super::*;

fn mask(secrets: &Secrets, pieces: &[&[u8]]) -> String {
    let mut masker = Masker::new(secrets);
    let mut out = Vec::new();
    for piece in pieces {
        masker.push(piece, &mut out);
    }
    masker.finish(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn mask_text(values: &[&str], text: &str) -> String {
    mask(&Secrets::new(values.iter().copied(), []), &[text.as_bytes()])
}

#[test]
fn c164_masked_value_in_the_log_is_replaced() {
    assert_eq!(mask_text(&["hunter22"], "password is hunter22!\n"), "password is [MASKED]!\n");
}

#[test]
fn masks_value_split_over_writes() {
    let secrets = Secrets::new(["hunter22"], []);
    assert_eq!(mask(&secrets, &[b"x hunt", b"er", b"22 y"]), "x [MASKED] y");
    assert_eq!(mask(&secrets, &[b"x hunt", b"er 22"]), "x hunter 22");
}

#[test]
fn longest_value_is_masked_and_values_are_trimmed() {
    assert_eq!(mask_text(&["abc", " abcdef\n", "", "  "], "abcdef abcde"), "[MASKED] [MASKED]de");
}

#[test]
fn overlapping_values_are_replaced_as_one() {
    assert_eq!(mask_text(&["abcd", "cdef"], "xabcdefx abcdabcd"), "x[MASKED]x [MASKED][MASKED]");
    assert_eq!(mask_text(&["abab"], "cabababc"), "c[MASKED]c");
    assert_eq!(mask_text(&["abcde", "cdx", "bc"], "abcdx bcabcde"), "a[MASKED] [MASKED][MASKED]");
    assert_eq!(mask_text(&["bc", "abcde", "defg"], "abcdefg"), "[MASKED]");
}

/// Regression test: the time grew with the length of the log times the length of the value.
#[test]
fn masking_time_is_linear_for_repetitive_values() {
    let log = vec![b'a'; 512 * 1024];
    let lines: Vec<String> = (0..1500).map(|number| format!("{}{number}", "a".repeat(60))).collect();
    let long = format!("{}b", "a".repeat(5000));
    for value in [lines.join("\n"), long.clone(), format!("{}\n{long}", "a".repeat(8))] {
        let masked = mask(&Secrets::new([value.as_str()], []), &log.chunks(64 * 1024).collect::<Vec<_>>());
        // A line of eight letters matches everywhere in the log, so the whole log is replaced once.
        let expected = if value.starts_with("aaaaaaaa\n") { "[MASKED]".len() } else { log.len() };
        assert_eq!(masked.len(), expected);
    }
}

#[test]
fn masks_value_with_line_breaks() {
    assert_eq!(mask_text(&["line1\nline2"], "> line1\nline2 <"), "> [MASKED] <");
}

#[test]
fn masks_longer_lines_of_a_value_separately() {
    let key = "-----BEGIN KEY-----\r\n  c2VjcmV0 \nshort77\nschlüssel\n";
    assert_eq!(mask_text(&[key], "1: c2VjcmV0\n2: short77\n3:schlüssel"), "1: [MASKED]\n2: short77\n3:[MASKED]");
    assert_eq!(mask_text(&[key], key), "[MASKED]\n");
    assert_eq!(mask_text(&["line1\nlonger line"], "line1\nlonger\nlonger line"), "line1\nlonger\n[MASKED]");
}

#[test]
fn masks_url_parameters() {
    assert_eq!(
        mask_text(&[], "GET /a?Private_Token=abc&x=1&X-Amz-Signature=de%20f HTTP"),
        "GET /a?Private_Token=[MASKED]&x=1&X-Amz-Signature=[MASKED] HTTP"
    );
}

#[test]
fn masks_tokens_by_prefix() {
    assert_eq!(mask_text(&[], "glpat-aB.9_-=x, glpat- y glrtr-1"), "glpat-[MASKED], glpat- y glrtr-[MASKED]");
    let secrets = Secrets::new([], ["acme-"]);
    assert_eq!(mask(&secrets, &[b"ac", b"me", b"-1", b"2 3"]), "acme-[MASKED] 3");
}

#[test]
fn masks_value_with_colors_inside() {
    let grep = "\x1b[01;31m\x1b[Ks3cr3t-\x1b[m\x1b[Kvalue\n";
    assert_eq!(mask_text(&["s3cr3t-value"], grep), "\x1b[01;31m\x1b[K[MASKED]\x1b[0m\n");
    assert_eq!(mask_text(&["s3cr3t-value"], "s3cr3t-\x1b(B\x1b[mvalue\x1b[m"), "[MASKED]\x1b[0m\x1b[m");
    assert_eq!(mask_text(&["s3cr3t-value"], "s3cr3t-\x1b[mother\x1b[1"), "s3cr3t-\x1b[mother\x1b[1");
    assert_eq!(mask_text(&["a\x1b[1mb"], "a\x1b[1mb a\x1b[1m\x1b[mb"), "[MASKED]\x1b[0m [MASKED]\x1b[0m");
    assert_eq!(
        mask_text(&[], "\x1b[31mglpat-\x1b[m\x1b[Kab\x1b[1mc\x1b[m d"),
        "\x1b[31mglpat-\x1b[m\x1b[K[MASKED]\x1b[1m\x1b[m d"
    );
    assert_eq!(mask_text(&[], "?rss_\x1b[1mtoken=\x1b[mab&"), "?rss_\x1b[1mtoken=\x1b[m[MASKED]&");
}

#[test]
fn masks_value_that_begins_in_an_escape_sequence() {
    assert_eq!(mask_text(&["aa"], "aa\x1b[aa"), "[MASKED]\x1b[0m");
    assert_eq!(mask_text(&["maab", "xy"], "x\x1b[1maab"), "x\x1b[1[MASKED]\x1b[0m");
    assert_eq!(mask_text(&["a\x1b["], "a\x1b[1m"), "[MASKED]\x1b[0m1m");
}

#[test]
fn held_back_escape_bytes_are_bounded() {
    let mut masker = Masker::new(&Secrets::new(["hunter22"], []));
    let (mut out, mut input_bytes) = (Vec::new(), 0);
    for piece in [b"hunter2".as_slice()].into_iter().chain([b"\x1b[1m".as_slice(); 100]).chain([b"\x1b[".as_slice()]) {
        masker.push(piece, &mut out);
        input_bytes += piece.len();
    }
    for _ in 0..1000 {
        masker.push(b"1", &mut out);
        input_bytes += 1;
    }
    assert_eq!(out.len(), input_bytes);
}

#[test]
fn masking_ten_megabytes_takes_bounded_memory() {
    let mut masker = Masker::new(&Secrets::new(["hunter22"], []));
    let block = b"hunter2 hunter2 hunter2 hunter21".repeat(2048);
    let mut out = Vec::new();
    for _ in 0..160 {
        out.clear();
        masker.push(&block, &mut out);
        // Only the beginning of a possible value is held back: fewer than 16 bytes.
        assert!(out.len() + 16 >= block.len());
    }
}

/// Masks byte by byte, without the search for candidates.
fn mask_with_filters(secrets: &Secrets, text: &[u8]) -> String {
    let mut filters = Filters::new(&Patterns::new(&secrets.0));
    let mut out = Vec::new();
    for byte in text.chunks(1) {
        filters.run(byte, false, &mut out);
    }
    filters.run(&[], true, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Removes the escape sequences. Keeps an ESC that does not start one.
fn without_escapes(text: &str) -> String {
    let mut rest = text;
    let mut without_escapes = String::new();
    while let Some((before, behind)) = rest.split_once('\x1b') {
        without_escapes.push_str(before);
        let control = behind.strip_prefix('[').map(|rest| rest.trim_start_matches(|c: char| matches!(c, ' '..='?')));
        let control = control.and_then(|rest| rest.strip_prefix(|c: char| matches!(c, '@'..='~')));
        let set = behind.strip_prefix('(').and_then(|rest| rest.get(1..));
        rest = control.or(set).unwrap_or_else(|| {
            without_escapes.push('\x1b');
            behind
        });
    }
    without_escapes + rest
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    // Few letters make values, prefixes and parameters frequent.
    let word = prop_oneof![
        4 => "[ab]{1,4}",
        1 => Just("glpat-".to_owned()),
        1 => Just("?private_token=".to_owned()),
        1 => Just("&RSS_token=ab&".to_owned()),
        1 => Just(" ".to_owned()),
        1 => Just("\n".to_owned()),
        1 => Just("\x1b[1;31m".to_owned()),
        1 => Just("\x1b[m\x1b[K".to_owned()),
        1 => Just("\x1b(B".to_owned()),
        1 => Just("\x1b[".to_owned()),
        1 => Just("\x1b".to_owned()),
    ];
    prop::collection::vec(word, 0..40).prop_map(|words| words.concat().into_bytes())
}

/// Returns words that mostly contain no secret.
fn log() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        6 => "[a-z0-9 ]{1,60}",
        2 => text().prop_map(|text| String::from_utf8(text).unwrap()),
        1 => (0..200u8, 1..12usize).prop_map(|(number, length)| numbered_value(number)[..length].to_owned()),
        1 => (0..200u8, 1..3usize).prop_map(|(number, at)| {
            let value = numbered_value(number);
            value.replace(&value[at..=at], "\x1b[m")
        }),
    ];
    prop::collection::vec(word, 0..30).prop_map(|words| words.concat().into_bytes())
}

fn numbered_value(number: u8) -> String {
    format!("{number:03}-{:08x}", u32::from(number).wrapping_mul(2_654_435_761))
}

#[test]
fn masks_value_that_an_error_quotes_with_escapes() {
    let value = "a \"quoted\" value\\";
    let secrets = Secrets::new([value], []);
    assert_eq!(secrets.mask(&format!("no file {value:?} or {value} here")), "no file \"[MASKED]\" or [MASKED] here");
    assert_eq!((secrets.mask(""), secrets.mask("plain")), (String::new(), "plain".to_owned()));
}

proptest! {
    #[test]
    fn output_does_not_depend_on_splits(
        text in text(),
        values in prop::collection::vec("[ab]{2,6}", 0..4),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let secrets = Secrets::new(values.iter().map(String::as_str), ["ba-"]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let single: Vec<&[u8]> = text.chunks(1).collect();
        let expected = mask(&secrets, &[&text]);
        prop_assert_eq!(&mask(&secrets, &pieces), &expected);
        prop_assert_eq!(&mask(&secrets, &single), &expected);
    }

    #[test]
    fn search_for_candidates_does_not_change_the_output(
        log in log(),
        values in prop::collection::vec(prop_oneof!["[ab]{1,6}", "[a-z]{2,3}", Just("b\x1b[1ma".to_owned())], 0..4),
        count in prop_oneof![Just(0u8), 1..30u8, 150..200u8],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let numbered: Vec<String> = (0..count).map(numbered_value).collect();
        let secrets = Secrets::new(values.iter().chain(&numbered).map(String::as_str), ["ba-", "~"]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(log.len() + 1)).collect();
        cuts.extend([0, log.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &log[pair[0]..pair[1]]).collect();
        prop_assert_eq!(mask(&secrets, &pieces), mask_with_filters(&secrets, &log));
    }

    #[test]
    fn output_contains_no_masked_value(text in text(), values in prop::collection::vec("[ab]{2,6}", 1..4)) {
        let secrets = Secrets::new(values.iter().map(String::as_str), []);
        let masked = mask(&secrets, &[&text]);
        for value in &values {
            prop_assert!(!masked.contains(value.as_str()), "{value} in {masked:?}");
            prop_assert!(!without_escapes(&masked).contains(value.as_str()), "{value} is visible in {masked:?}");
        }
    }
}

/// The first line of an input has the values, separated by `|`, and the second one the lengths of the pieces.
#[test]
fn fuzz_masker() {
    let samples: [&[u8]; 4] = [
        b"hunter22|hunt\n\x01\x05\nx hunter22 hunt er22 glpat-abcdefghij\n",
        b"abab|bcde|line one line two\n\x02\ncabababcde line one\nline two",
        b"\xc3\xa9\xff|aGVsbG8=\n\x01\n\xc3\xa9\xff aGVsbG8= \xc3",
        b"a|\n\n[MASKED] a",
    ];
    let words = ["hunter22", "glpat-", "glrt-", "[MASKED]", "|", "\n", "\r\n", "ab", "%20", "é"];
    muster_fuzz::fuzz("masker", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
        let mut parts = input.splitn(3, |byte| *byte == b'\n');
        let [values, lengths, log] = std::array::from_fn(|_| parts.next().unwrap_or_default());
        let values = String::from_utf8_lossy(values);
        let secrets = Secrets::new(values.split('|'), ["glpat-"]);
        let (mut rest, mut pieces) = (log, Vec::new());
        let count = if lengths.is_empty() { 0 } else { log.len() };
        for length in lengths.iter().cycle().take(count) {
            let (piece, after) = rest.split_at(usize::from(*length).min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        assert_eq!(
            mask(&secrets, &pieces),
            mask(&secrets, &[log]),
            "the output must not depend on how the log is split"
        );
    });
}

#[test]
fn token_after_prefix_of_one_byte_is_masked() {
    let secrets = Secrets::new([], ["~", "~long-"]);
    assert_eq!(secrets.mask("a ~abc ~\x1b[1mdef ~long-ghi ~"), "a ~[MASKED] ~\x1b[1m[MASKED] ~long-[MASKED] ~");
}
