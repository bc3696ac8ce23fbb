//! Go's names of operating systems and architectures, which GitLab, registries and container engines use.

/// Returns Go's name of the operating system of this program, such as `linux` or `darwin`.
#[must_use]
pub fn go_os() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

/// Returns Go's name of the architecture of this program, such as `amd64` or `arm64`.
#[must_use]
pub fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        other => go_architecture_of(other),
    }
}

/// Converts an architecture of Rust or `uname` to Go's name. Other names stay unchanged.
#[must_use]
pub fn go_architecture_of(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "x86" | "i386" | "i486" | "i586" | "i686" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_the_names_of_go() {
        for (name, expected) in [("x86_64", "amd64"), ("i686", "386"), ("aarch64", "arm64"), ("riscv64", "riscv64")] {
            assert_eq!(go_architecture_of(name), expected);
        }
    }
}
