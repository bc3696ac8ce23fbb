//! Masks secrets in logs: masked values, tokens in URLs, and text after token prefixes.
//!
//! See docs/spec/runner-api.md, section 3.6, and docs/spec/job-execution.md, section 1.10.
//!
//! Invariant: the output does not depend on how the bytes were split into writes. Escape sequences inside a value do not prevent masking,
//! unless they have more than 256 bytes in a row.
//!
//! ```text
//! bytes ---> candidates? --no--> passed on in one piece
//!                  |
//!                  yes, or a filter holds back bytes: the next few bytes -> values -> URL parameters -> token prefixes
//! ```

mod byte_set;
mod candidates;
mod escape;
mod filters;
mod needles;
mod phrases;
mod trie;

use std::sync::{Arc, LazyLock, OnceLock};

use candidates::Candidates;
use filters::{Filter, PrefixFilter};
use needles::Needles;
use phrases::{Phrases, visible_bytes};
use trie::Trie;

/// Query parameters whose values are masked.
const URL_PARAMETERS: [&str; 6] =
    ["private_token", "authenticity_token", "rss_token", "x-amz-signature", "x-amz-credential", "x-amz-security-token"];

/// Prefix of personal access tokens, which are always masked.
const PERSONAL_PREFIX: &str = "glpat-";

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

/// Minimum number of characters of a line that is masked separately. GitLab's minimum for masked values.
///
/// Shorter lines, such as `}` or `EOF`, also occur in other text.
const MIN_LINE_CHARS: usize = 8;

/// Secrets to mask in the log of a job. Clones share their memory.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Texts>);

#[derive(Clone, Default)]
struct Texts {
    /// Masked values, their quoted forms and their longer lines.
    phrases: Vec<Vec<u8>>,
    prefixes: Vec<Vec<u8>>,
    /// Created by the first search.
    patterns: OnceLock<Patterns>,
}

/// [`Texts`], prepared for the search.
#[derive(Clone)]
struct Patterns {
    phrases: Arc<Trie>,
    tokens: Arc<Needles>,
    candidates: Arc<Candidates>,
}

/// [`URL_PARAMETERS`], prepared for the search.
static URL_NEEDLES: LazyLock<Arc<Needles>> = LazyLock::new(|| {
    let prefixes = |key| ["?", "&"].map(|separator| format!("{separator}{key}=").into_bytes());
    Arc::new(Needles::new(URL_PARAMETERS.into_iter().flat_map(prefixes), true))
});

impl Patterns {
    fn new(texts: &Texts) -> Self {
        let phrases: Vec<_> = texts.phrases.iter().flat_map(|phrase| [visible_bytes(phrase), phrase.clone()]).collect();
        let tokens = Needles::new(texts.prefixes.iter().cloned(), false);
        let candidates = Candidates::new(phrases.iter().map(Vec::as_slice).chain(tokens.texts()));
        let phrases = Trie::new(phrases.iter().map(Vec::as_slice));
        Self { phrases: Arc::new(phrases), tokens: Arc::new(tokens), candidates: Arc::new(candidates) }
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("phrases", &self.0.phrases.len()).finish_non_exhaustive()
    }
}

impl Secrets {
    /// Creates the set from masked values and additional token prefixes.
    ///
    /// Values are trimmed, and empty ones ignored. The quoted form that a value has in error messages is also masked.
    /// Of a value with several lines, each line of at least `MIN_LINE_CHARS` characters is also masked separately.
    /// gitlab-runner uses only the fifteen shortest prefixes, this set uses all.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>, prefixes: impl IntoIterator<Item = &'a str>) -> Self {
        Self::build(values, TOKEN_PREFIXES.into_iter().chain(prefixes))
    }

    /// Same as [`Self::new`], with [`PERSONAL_PREFIX`] as the only built-in prefix, for jobs that turn off
    /// FF_MASK_ALL_DEFAULT_TOKENS.
    pub fn with_personal_prefix<'a>(
        values: impl IntoIterator<Item = &'a str>,
        prefixes: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self::build(values, std::iter::once(PERSONAL_PREFIX).chain(prefixes))
    }

    fn build<'a>(values: impl IntoIterator<Item = &'a str>, prefixes: impl Iterator<Item = &'a str>) -> Self {
        let texts = Texts {
            phrases: values.into_iter().flat_map(phrases).collect(),
            prefixes: prefixes.filter_map(trimmed).collect(),
            patterns: OnceLock::new(),
        };
        Self(Arc::new(texts))
    }
}

fn phrases(value: &str) -> impl Iterator<Item = Vec<u8>> {
    trimmed(value).into_iter().chain(quoted(value)).chain(lines(value))
}

/// Returns a value as `{:?}` escapes it, if that differs.
fn quoted(value: &str) -> Option<Vec<u8>> {
    let value = value.trim();
    let quoted = format!("{value:?}");
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    (inner != value).then(|| inner.as_bytes().to_vec())
}

/// Returns the lines that are long enough to be masked separately.
fn lines(value: &str) -> impl Iterator<Item = Vec<u8>> {
    let lines = value.trim().lines().map(str::trim);
    let several = value.trim().contains('\n');
    lines.filter(move |line| several && line.chars().count() >= MIN_LINE_CHARS).map(|line| line.as_bytes().to_vec())
}

impl Secrets {
    /// Adds a value to mask, like that of a masked variable.
    pub fn add(&mut self, value: &str) {
        let texts = Arc::make_mut(&mut self.0);
        texts.phrases.extend(phrases(value));
        texts.patterns = OnceLock::new();
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

/// Number of bytes between two checks whether the filters are idle.
const FILTERED_BYTES: usize = 16;

/// Masks a stream of bytes, which may arrive in pieces of any size.
pub struct Masker {
    candidates: Arc<Candidates>,
    filters: Filters,
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
        let patterns = secrets.0.patterns.get_or_init(|| Patterns::new(&secrets.0));
        Self { candidates: Arc::clone(&patterns.candidates), filters: Filters::new(patterns) }
    }

    /// Processes more of the stream, and appends masked output to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let mut scan = self.candidates.scan(bytes);
        let mut at = 0;
        while at < bytes.len() {
            if self.filters.are_idle() {
                let candidate = scan.next(at);
                out.extend_from_slice(bytes.get(at..candidate).unwrap_or_default());
                at = candidate;
            }
            let end = bytes.len().min(at + FILTERED_BYTES);
            self.filters.run(bytes.get(at..end).unwrap_or_default(), false, out);
            at = end;
        }
    }

    /// Ends the stream, and appends the bytes that were held back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.filters.run(&[], true, out);
    }
}

/// All filters. The output of each one is the input of the next.
struct Filters {
    phrases: Phrases,
    urls: PrefixFilter,
    tokens: PrefixFilter,
    /// Outputs of the first two filters.
    buffers: [Vec<u8>; 2],
}

impl Filters {
    fn new(patterns: &Patterns) -> Self {
        Self {
            phrases: Phrases::new(Arc::clone(&patterns.phrases)),
            urls: PrefixFilter::new(Arc::clone(&URL_NEEDLES), in_url_value),
            tokens: PrefixFilter::new(Arc::clone(&patterns.tokens), in_token),
            buffers: [Vec::new(), Vec::new()],
        }
    }

    fn are_idle(&self) -> bool {
        self.phrases.is_idle() && self.urls.is_idle() && self.tokens.is_idle()
    }

    fn run(&mut self, bytes: &[u8], is_end: bool, out: &mut Vec<u8>) {
        let [first, second] = &mut self.buffers;
        first.clear();
        second.clear();
        step(&mut self.phrases, bytes, is_end, first);
        step(&mut self.urls, first, is_end, second);
        step(&mut self.tokens, second, is_end, out);
    }
}

fn step(filter: &mut impl Filter, bytes: &[u8], is_end: bool, out: &mut Vec<u8>) {
    filter.push(bytes, out);
    if is_end {
        filter.finish(out);
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
