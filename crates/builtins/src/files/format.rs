//! The formats of archives (job-execution 9.3).

/// How files are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A zip archive with deflate.
    Zip,
    /// A zip archive with zstd.
    ZipZstd,
    /// A tar archive with zstd.
    TarZstd,
    /// One gzip member per file, one after the other.
    Gzip,
    /// The one file, as it is.
    Raw,
}

impl Format {
    /// The format of an artifact, by its name; no name is zip.
    #[must_use]
    pub fn of_artifact(name: &str) -> Option<Self> {
        match name {
            "" => Some(Self::Zip),
            "gzip" => Some(Self::Gzip),
            "raw" => Some(Self::Raw),
            name => Self::of_archive(name),
        }
    }

    /// The format of a cache, by its name in any case (`CACHE_COMPRESSION_FORMAT`); no name is zip.
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

    /// What the file's name ends with.
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

/// How hard to compress (`ARTIFACT_COMPRESSION_LEVEL`, `CACHE_COMPRESSION_LEVEL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Not at all, where the format can.
    Fastest,
    /// A little.
    Fast,
    /// As most want it.
    Default,
    /// Harder.
    Slow,
    /// As hard as can be.
    Slowest,
}

impl Level {
    /// The level of a name; an unknown one is the default.
    #[must_use]
    pub fn from_name(name: Option<&str>) -> Self {
        Self::known(name.unwrap_or_default()).unwrap_or(Self::Default)
    }

    /// The level of a name that is one; no name is the default.
    #[must_use]
    pub fn known(name: &str) -> Option<Self> {
        match name {
            "fastest" => Some(Self::Fastest),
            "fast" => Some(Self::Fast),
            "" | "default" => Some(Self::Default),
            "slow" => Some(Self::Slow),
            "slowest" => Some(Self::Slowest),
            _ => None,
        }
    }

    /// Deflate's level; none means to store.
    pub(super) fn deflate(self) -> Option<u32> {
        match self {
            Self::Fastest => None,
            Self::Fast => Some(1),
            Self::Default => Some(5),
            Self::Slow => Some(7),
            Self::Slowest => Some(9),
        }
    }

    /// Zstandard's level.
    pub(super) fn zstd(self) -> i32 {
        match self {
            Self::Fastest | Self::Fast => 1,
            Self::Default => 3,
            Self::Slow => 7,
            Self::Slowest => 11,
        }
    }
}
