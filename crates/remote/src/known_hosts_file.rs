//! Reads the host keys of a machine from a file in the format of OpenSSH's `known_hosts`.
//!
//! Patterns, and lines with the marker `@cert-authority`, match no machine. The marker `@revoked` applies to all
//! machines.

use std::path::{Path, PathBuf};

use russh::keys::known_hosts::known_host_keys_path;
use russh::keys::{HashAlg, parse_public_key_base64};

/// Host key of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKey {
    /// Type, such as `ssh-ed25519`.
    pub key_type: String,
    /// Fingerprint, such as `SHA256:...`.
    pub fingerprint: String,
}

/// The file cannot be read, or a key in it is invalid.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the host keys in {}: {cause}; the file must have the format of OpenSSH's known_hosts", path.display())]
pub struct KnownHostsFileError {
    path: PathBuf,
    cause: String,
}

/// Returns the host keys of a machine that are not revoked. A missing file contains no keys.
///
/// # Errors
/// If the file cannot be read, or if a key of the machine is invalid.
pub async fn read(path: &Path, host: &str, port: u16) -> Result<Vec<HostKey>, KnownHostsFileError> {
    let failed = |cause: String| KnownHostsFileError { path: path.to_owned(), cause };
    match tokio::fs::File::open(path).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        open => drop(open.map_err(|error| failed(error.to_string()))?),
    }
    let text = tokio::fs::read_to_string(path).await.map_err(|error| failed(error.to_string()))?;
    let revoked = revoked(&text);
    let (path, host) = (path.to_owned(), host.to_owned());
    let read = tokio::task::spawn_blocking(move || known_host_keys_path(&host, port, path)).await;
    let keys = read.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    Ok(keys
        .into_iter()
        .map(|(_, key)| HostKey {
            key_type: key.algorithm().as_str().to_owned(),
            fingerprint: key.fingerprint(HashAlg::Sha256).to_string(),
        })
        .filter(|key| !revoked.contains(&key.fingerprint))
        .collect())
}

fn revoked(text: &str) -> Vec<String> {
    let keys = text.lines().filter_map(|line| line.trim_start().strip_prefix("@revoked")?.split_whitespace().nth(2));
    let keys = keys.filter_map(|key| parse_public_key_base64(key).ok());
    keys.map(|key| key.fingerprint(HashAlg::Sha256).to_string()).collect()
}

/// Returns the name under which the file lists a machine.
#[must_use]
pub fn entry(host: &str, port: u16) -> String {
    if port == 22 { host.to_owned() } else { format!("[{host}]:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHAUHvegra7ugVhhfPVRPkqlnviwz5ODYklLOAHGi/4W";
    const FINGERPRINT: &str = "SHA256:ci9GBMAfnp72mvXOdmdcvNjJNXI/dLLcpO1b46QVwlY";
    /// Line of `ssh-keygen -H` for `[example.org]:2222`.
    const HASHED: &str = "|1|oLe8NgEFvRlb44U1cqUqYDE+fts=|fyYsZ3vKJpcopmJVggqCnrTyRpM= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHAUHvegra7ugVhhfPVRPkqlnviwz5ODYklLOAHGi/4W";

    #[tokio::test]
    async fn keys_are_found_by_plain_and_hashed_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known_hosts");
        assert_eq!(read(&path, "example.org", 22).await.unwrap(), [], "a missing file must be like an empty file");
        std::fs::write(&path, format!("# a comment\nother,vm {KEY}\n@cert-authority gone {KEY}\n{HASHED}\n")).unwrap();
        let found = [HostKey { key_type: "ssh-ed25519".to_owned(), fingerprint: FINGERPRINT.to_owned() }];
        assert_eq!(read(&path, "vm", 22).await.unwrap(), found);
        assert_eq!(read(&path, "example.org", 2222).await.unwrap(), found);
        for (host, port) in [("vm", 2222), ("example.org", 22), ("gone", 22)] {
            assert_eq!(read(&path, host, port).await.unwrap(), [], "{host}:{port}");
        }
    }

    #[tokio::test]
    async fn revoked_key_is_not_returned_although_a_plain_line_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("known_hosts");
        std::fs::write(&path, format!("vm {KEY}\n@revoked * {KEY}\n")).unwrap();
        assert_eq!(read(&path, "vm", 22).await.unwrap(), []);
    }

    #[tokio::test]
    async fn unreadable_file_or_key_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = read(dir.path(), "vm", 22).await.unwrap_err().to_string();
        assert!(error.contains("failed to read the host keys in") && error.contains("known_hosts"), "{error}");
        let path = dir.path().join("known_hosts");
        std::fs::write(&path, "vm ssh-ed25519 AAAA\n").unwrap();
        read(&path, "vm", 22).await.unwrap_err();
    }
}
