//! Rule expressions: cases C119 to C133, and a comparison with a second, minimal evaluator.

use muster_pipeline::expression::{self, ExpressionErrorKind, MAX_TOKENS};
use proptest::prelude::*;

/// Evaluates the expression `text`. The variable `V` has the value `value`, and `CI_COMMIT_BRANCH` is `main`. Returns
/// `None` after an error.
fn outcome(value: Option<&str>, text: &str) -> Option<bool> {
    let lookup = |name: &str| match name {
        "V" => value.map(str::to_owned),
        "CI_COMMIT_BRANCH" => Some("main".to_owned()),
        _ => None,
    };
    expression::parse(text).ok()?.evaluate(&lookup).ok()
}

/// Defines a test for each row of the specification's table. A row has a number and a name, the value of `V`, and
/// expressions with their results.
macro_rules! rows {
    ($($(#[$about:meta])* fn $name:ident($value:expr) { $($text:literal => $expected:literal,)+ })+) => {
        $(
            $(#[$about])*
            #[test]
            fn $name() {
                $(assert_eq!(outcome($value, $text), Some($expected), "{}", $text);)+
            }
        )+
    };
}

rows! {
    fn c119_an_undefined_variable_is_null(None) {
        "$V" => false,
        "$V == null" => true,
        "$V == \"\"" => false,
        "$V != \"\"" => true,
    }
    fn c120_an_empty_variable_is_not_null(Some("")) {
        "$V" => false,
        "$V == null" => false,
        "$V == \"\"" => true,
    }
    fn c121_the_text_false_counts_as_true(Some("false")) {
        "$V" => true,
        "$V == \"false\"" => true,
    }
    /// The specification writes `/x/`, but one character is not a valid pattern (case C129).
    fn c122_patterns_and_their_flags(Some("abc")) {
        "$V =~ /^AB/" => false,
        "$V =~ /^AB/i" => true,
        "$V !~ /xx/" => true,
    }
    fn c123_variable_value_can_be_a_pattern(Some("/^ab.*/")) {
        "\"abc\" =~ $V" => true,
    }
    fn c124_a_value_is_not_expanded(Some("$CI_COMMIT_BRANCH")) {
        "$V == \"main\"" => false,
    }
    fn c125_a_slash_is_escaped_in_a_pattern(Some("a/b")) {
        "$V =~ /^a\\/b$/" => true,
    }
    /// The specification writes `/x/`, but a pattern needs at least two characters (case C129).
    fn c126_null_matches_as_empty_text(None) {
        "$V =~ /xx/" => false,
        "$V !~ /xx/" => true,
    }
    fn c127_and_binds_tighter_than_or(Some("1")) {
        "$V == \"2\" || $V == \"1\" && $NOPE" => false,
    }
    fn c128_parentheses_bind_tightest(Some("1")) {
        "($V == \"2\" || $V == \"1\") && $CI_COMMIT_BRANCH" => true,
    }
    fn c131_text_can_contain_the_other_quote(Some("it's")) {
        "$V == \"it's\"" => true,
    }
    fn c132_text_as_pattern_matches_if_it_contains_the_left_side(None) {
        "\"23\" =~ \"1234\"" => true,
        "\"23\" =~ /1234/" => false,
    }
}

#[test]
fn c129_invalid_syntax_is_rejected() {
    for text in ["${V} == \"1\"", "!$V", "$V == main", "$V =~ /./", "$V <= \"1\"", "$V =="] {
        let error = expression::parse(text).expect_err(text);
        assert!(error.to_string().contains("invalid expression syntax"), "{text}: {error}");
    }
}

#[test]
fn c130_expression_has_at_most_99_tokens() {
    let chain = |values: usize| vec!["$V"; values].join(" || ");
    assert!(expression::parse(&chain(50)).is_ok(), "99 tokens must be accepted");
    // The first text has 51 values and 50 operators. The second text is an opening parenthesis and 99 more tokens.
    let error = expression::parse(&chain(51)).expect_err("101 tokens must be rejected");
    assert_eq!(error.kind, ExpressionErrorKind::TooManyTokens);
    let error = expression::parse(&format!("({}", chain(50))).expect_err("100 tokens must be rejected");
    assert_eq!(error.kind, ExpressionErrorKind::TooManyTokens);
    assert_eq!(MAX_TOKENS, 99);
}

#[test]
fn c133_look_ahead_is_rejected() {
    let error = expression::parse("$V =~ /(?=x)/").expect_err("RE2 has no look-ahead");
    assert!(error.to_string().contains("look-around"), "{error}");
}

#[test]
fn empty_text_is_truthy_as_operand_but_false_as_result() {
    assert_eq!(outcome(Some(""), "$V && $CI_COMMIT_BRANCH"), Some(true));
    assert_eq!(outcome(Some(""), "$V || $CI_COMMIT_BRANCH"), Some(false));
    assert_eq!(outcome(None, "$V || $CI_COMMIT_BRANCH"), Some(true));
    assert_eq!(outcome(Some(""), "$CI_COMMIT_BRANCH && $V"), Some(false));
}

/// A generated expression. It can be written as text and evaluated directly, without the parser under test.
#[derive(Debug, Clone)]
enum Tree {
    Null,
    Bool(bool),
    Text(String),
    Variable(u8),
    Pair(&'static str, Box<Tree>, Box<Tree>),
}

#[derive(Debug, Clone, PartialEq)]
enum Outcome {
    Null,
    Text(String),
    Bool(bool),
}

/// Values of the variables `V0` to `V3`. `None` means that the variable is not defined.
const VARIABLES: [Option<&str>; 4] = [None, Some(""), Some("main"), Some("true")];

impl Tree {
    fn write(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => format!("\"{text}\""),
            Self::Variable(index) => format!("$V{index}"),
            Self::Pair(operator, left, right) => format!("({} {operator} {})", left.write(), right.write()),
        }
    }

    fn tokens(&self) -> usize {
        match self {
            Self::Pair(_, left, right) => 3 + left.tokens() + right.tokens(),
            _ => 1,
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::Null => Outcome::Null,
            Self::Bool(value) => Outcome::Bool(*value),
            Self::Text(text) => Outcome::Text(text.clone()),
            Self::Variable(index) => {
                VARIABLES[usize::from(*index)].map_or(Outcome::Null, |text| Outcome::Text(text.into()))
            }
            Self::Pair(operator, left, right) => {
                let (left, right) = (left.outcome(), right.outcome());
                let falsy = matches!(left, Outcome::Null | Outcome::Bool(false));
                match *operator {
                    "&&" if falsy => left,
                    "||" if !falsy => left,
                    "&&" | "||" => right,
                    "==" => Outcome::Bool(left.text() == right.text()),
                    _ => Outcome::Bool(left.text() != right.text()),
                }
            }
        }
    }
}

impl Outcome {
    fn text(&self) -> Option<String> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text.clone()),
            Self::Bool(value) => Some(value.to_string()),
        }
    }

    fn is_met(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Text(text) => !text.trim().is_empty(),
            Self::Bool(value) => *value,
        }
    }
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Null),
        any::<bool>().prop_map(Tree::Bool),
        "[a-c ']{0,3}".prop_map(Tree::Text),
        (0u8..4).prop_map(Tree::Variable),
    ];
    leaf.prop_recursive(4, 24, 2, |inner| {
        let operator = prop::sample::select(vec!["&&", "||", "==", "!="]);
        (operator, inner.clone(), inner)
            .prop_map(|(operator, left, right)| Tree::Pair(operator, Box::new(left), Box::new(right)))
    })
}

proptest! {
    #[test]
    fn no_text_makes_parser_or_evaluator_panic(text in "\\PC{0,80}", value in proptest::option::of("\\PC{0,20}")) {
        if let Ok(expression) = expression::parse(&text) {
            let _ = expression.evaluate(&|_| value.clone());
            let _ = expression.variables();
        }
        let _ = expression::parse_input_rule(&text);
    }

    #[test]
    fn no_sequence_of_tokens_makes_parser_or_evaluator_panic(
        words in prop::collection::vec(
            prop::sample::select(vec!["$V", "\"a\"", "/a.b/i", "(", ")", "==", "!=", "=~", "!~", "&&", "||", "null", "true"]),
            0..30,
        ),
        value in proptest::option::of("/?[a-z(+*\\[]{0,6}/?[ismU]?"),
    ) {
        if let Ok(expression) = expression::parse(&words.join(" ")) {
            let _ = expression.evaluate(&|_| value.clone());
        }
    }

    #[test]
    fn two_evaluators_agree(tree in trees()) {
        prop_assume!(tree.tokens() <= MAX_TOKENS);
        let text = tree.write();
        let expression = expression::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        let lookup = |name: &str| {
            let index: usize = name.trim_start_matches('V').parse().ok()?;
            VARIABLES.get(index).copied().flatten().map(str::to_owned)
        };
        prop_assert_eq!(expression.evaluate(&lookup), Ok(tree.outcome().is_met()), "{}", text);
    }
}
