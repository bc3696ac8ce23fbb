//! Limits for unpacking archives, from command-line flags and `[unpack]` in `ci.toml`.

use std::ffi::OsString;
use std::num::NonZeroU64;

use muster_archive::Limits;
use muster_config::settings::UnpackSettings;

/// Limits for unpacking an archive. `None` means the default.
#[derive(Debug, Clone, Copy, Default, clap::Args, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UnpackArgs {
    /// Maximum size of all files of an archive together, in bytes [default: 1 TiB].
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<NonZeroU64>,
    /// Maximum number of entries of an archive [default: 2000000].
    #[arg(long, value_name = "NUMBER")]
    max_entries: Option<NonZeroU64>,
    /// Maximum ratio of unpacked to packed size, applied above 10 GiB [default: 1000].
    #[arg(long, value_name = "RATIO")]
    max_ratio: Option<NonZeroU64>,
    /// Maximum size of an archive's headers in bytes: of all entries of a zip, of one entry of a tar [default: 256 MiB].
    #[arg(long, value_name = "BYTES")]
    max_header_bytes: Option<NonZeroU64>,
}

impl UnpackArgs {
    pub(crate) fn limits(&self) -> Limits {
        let default = Limits::default();
        let value_or = |value: Option<NonZeroU64>, default| value.map_or(default, NonZeroU64::get);
        Limits {
            bytes: value_or(self.max_bytes, default.bytes),
            entries: value_or(self.max_entries, default.entries),
            ratio: value_or(self.max_ratio, default.ratio),
            header_bytes: value_or(self.max_header_bytes, default.header_bytes),
            ..default
        }
    }

    /// Returns the limits of a job. Errors about an exceeded limit name `ci.toml`, because only `muster ci` starts a
    /// manager with these flags.
    pub(crate) fn job_settings(&self) -> UnpackSettings {
        let value = |value: Option<NonZeroU64>| value.map_or(0, NonZeroU64::get);
        UnpackSettings {
            max_bytes: value(self.max_bytes),
            max_entries: value(self.max_entries),
            max_ratio: value(self.max_ratio),
            max_header_bytes: value(self.max_header_bytes),
            set_in_ci_toml: true,
        }
    }

    pub(crate) fn flags(&self) -> Vec<OsString> {
        let all = [
            ("--max-bytes", self.max_bytes),
            ("--max-entries", self.max_entries),
            ("--max-ratio", self.max_ratio),
            ("--max-header-bytes", self.max_header_bytes),
        ];
        let set = all.into_iter().filter_map(|(flag, value)| Some([flag.into(), value?.to_string().into()]));
        set.flatten().collect()
    }
}
