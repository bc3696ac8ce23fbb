//! Bundled steps that build, publish and promote steps in OCI registries (docs/spec/steps.md, section 2.9).
//!
//! | Name | Action |
//! |---|---|
//! | `step/oci/build` | builds an image and publishes it under a new tag |
//! | `step/oci/promote` | copies an image to the tag of a version, and moves the tags of the version's series |
//! | `function/oci/build` | builds an image into `function-image.tar` |
//! | `function/oci/publish` | publishes such a file under its version, and moves the tags of the version's series |

mod build;
mod promote;
mod version;

use std::collections::BTreeMap;

use async_trait::async_trait;
use muster_job::error_chain;
use muster_oci::{Defaults, Registry, Repository};
use muster_steps::bundled::{BundledCall, BundledSteps};
use muster_steps::definition::{Kind, Outputs, Parameter, Spec};
use muster_steps::expression::to_text;
use muster_steps::failure::PortError;
use muster_steps::stop::StopToken;
use serde_json::{Map, Value, json};

use crate::step_source::{StepFetcher, oci};

type Output = Result<Map<String, Value>, PortError>;

pub(crate) struct OciSteps {
    /// Source of certificates and credentials.
    fetcher: StepFetcher,
}

impl OciSteps {
    pub(crate) fn new(fetcher: StepFetcher) -> Self {
        Self { fetcher }
    }

    /// Returns a client of a repository. The client uses the job's credentials.
    async fn registry(&self, repository: Repository, call: &BundledCall<'_>) -> Result<Registry, PortError> {
        oci::open(&self.fetcher, repository, call.lookup).await
    }

    async fn run_step(&self, call: &BundledCall<'_>, stop: &StopToken) -> Output {
        match call.name {
            "step/oci/build" => build::build_and_publish(self, call, stop).await,
            "step/oci/promote" => promote::promote(self, call).await,
            "function/oci/build" => build::build_archive(call, stop).await,
            _ => promote::publish_archive(self, call).await,
        }
    }
}

#[async_trait]
impl BundledSteps for OciSteps {
    fn spec(&self, name: &str) -> Option<Spec> {
        let required = |kind| Parameter { kind, default: None, is_sensitive: false };
        let optional = |kind, default| Parameter { kind, default: Some(default), is_sensitive: false };
        let string = |name: &str| (name.to_owned(), required(Kind::String));
        let files = |name: &str| (name.to_owned(), optional(Kind::Struct, json!({})));
        let (inputs, outputs) = match name {
            "step/oci/build" => {
                let image = ["registry", "repository", "tag"].map(string);
                let digest = ("digest".to_owned(), required(Kind::Struct));
                let outputs = image.clone().into_iter().chain([string("ref"), digest]).collect();
                (image.into_iter().chain([files("common"), files("platforms")]).collect(), outputs)
            }
            "step/oci/promote" => {
                (["from_image", "to_registry", "to_repository", "to_version"].map(string).into(), Vec::new())
            }
            "function/oci/build" => (vec![string("version"), files("common"), files("platforms")], Vec::new()),
            "function/oci/publish" => (["archive", "to_repository"].map(string).into(), Vec::new()),
            _ => return None,
        };
        Some(Spec { inputs: inputs.into_iter().collect(), outputs: Outputs::Declared(outputs.into_iter().collect()) })
    }

    async fn run(&self, call: BundledCall<'_>, stop: &StopToken) -> Output {
        tokio::select! {
            biased;
            cause = stop.stopped() => Err(PortError::Stopped(cause)),
            output = self.run_step(&call, stop) => output,
        }
    }
}

/// Returns a trimmed text input, which must not be empty.
fn text(call: &BundledCall<'_>, name: &str) -> Result<String, PortError> {
    let text = call.inputs.get(name).map(to_text).unwrap_or_default().trim().to_owned();
    if text.is_empty() {
        return Err(PortError::Failed(format!("{name} is required")));
    }
    Ok(text)
}

fn repository(name: &str) -> Result<Repository, PortError> {
    let defaults = Defaults { registry: "docker.io", group: "library" };
    Repository::parse(name, &defaults).map_err(|error| PortError::Failed(error_chain(&error)))
}

fn annotations() -> BTreeMap<String, String> {
    let now = time::OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let now = now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
    BTreeMap::from([("org.opencontainers.image.created".to_owned(), now)])
}
