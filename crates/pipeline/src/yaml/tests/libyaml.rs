//! Compares the parser on generated texts with libyaml, which GitLab uses. PyYAML's C extension runs libyaml here.

use std::io::Write as _;
use std::process::{Command, Stdio};

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value as Json;

use super::{errors, parsed, resolve_plain, shown};
use crate::node::{Map, Node};

const TEXTS: usize = 6000;

/// Errors of this parser for texts that libyaml accepts.
const REJECTED_BY_MUSTER: &[&str] = &[
    "comments must be separated from other tokens by whitespace",
    "simple key expected ':'",
    "a tab is used as indentation",
    "plain scalar cannot start with '-'",
    // In libyaml, the name of an anchor cannot contain a colon.
    "unknown alias",
];

/// Errors of libyaml for texts that this parser accepts.
const REJECTED_BY_LIBYAML: &[&str] = &[
    "did not find expected key",
    "found character that cannot start any token",
    "did not find expected node content",
    "did not find expected <document start>",
    "did not find expected ',' or '}'",
    "did not find expected ',' or ']'",
    "while scanning a directive",
    "found unexpected ':'",
    "found a tab character",
    "did not find expected alphabetic or numeric character",
    "mapping values are not allowed in this context",
];

const PIECES: &[&str] = &[
    "a",
    "b c",
    "script",
    "\"q\"",
    "\"q r\"",
    "'s'",
    "'s\n  t'",
    "\"x\n y\"",
    "\"x\n  y\"",
    "\"x\\\n  y\"",
    ": ",
    ":",
    "- ",
    "-",
    "[",
    "]",
    "{",
    "}",
    ",",
    ", ",
    "\n",
    "\n",
    "\n  ",
    "\n    ",
    "\n  - ",
    "\n- ",
    "\n  a: ",
    "\na: ",
    "\n ",
    "  ",
    "# c\n",
    " # c",
    "|\n  t\n",
    "|-\n    t\n  u\n",
    ">\n  f\n  g\n",
    ">+\n f\n\n",
    "&x ",
    "*x",
    "? ",
    "---\n",
    "...\n",
    "\t",
    "\r\n",
    "~",
    "@",
    "%",
    "é",
    "|2\n   t\n",
    "key: [\n  \"e\"\n]",
    "k: [\n\"a\",\n]\n",
];

/// Some generated texts are changed copies of these files.
const FILES: &[&str] = &[
    "a:\n  script: [\n    \"echo 1\"\n  ]\n",
    "job:\n  script:\n  - \"a\n  b\"\n",
    "job:\n  script:\n  - \"a\n    b\"\n  - c\n",
    "a: {b: [c, d],\n  e: f}\n",
    "x: |\n  a\n   b\n\nc: d\n",
    "a: &x\n  b: 1\nc:\n  d: [*x, 'y']\n",
    "- a\n- b:\n  - c\n  -  d\n",
];

fn text(rng: &mut ChaCha8Rng) -> String {
    let piece = |rng: &mut ChaCha8Rng| *PIECES.choose(rng).unwrap();
    if rng.random_bool(0.6) {
        return (0..rng.random_range(1..14)).map(|_| piece(rng)).collect();
    }
    let mut text: Vec<char> = FILES.choose(rng).unwrap().chars().collect();
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..=text.len());
        let (removed, new) = match rng.random_range(0..3) {
            0 => (0, piece(rng)),
            1 => (rng.random_range(1..4), ""),
            _ => (0, *[" ", "\n"].choose(rng).unwrap()),
        };
        let end = (at + removed).min(text.len());
        text.splice(at..end, new.chars());
    }
    text.into_iter().collect()
}

fn shown_by_libyaml(node: &Json) -> String {
    let scalar = |text: &Json| text.as_str().unwrap().to_owned();
    if let Some(text) = node.get("plain") {
        let span = super::root("a").span;
        return shown(&Node::new(resolve_plain(&scalar(text)), span));
    }
    if let Some(text) = node.get("quoted") {
        return format!("{:?}", scalar(text));
    }
    if let Some(items) = node.get("list") {
        return format!("[{}]", items.as_array().unwrap().iter().map(shown_by_libyaml).collect::<Vec<_>>().join(" "));
    }
    let mut map = Map::default();
    let span = super::root("a").span;
    let mut values = std::collections::HashMap::new();
    for pair in node["map"].as_array().unwrap() {
        let key = pair[0].get("plain").or_else(|| pair[0].get("quoted")).unwrap();
        let key = match pair[0].get("plain") {
            Some(text) => Node::new(resolve_plain(&scalar(text)), span).scalar_text().unwrap_or_else(|| scalar(text)),
            None => scalar(key),
        };
        map.insert(key.as_str(), span, Node::new(crate::node::Value::Null, span));
        values.insert(key, shown_by_libyaml(&pair[1]));
    }
    let entries: Vec<String> = map.iter().map(|(key, _)| format!("{key}: {}", values[&**key])).collect();
    format!("{{{}}}", entries.join(" "))
}

fn libyaml(python: &std::path::Path, texts: &[String]) -> Vec<Json> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/yaml/tests/libyaml.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("failed to start Python");
    let mut input = child.stdin.take().unwrap();
    let lines: String = texts.iter().map(|text| format!("{}\n", serde_json::to_string(text).unwrap())).collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn c223_parses_generated_texts_like_libyaml() {
    let requirement = "a Python with PyYAML";
    let Some(venv) = muster_test_prerequisites::variable("MUSTER_TEST_PYTHON_VENV", requirement) else { return };
    let seed = std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("MUSTER_TEST_SEED={seed}");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let texts: Vec<String> = (0..TEXTS).map(|_| text(&mut rng)).collect();
    let answers = libyaml(&std::path::Path::new(&venv).join("bin/python3"), &texts);
    assert_eq!(answers.len(), texts.len(), "libyaml must return one line per text");
    let mut equal = 0;
    for (text, answer) in texts.iter().zip(&answers) {
        let found = errors(text);
        match (answer.as_array(), answer.get("error").and_then(Json::as_str), found.first()) {
            (Some(trees), _, None) => {
                let ours: Vec<String> = parsed(text).documents.iter().map(|document| shown(&document.root)).collect();
                let theirs: Vec<String> = trees.iter().map(shown_by_libyaml).collect();
                assert_eq!(ours, theirs, "{text:?}");
                equal += 1;
            }
            (Some(_), _, Some(problem)) => {
                assert!(
                    REJECTED_BY_MUSTER.iter().any(|known| problem.contains(known)),
                    "{text:?} is rejected by Muster: {problem}"
                );
            }
            (None, Some(error), None) => {
                assert!(
                    REJECTED_BY_LIBYAML.iter().any(|known| error.contains(known)),
                    "{text:?} is rejected only by libyaml: {error}"
                );
            }
            _ => {}
        }
    }
    assert!(equal > TEXTS / 8, "both parsers must accept more texts than {equal} of {TEXTS}");
}
