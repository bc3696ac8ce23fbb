//! Runs Debian's `docker-registry` on a free port, and pushes small artifacts to it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_fleeting::install::{DEFAULTS, LAYER_ANNOTATION};
use muster_oci::{Digest, DockerConfig, HostPlatform, Reference};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

/// User name and password of a registry with a login. The hash is bcrypt, as from `htpasswd -B`.
pub(crate) const USER: &str = "tester";
pub(crate) const PASSWORD: &str = "secret word";
const HTPASSWD: &str = "tester:$2y$04$DqJrO3ZZgkOQssDRJ46XDuKQfBbmZHkiVv24WEio9Ei83EwUxqLe2\n";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A running registry. Dropping it kills the process.
pub(crate) struct Registry {
    process: Child,
    folder: TempDir,
    /// Address of the registry, `127.0.0.1:PORT`.
    pub(crate) host: String,
    login: bool,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    /// Starts a registry.
    /// Returns `None`, after printing the reason to stderr, if the program is not installed.
    pub(crate) fn start(login: bool) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let auth = if login {
            std::fs::write(at("htpasswd"), HTPASSWD).unwrap();
            format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", at("htpasswd").display())
        } else {
            String::new()
        };
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{auth}",
            at("data").display()
        );
        std::fs::write(at("config.yml"), config).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(at("config.yml")).stdout(Stdio::null()).stderr(Stdio::piped());
        // Environment variables of this process could change the registry's configuration.
        for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("REGISTRY_")) {
            command.env_remove(key);
        }
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => {
                let why =
                    format!("docker-registry cannot be run ({error}); on Debian: apt-get install docker-registry");
                muster_test_needs::missing(why);
                return None;
            }
        };
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let host = loop {
            let line = lines.next().expect("docker-registry ended before it listened").unwrap();
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.split(['"', ' ', ',']).next().unwrap().to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { process, folder, host, login })
    }

    /// Returns docker's configuration, with the login if the registry requires one.
    pub(crate) fn credentials(&self) -> DockerConfig {
        DockerConfig::in_directory(&self.folder.path().join("docker"))
    }

    /// Returns a reference to a plugin in this registry.
    pub(crate) fn reference(&self, name: &str) -> Reference {
        Reference::parse(&format!("{}/{name}", self.host), &DEFAULTS).unwrap()
    }

    /// Returns the path at which the registry stores a blob.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.folder.path().join("data/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }

    fn request(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        if self.login { request.basic_auth(USER, Some(PASSWORD)) } else { request }
    }

    async fn push_blob(&self, repository: &str, bytes: &[u8]) -> Value {
        let http = Client::new();
        let start = http.post(format!("http://{}/v2/{repository}/blobs/uploads/", self.host));
        let answer = self.request(start).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        let mut to = reqwest::Url::parse(answer.headers()["location"].to_str().unwrap()).unwrap();
        let digest = Digest::of(bytes).to_string();
        to.query_pairs_mut().append_pair("digest", &digest);
        let answer = self.request(http.put(to).body(bytes.to_owned())).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
        json!({"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": digest, "size": bytes.len()})
    }

    async fn push_manifest(&self, repository: &str, tag: Option<&str>, kind: &str, manifest: &Value) -> Value {
        let bytes = serde_json::to_vec(manifest).unwrap();
        let digest = Digest::of(&bytes).to_string();
        let url = format!("http://{}/v2/{repository}/manifests/{}", self.host, tag.unwrap_or(&digest));
        let size = bytes.len();
        let answer =
            self.request(Client::new().put(url).header("content-type", kind).body(bytes)).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED, "{}", answer.text().await.unwrap());
        json!({"mediaType": kind, "digest": digest, "size": size})
    }

    /// Pushes a plugin with its tags, as publishers do. Returns the digest of its archive.
    pub(crate) async fn push(&self, repository: &str, version: &str, tags: &[&str], archive: &[u8]) -> String {
        let this = HostPlatform::this();
        let platform = json!({"os": this.os, "architecture": this.architecture});
        self.push_for(repository, version, tags, archive, &[platform]).await
    }

    /// Pushes a plugin for some platforms, all with the same archive.
    pub(crate) async fn push_for(
        &self,
        repository: &str,
        version: &str,
        tags: &[&str],
        archive: &[u8],
        platforms: &[Value],
    ) -> String {
        let config = self.push_blob(repository, b"{}").await;
        let mut layer = self.push_blob(repository, archive).await;
        layer["annotations"] = json!({ LAYER_ANNOTATION: version });
        let mut entries = Vec::new();
        for platform in platforms {
            // Each platform needs a different manifest.
            let manifest = json!({
                "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
                "annotations": {"platform": platform.to_string()},
            });
            let mut entry = self.push_manifest(repository, None, MANIFEST, &manifest).await;
            entry["platform"] = platform.clone();
            entries.push(entry);
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        for tag in tags {
            self.push_manifest(repository, Some(tag), INDEX, &index).await;
        }
        layer["digest"].as_str().unwrap().to_owned()
    }

    /// Makes a tag point to the image of a single platform.
    pub(crate) async fn push_plain_image(&self, repository: &str, tag: &str) {
        let config = self.push_blob(repository, b"{}").await;
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []});
        self.push_manifest(repository, Some(tag), MANIFEST, &manifest).await;
    }
}

/// Returns a compressed archive with one executable `plugin/plugin`.
pub(crate) fn archive(content: &[u8]) -> Vec<u8> {
    archive_of(&[("plugin/plugin", content)])
}

/// Returns a compressed archive of executables with these names, which may be invalid.
pub(crate) fn archive_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    packed.write_all(&builder.into_inner().unwrap()).unwrap();
    packed.finish().unwrap()
}
