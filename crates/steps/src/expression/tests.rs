//! Examples of Moa and its predecessor. No text may make the evaluator panic.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn scope() -> Scope {
    scope_of(Dialect::Current)
}

fn scope_of(dialect: Dialect) -> Scope {
    let values = json!({
        "env": {"HOME": "/h"},
        "job": {"CI": "true", "foo-bar": "dashed"},
        "inputs": {"n": 2, "list": [1, {"a": "b"}], "flag": false, "text": "hi", "none": null},
        "steps": {"build": {"outputs": {"name": "x", "size": 3}}},
    });
    Scope::new(dialect, values)
}

fn value(text: &str) -> Result<Value, ExpressionError> {
    evaluate(text, &scope())
}

#[test]
fn evaluates_lookups_literals_and_operators() {
    for (text, expected) in [
        (" job.CI ", json!("true")),
        ("steps.build.outputs.size", json!(3)),
        ("job.foo-bar", json!("dashed")),
        ("inputs.list[1].a", json!("b")),
        ("inputs['text'] + \" there\"", json!("hi there")),
        ("1 + 2 * 3 - 4 / 2", json!(5.0)),
        ("(1 + 2) * 3 % 5", json!(4.0)),
        ("-7 % 4", json!(-3.0)),
        ("!inputs.flag && inputs.text", json!("hi")),
        ("inputs.none || inputs.flag || 'default'", json!("default")),
        ("inputs.missing || 'default'", json!("default")),
        ("inputs.list[9] || 'default'", json!("default")),
        ("1 == '1'", json!(false)),
        ("null < false && false < 0 && 0 < ''", json!(true)),
        ("[1, 2] < [1, 3] && {a: 1} == {'a': 1}", json!(true)),
        ("{a: 1, ('b' + 'c'): [true,],}", json!({"a": 1.0, "bc": [true]})),
        ("str(1.5) + str(null) + str([1,'<'])", json!("1.5<null>[1,\"\\u003c\"]")),
        ("num('3.5') + 1", json!(4.5)),
        ("bool('')", json!(false)),
        (r#""a\n\u0041 ${{ inputs.n }} \${{ x }}""#, json!("a\nA 2 ${{ x }}")),
        (r"'raw \n \' ${{ x }}'", json!(r"raw \n ' ${{ x }}")),
    ] {
        assert_eq!(value(text), Ok(expected), "{text}");
    }
}

#[test]
fn invalid_expression_is_rejected_with_reason() {
    for (text, part) in [
        ("job.NOPE", "at \".NOPE\": attribute not found"),
        ("1 +", "parser: expected a value, got the end at 3"),
        ("1 / 0", "division by zero"),
        ("1 + 'a'", "cannot be applied to a number and a string"),
        ("for", "reserved word"),
        ("nope(1) || 1", "function \"nope\" not found"),
        ("'open", "expected the end of the string"),
        ("inputs.text.x", "a string has no attributes"),
    ] {
        let error = value(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn template_keeps_type_of_single_expression() {
    let expanded = |text: &str| scope().expand(&json!(text));
    assert_eq!(expanded("${{ inputs.list }}"), Ok(json!([1, {"a": "b"}])));
    assert_eq!(expanded("<${{ inputs.list }}>"), Ok(json!("<[1,{\"a\":\"b\"}]>")));
    assert_eq!(expanded("a }} b"), Ok(json!("a }} b")));
    assert_eq!(expanded(r"\${{ kept }}"), Ok(json!("${{ kept }}")));
    assert_eq!(expanded("${{ {a: {b: '}}'}}.a.b }}!"), Ok(json!("}}!")));
    assert!(matches!(expanded("x ${{ y"), Err(ExpressionError::NotClosed(_))));
    assert_eq!(scope().expand(&json!({"${{k}}": ["${{ inputs.n }}"]})), Ok(json!({"${{k}}": [2]})));
}

#[test]
fn legacy_dialect_ends_expression_at_matching_braces() {
    let scope = scope_of(Dialect::Legacy);
    assert_eq!(scope.expand_text("${{job.CI}}}-\\${{ inputs.n }}"), Ok("true}-\\2".to_owned()));
    assert_eq!(scope.expand(&json!("${{ inputs.list }}")), Ok(json!([1, {"a": "b"}])));
    for (text, part) in [
        ("a }} b", "has extra '}}'"),
        ("${{ job.${{ job.CI }} }}", "the \"${{ job\" was not found"),
        ("${{ job.${{ job.CI }}", "is not closed"),
        ("${{ 1 + 1 }}", "the \"1 + 1\" was not found"),
    ] {
        let error = scope.expand_text(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn deeply_nested_expression_is_rejected() {
    for text in ["(".repeat(10_000), "!".repeat(10_000), "[".repeat(10_000), format!("1{}", "+1".repeat(10_000))] {
        assert!(matches!(value(&text), Err(ExpressionError::Syntax { .. })));
    }
}

/// Expressions inside strings are parsed separately, so the depth limit of the parser does not apply.
#[test]
fn deeply_nested_strings_are_rejected() {
    let nested = |depth: usize| (0..depth).fold("${{ 1 }}".to_owned(), |inner, _| format!("${{{{ \"{inner}\" }}}}"));
    assert_eq!(scope().expand_text(&nested(10)).unwrap(), "1");
    let error = scope().expand_text(&nested(2000)).unwrap_err().to_string();
    assert!(error.contains("inside more than 16 strings"), "{error}");
}

#[test]
fn numbers_are_formatted_as_in_go() {
    for (number, text) in [(1.5, "1.5"), (3.0, "3"), (1e21, "1e+21"), (1e-7, "1e-7"), (-2.0, "-2"), (0.0, "0")] {
        assert_eq!(to_text(&json!(number)), text);
    }
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,60}") {
        let _ = value(&text);
        let _ = scope().expand_text(&format!("${{{{{text}}}}}"));
        let _ = scope_of(Dialect::Legacy).expand_text(&text);
    }

    #[test]
    fn arbitrary_tokens_do_not_panic(
        words in prop::collection::vec(
            prop_oneof!["[a-z]{1,3}", "[0-9.e]{1,4}", "[-+*/%!<>=&|.,:(){}\\[\\]]", Just("'x'".to_owned()),
                Just("inputs".to_owned())],
            0..30,
        ),
    ) {
        let _ = value(&words.join(" "));
    }
}

#[test]
fn fuzz_step_expressions() {
    let samples: [&[u8]; 4] = [
        br#"{a: 1, ('b' + 'c'): [true,], d: inputs.list[1].a || "x${{ inputs.n }}"}"#,
        b"str([1,'<']) + str(num('3.5') * -7 % 4) == bool('') && !steps.build.outputs.size",
        br"a ${{ inputs.text }} b ${{ job.CI == 'true' }} \${{ x }}",
        br#"job.foo-bar + inputs['none'] + "\u0041\n""#,
    ];
    let words = [
        "${{ ",
        " }}",
        "inputs.",
        "steps.build.outputs.",
        "[",
        "(",
        "{",
        "!",
        "-",
        "'",
        "\"",
        "\\u",
        "num(",
        "str(",
        "&&",
        "||",
        "1e308",
    ];
    let (scope, legacy) = (scope(), scope_of(Dialect::Legacy));
    muster_fuzz::fuzz("expressions of steps", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = evaluate(&text, &scope);
        let _ = scope.expand_text(&text);
        let _ = legacy.expand_text(&text);
        let _ = scope.expand(&Value::String(text.into_owned()));
    });
}
