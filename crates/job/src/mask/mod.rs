//! Masks secrets in logs (docs/spec/runner-api.md, section 3.6; docs/spec/job-execution.md, section 1.10): values of
//! masked variables, tokens in URLs, and text after known token prefixes.
//!
//! Invariant: the output depends on the bytes only, not on how they were split into writes. Escape sequences inside a
//! value do not prevent masking.

mod escape;
mod filters;
mod needles;
mod phrases;
mod trie;

use filters::{Filter, PrefixFilter};
use phrases::Phrases;

/// Query parameters whose values are masked.
const URL_PARAMETERS: [&str; 6] =
    ["private_token", "authenticity_token", "rss_token", "x-amz-signature", "x-amz-credential", "x-amz-security-token"];

/// Prefix of personal access tokens. The text after it is always masked.
const PERSONAL_PREFIX: &str = "glpat-";

/// Prefixes of GitLab's tokens.
const TOKEN_PREFIXES: [&str; 14] = [
    PERSONAL_PREFIX,
    "gloas-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glrtr-",
    "glptt-",
    "glft-",
    "glimt-",
    "glagent-",
    "glsoat-",
    "glffct-",
    "_gitlab_session=",
    "gltok-",
];

/// Minimum length in characters of a line of a masked value that is masked separately. Shorter lines, such as `}` or
/// `EOF`, also occur in text that is not secret. GitLab requires the same length for masked values.
const MIN_LINE_CHARS: usize = 8;

/// Secrets to mask in the log of a job.
#[derive(Clone, Default)]
pub struct Secrets {
    phrases: Vec<Vec<u8>>,
    prefixes: Vec<Vec<u8>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("phrases", &self.phrases.len()).finish_non_exhaustive()
    }
}

impl Secrets {
    /// Creates the set from the values of masked variables, and from token prefixes in addition to the built-in ones.
    ///
    /// Values are trimmed, and empty values are ignored. A value is also masked in the escaped form in which error messages
    /// quote it. If a value has several lines, each line of at least `MIN_LINE_CHARS` characters is also masked separately,
    /// because programs may print or indent single lines. All prefixes are used, whereas GitLab ignores those after the
    /// fifteenth.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>, prefixes: impl IntoIterator<Item = &'a str>) -> Self {
        Self::build(values, TOKEN_PREFIXES.into_iter().chain(prefixes))
    }

    /// Same as [`Self::new`], with [`PERSONAL_PREFIX`] as the only built-in prefix (FF_MASK_ALL_DEFAULT_TOKENS is off).
    pub fn with_personal_prefix<'a>(
        values: impl IntoIterator<Item = &'a str>,
        prefixes: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self::build(values, std::iter::once(PERSONAL_PREFIX).chain(prefixes))
    }

    fn build<'a>(values: impl IntoIterator<Item = &'a str>, prefixes: impl Iterator<Item = &'a str>) -> Self {
        Self {
            phrases: values.into_iter().flat_map(phrases).collect(),
            prefixes: prefixes.filter_map(trimmed).collect(),
        }
    }
}

/// Returns the texts by which a value is recognized.
fn phrases(value: &str) -> impl Iterator<Item = Vec<u8>> {
    trimmed(value).into_iter().chain(quoted(value)).chain(lines(value))
}

/// Returns a value as `{:?}` prints it between quotes, if it differs from the value.
fn quoted(value: &str) -> Option<Vec<u8>> {
    let value = value.trim();
    let quoted = format!("{value:?}");
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    (inner != value).then(|| inner.as_bytes().to_vec())
}

/// Returns the lines of a multi-line value that have at least [`MIN_LINE_CHARS`] characters.
fn lines(value: &str) -> impl Iterator<Item = Vec<u8>> {
    let lines = value.trim().lines().map(str::trim);
    let several = value.trim().contains('\n');
    lines.filter(move |line| several && line.chars().count() >= MIN_LINE_CHARS).map(|line| line.as_bytes().to_vec())
}

impl Secrets {
    /// Adds a value to mask, in the same way as the value of a masked variable.
    pub fn add(&mut self, value: &str) {
        self.phrases.extend(phrases(value));
    }

    /// Masks a complete text.
    #[must_use]
    pub fn mask(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let (mut masker, mut masked) = (Masker::new(self), Vec::new());
        masker.push(text.as_bytes(), &mut masked);
        masker.finish(&mut masked);
        String::from_utf8_lossy(&masked).into_owned()
    }
}

fn trimmed(text: &str) -> Option<Vec<u8>> {
    Some(text.trim().as_bytes().to_vec()).filter(|text| !text.is_empty())
}

/// Masker for a stream of bytes, which may arrive in pieces of any size.
pub struct Masker {
    filters: [Box<dyn Filter>; 3],
    buffers: [Vec<u8>; 2],
}

impl std::fmt::Debug for Masker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Masker")
    }
}

impl Masker {
    /// Creates a masker at the start of a stream.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Self {
        let parameter_prefixes =
            URL_PARAMETERS.iter().flat_map(|key| ["?", "&"].map(|separator| format!("{separator}{key}=").into_bytes()));
        Self {
            filters: [
                Box::new(Phrases::new(secrets.phrases.iter().cloned())),
                Box::new(PrefixFilter::new(parameter_prefixes, true, in_url_value)),
                Box::new(PrefixFilter::new(secrets.prefixes.iter().cloned(), false, in_token)),
            ],
            buffers: [Vec::new(), Vec::new()],
        }
    }

    /// Processes more of the stream, and appends masked output to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.run(bytes, false, out);
    }

    /// Ends the stream, and appends the bytes that were held back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.run(&[], true, out);
    }

    fn run(&mut self, bytes: &[u8], last: bool, out: &mut Vec<u8>) {
        let [phrases, urls, tokens] = &mut self.filters;
        let [first, second] = &mut self.buffers;
        first.clear();
        second.clear();
        let step = |filter: &mut Box<dyn Filter>, bytes: &[u8], out: &mut Vec<u8>| {
            filter.push(bytes, out);
            if last {
                filter.finish(out);
            }
        };
        step(phrases, bytes, first);
        step(urls, first, second);
        step(tokens, second, out);
    }
}

fn in_url_value(byte: u8) -> bool {
    !matches!(byte, b'?' | b'&' | b' ') && !byte.is_ascii_control()
}

fn in_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'=')
}

#[cfg(test)]
mod tests;
