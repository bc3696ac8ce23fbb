//! Runs Debian's `docker-registry` on a free port, and pushes small artifacts to it.

use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use muster_fleeting::install::{DEFAULTS, LAYER_ANNOTATION};
use muster_oci::{Digest, DockerConfig, HostPlatform, Reference};
use muster_test_prerequisites::DockerRegistry;
pub(crate) use muster_test_prerequisites::{REGISTRY_PASSWORD as PASSWORD, REGISTRY_USER as USER};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub(crate) struct Registry {
    process: DockerRegistry,
    /// Address of the registry, `127.0.0.1:PORT`.
    pub(crate) host: String,
    requires_login: bool,
}

impl Registry {
    /// Starts a registry.
    /// Returns `None`, after printing the reason to stderr, if the program is not installed.
    pub(crate) fn start(requires_login: bool) -> Option<Self> {
        let process = DockerRegistry::start(requires_login)?;
        let host = process.host().to_owned();
        Some(Self { process, host, requires_login })
    }

    /// Returns docker's configuration for tests of this registry.
    /// It contains no login until a test stores one.
    pub(crate) fn docker_config(&self) -> DockerConfig {
        DockerConfig::in_directory(&self.process.dir().join("docker"))
    }

    pub(crate) fn reference(&self, name: &str) -> Reference {
        Reference::parse(&format!("{}/{name}", self.host), &DEFAULTS).unwrap()
    }

    /// Returns the path at which the registry stores a blob.
    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.process.dir().join("data/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }

    fn with_login(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        if self.requires_login { request.basic_auth(USER, Some(PASSWORD)) } else { request }
    }

    async fn push_blob(&self, repository: &str, bytes: &[u8]) -> Value {
        let http = Client::new();
        let start = http.post(format!("http://{}/v2/{repository}/blobs/uploads/", self.host));
        let answer = self.with_login(start).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
        let mut upload = reqwest::Url::parse(answer.headers()["location"].to_str().unwrap()).unwrap();
        let digest = Digest::of(bytes).to_string();
        upload.query_pairs_mut().append_pair("digest", &digest);
        let answer = self.with_login(http.put(upload).body(bytes.to_owned())).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
        json!({"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": digest, "size": bytes.len()})
    }

    async fn push_manifest(&self, repository: &str, tag: Option<&str>, media_type: &str, manifest: &Value) -> Value {
        let bytes = serde_json::to_vec(manifest).unwrap();
        let digest = Digest::of(&bytes).to_string();
        let url = format!("http://{}/v2/{repository}/manifests/{}", self.host, tag.unwrap_or(&digest));
        let size = bytes.len();
        let answer = self
            .with_login(Client::new().put(url).header("content-type", media_type).body(bytes))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED, "{}", answer.text().await.unwrap());
        json!({"mediaType": media_type, "digest": digest, "size": size})
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
