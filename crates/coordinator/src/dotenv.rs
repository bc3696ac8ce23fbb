//! Reports of the kind `dotenv`: variables from a job for later jobs (docs/spec/pipeline-yaml.md, section 4.4).
//!
//! Invariant: the parser never panics, and the result has at most [`MAX_VARIABLES`] entries.

/// Size in bytes at which a report is too large.
pub const MAX_BYTES: usize = 5 * 1024;

/// Maximum number of variables in a report.
pub const MAX_VARIABLES: usize = 20;

/// Reason why a report is invalid. The job that uploaded it fails with this reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DotenvError {
    /// The report has [`MAX_BYTES`] bytes or more. Holds its size in bytes.
    #[error("it has {0} bytes, but must have fewer than {MAX_BYTES}")]
    TooLarge(usize),
    /// The report has more than [`MAX_VARIABLES`] variables.
    #[error("it has more than {MAX_VARIABLES} variables")]
    TooMany,
    /// The report is not valid UTF-8.
    #[error("it is not valid UTF-8")]
    Encoding,
    /// A line is not `KEY=value`. The message does not contain the line, which may hold a secret.
    #[error(
        "line {line} is not `KEY=value`: {reason}; blank lines, comments and values with several lines are not \
         supported"
    )]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Reason why the line is invalid.
        reason: &'static str,
    },
}

/// Parses a report.
///
/// Each line is `KEY=value`. Nothing is expanded, and quotes around a value are removed. If a key is repeated, its last
/// line takes precedence.
///
/// # Errors
/// [`DotenvError`], which is the failure message of the job.
pub fn parse(report: &[u8]) -> Result<Vec<(String, String)>, DotenvError> {
    if report.len() >= MAX_BYTES {
        return Err(DotenvError::TooLarge(report.len()));
    }
    let text = std::str::from_utf8(report).map_err(|_| DotenvError::Encoding)?;
    let mut variables: Vec<(String, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (key, value) = parse_line(line).map_err(|reason| DotenvError::Line { line: index + 1, reason })?;
        variables.retain(|(known, _)| known != key);
        variables.push((key.to_owned(), value.to_owned()));
        if variables.len() > MAX_VARIABLES {
            return Err(DotenvError::TooMany);
        }
    }
    Ok(variables)
}

fn parse_line(line: &str) -> Result<(&str, &str), &'static str> {
    if line.trim().is_empty() {
        return Err("it is blank");
    }
    if line.trim_start().starts_with('#') {
        return Err("it is a comment");
    }
    let (key, value) = line.split_once('=').ok_or("it has no `=`")?;
    let key = key.trim();
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err("a key must consist of letters, digits and underscores");
    }
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return Ok((key, inner));
        }
    }
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn values_are_not_expanded_and_the_last_line_of_a_key_takes_precedence() {
        let report = b"A=1\nB=x=y\r\nC=\"quoted\"\nD='$A'\nE=\nA=2\n";
        assert_eq!(
            parse(report),
            Ok(vec![pair("B", "x=y"), pair("C", "quoted"), pair("D", "$A"), pair("E", ""), pair("A", "2")])
        );
        assert_eq!(parse(b""), Ok(Vec::new()));
        assert_eq!(parse(b"A=\""), Ok(vec![pair("A", "\"")]));
    }

    #[test]
    fn error_for_an_invalid_line_hides_its_content() {
        for report in ["A=1\n\nB=2", "# comment", "A", "A-B=1", "=1", "export A=1"] {
            assert!(matches!(parse(report.as_bytes()), Err(DotenvError::Line { .. })), "{report}");
        }
        assert_eq!(parse(b"\xff=1"), Err(DotenvError::Encoding));
        let message = parse(b"A=1\nhunter22").unwrap_err().to_string();
        assert!(message.contains("line 2") && !message.contains("hunter22"), "{message}");
    }
}
