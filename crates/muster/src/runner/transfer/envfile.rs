//! Variable files that a runner passes to its helper commands. Each line is `NAME=value` or `NAME='value'`.

use std::collections::HashMap;
use std::path::Path;

use super::TransferError;

/// Reads the variables of a file. Returns an empty map if `path` is `None` or empty.
pub(super) fn read(path: Option<&Path>) -> Result<HashMap<String, String>, TransferError> {
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(HashMap::new()) };
    let text =
        std::fs::read_to_string(path).map_err(|source| TransferError::EnvFile { path: path.to_owned(), source })?;
    Ok(parse(&text))
}

fn parse(text: &str) -> HashMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let lines = lines.filter_map(|line| line.strip_prefix("export ").unwrap_or(line).split_once('='));
    lines.map(|(name, value)| (name.trim().to_owned(), unquoted(value.trim()).to_owned())).collect()
}

fn unquoted(value: &str) -> &str {
    let inside = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    inside('\'').or_else(|| inside('"')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_with_and_without_quotes() {
        let variables = parse("# no\nA='{\"cachekey\":\"x\"}'\nexport B=two words\n\nC=\"=\"\nnothing\n");
        let value = |name: &str| variables.get(name).map(String::as_str);
        assert_eq!([value("A"), value("B"), value("C")], [Some("{\"cachekey\":\"x\"}"), Some("two words"), Some("=")]);
        assert_eq!(variables.len(), 3);
    }
}
