//! Limits of an archive.

use std::fmt;

/// Maximum sizes and numbers of an archive and its unpacked content.
///
/// The defaults are far above what jobs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files together. Defaults to 1 TiB.
    pub bytes: u64,
    /// Number of entries. Defaults to 2,000,000.
    ///
    /// A directory that has no entry, but is created because it is part of the name of an entry, counts as an entry.
    pub entries: u64,
    /// Unpacked bytes for each byte of the archive. Defaults to 1000.
    pub ratio: u64,
    /// Unpacked bytes up to which the ratio is not limited. Defaults to 10 GiB.
    pub ratio_floor: u64,
    /// Bytes of headers. Defaults to 256 MiB.
    ///
    /// For zip, the limit applies to the headers of all entries together. For tar, it applies to the headers of each entry. The names and
    /// targets of links, and the names of directories, stay in memory until the end. They have a separate limit of the same size.
    pub header_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 1 << 40, entries: 2_000_000, ratio: 1000, ratio_floor: 10 << 30, header_bytes: 256 << 20 }
    }
}

/// One of the [`Limits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// [`Limits::bytes`]
    Bytes,
    /// [`Limits::entries`]
    Entries,
    /// [`Limits::ratio`]
    Ratio,
    /// [`Limits::header_bytes`]
    HeaderBytes,
}

/// Error of an archive that exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// The limit.
    pub limit: Limit,
    /// Value of the limit.
    pub max: u64,
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = self.max;
        match self.limit {
            Limit::Bytes => write!(f, "the archive unpacks to more than {max} bytes"),
            Limit::Entries => write!(f, "the archive has more than {max} entries"),
            Limit::Ratio => write!(f, "the archive unpacks to more than {max} times its size"),
            Limit::HeaderBytes => write!(f, "the archive has more than {max} bytes of headers; it may be damaged"),
        }
    }
}

impl std::error::Error for Exceeded {}
