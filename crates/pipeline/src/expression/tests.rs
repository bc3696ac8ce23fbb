//! Errors, their places and their help; the language itself is tested in `tests/it/c_expression.rs`.

use super::*;

#[track_caller]
fn error(text: &str) -> ExpressionError {
    match parse(text) {
        Ok(_) => panic!("{text} parses"),
        Err(error) => error,
    }
}

#[test]
fn usual_slips_are_explained_at_their_place() {
    for (text, offset, help) in [
        ("$A == ${V}", 6, "`$V`"),
        ("%V% == '1'", 0, "`$V`"),
        ("$A && !$V", 6, "`!=`"),
        ("$V == main", 6, "`\"main\"`"),
        ("$V = 'x'", 3, "`==`"),
        ("$V & $W", 3, "`&&`"),
        ("$V | $W", 3, "`||`"),
        ("$V <= '1'", 3, "no order"),
        ("$V =~ /./", 6, "two characters"),
        ("$V =~ /abc", 6, "no closing `/`"),
        ("$V == \"x", 6, "closing quote"),
        ("$V == $[[ inputs.b ]]", 6, "spec:inputs"),
        ("$V =~ /(?=x)/", 6, "no look-ahead"),
        ("$ == 'x'", 0, "letters, digits"),
    ] {
        let error = error(text);
        assert_eq!(error.offset, offset, "{text}");
        assert!(error.to_string().starts_with("invalid expression syntax"), "{text}: {error}");
        assert!(error.help.as_deref().unwrap_or_default().contains(help), "{text}: {:?}", error.help);
    }
}

#[test]
fn misplaced_tokens_are_named() {
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
fn the_names_that_are_used_are_known() {
    let expression = parse("$A == '$X' && ($B =~ /x$Y/ || $A)").unwrap();
    assert_eq!(expression.variables(), ["A", "B"]);
    let rule = parse_input_rule("$[[ inputs.env ]] == 'p' && $[[inputs.my-size]] != null").unwrap();
    assert_eq!(rule.inputs(), ["env", "my-size"]);
}

#[test]
fn a_value_that_is_no_pattern_is_an_error_of_the_evaluation() {
    let error = parse("'x' =~ $V").unwrap().evaluate(&|_| Some("/(/".to_owned())).unwrap_err();
    assert!(matches!(error.kind, ExpressionErrorKind::ValueIsNoRegexp(_)), "{error}");
    assert_eq!(error.offset, 4);
}

#[test]
fn input_rules_know_types() {
    let rule = parse_input_rule("$[[ inputs.flag ]] == true && $[[ inputs.size ]] != 'big'").unwrap();
    let holds = |flag: bool, size: &str| {
        let size = size.to_owned();
        rule.evaluate_with_inputs(&|_| None, &move |id| match id {
            "flag" => Value::Bool(flag),
            "size" => Value::Text(size.clone()),
            _ => Value::Null,
        })
    };
    assert_eq!(holds(true, "small"), Ok(true));
    assert_eq!(holds(true, "big"), Ok(false));
    assert_eq!(holds(false, "small"), Ok(false));
}
