//! Resolves plain scalars of YAML 1.1 as Ruby's Psych does (docs/spec/pipeline-yaml.md, section 2.2).
//!
//! Unlike in Psych, dates and integers beyond 64 bits remain text.

use crate::node::Value;

pub(crate) fn resolve(text: &str) -> Value {
    let Some(&first) = text.as_bytes().first() else {
        return Value::Null;
    };
    match first {
        b'0'..=b'9' | b'+' | b'-' | b'.' => number(text).unwrap_or_else(|| Value::String(text.into())),
        _ => word(text).unwrap_or_else(|| Value::String(text.into())),
    }
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        _ if ["true", "yes", "on"].iter().any(|word| text.eq_ignore_ascii_case(word)) => Some(true),
        _ if ["false", "no", "off"].iter().any(|word| text.eq_ignore_ascii_case(word)) => Some(false),
        _ => None,
    }
}

pub(super) fn number(text: &str) -> Option<Value> {
    special_float(text)
        .map(Value::Float)
        .or_else(|| base_sixty(text))
        .or_else(|| float(text).map(Value::Float))
        .or_else(|| integer(text).map(Value::Int))
}

fn word(text: &str) -> Option<Value> {
    if text == "~" || text.eq_ignore_ascii_case("null") {
        return Some(Value::Null);
    }
    boolean(text).map(Value::Bool)
}

fn special_float(text: &str) -> Option<f64> {
    let (sign, name) = split_sign(text);
    if name.eq_ignore_ascii_case(".inf") {
        return Some(if sign < 0 { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    text.eq_ignore_ascii_case(".nan").then_some(f64::NAN)
}

/// Parses a number in base 60. As in Psych, the first part is multiplied by 3600 both in `12:30` and in `1:2:3`.
fn base_sixty(text: &str) -> Option<Value> {
    let parts: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    let (last, fraction) = match parts.last()?.split_once('.') {
        Some((seconds, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_') => {
            (seconds, Some(digits))
        }
        Some(_) => return None,
        None => (*parts.last()?, None),
    };
    let mut total: i64 = 0;
    for (index, part) in parts.iter().enumerate() {
        let part = if index + 1 == parts.len() { last } else { part };
        let value = if index == 0 { leading_digits(part)? } else { sexagesimal_digit(part)? };
        let weight = [3600, 60, 1].get(index).copied()?;
        total = total.checked_add(value.checked_mul(weight)?)?;
    }
    match fraction.map(|digits| digits.replace('_', "")) {
        None => Some(Value::Int(total)),
        Some(digits) if digits.is_empty() => Some(Value::Float(exact_float(total))),
        Some(digits) => format!("{total}.{digits}").parse().ok().map(Value::Float),
    }
}

fn leading_digits(part: &str) -> Option<i64> {
    let (sign, digits) = split_sign(part);
    let starts_with_digit = digits.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    let is_number = starts_with_digit && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    is_number.then(|| digits.replace('_', "").parse::<i64>().ok().map(|value| sign * value)).flatten()
}

fn sexagesimal_digit(part: &str) -> Option<i64> {
    let value: i64 = (matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| part.parse().ok())
        .flatten()?;
    (value < 60).then_some(value)
}

/// Parses a number with a decimal point. An exponent needs a sign: `1.5e+3`.
fn float(text: &str) -> Option<f64> {
    let (_, unsigned) = split_sign(text);
    let (whole, rest) = unsigned.split_once('.')?;
    let is_whole_valid = whole.is_empty()
        || (whole.starts_with(|letter: char| letter.is_ascii_digit())
            && whole.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'_' | b',')));
    let (fraction, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (rest.get(..at)?, Some(rest.get(at + 1..)?)),
        None => (rest, None),
    };
    let is_exponent_valid = exponent.is_none_or(|exponent| {
        let digits = exponent.strip_prefix(['+', '-']).unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    let has_digits = !(whole.is_empty() && fraction.is_empty());
    if !is_whole_valid || !is_exponent_valid || !has_digits || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.replace(['_', ','], "").parse().ok()
}

/// Parses an integer: decimal with `_` or `,` between digits, `0b`, `0x`, or octal with a leading zero.
fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = split_sign(text);
    let magnitude = if let Some(binary) = digits.strip_prefix("0b") {
        radix(binary, 2)?
    } else if let Some(hexadecimal) = digits.strip_prefix("0x") {
        radix(hexadecimal, 16)?
    } else if digits.len() > 1 && digits.starts_with('0') {
        radix(digits, 8)?
    } else {
        decimal(digits)?
    };
    sign.checked_mul(magnitude)
}

fn radix(digits: &str, base: u32) -> Option<i64> {
    let plain = digits.replace(['_', ','], "");
    let is_number = !plain.is_empty() && plain.chars().all(|digit| digit.is_digit(base));
    is_number.then(|| i64::from_str_radix(&plain, base).ok()).flatten()
}

fn decimal(digits: &str) -> Option<i64> {
    let separators_are_between = digits.split(['_', ',']).all(|group| !group.is_empty());
    separators_are_between.then(|| radix(digits, 10)).flatten()
}

fn split_sign(text: &str) -> (i64, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "times of day are far below 2^53")]
fn exact_float(value: i64) -> f64 {
    value as f64
}
