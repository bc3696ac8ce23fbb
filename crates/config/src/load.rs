//! Loads a configuration and reports all its problems at once.

use std::path::Path;

use toml_edit::Document;

use super::checks::{self, Check};
use super::codes::Severity;
use super::facts::HostFacts;
use super::links::is_symlink_loop;
use super::problem::Problem;
use super::runners::{self, Runner};
use super::scaling;
use super::settings::Scaling;
use super::source::Source;
use super::text_file::{MAX_FILE_BYTES, read};
use super::tree::Table;
use super::unknown::SCALING_TABLE;
use super::walk::Walk;

const MISSING: &str = "C032";

/// A configuration without fatal problems.
#[derive(Debug, Clone)]
pub struct Config {
    /// All values that are set. Their keys are spelled as in the schema.
    pub tree: Table,
    /// The `[[runners]]` entries, in the order of the file.
    pub runners: Vec<Runner>,
    /// Byte offset of each line of the text.
    lines: Vec<usize>,
}

impl Config {
    /// Returns the line of a byte of the text, from 1.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }
}

/// Result of loading a configuration.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration. `None` if a problem is fatal.
    pub config: Option<Config>,
    /// All problems, in the order of the text.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// Returns whether a problem has this severity or a higher one.
    #[must_use]
    pub fn has(&self, severity: Severity) -> bool {
        self.problems.iter().any(|problem| problem.severity <= severity)
    }

    fn refused(problem: Problem) -> Self {
        Self { config: None, problems: vec![problem] }
    }
}

/// Loads the file. A missing file is an empty configuration with a warning, unless `facts.must_exist` is true.
#[must_use]
pub fn load(path: &Path, facts: &HostFacts) -> Loaded {
    match read_text(path) {
        Ok(text) => parse(&text, facts),
        Err(problem) if problem.code == MISSING && !facts.must_exist => {
            let mut loaded = parse("", facts);
            loaded.problems.insert(0, problem.severity(Severity::Warning));
            loaded
        }
        Err(problem) => Loaded::refused(*problem),
    }
}

/// Returns the text of the file.
///
/// # Errors
/// The fatal problem of a file that is missing, unreadable, a directory, too large, or not valid UTF-8.
pub fn read_text(path: &Path) -> Result<String, Box<Problem>> {
    use std::io::ErrorKind;
    read(path).map_err(|error| {
        let problem =
            |code, message: String, help| Box::new(Problem::new(code, message).severity(Severity::Fatal).help(help));
        let help = match error.kind() {
            ErrorKind::NotFound => {
                let message = format!("{} does not exist; no runner is configured", path.display());
                return problem(MISSING, message, "register a runner, or name another file with --config");
            }
            ErrorKind::PermissionDenied => "fix its permissions and those of its directory, or run as its owner",
            ErrorKind::InvalidData => "a configuration is UTF-8 text: rewrite that line, or convert the file",
            ErrorKind::IsADirectory => "name the file in it, such as config.toml",
            _ if is_symlink_loop(&error) => "the symbolic links form a loop: let the link point to the file",
            _ => "check the file, or name another one with --config",
        };
        problem("C000", format!("failed to read {}: {error}", path.display()), help)
    })
}

/// Parses the text of a configuration.
#[must_use]
pub fn parse(text: &str, facts: &HostFacts) -> Loaded {
    if text.len() > MAX_FILE_BYTES {
        return Loaded::refused(Problem::new(
            "C000",
            format!("the configuration is larger than {} MiB", MAX_FILE_BYTES >> 20),
        ));
    }
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => return Loaded { config: None, problems: toml_problems(text, &error) },
    };
    let mut walk = Walk::default();
    let tree = walk.table("", document.as_table(), 0..0);
    let runners = runners::runners(&tree, facts);
    let source = Source::new(text, std::mem::take(&mut walk.secrets));
    let mut problems = walk.problems;
    checks::all(&mut Check { tree: &tree, runners: &runners, facts, problems: &mut problems });
    let loaded = Loaded { config: None, problems: problems.finish(&source) };
    let config = (!loaded.has(Severity::Fatal)).then(|| Config { tree, runners, lines: source.line_starts() });
    Loaded { config, ..loaded }
}

/// Parses the keys of a scaler. The top-level table of the text stands for `[runners.autoscaler]`.
///
/// # Errors
/// All problems, in the order of the text, including keys that would not be applied as written.
pub fn parse_scaling(text: &str) -> Result<Scaling, Vec<Problem>> {
    let document = Document::parse(text).map_err(|error| toml_problems(text, &error))?;
    let mut walk = Walk { strict: true, ..Walk::default() };
    let table = walk.table(SCALING_TABLE, document.as_table(), 0..0);
    let source = Source::new(text, std::mem::take(&mut walk.secrets));
    let mut problems = walk.problems;
    checks::out_of_range(&table, &[]).for_each(|problem| problems.add(problem));
    for (path, span) in checks::negative_durations(&table) {
        problems.add(Problem::new("C088", format!("`{path}` is negative")).at(&span));
    }
    let problems = problems.finish(&source);
    if !problems.is_empty() {
        return Err(problems.into_iter().map(|problem| problem.severity(Severity::Error)).collect());
    }
    Ok(scaling::read(&table).0)
}

/// Returns the problems of a text that is not valid TOML. They quote only parts of lines that cannot contain a secret.
fn toml_problems(text: &str, error: &toml_edit::TomlError) -> Vec<Problem> {
    /// One mistake can cause many errors, and the first ones explain it.
    const MAX_ERRORS: usize = 10;
    // `toml_edit` returns only one error.
    let (_, errors) = toml::de::DeTable::parse_recoverable(text);
    let mut errors: Vec<_> = errors.iter().map(|error| (error.span(), error.message())).collect();
    if errors.is_empty() {
        errors.push((error.span(), error.message()));
    }
    errors.sort_by_key(|(span, _)| span.as_ref().map_or(text.len(), |span| span.start));
    errors.truncate(MAX_ERRORS);
    let source = Source::new(text, Vec::new());
    let problem = |(span, message): (Option<std::ops::Range<usize>>, &str)| {
        let location = source.redacted_location(&span.unwrap_or(text.len()..text.len()));
        let message = message.lines().next().unwrap_or_default();
        let message = format!("line {} is not valid TOML: {message}", location.line);
        Problem::new("C000", message).with_location(location).help("the file is not used until this is fixed")
    };
    errors.into_iter().map(problem).collect()
}
