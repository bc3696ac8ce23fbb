//! Case 48: operators, literals and functions of Moa.

use super::harness::Project;

/// Returns what step `e` prints for its first input, if this input is the expression.
async fn value(expression: &str) -> String {
    let project = Project::new();
    let text = format!("${{{{ {expression} }}}}").replace('\'', "''");
    project
        .run(&format!("- {{name: e, step: ./e, inputs: {{s: '{text}'}}}}"))
        .await
        .log()
        .replace("|1|true|{}|[]|\n", "")
}

async fn assert_rejected(expression: &str, part: &str) {
    let text = format!("${{{{ {expression} }}}}").replace('\'', "''");
    let outcome = Project::new().run(&format!("- {{name: e, step: ./e, inputs: {{s: '{text}'}}}}")).await;
    outcome.assert_error(part);
}

#[tokio::test]
async fn c048_result_of_an_operator_is_a_native_number_current() {
    let item = "- {name: e, step: ./e, inputs: {a: ['${{ 1 + 2 * 3 }}', '${{ 10 % 3 }}', '${{ -7 % 4 }}']}}";
    assert_eq!(Project::new().run(item).await.log(), "d|1|true|{}|[7,1,-3]|\n");
}

#[tokio::test]
async fn c048_operators_do_not_convert_operands_current() {
    assert_rejected("\"a\" + 1", "`+` cannot be applied to a string and a number").await;
    assert_rejected("1 / 0", "division by zero").await;
    assert_rejected("1 % 0", "division by zero").await;
    assert_eq!(value("\"a\" + 'b'").await, "ab");
}

#[tokio::test]
async fn c048_values_of_different_kinds_are_ordered_by_kind_current() {
    for (expression, expected) in [
        ("1 == \"1\"", "false"),
        ("null < false && false < 0 && 0 < \"\" && \"\" < [] && [] < {}", "true"),
        ("-0 == 0", "true"),
        ("[1, 2] < [1, 2, 0]", "true"),
        ("{b: 1} < {a: 1, b: 1}", "true"),
        ("\"é\" > \"z\"", "true"),
    ] {
        assert_eq!(value(expression).await, expected, "{expression}");
    }
}

#[tokio::test]
async fn c048_logical_operators_return_an_operand_current() {
    for (expression, expected) in [
        ("null || \"d\"", "d"),
        ("\"\" || 0 || [] || {} || \"last\"", "last"),
        ("env.MISSING || \"default\"", "default"),
        ("[1][5] || \"default\"", "default"),
        ("1 && \"b\"", "b"),
        ("0 && \"b\"", "0"),
        ("!\"\"", "true"),
    ] {
        assert_eq!(value(expression).await, expected, "{expression}");
    }
}

#[tokio::test]
async fn c048_functions_convert_arguments_current() {
    for (expression, expected) in [
        ("str(null)", "<null>"),
        ("str(1.5) + str(true)", "1.5true"),
        ("num(\"3.14\") + 1", "4.140000000000001"),
        ("bool([]) || bool(\"x\")", "true"),
    ] {
        assert_eq!(value(expression).await, expected, "{expression}");
    }
    assert_rejected("nope(1)", "function \"nope\" not found").await;
}

#[tokio::test]
async fn c048_literals_have_attributes_and_indexes_current() {
    assert_eq!(value("{a: 1}[\"a\"]").await, "1");
    assert_eq!(value("{('a' + 'b'): [1, {c: 2,},]}.ab[1].c").await, "2");
}

#[tokio::test]
async fn c048_single_quoted_string_is_raw_current() {
    assert_eq!(value("'${{ x }}'").await, "${{ x }}");
    assert_eq!(value(r"'a\n\'b\\'").await, r"a\n'b\");
    assert_eq!(value(r#""\u0041\t${{ 1 + 1 }}\${{ x }}""#).await, "A\t2${{ x }}");
}

#[tokio::test]
async fn c048_reserved_word_is_not_an_identifier_current() {
    for word in ["for", "if", "type", "object"] {
        assert_rejected(word, "not a reserved word").await;
    }
}
