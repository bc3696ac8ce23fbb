//! The system ID, which distinguishes the managers of one runner.

use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rand::Rng;
use rand::distr::Alphanumeric;
use ring::hmac;

/// Message of the HMAC, whose key is the machine's ID. The hash does not reveal the ID.
const APPLICATION: &[u8] = b"gitlab-runner";
const MACHINE_ID_FILES: [&str; 2] = ["/var/lib/dbus/machine-id", "/etc/machine-id"];
const FILE: &str = ".runner_system_id";
const DIGITS: usize = 12;

/// Returns the ID in `<directory>/.runner_system_id`, or stores a new one.
///
/// A new ID is derived from the machine's ID (`s_`), or random if the machine has none (`r_`). If it cannot be stored, a warning is logged.
#[must_use]
pub fn system_id(directory: &Path) -> String {
    let path = directory.join(FILE);
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    if is_valid(stored.trim()) {
        return stored.trim().to_owned();
    }
    let id = derive_id(&machine_id());
    match store(directory, &path, &id) {
        Ok(()) => tracing::info!(system_id = id, "Created missing unique system ID"),
        Err(error) => tracing::warn!(
            %error,
            system_id = id,
            state_file = %path.display(),
            "failed to store the system ID; write it to state_file so that the coordinator recognizes this manager"
        ),
    }
    id
}

/// Returns the ID in `directory` if it was derived from the ID of another machine (check C027).
#[must_use]
pub(crate) fn id_of_other_machine(directory: &Path) -> Option<String> {
    let stored = std::fs::read_to_string(directory.join(FILE)).ok()?;
    is_from_other_machine(stored.trim(), &machine_id()).then(|| stored.trim().to_owned())
}

/// Returns whether an ID was derived from the ID of another machine. A random ID was not.
fn is_from_other_machine(id: &str, machine: &str) -> bool {
    is_valid(id) && id.starts_with("s_") && !machine.trim().is_empty() && id != derive_id(machine)
}

fn machine_id() -> String {
    MACHINE_ID_FILES.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default()
}

/// Derives a system ID from the machine's ID. Returns a random one if the machine has no ID.
fn derive_id(machine: &str) -> String {
    let machine = machine.trim();
    if machine.is_empty() {
        let random: String = rand::rng().sample_iter(Alphanumeric).take(DIGITS).map(char::from).collect();
        return format!("r_{random}");
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, machine.as_bytes());
    let digest = hmac::sign(&key, APPLICATION);
    let digits: String = digest.as_ref().iter().take(DIGITS / 2).map(|byte| format!("{byte:02x}")).collect();
    format!("s_{digits}")
}

fn store(directory: &Path, path: &Path, id: &str) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path);
    file?.write_all(id.as_bytes())
}

fn is_valid(id: &str) -> bool {
    let rest = id.strip_prefix("s_").or_else(|| id.strip_prefix("r_"));
    rest.is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_id_is_kept_and_invalid_one_replaced() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".runner_system_id");
        let id = system_id(home.path());
        assert!(is_valid(&id), "{id}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), id);
        std::fs::write(&file, "r_0123456789aB\n").unwrap();
        assert_eq!(system_id(home.path()), "r_0123456789aB");
        std::fs::write(&file, "nonsense").unwrap();
        assert!(is_valid(&system_id(home.path())));
    }

    #[test]
    fn system_id_equals_that_of_gitlab_runner() {
        assert_eq!(derive_id("00112233445566778899aabbccddeeff\n"), "s_a25ec89402b3");
        let random = derive_id("");
        assert!(random.starts_with("r_") && is_valid(&random) && random != derive_id(" "), "{random}");
    }

    #[test]
    fn system_id_of_other_machine_is_detected() {
        let machine = "00112233445566778899aabbccddeeff\n";
        assert!(is_from_other_machine("s_a25ec89402b4", machine));
        assert!(!is_from_other_machine("s_a25ec89402b3", machine));
        assert!(!is_from_other_machine("r_a25ec89402b4", machine), "a random ID is not derived from a machine");
        assert!(!is_from_other_machine("s_a25ec89402b4", ""), "a machine without an ID cannot detect another one");
    }

    #[test]
    fn system_id_is_valid_even_if_it_cannot_be_stored() {
        assert!(is_valid(&system_id(Path::new("/proc/no such folder"))));
    }
}
