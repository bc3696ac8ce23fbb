//! Tests the YAML dialect, and that no text makes the parser panic.

use proptest::prelude::*;

use super::scalar::resolve as resolve_plain;
use super::*;
use crate::diagnostic::Severity;
use crate::node::{Map, Value};

mod libyaml;

const SOURCE: SourceId = SourceId(0);

fn parsed(text: &str) -> Parsed {
    parse(SOURCE, text, &Limits::default()).unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
}

fn root(text: &str) -> Node {
    parsed(text).documents.remove(0).root
}

fn errors(text: &str) -> Vec<String> {
    match parse(SOURCE, text, &Limits::default()) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.into_iter().map(|problem| problem.message).collect(),
    }
}

fn shown(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => format!("{value:?}"),
        Value::String(text) => format!("{text:?}"),
        Value::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::Map(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, entry)| format!("{key}: {}", shown(&entry.node))).collect();
            format!("{{{}}}", entries.join(" "))
        }
        Value::Reference(path) => format!("!reference {path:?}"),
    }
}

#[test]
fn resolves_plain_scalars_like_psych() {
    for (text, value) in [
        ("yes", "true"),
        ("On", "true"),
        ("TRUE", "true"),
        ("no", "false"),
        ("oFF", "false"),
        ("y", "\"y\""),
        ("~", "null"),
        ("Null", "null"),
        ("", "null"),
        ("010", "8"),
        ("08", "\"08\""),
        ("0", "0"),
        ("-12", "-12"),
        ("+7", "7"),
        ("0b101", "5"),
        ("0xfF", "255"),
        ("0o17", "\"0o17\""),
        ("1_000", "1000"),
        ("1,000", "1000"),
        ("1__0", "\"1__0\""),
        ("1_", "\"1_\""),
        ("12:30", "45000"),
        ("1:2:3", "3723"),
        ("1:75", "\"1:75\""),
        ("1:2:3:4", "\"1:2:3:4\""),
        ("1.5", "1.5"),
        ("1.5e+3", "1500.0"),
        ("1.5e3", "\"1.5e3\""),
        ("1e3", "\"1e3\""),
        (".5", "0.5"),
        ("1.", "1.0"),
        (".", "\".\""),
        ("1.2.3", "\"1.2.3\""),
        (".inf", "inf"),
        ("-.INF", "-inf"),
        ("2024-01-31", "\"2024-01-31\""),
        ("99999999999999999999", "\"99999999999999999999\""),
        ("-", "\"-\""),
        ("$X", "\"$X\""),
        ("nope", "\"nope\""),
    ] {
        assert_eq!(shown(&Node::new(resolve_plain(text), root("a").span)), value, "{text}");
    }
}

#[test]
fn quoted_and_block_scalars_are_text() {
    assert_eq!(
        shown(&root("a: 'yes'\nb: \"12\"\nc: |\n  1\nd: >-\n  true\ne: !!str 12\nf: !!int '7'")),
        r#"{a: "yes" b: "12" c: "1\n" d: "true" e: "12" f: 7}"#
    );
}

#[test]
fn keys_become_text() {
    assert_eq!(shown(&root("1: a\ntrue: b\n2.5: c\n~: d")), r#"{1: "a" true: "b" 2.5: "c" ~: "d"}"#);
    assert_eq!(errors("? [a]\n: b"), ["keys must be text, not a list"]);
}

#[test]
fn merge_keys_merge_shallowly() {
    let text =
        "d: &d {i: 1, m: {x: 1}}\na: &a {i: 2, k: 3}\nb: {<<: *d, i: 9}\nc: {<<: [*a, *d], i: 9, m: {y: 1}}\ne: *d";
    assert_eq!(
        shown(&root(text)),
        "{d: {i: 1 m: {x: 1}} a: {i: 2 k: 3} b: {i: 9 m: {x: 1}} c: {i: 9 k: 3 m: {y: 1}} e: {i: 1 m: {x: 1}}}"
    );
    assert!(parsed(text).warnings.is_empty());
}

/// Psych merges at the position of `<<`. In other parsers, explicit keys always win.
#[test]
fn merge_key_replaces_earlier_keys_with_warning() {
    let text = "a: &a {i: 1, k: 2}\nb: &b {i: 3}\nc: {i: 9, <<: *a}\nd: {<<: *a, <<: *b}\ne: {<<: [*b, *a]}";
    assert_eq!(shown(&root(text)), "{a: {i: 1 k: 2} b: {i: 3} c: {i: 1 k: 2} d: {i: 3 k: 2} e: {i: 3 k: 2}}");
    let warnings: Vec<_> = parsed(text).warnings.into_iter().map(|warning| warning.message).collect();
    assert_eq!(warnings, ["`<<` replaces the earlier `i`: later keys win, as on GitLab"]);
}

#[test]
fn merge_key_requires_maps() {
    assert_eq!(errors("a: {<<: text}"), ["the merge key `<<` must be a map or a list of maps, not text"]);
    assert_eq!(errors("a: {<<: [{b: 1}, 2]}"), ["the merge key `<<` must be a map or a list of maps, not a number"]);
}

#[test]
fn last_duplicate_key_wins_with_warning() {
    let result = parsed("a: 1\nb: 2\na: 3\n");
    assert_eq!(shown(&result.documents[0].root), "{a: 3 b: 2}");
    assert_eq!(result.warnings.len(), 1);
    assert_eq!(result.warnings[0].severity, Severity::Warning);
    assert_eq!(result.warnings[0].span.map(|span| (span.line, span.column)), Some((3, 1)));
}

#[test]
fn accepts_reference_and_rejects_other_tags() {
    assert_eq!(shown(&root("a: [!reference [.s, script], b]")), r#"{a: [!reference [".s", "script"] "b"]}"#);
    assert_eq!(errors("a: !reference [[b]]\nc: !reference x"), ["`!reference` must be a list of strings"; 2]);
    assert_eq!(
        errors("a: !vault x\nb: !refrence [a]\nc: !!binary aGk="),
        [
            "the tag `!vault` cannot be used here",
            "the tag `!refrence` cannot be used here",
            "the tag `!!binary` cannot be used here"
        ]
    );
}

#[test]
fn spans_are_correct_with_crlf_and_multibyte_text() {
    let text = "ä: 1\r\nb:\r\n  - \"ü\"\r\n  - [c, d]\r\n";
    let tree = root(text);
    let map = tree.as_map().unwrap();
    let written = |node: &Node| &text[node.span.start as usize..node.span.end as usize];
    let entry = map.entry("b").unwrap();
    assert_eq!((entry.key_span.line, entry.key_span.column, entry.key_span.start), (2, 1, 7));
    let items = entry.node.as_list().unwrap();
    assert_eq!(written(&items[0]), "\"ü\"");
    assert_eq!(written(&items[1]), "[c, d]");
    assert_eq!((items[1].span.line, items[1].span.column), (4, 5));
    assert_eq!(written(&entry.node), "- \"ü\"\r\n  - [c, d]");
}

#[test]
fn separates_documents() {
    let documents = parsed("spec: {}\n---\na: 1\n").documents;
    assert_eq!(documents.iter().map(|document| shown(&document.root)).collect::<Vec<_>>(), ["{spec: {}}", "{a: 1}"]);
    assert_eq!(errors("a: &x 1\n---\nb: *x").len(), 1, "anchors end with their document");
}

#[test]
fn invalid_and_oversized_texts_are_rejected_with_one_error() {
    let deep_flow = "[".repeat(10_000);
    let deep_block = "- ".repeat(10_000);
    let many_values = (1..12).fold("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned(), |text, level| {
        let aliases = vec![format!("*a{}", level - 1); 10].join(",");
        text + &format!("a{level}: &a{level} [{aliases}]\n")
    });
    let deep_aliases = (1..200)
        .fold("a0: &a0 [x]\n".to_owned(), |text, level| text + &format!("a{level}: &a{level} [*a{}]\n", level - 1));
    for (text, message) in [
        (deep_flow.as_str(), "nested more than 150 levels"),
        (deep_block.as_str(), "nested more than 150 levels"),
        (many_values.as_str(), "more than 500000 values"),
        (deep_aliases.as_str(), "nested more than 150 levels"),
        ("a: \0", "control character U+0000"),
        ("a: \u{1b}[31m", "control character U+001B"),
        ("a:\n\t- b", "a tab is used as indentation"),
        ("a: b: c", "invalid YAML"),
        ("a: *nope", "unknown alias `nope`"),
        ("a: &a [*a]", "inside its own anchor"),
    ] {
        let found = errors(text);
        assert!(found.len() == 1 && found[0].contains(message), "{message}: {found:?}");
    }
    let large = "a: b\n".repeat(3_000_000);
    assert!(errors(&large)[0].contains("(maximum is 2097152)"));
}

#[test]
fn decodes_utf8_and_rejects_other_bytes() {
    let limits = Limits::default();
    assert_eq!(decode("f", b"\xef\xbb\xbfa: 1", &limits).unwrap(), "a: 1");
    let problem = decode("f.yml", b"a: 1\nb: \xff\n", &limits).unwrap_err();
    assert_eq!(problem.message, "`f.yml` is not UTF-8 text: the byte at offset 8 (line 2) is invalid");
    assert!(decode("f.yml", b"\xff\xfea\0", &limits).unwrap_err().help.unwrap().contains("UTF-16"));
}

#[test]
fn description_comment_belongs_to_the_key_below() {
    let text = "# @Description of nothing\n\n# @Interactive\n# @Description  Builds it \n# more\na: 1\nb: 2\n";
    let found = descriptions(text, root(text).as_map().unwrap());
    assert_eq!(found.into_iter().collect::<Vec<_>>(), [("a".to_owned(), "Builds it".to_owned())]);
}

/// Generates JSON values. Their JSON text is also YAML.
fn trees() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(serde_json::Value::from),
        any::<bool>().prop_map(serde_json::Value::from),
        "[ -~äß\n\t]{0,12}".prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::from),
            prop::collection::btree_map("[a-z:# -]{1,8}", inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn is_equal(json: &serde_json::Value, node: &Node) -> bool {
    match (json, &node.value) {
        (serde_json::Value::Null, Value::Null) => true,
        (serde_json::Value::Bool(expected), Value::Bool(found)) => expected == found,
        (serde_json::Value::Number(expected), Value::Int(found)) => expected.as_i64() == Some(*found),
        (serde_json::Value::String(expected), Value::String(found)) => **expected == **found,
        (serde_json::Value::Array(expected), Value::List(found)) => {
            expected.len() == found.len() && expected.iter().zip(found.iter()).all(|(json, node)| is_equal(json, node))
        }
        (serde_json::Value::Object(expected), Value::Map(found)) => {
            let found: &Map = found;
            expected.len() == found.len()
                && expected.iter().all(|(key, json)| found.get(key).is_some_and(|node| is_equal(json, node)))
        }
        _ => false,
    }
}

proptest! {
    #[test]
    fn any_text_is_parsed_without_panic(text in any::<String>()) {
        let _ = parse(SOURCE, &text, &Limits::default());
    }

    #[test]
    fn text_of_yaml_indicators_is_parsed_without_panic(text in "[-ab:,?&*!|>'\"%@`{}\\[\\]#~<=. \t\r\n]{0,60}") {
        let _ = parse(SOURCE, &text, &Limits::default());
    }

    #[test]
    fn any_plain_scalar_resolves(text in "[-+0-9_,.:xbeo~a-f]{0,24}") {
        let _ = resolve_plain(&text);
    }

    #[test]
    fn generated_trees_round_trip(tree in trees()) {
        let text = serde_json::to_string_pretty(&tree).unwrap();
        let parsed = root(&text);
        prop_assert!(is_equal(&tree, &parsed), "{text}\n{}", shown(&parsed));
    }
}
