//! Operating system and architecture, with the names that Go and the protocol use.

use std::fmt;

use muster_job::{go_architecture, go_architecture_of, go_os};

/// Operating system and architecture of a machine, written as `linux/arm64`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Platform {
    /// Operating system, such as `linux`, `windows` or `darwin`.
    pub os: String,
    /// Architecture, such as `amd64`, `arm64` or `arm`.
    pub arch: String,
}

impl Platform {
    /// Returns the platform that this program was built for.
    #[must_use]
    pub fn this() -> Self {
        Self { os: go_os().to_owned(), arch: go_architecture().to_owned() }
    }

    /// Parses the output of `uname -sm`. Returns `None` if it is not two plain words.
    #[must_use]
    pub fn from_uname(uname: &str) -> Option<Self> {
        let (os, machine) = uname.trim().split_once(' ')?;
        let arch = match machine {
            // Programs built for `arm` need at least ARMv7.
            arm if arm.starts_with("armv7") || arm.starts_with("armv8") => "arm",
            other => go_architecture_of(other),
        };
        let is_plain =
            |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (is_plain(os) && is_plain(arch)).then(|| Self { os: os.to_ascii_lowercase(), arch: arch.to_owned() })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.arch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uname_is_converted_to_go_names() {
        for (uname, expected) in [
            ("Linux x86_64\n", "linux/amd64"),
            ("Linux aarch64", "linux/arm64"),
            ("Linux armv7l", "linux/arm"),
            ("Linux armv6l", "linux/armv6l"),
            ("Linux ppc64le", "linux/ppc64le"),
            ("Linux riscv64", "linux/riscv64"),
            ("Darwin arm64", "darwin/arm64"),
        ] {
            assert_eq!(Platform::from_uname(uname).unwrap().to_string(), expected);
        }
        for uname in ["", "Linux", "Linux ", "Linux ../x", "sh: uname: not found"] {
            assert_eq!(Platform::from_uname(uname), None, "{uname}");
        }
    }
}
