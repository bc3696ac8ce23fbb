//! Runs Debian's `docker-registry` on a free port.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::missing;

/// User name of a registry with a login.
pub const REGISTRY_USER: &str = "tester";
/// Password of a registry with a login.
pub const REGISTRY_PASSWORD: &str = "secret word";
/// Password file, as written by `htpasswd -B`.
const HTPASSWD: &str = "tester:$2y$04$DqJrO3ZZgkOQssDRJ46XDuKQfBbmZHkiVv24WEio9Ei83EwUxqLe2\n";

/// A running registry. Dropping this value kills the process.
#[derive(Debug)]
pub struct DockerRegistry {
    process: Child,
    dir: TempDir,
    host: String,
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl DockerRegistry {
    /// Starts a registry. Returns `None` if the program cannot be run.
    ///
    /// If `requires_login` is true, only [`REGISTRY_USER`] with [`REGISTRY_PASSWORD`] has access.
    ///
    /// # Panics
    /// If the registry does not start.
    #[track_caller]
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test fails if its registry does not start")]
    pub fn start(requires_login: bool) -> Option<Self> {
        let dir = tempfile::tempdir().expect("failed to create a directory for the registry");
        let path = |name: &str| dir.path().join(name);
        let auth = if requires_login {
            std::fs::write(path("htpasswd"), HTPASSWD).expect("failed to write the registry's password file");
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", path("htpasswd").display())
        } else {
            String::new()
        };
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{auth}",
            path("data").display()
        );
        std::fs::write(path("config.yml"), config).expect("failed to write the registry's configuration");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(path("config.yml")).stdout(Stdio::null()).stderr(Stdio::piped());
        // Environment variables of this process could change the registry's configuration.
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("REGISTRY_")) {
            command.env_remove(key);
        }
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                missing(format_args!(
                    "docker-registry cannot be run ({error}); on Debian: apt-get install docker-registry"
                ));
                return None;
            }
        };
        let stderr = process.stderr.take().expect("the registry has no pipe for its log");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        let address = lines.find_map(|line| Some(line.split_once("listening on ")?.1.to_owned()));
        let host = address.as_deref().and_then(|text| text.split(['"', ' ', ',']).next());
        let host = host.expect("docker-registry ended before it listened").to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { process, dir, host })
    }

    /// Returns the address of the registry, `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the directory of the registry, with its content in `data`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}
