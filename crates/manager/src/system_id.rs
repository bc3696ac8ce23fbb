//! The manager's system id: tells managers of one runner apart (runner-api 1.2).

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rand::Rng;
use rand::distr::Alphanumeric;

/// The id in `<directory>/.runner_system_id`; where there is none, or nonsense, a new random one is stored there.
///
/// # Errors
/// Where the file cannot be written.
pub fn system_id(directory: &Path) -> io::Result<String> {
    let path = directory.join(".runner_system_id");
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    if is_valid(stored.trim()) {
        return Ok(stored.trim().to_owned());
    }
    let random: String = rand::rng().sample_iter(Alphanumeric).take(12).map(char::from).collect();
    let id = format!("r_{random}");
    std::fs::create_dir_all(directory)?;
    let file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path);
    file?.write_all(id.as_bytes())?;
    Ok(id)
}

fn is_valid(id: &str) -> bool {
    let rest = id.strip_prefix("s_").or_else(|| id.strip_prefix("r_"));
    rest.is_some_and(|rest| rest.len() == 12 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_and_nonsense_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let id = system_id(home.path()).unwrap();
        assert!(is_valid(&id), "{id}");
        assert_eq!(system_id(home.path()).unwrap(), id);
        std::fs::write(home.path().join(".runner_system_id"), "nonsense").unwrap();
        assert_ne!(system_id(home.path()).unwrap(), "nonsense");
    }
}
