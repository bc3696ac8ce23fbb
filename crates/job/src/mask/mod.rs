//! Keeps secrets out of the log (runner-api 3.6, job-execution 1.10): masked values, tokens in URLs, and whatever
//! follows the known prefixes of tokens.
//!
//! Invariant: the output depends on the bytes only, not on how they were split into writes; so a value that is split
//! over writes is masked like any other. Nor does it depend on colours: escape sequences inside a value do not show it.

mod escape;
mod filters;
mod needles;
mod phrases;
mod trie;

use filters::{Filter, Following};
use phrases::Phrases;

/// Query parameters whose value is a secret.
const URL_PARAMETERS: [&str; 6] =
    ["private_token", "authenticity_token", "rss_token", "x-amz-signature", "x-amz-credential", "x-amz-security-token"];

/// The prefix of personal access tokens: masked whatever a job says.
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

/// A line of a masked value is masked by itself from this many characters on: a shorter one, like `}` or `EOF`, is in much
/// that is no secret. GitLab asks the same length of a value.
const LINE_MIN: usize = 8;

/// What to mask in one job's log.
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
    /// The values of masked variables, and token prefixes beside the built-in ones.
    ///
    /// Values are trimmed, empty ones are no secret. A value as an error quotes it, with escapes, is a secret too. Of a value
    /// with several lines, each longer line is one: a program may print only some of them, or indent them. All prefixes are
    /// used: GitLab drops those beyond the fifteenth, which can only show more.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>, prefixes: impl IntoIterator<Item = &'a str>) -> Self {
        Self::build(values, TOKEN_PREFIXES.into_iter().chain(prefixes))
    }

    /// The same with only [`PERSONAL_PREFIX`] of the built-in prefixes (FF_MASK_ALL_DEFAULT_TOKENS off).
    pub fn with_few_prefixes<'a>(
        values: impl IntoIterator<Item = &'a str>,
        prefixes: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        Self::build(values, std::iter::once(PERSONAL_PREFIX).chain(prefixes))
    }

    fn build<'a>(values: impl IntoIterator<Item = &'a str>, prefixes: impl Iterator<Item = &'a str>) -> Self {
        Self {
            phrases: values
                .into_iter()
                .flat_map(|value| clean(value).into_iter().chain(quoted(value)).chain(lines(value)))
                .collect(),
            prefixes: prefixes.filter_map(clean).collect(),
        }
    }
}

/// A value as `{:?}` prints it between its quotes, if that is another text.
fn quoted(value: &str) -> Option<Vec<u8>> {
    let value = value.trim();
    let quoted = format!("{value:?}");
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    (inner != value).then(|| inner.as_bytes().to_vec())
}

/// The longer lines of a value that has several.
fn lines(value: &str) -> impl Iterator<Item = Vec<u8>> {
    let lines = value.trim().lines().map(str::trim);
    let several = value.trim().contains('\n');
    lines.filter(move |line| several && line.chars().count() >= LINE_MIN).map(|line| line.as_bytes().to_vec())
}

impl Secrets {
    /// A text of its own, masked.
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

fn clean(text: &str) -> Option<Vec<u8>> {
    Some(text.trim().as_bytes().to_vec()).filter(|text| !text.is_empty())
}

/// Masks one stream.
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
    /// A masker at the start of its stream.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Self {
        let leads = URL_PARAMETERS.iter().flat_map(|key| ["?", "&"].map(|mark| format!("{mark}{key}=").into_bytes()));
        Self {
            filters: [
                Box::new(Phrases::new(secrets.phrases.iter().cloned())),
                Box::new(Following::new(leads, true, in_url_value)),
                Box::new(Following::new(secrets.prefixes.iter().cloned(), false, in_token)),
            ],
            buffers: [Vec::new(), Vec::new()],
        }
    }

    /// Takes more of the stream; appends what is safe to show to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.run(bytes, false, out);
    }

    /// The stream ends: appends what was held back.
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
