//! Reading a configuration: all problems at once, and the configuration unless one of them is fatal.

use std::io::Read as _;
use std::path::Path;

use toml_edit::Document;

use super::checks::{self, Check};
use super::codes::Severity;
use super::facts::Facts;
use super::links::is_circle;
use super::problem::Problem;
use super::runners::{self, Runner};
use super::scaling;
use super::settings::Scaling;
use super::source::Source;
use super::tree::Table;
use super::walk::Walk;

/// Bytes of a file that is read.
pub const FILE_SIZE_MAX: usize = 10 * 1024 * 1024;
/// The file is not there.
const MISSING: &str = "C032";

/// A configuration that can be worked with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Everything that is set, with the schema's names.
    pub tree: Table,
    /// The entries of `[[runners]]`, in the order of the file.
    pub runners: Vec<Runner>,
    /// First byte of each line of the text.
    lines: Vec<usize>,
}

impl Config {
    /// The line of a byte of the text, from 1.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }
}

/// What came of reading.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration; none where a problem is fatal.
    pub config: Option<Config>,
    /// All problems, in the order of the text.
    pub problems: Vec<Problem>,
}

impl Loaded {
    /// Whether one of the problems is that bad, or worse.
    #[must_use]
    pub fn has(&self, severity: Severity) -> bool {
        self.problems.iter().any(|problem| problem.severity <= severity)
    }

    fn refused(problem: Problem) -> Self {
        Self { config: None, problems: vec![problem] }
    }
}

/// Reads the file. A missing one is an empty configuration, with a warning (runner-config 1.1 rule 9), unless the facts say
/// that it must be there.
#[must_use]
pub fn load(path: &Path, facts: &Facts) -> Loaded {
    match text_of(path) {
        Ok(text) => parse(&text, facts),
        Err(problem) if problem.code == MISSING && !facts.must_exist => {
            let mut loaded = parse("", facts);
            loaded.problems.insert(0, problem.severity(Severity::Warning));
            loaded
        }
        Err(problem) => Loaded::refused(*problem),
    }
}

/// The file's text.
///
/// # Errors
/// The fatal problem of a file that is missing, cannot be read, is no regular file, too large, or no UTF-8.
pub fn text_of(path: &Path) -> Result<String, Box<Problem>> {
    use std::io::ErrorKind;
    read(path).map_err(|error| {
        let of =
            |code, message: String, help| Box::new(Problem::new(code, message).severity(Severity::Fatal).help(help));
        let help = match error.kind() {
            ErrorKind::NotFound => {
                let message = format!("{} does not exist; no runner is configured", path.display());
                return of(MISSING, message, "register a runner, or name another file with --config");
            }
            ErrorKind::PermissionDenied => "mend its permissions and those of its directory, or run as its owner",
            ErrorKind::InvalidData => "a configuration is text in UTF-8: write that line anew, or convert the file",
            ErrorKind::IsADirectory => "name the file in it, such as config.toml",
            _ if is_circle(&error) => "a symbolic link leads in a circle: let it lead to the file",
            _ => "see to the file, or name another one with --config",
        };
        of("C000", format!("cannot read {}: {error}", path.display()), help)
    })
}

/// The file's text, for those who say themselves what an error means.
pub(super) fn read(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind};
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_SIZE_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_SIZE_MAX {
        let message = format!("it is larger than {} MiB, which no configuration is", FILE_SIZE_MAX >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        Error::new(ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}

/// Reads the text.
#[must_use]
pub fn parse(text: &str, facts: &Facts) -> Loaded {
    if text.len() > FILE_SIZE_MAX {
        return Loaded::refused(Problem::new(
            "C000",
            format!("the configuration is larger than {} MiB", FILE_SIZE_MAX >> 20),
        ));
    }
    let document = match Document::parse(text) {
        Ok(document) => document,
        Err(error) => return Loaded { config: None, problems: no_toml(text, &error) },
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

/// Reads what a scaler acts on, from a text whose outermost table stands for `[runners.autoscaler]`.
///
/// # Errors
/// All problems, in the order of the text: nothing that a scaler would do otherwise than written passes.
pub fn parse_scaling(text: &str) -> Result<Scaling, Vec<Problem>> {
    let document = Document::parse(text).map_err(|error| no_toml(text, &error))?;
    let mut walk = Walk { strict: true, ..Walk::default() };
    let table = walk.table("runners.autoscaler", document.as_table(), 0..0);
    let source = Source::new(text, std::mem::take(&mut walk.secrets));
    let mut problems = walk.problems;
    checks::out_of_range(&table, &[]).for_each(|problem| problems.add(problem));
    for (path, span) in checks::below_zero(&table) {
        problems.add(Problem::new("C088", format!("`{path}` is less than zero")).at(&span));
    }
    let problems = problems.finish(&source);
    if !problems.is_empty() {
        return Err(problems.into_iter().map(|problem| problem.severity(Severity::Error)).collect());
    }
    Ok(scaling::read(&table).0)
}

/// The problems of a text that is no TOML. Lines are shown only as far as they cannot hold a secret.
fn no_toml(text: &str, error: &toml_edit::TomlError) -> Vec<Problem> {
    /// One mistake can be the cause of many; the first ones tell.
    const ERRORS_MAX: usize = 10;
    // The editing parser tells one error only, the other one tells all.
    let (_, errors) = toml::de::DeTable::parse_recoverable(text);
    let mut errors: Vec<_> = errors.iter().map(|error| (error.span(), error.message())).collect();
    if errors.is_empty() {
        errors.push((error.span(), error.message()));
    }
    errors.sort_by_key(|(span, _)| span.as_ref().map_or(text.len(), |span| span.start));
    errors.truncate(ERRORS_MAX);
    let source = Source::new(text, Vec::new());
    let problem = |(span, message): (Option<std::ops::Range<usize>>, &str)| {
        let place = source.careful_place(&span.unwrap_or(text.len()..text.len()));
        let message = message.lines().next().unwrap_or_default();
        let message = format!("line {} is no valid TOML: {message}", place.line);
        Problem::new("C000", message).placed(place).help("nothing of the file is used until this is mended")
    };
    errors.into_iter().map(problem).collect()
}
