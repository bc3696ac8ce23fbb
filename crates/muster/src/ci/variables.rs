//! Variables and inputs from the command line.

use std::path::Path;

use muster_job::Variable;
use muster_pipeline::context::InputValue;

use super::args::PipelineArgs;
use super::error::CiError;
use super::read::read_text_file;

/// Returns the variables of `--var-file`, `--file-var` and `--var`. If several of these flags set a variable, the last
/// flag in this order applies.
pub(super) fn pipeline_variables(args: &PipelineArgs) -> Result<Vec<Variable>, CiError> {
    let mut variables = Vec::new();
    for path in &args.var_file {
        for (key, value) in parse_file(path, &read(path)?)? {
            set(&mut variables, Variable::public(key, value));
        }
    }
    for text in &args.file_var {
        let (key, path) = parse_pair("--file-var", "NAME=FILE", text)?;
        set(&mut variables, Variable { file: true, ..Variable::public(key, read(Path::new(path))?) });
    }
    for text in &args.var {
        let (key, value) = parse_pair("--var", "NAME=VALUE", text)?;
        set(&mut variables, Variable::public(key, value));
    }
    Ok(variables)
}

pub(super) fn inputs(args: &PipelineArgs) -> Result<Vec<(String, InputValue)>, CiError> {
    args.input
        .iter()
        .map(|text| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), InputValue::Text(value.to_owned()))),
            _ => Err(CiError::Usage(format!("`--input {text}` is invalid; use `--input NAME=VALUE`"))),
        })
        .collect()
}

fn set(variables: &mut Vec<Variable>, variable: Variable) {
    variables.retain(|earlier| earlier.key != variable.key);
    variables.push(variable);
}

fn read(path: &Path) -> Result<String, CiError> {
    read_text_file(path).map_err(|source| CiError::Read { path: path.to_owned(), source })
}

fn parse_pair<'a>(flag: &str, form: &str, text: &'a str) -> Result<(&'a str, &'a str), CiError> {
    match text.split_once('=') {
        Some((key, value)) if is_name(key) => Ok((key, value)),
        // The value may be a secret.
        Some((key, _)) => Err(CiError::Usage(format!(
            "`{flag} {key}=...`: a variable's name may contain only letters, digits and `_`"
        ))),
        None => Err(CiError::Usage(format!("the value of `{flag}` has no `=`; use `{flag} {form}`"))),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses `NAME=VALUE` lines. Skips empty lines and `#` comments; removes `export ` and quotes around a value.
pub(super) fn parse_file(path: &Path, text: &str) -> Result<Vec<(String, String)>, CiError> {
    let mut variables = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let parsed = line.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let Some((key, value)) = parsed.filter(|(key, _)| is_name(key)) else {
            let location = format!("{}:{}", path.display(), index + 1);
            return Err(CiError::Failed(format!("`{location}` is not a variable; write `NAME=VALUE`")));
        };
        let quoted = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
        variables.push((key.to_owned(), value.to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_files_have_the_dotenv_format() {
        let text = "# comment\nA=1\n\nexport B=\"two words\"\nC = 'x=y' \nD=\n";
        let found = parse_file(Path::new("v.env"), text).unwrap();
        let found: Vec<_> = found.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(found, [("A", "1"), ("B", "two words"), ("C", "x=y"), ("D", "")]);
    }

    #[test]
    fn invalid_line_is_reported_with_its_number() {
        let error = parse_file(Path::new("v.env"), "A=1\nnot a variable\n").unwrap_err().to_string();
        assert!(error.contains("v.env:2"), "{error}");
    }

    #[test]
    fn errors_hide_the_value() {
        for text in ["MY-TOKEN=hunter22", "hunter22"] {
            let error = parse_pair("--var", "NAME=VALUE", text).unwrap_err().to_string();
            assert!(error.contains("`--var") && !error.contains("hunter22"), "{error}");
        }
    }
}
