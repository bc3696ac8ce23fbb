//! Property tests of loading: no bytes cause a panic, loading terminates, and all diagnostics can be rendered.

use muster_pipeline::render::render;
use proptest::prelude::*;
use serde_json::json;

use crate::harness::{TestProject, assert_rejected, errors, merged, project};

fn load_and_render(project: &TestProject, bytes: &[u8]) {
    let loaded = project.load(bytes);
    let text = render(&loaded.diagnostics, &loaded.sources, false);
    assert_eq!(loaded.diagnostics.is_empty(), text.is_empty(), "{text}");
}

/// Fragments whose combinations are often almost valid configurations.
const PIECES: &[&str] = &[
    "spec:\n",
    "  inputs:\n",
    "    i: {default: x}\n",
    "    j: {type: array, default: [$[[ inputs.i ]]]}\n",
    "    k: {rules: [{if: \"$[[ inputs.i ]] == 'x'\", default: y}]}\n",
    "  include: [c.yml, {remote: https://x/y.yml}]\n",
    "  component: [name]\n",
    "---\n",
    "include: c.yml\n",
    "include: [c.yml, {local: '**.yml', inputs: {i: 1}}]\n",
    "a: &a\n",
    "  extends: [b, .c]\n",
    "  script: [!reference [a, script], !reference [b, x]]\n",
    "  <<: *a\n",
    "  x: $[[ inputs.i | truncate(1,2) ]]\n",
    "b: {extends: a, x: *a}\n",
    "  - !reference [.c]\n",
    "'$[[ inputs.j ]]': ~\n",
    ".c: [$[[ component.name ]]]\n",
    "# @Description of it\n",
    "\t",
    "\u{feff}",
    "\r\n",
    "größe: ",
    "\"",
    "{",
    "]",
];

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        load_and_render(&project(), &bytes);
    }

    #[test]
    fn almost_valid_configurations_do_not_panic(
        root in prop::collection::vec(prop::sample::select(PIECES), 0..12),
        included in prop::collection::vec(prop::sample::select(PIECES), 0..8),
    ) {
        let project = project().file("c.yml", included.concat()).external_file("https://x/y.yml", &included.concat());
        load_and_render(&project, root.concat().as_bytes());
    }

    #[test]
    fn random_blocks_do_not_panic(
        block in "[a-z$\\[\\]|(),.0-9 {}]{0,40}",
        value in "[$a-zA-Z_{}%ö \n]{0,20}",
    ) {
        let header = serde_json::json!({"spec": {"inputs": {"a": {"default": value}}}});
        let body = serde_json::json!({"j": {"script": [format!("$[[ inputs.a | {block} ]]"), format!("x $[[{block}")]}});
        load_and_render(&project(), format!("{header}\n---\n{body}").as_bytes());
    }

    #[test]
    fn text_input_is_inserted_unchanged(text in "\\PC{0,30}") {
        let header = serde_json::json!({"spec": {"inputs": {"a": {"default": text}}}});
        let loaded = project().load(format!("{header}\n---\nj: {{x: \"$[[ inputs.a ]]\"}}"));
        let tree = crate::harness::merged(&loaded);
        prop_assert_eq!(tree["j"]["x"].as_str(), Some(&*text));
    }
}

#[test]
fn line_ends_and_byte_order_marks_are_ignored() {
    let text =
        "spec: {inputs: {i: {default: x}}}\n---\na:\n  script:\n    - |\n      p\n      q\n    - $[[ inputs.i ]]\n";
    let plain = crate::harness::merged(&project().load(text));
    for other in [text.replace('\n', "\r\n"), format!("\u{feff}{text}")] {
        assert_eq!(crate::harness::merged(&project().load(other)), plain);
    }
}

#[test]
fn oversized_configurations_fail_fast() {
    let many_blocks = format!(
        "spec: {{inputs: {{i: {{default: {}}}}}}}\n---\na: [{}]",
        "x".repeat(100_000),
        vec!["\"y$[[ inputs.i ]]\""; 10_000].join(", ")
    );
    for (text, part) in [
        ("a".repeat(10_000_000), "(maximum is 2097152)"),
        ("{a: ".repeat(10_000), "nested more than 150 levels"),
        (many_blocks, "the configuration is too long after interpolation"),
    ] {
        let found = errors(&project().load(text).diagnostics);
        assert!(found.len() == 1 && found[0].contains(part), "{part}: {} errors, {:?}", found.len(), found.first());
    }
}

/// Interpolation may produce 64 MiB in total. If a text uses up this budget exactly, later `$[[ ... ]]` blocks are not
/// replaced, so there must be an error.
#[test]
fn text_that_uses_up_the_interpolation_budget_is_an_error() {
    // 1024 such texts have 64 MiB, which is the budget.
    let value = "x".repeat((1 << 16) - 1);
    for count in [1023, 1024, 1025] {
        let items = vec!["\"$[[ inputs.i ]]y\""; count].join(", ");
        let text = format!("spec: {{inputs: {{i: {{default: {value}}}}}}}\n---\n.a: [{items}]\nj: {{script: [x]}}");
        let loaded = project().load(text);
        let is_reported = !errors(&loaded.diagnostics).is_empty();
        assert_eq!(is_reported, count > 1023, "{count}");
        assert!(is_reported || !crate::harness::merged(&loaded).to_string().contains("$[["), "{count}");
    }
}

/// Each nested include wraps the input in 100 more lists. Without a limit, such a deep tree would overflow the stack.
#[test]
fn growing_inputs_are_rejected() {
    let (open, close) = ("[".repeat(100), "]".repeat(100));
    let text = format!(
        "spec: {{inputs: {{l: {{type: array, default: []}}}}}}\n---\ninclude:\n  - local: n.yml\n    inputs: {{l: \
         {open}\"$[[ inputs.l ]]\"{close}}}\nj: {{script: [x]}}"
    );
    let project = project().file("n.yml", text);
    let found = errors(&project.load("include: n.yml").diagnostics);
    assert!(
        found.len() == 1
            && found[0].contains("with the value of `l`, lists and maps are nested more than 150 levels deep"),
        "{found:?}"
    );
}

/// A `!reference` in the inputs of an include must not make the compiler overflow its stack.
#[test]
fn reference_in_include_inputs_is_a_list_of_keys() {
    let project = project().file("c.yml", "spec: {inputs: {i: {default: x}, l: {type: array, default: []}}}\n---\na: {script: ['$[[ inputs.i ]]', 'l $[[ inputs.l ]]']}");
    let loaded = project.load("include: {local: c.yml, inputs: {l: [!reference [b, c]]}}\nb: {script: [x]}");
    assert_eq!(merged(&loaded)["a"]["script"], json!(["x", "l [[\"b\", \"c\"]]"]));
    let rejected = project.load("include: {local: c.yml, inputs: {i: !reference [b, c]}}\nb: {script: [x]}");
    assert_rejected(&rejected.diagnostics, "`i` input: provided value is not a string: it is a !reference");
}

#[test]
fn long_chain_of_input_rules_is_rejected() {
    let input = |index: usize| {
        format!("    i{index}: {{rules: [{{if: \"$[[ inputs.i{} ]] == 'x'\", default: x}}], default: y}}\n", index + 1)
    };
    let inputs: String = (0..20_000).map(input).collect();
    let text = format!("spec:\n  inputs:\n{inputs}    i20000: {{default: x}}\n---\nj: {{script: [x]}}");
    let found = errors(&project().load(text).diagnostics);
    assert!(found[0].contains("depend on a chain of more than 50 inputs"), "{found:?}");
}
