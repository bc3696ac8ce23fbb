//! Limits of an archive.

use std::fmt;

/// Limits of an archive. The defaults are far above what jobs need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of all files in bytes. Defaults to 1 TiB.
    pub bytes: u64,
    /// Maximum number of entries, including directories that only the names of entries imply. Defaults to 2,000,000.
    pub entries: u64,
    /// Maximum number of unpacked bytes per byte of the archive. Defaults to 1000.
    pub ratio: u64,
    /// Number of unpacked bytes up to which the ratio is unlimited. Defaults to 10 GiB.
    pub ratio_floor: u64,
    /// Maximum size of headers in bytes. Defaults to 256 MiB.
    ///
    /// This is a limit for the headers of all entries of a zip archive, or of each entry of a tar archive. Names of
    /// links and directories, which stay in memory, have a separate limit of the same size.
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

/// A limit was exceeded.
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
