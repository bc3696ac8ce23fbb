//! Runs OpenBao, the fork of HashiCorp Vault with the same API, unsealed and in memory.

#![expect(clippy::expect_used, reason = "a test fails if its server cannot be prepared")]

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use tempfile::TempDir;

use crate::variable;

const ROOT_TOKEN: &str = "root";
/// Maximum number of attempts to start the server, each on another port.
const MAX_START_ATTEMPTS: usize = 10;
const READY: &str = "Development mode should NOT be used";
/// DER prefix of a public key on the curve P-256, before the point.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A running server. Dropping this value kills the server.
#[derive(Debug)]
pub struct OpenBao {
    process: Child,
    program: OsString,
    /// URL of the server.
    pub url: String,
    dir: TempDir,
    /// Key that signs the ID tokens of jobs in place of GitLab's.
    key: Vec<u8>,
}

impl Drop for OpenBao {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl OpenBao {
    /// Starts a server without TLS. Returns `None` if the program is missing.
    #[track_caller]
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with TLS. Its certificate is signed by the authority of [`Self::ca_file`].
    #[track_caller]
    #[must_use]
    pub fn start_with_tls() -> Option<Self> {
        Self::start_with(&["-dev-tls"])
    }

    #[track_caller]
    fn start_with(arguments: &[&str]) -> Option<Self> {
        let program = variable("MUSTER_TEST_OPENBAO", "bao, the executable of OpenBao")?;
        let started = (0..MAX_START_ATTEMPTS).find_map(|_| Self::start_once(&program, arguments));
        Some(started.expect("OpenBao does not start"))
    }

    fn start_once(program: &OsStr, arguments: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().expect("failed to create a directory for OpenBao");
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = address.expect("no port is free");
        let mut command = Command::new(program);
        command.args(["server", "-dev", "-dev-no-store-token", &format!("-dev-root-token-id={ROOT_TOKEN}")]);
        command.arg(format!("-dev-listen-address={address}")).args(arguments);
        if !arguments.is_empty() {
            command.arg(format!("-dev-tls-cert-dir={}", dir.path().display()));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("OpenBao cannot be run");
        let output = process.stdout.take().expect("OpenBao has no pipe for its output");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let is_ready = lines.any(|line| line.contains(READY));
        std::thread::spawn(move || lines.for_each(drop));
        let scheme = if arguments.is_empty() { "http" } else { "https" };
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let key = key.expect("the system has no random bytes").as_ref().to_vec();
        let server = Self { process, program: program.to_owned(), url: format!("{scheme}://{address}"), dir, key };
        is_ready.then_some(server)
    }

    /// Returns the path of the authority's certificate, for a server with TLS.
    #[must_use]
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("vault-ca.pem")
    }

    /// Runs a subcommand of `bao` as a client of the server. `input` is its standard input.
    ///
    /// # Panics
    /// If the command fails.
    pub fn run(&self, arguments: &[&str], input: &str) {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("BAO_ADDR", &self.url).env("BAO_TOKEN", ROOT_TOKEN);
        if self.url.starts_with("https") {
            command.env("BAO_CACERT", self.ca_file());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("OpenBao's command cannot be run");
        // The pipe is closed at the end of the statement. Writing fails if the command does not read its input.
        let _ = process.stdin.take().map(|mut pipe| pipe.write_all(input.as_bytes()));
        let output = process.wait_with_output().expect("OpenBao's command does not end");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Enables the login with ID tokens at `auth/PATH`. Jobs of `group/project` can log in with the role `ci`, and may
    /// then read what `policy` allows.
    ///
    /// `namespace` is empty for the root namespace.
    ///
    /// # Panics
    /// If the server rejects a setting.
    pub fn allow_login(&self, namespace: &str, path: &str, policy: &str) {
        let namespace = format!("-namespace={namespace}");
        let write = |path: &str, content: &str| self.run(&["write", &namespace, path, "-"], content);
        self.run(&["auth", "enable", &namespace, &format!("-path={path}"), "jwt"], "");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.key, &SystemRandom::new());
        let pair = pair.expect("the key is not valid");
        let der = STANDARD.encode([&P256_PREFIX, pair.public_key().as_ref()].concat());
        let pem = format!("-----BEGIN PUBLIC KEY-----\\n{der}\\n-----END PUBLIC KEY-----");
        write(&format!("auth/{path}/config"), &format!(r#"{{"jwt_validation_pubkeys":["{pem}"]}}"#));
        self.run(&["policy", "write", &namespace, "ci", "-"], policy);
        let role = format!(
            r#"{{"role_type":"jwt","user_claim":"sub","bound_audiences":["{}"],"token_policies":["ci"],
            "bound_claims":{{"project_path":"group/project"}}}}"#,
            self.url
        );
        write(&format!("auth/{path}/role/ci"), &role);
    }

    /// Returns an ID token of a job of `project`, as GitLab would sign it.
    ///
    /// # Panics
    /// If the system has no random bytes.
    #[must_use]
    pub fn id_token(&self, project: &str) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let claims = format!(
            r#"{{"iss":"https://gitlab.example","sub":"project_path:{project}:ref_type:branch:ref:main","aud":"{}",
            "project_path":"{project}","iat":{now},"nbf":{},"exp":{}}}"#,
            self.url,
            now.saturating_sub(60),
            now + 3600
        );
        let parts = [r#"{"alg":"ES256","typ":"JWT"}"#, &claims].map(|part| URL_SAFE_NO_PAD.encode(part));
        let (text, random) = (parts.join("."), SystemRandom::new());
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.key, &random);
        let signature = pair.expect("the key is not valid").sign(&random, text.as_bytes());
        let signature = signature.expect("the system has no random bytes");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}
