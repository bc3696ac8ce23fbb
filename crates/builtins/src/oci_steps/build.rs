//! Builds an image for each platform. Each input file or directory becomes one layer. Common layers come first.
//!
//! The layers are stored in unnamed files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use muster_job::error_chain;
use muster_oci::{
    Blob, BuiltIndex, Image, PackError, PackOptions, Platform, RegistryError, Repository, ResponseError, pack,
    write_layout,
};
use muster_steps::bundled::BundledCall;
use muster_steps::failure::PortError;
use muster_steps::stop::StopToken;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{OciSteps, Output, annotations, repository, text};
use crate::step_source::{LAYER_TYPE, oci};

const ARCHIVE: &str = "function-image.tar";
const MAX_BYTES: u64 = 1024 * 1024 * 1024;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Common {
    files: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PlatformFiles {
    files: BTreeMap<String, String>,
    #[serde(rename = "os.version")]
    os_version: String,
    #[serde(rename = "os.features")]
    os_features: Vec<String>,
    variant: String,
    features: Vec<String>,
}

/// Source of a layer, and its destination in the image.
type LayerPaths = (PathBuf, PathBuf);

struct ImageFiles {
    platform: Platform,
    layers: Vec<LayerPaths>,
}

/// Direction of a file mapping: sources to destinations in `step/oci/build`, the reverse in `function/oci/build`.
#[derive(Clone, Copy)]
enum Mapping {
    SourceToDestination,
    DestinationToSource,
}

pub(super) async fn build_and_publish(steps: &OciSteps, call: &BundledCall<'_>, stop: &StopToken) -> Output {
    let (host, path, tag) = (text(call, "registry")?, text(call, "repository")?, text(call, "tag")?);
    let repository = repository(&format!("{host}/{path}"))?;
    let images = images(call, Mapping::SourceToDestination)?;
    let registry = steps.registry(repository.clone(), call).await?;
    let reference = format!("{repository}:{tag}");
    match registry.resolve(&tag).await {
        Err(RegistryError::NotFound { .. }) => {}
        Ok(_) | Err(RegistryError::InvalidResponse { source: ResponseError::NotAnIndex, .. }) => {
            return Err(PortError::Failed(format!("image already published: {reference}; choose another tag")));
        }
        Err(error) => return Err(oci::failed(&error)),
    }
    let built = build_index(images, call.work_dir, stop).await?;
    let digest = built.push(&registry, &[&tag]).await.map_err(|error| oci::failed(&error))?;
    (call.print)(&format!("published step image={reference}"));
    let digest = digest.to_string();
    let Repository { registry, path } = repository;
    let outputs = json!({
        "registry": registry,
        "repository": path,
        "tag": tag,
        "ref": reference,
        "digest": {
            "algorithm": "sha256",
            "hash": digest.strip_prefix("sha256:").unwrap_or(&digest),
            "value": digest,
        },
    });
    Ok(outputs.as_object().cloned().unwrap_or_default())
}

pub(super) async fn build_archive(call: &BundledCall<'_>, stop: &StopToken) -> Output {
    let version = text(call, "version")?;
    if super::version::ImageVersion::parse(&version).is_none() {
        return Err(PortError::Failed(format!("{version:?} is not a valid version; use N.N.N or N.N.N-SUFFIX")));
    }
    let built = build_index(images(call, Mapping::DestinationToSource)?, call.work_dir, stop).await?;
    let path = call.work_dir.join(ARCHIVE);
    let (work_dir, stop) = (call.work_dir.to_owned(), stop.clone());
    let written = tokio::task::spawn_blocking(move || {
        // Replaces an existing file or symbolic link.
        let mut file = tempfile::Builder::new().prefix(ARCHIVE).tempfile_in(&work_dir)?;
        write_layout(io::BufWriter::new(StoppableWriter { file: file.as_file_mut(), stop: &stop }), &built, &version)?;
        file.persist(work_dir.join(ARCHIVE)).map(drop).map_err(|error| error.error)
    });
    let written = written.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    written.map_err(|error| PortError::Failed(format!("failed to write {}: {error}", path.display())))?;
    (call.print)(&format!("built function archive={ARCHIVE}"));
    Ok(serde_json::Map::new())
}

/// Returns the images of the inputs `common` and `platforms`.
fn images(call: &BundledCall<'_>, mapping: Mapping) -> Result<Vec<ImageFiles>, PortError> {
    let input = |name: &str| call.inputs.get(name).cloned().unwrap_or(Value::Null);
    let invalid = |name: &str, error: &dyn std::fmt::Display| PortError::Failed(format!("{name} input: {error}"));
    let common: Common = serde_json::from_value(input("common")).map_err(|error| invalid("common", &error))?;
    let platforms: BTreeMap<String, PlatformFiles> =
        serde_json::from_value(input("platforms")).map_err(|error| invalid("platforms", &error))?;
    if platforms.is_empty() {
        return Err(invalid(
            "platforms",
            &"must have at least one platform, such as `linux/amd64` or `generic/generic`",
        ));
    }
    let common = layer_paths(&common.files, call.work_dir, mapping).map_err(|error| invalid("common", &error))?;
    let image = |(name, own): (String, PlatformFiles)| {
        let parts: Vec<&str> = name.split('/').map(str::trim).collect();
        let [os, architecture] = parts.as_slice() else {
            return Err(invalid("platforms", &format!("invalid platform os/arch: {name}")));
        };
        let layers = layer_paths(&own.files, call.work_dir, mapping).map_err(|error| invalid("platforms", &error))?;
        let PlatformFiles { os_version, os_features, variant, features, .. } = own;
        let platform = Platform {
            os: (*os).to_owned(),
            architecture: (*architecture).to_owned(),
            variant,
            os_version,
            os_features,
            features,
        };
        Ok(ImageFiles { platform, layers: common.iter().cloned().chain(layers).collect() })
    };
    platforms.into_iter().map(image).collect()
}

fn layer_paths(files: &BTreeMap<String, String>, work_dir: &Path, mapping: Mapping) -> Result<Vec<LayerPaths>, String> {
    let paths = |(key, value): (&String, &String)| {
        let (source, destination) = match mapping {
            Mapping::SourceToDestination => (key.trim(), value.trim()),
            Mapping::DestinationToSource => (value.trim(), key.trim()),
        };
        if source.is_empty() || destination.is_empty() {
            return Err(format!("empty source or destination path: {key:?}: {value:?}"));
        }
        // A leading slash means the root of the image.
        let destination = destination.trim_start_matches('/');
        if destination.split('/').any(|part| part == "..") {
            return Err(format!("{destination:?} is outside of the image"));
        }
        let destination = if destination.is_empty() { "." } else { destination };
        Ok((work_dir.join(source), PathBuf::from(destination)))
    };
    files.iter().map(paths).collect()
}

/// Packs the files into layers in `temp_dir`, and builds the index of the images.
async fn build_index(images: Vec<ImageFiles>, temp_dir: &Path, stop: &StopToken) -> Result<BuiltIndex, PortError> {
    let (temp_dir, stop) = (temp_dir.to_owned(), stop.clone());
    let packed = tokio::task::spawn_blocking(move || {
        let mut packer = Packer { temp_dir, stop, layers: HashMap::new(), left: MAX_BYTES };
        let image = |ImageFiles { platform, layers }: ImageFiles| {
            let layers = layers.into_iter().map(|paths| packer.layer(paths)).collect::<Result<_, _>>()?;
            Ok(Image { platform, layers })
        };
        images.into_iter().map(image).collect::<Result<Vec<_>, _>>()
    });
    let panicked = |error| Err(PortError::System(format!("packing the files panicked: {error}")));
    Ok(BuiltIndex::new(LAYER_TYPE, packed.await.unwrap_or_else(panicked)?, &annotations()))
}

/// Packs each layer once, for all images.
struct Packer {
    temp_dir: PathBuf,
    stop: StopToken,
    layers: HashMap<LayerPaths, Blob>,
    /// Maximum number of bytes of the remaining layers.
    left: u64,
}

impl Packer {
    fn layer(&mut self, paths: LayerPaths) -> Result<Blob, PortError> {
        if let Some(layer) = self.layers.get(&paths) {
            return Ok(layer.clone());
        }
        let (source, destination) = paths.clone();
        let is_stopped = || self.stop.cause().is_some();
        let options = PackOptions { temp_dir: &self.temp_dir, limit: self.left, is_stopped: &is_stopped };
        let layer = pack(&[(destination, source)], options).map_err(|error| match (error, self.stop.cause()) {
            (PackError::Stopped, Some(cause)) => PortError::Stopped(cause),
            (PackError::TooLarge { limit, .. }, _) if limit == self.left => {
                let limit = MAX_BYTES / 1024 / 1024;
                PortError::Failed(format!("the layers have more than {limit} MiB; make the step smaller"))
            }
            (error, _) => PortError::Failed(error_chain(&error)),
        })?;
        self.left -= layer.size();
        self.layers.insert(paths, layer.clone());
        Ok(layer)
    }
}

/// File whose writes fail after a stop.
struct StoppableWriter<'f> {
    file: &'f mut File,
    stop: &'f StopToken,
}

impl Write for StoppableWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.cause().is_some() { Err(io::Error::other("stopped")) } else { self.file.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
