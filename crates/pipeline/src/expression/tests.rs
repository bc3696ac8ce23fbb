//! The language itself is tested in `crates/pipeline/tests/it/conformance_expression.rs`.

use super::*;

#[track_caller]
fn error(text: &str) -> ExpressionError {
    match parse(text) {
        Ok(_) => panic!("parsing `{text}` should fail"),
        Err(error) => error,
    }
}

#[test]
fn explains_common_mistakes_at_their_position() {
    for (text, offset, help) in [
        ("$A == ${V}", 6, "`$V`"),
        ("%V% == '1'", 0, "`$V`"),
        ("$A && !$V", 6, "`!=`"),
        ("$V == main", 6, "`\"main\"`"),
        ("$V = 'x'", 3, "`==`"),
        ("$V & $W", 3, "`&&`"),
        ("$V | $W", 3, "`||`"),
        ("$V <= '1'", 3, "have no order"),
        ("$V =~ /./", 6, "two characters"),
        ("$V =~ /abc", 6, "no closing `/`"),
        ("$V == \"x", 6, "closing quote"),
        ("$V == $[[ inputs.b ]]", 6, "spec:inputs"),
        ("$V =~ /(?=x)/", 6, "not support look-ahead"),
        ("$ == 'x'", 0, "letters, digits"),
    ] {
        let error = error(text);
        assert_eq!(error.offset, offset, "{text}");
        assert!(error.to_string().starts_with("invalid expression syntax"), "{text}: {error}");
        assert!(error.help.as_deref().unwrap_or_default().contains(help), "{text}: {:?}", error.help);
    }
}

#[test]
fn errors_distinguish_empty_incomplete_and_misplaced_text() {
    assert_eq!(error("").kind, ExpressionErrorKind::Empty);
    assert_eq!(error("  ").kind, ExpressionErrorKind::Empty);
    assert_eq!(error("$V ==").kind, ExpressionErrorKind::MissingValue);
    assert_eq!(error("($V").kind, ExpressionErrorKind::Unclosed);
    assert_eq!(error("($V").offset, 0);
    assert_eq!(error("$V $W").kind, ExpressionErrorKind::Unexpected("$W".to_owned()));
    assert_eq!(error("$V)").kind, ExpressionErrorKind::Unexpected(")".to_owned()));
    assert_eq!(error("== $V").kind, ExpressionErrorKind::Unexpected("==".to_owned()));
    assert_eq!(error("()").kind, ExpressionErrorKind::Unexpected(")".to_owned()));
}

#[test]
fn lists_names_of_variables_and_inputs() {
    let expression = parse("$A == '$X' && ($B =~ /x$Y/ || $A)").unwrap();
    assert_eq!(expression.variables(), ["A", "B"]);
    let rule = parse_input_rule("$[[ inputs.env ]] == 'p' && $[[inputs.my-size]] != null").unwrap();
    assert_eq!(rule.inputs(), ["env", "my-size"]);
}

#[test]
fn evaluation_fails_for_invalid_pattern_value() {
    let error = parse("'x' =~ $V").unwrap().evaluate(&|_| Some("/(/".to_owned())).unwrap_err();
    assert!(matches!(error.kind, ExpressionErrorKind::InvalidPatternValue(_)), "{error}");
    assert_eq!(error.offset, 4);
}

#[test]
fn input_rules_compare_booleans_and_texts() {
    let rule = parse_input_rule("$[[ inputs.flag ]] == true && $[[ inputs.size ]] != 'big'").unwrap();
    let evaluate_rule = |flag: bool, size: &str| {
        let size = size.to_owned();
        rule.evaluate_with_inputs(&|_| None, &move |id| match id {
            "flag" => Value::Bool(flag),
            "size" => Value::Text(size.clone()),
            _ => Value::Null,
        })
    };
    assert_eq!(evaluate_rule(true, "small"), Ok(true));
    assert_eq!(evaluate_rule(true, "big"), Ok(false));
    assert_eq!(evaluate_rule(false, "small"), Ok(false));
}
