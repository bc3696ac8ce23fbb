//! Formats of archives (docs/spec/job-execution.md, section 9.3).

/// Format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Zip archive with deflate.
    Zip,
    /// Zip archive with zstd.
    ZipZstd,
    /// Tar archive with zstd.
    TarZstd,
    /// Concatenated gzip members, one per file.
    Gzip,
    /// Single file, without compression.
    Raw,
}

impl Format {
    /// Returns the artifact format with this name. An empty name means zip.
    #[must_use]
    pub fn of_artifact(name: &str) -> Option<Self> {
        match name {
            "" => Some(Self::Zip),
            "gzip" => Some(Self::Gzip),
            "raw" => Some(Self::Raw),
            name => Self::of_archive(name),
        }
    }

    /// Returns the format of `CACHE_COMPRESSION_FORMAT`. Case is ignored; an empty name means zip.
    #[must_use]
    pub fn of_cache(name: &str) -> Option<Self> {
        if name.is_empty() { Some(Self::Zip) } else { Self::of_archive(&name.to_ascii_lowercase()) }
    }

    fn of_archive(name: &str) -> Option<Self> {
        match name {
            "zip" => Some(Self::Zip),
            "zipzstd" => Some(Self::ZipZstd),
            "tarzstd" => Some(Self::TarZstd),
            _ => None,
        }
    }

    /// Returns the suffix of file names.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Zip | Self::ZipZstd => ".zip",
            Self::TarZstd => ".tar.zst",
            Self::Gzip => ".gz",
            Self::Raw => "",
        }
    }
}

/// Compression level of `ARTIFACT_COMPRESSION_LEVEL` and `CACHE_COMPRESSION_LEVEL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// No compression with deflate, low compression with zstd.
    Fastest,
    /// Low compression.
    Fast,
    /// Medium compression.
    Default,
    /// High compression.
    Slow,
    /// Maximum compression.
    Slowest,
}

impl Level {
    /// Returns the level with this name. `None` and unknown names mean the default.
    #[must_use]
    pub fn from_name(name: Option<&str>) -> Self {
        Self::parse(name.unwrap_or_default()).unwrap_or(Self::Default)
    }

    /// Returns the level with this name, if it is known. An empty name means the default.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "fastest" => Some(Self::Fastest),
            "fast" => Some(Self::Fast),
            "" | "default" => Some(Self::Default),
            "slow" => Some(Self::Slow),
            "slowest" => Some(Self::Slowest),
            _ => None,
        }
    }

    /// Returns the level for deflate. `None` means no compression.
    pub(super) fn deflate(self) -> Option<u32> {
        match self {
            Self::Fastest => None,
            Self::Fast => Some(1),
            Self::Default => Some(5),
            Self::Slow => Some(7),
            Self::Slowest => Some(9),
        }
    }

    pub(crate) fn zstd(self) -> i32 {
        match self {
            Self::Fastest | Self::Fast => 1,
            Self::Default => 3,
            Self::Slow => 7,
            Self::Slowest => 11,
        }
    }
}
