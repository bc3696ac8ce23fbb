//! Errors of images, the resulting failures, and remedies (docs/spec/job-execution.md, section 11.3).

use bollard::errors::Error;
use muster_job::{TerminationCause, error_chain};
use muster_steps::failure::Failure;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ImageError {
    /// Error answer of the engine, which may quote the registry.
    #[error("Error response from daemon: {0}")]
    Answer(String),
    /// Error that the engine reported during the pull.
    #[error("{0}")]
    Pull(String),
    /// The policy forbids pulling an image that the engine does not have.
    #[error("Error response from daemon: No such image: {0}")]
    NotPresent(String),
    /// The image is for another platform.
    #[error("image {image} is for {found}, not for {wanted}")]
    OtherPlatform { image: String, found: String, wanted: String },
    /// The engine stopped reporting progress.
    #[error("the engine reported no progress of the pull for {0} s")]
    Silent(u64),
    #[error("no valid answer from the container engine: {0}")]
    Engine(String),
    #[error("{0}")]
    Credentials(String),
    #[error("the job was stopped")]
    Stopped(TerminationCause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A registry is unavailable or unreachable.
    ExternalDependency,
    /// The image does not exist, the registry denies access to it, or Muster itself found the error.
    Configuration,
    Other,
}

/// Texts in messages about registries that cannot be reached.
const EXTERNAL: [&str; 8] = [
    "dial tcp",
    "connection refused",
    "no such host",
    "i/o timeout",
    "tls handshake",
    "client.timeout exceeded",
    "request canceled",
    "connection reset",
];
/// Texts in messages about images that do not exist.
const MISSING: [&str; 2] = ["not found", "manifest unknown"];
/// Texts in messages about credentials.
const DENIED: [&str; 6] = [
    "pull access denied",
    "access to the resource is denied",
    "no basic auth credentials",
    "repository does not exist or may require",
    "unauthorized",
    "authentication required",
];

const UNREACHABLE: &str = "Check the name of the registry, and that the machine of the container engine can reach it.";

impl ImageError {
    /// Returns the message of the engine or registry. `None` means that the error comes from neither.
    fn message(&self) -> Option<String> {
        match self {
            Self::Answer(message) | Self::Pull(message) => Some(message.to_lowercase()),
            _ => None,
        }
    }

    fn class(&self) -> Class {
        if matches!(self, Self::Silent(_)) {
            return Class::ExternalDependency;
        }
        let Some(message) = self.message() else { return Class::Configuration };
        let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
        if has(&EXTERNAL) {
            Class::ExternalDependency
        } else if has(&MISSING) || has(&DENIED) {
            Class::Configuration
        } else {
            Class::Other
        }
    }

    pub(super) fn is_transient(&self) -> bool {
        self.class() == Class::ExternalDependency
    }

    /// Returns the failure of the job with this message.
    pub(super) fn into_failure(self, message: String) -> Failure {
        match self {
            Self::Stopped(cause) => Failure::Stopped(cause),
            Self::Engine(_) => Failure::System(message),
            _ => match self.class() {
                Class::ExternalDependency => Failure::ExternalDependency(message),
                Class::Configuration => Failure::Configuration(message),
                Class::Other => Failure::ImagePull(message),
            },
        }
    }

    /// Returns advice for the user, if the message alone is not enough.
    pub(super) fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotPresent(_) => {
                return Some(
                    "Pull or build the image on the machine of the container engine, or allow a pull policy that pulls it.",
                );
            }
            Self::OtherPlatform { .. } => {
                return Some(
                    "Choose an image that exists for this platform, change `image:docker:platform`, or allow a pull policy that pulls the image.",
                );
            }
            Self::Silent(_) => return Some(UNREACHABLE),
            Self::Engine(_) => return Some("Check that the container engine runs and that the runner may use it."),
            _ => {}
        }
        let message = self.message()?;
        let has = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
        if has(&["no space left on device"]) {
            return Some(
                "Free disk space on the machine of the container engine: `docker system df` shows what uses it.",
            );
        }
        if has(&["no matching manifest", "no match for platform", "does not match the specified platform"]) {
            return Some("Choose an image that exists for this platform, or set `image:docker:platform`.");
        }
        if has(&["server gave http response to https client"]) {
            return Some("The registry has no TLS: add it to `insecure-registries` of the container engine.");
        }
        if has(&["x509:", "certificate"]) {
            return Some("Add the registry's CA certificate to the machine of the container engine.");
        }
        if has(&["toomanyrequests", "too many requests", "rate limit"]) {
            return Some("Pull with credentials, use a mirror, or use the pull policy \"if-not-present\".");
        }
        if has(&EXTERNAL) {
            return Some(UNREACHABLE);
        }
        if has(&DENIED) {
            return Some(
                "Check the name of the image, and that DOCKER_AUTH_CONFIG or the runner's Docker configuration has valid credentials for the registry.",
            );
        }
        if has(&MISSING) {
            return Some(
                "Check the spelling of the image's name and tag, and that the image was pushed to the registry.",
            );
        }
        None
    }
}

impl From<Error> for ImageError {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { message, status_code } if message.trim().is_empty() => {
                Self::Answer(format!("status {status_code} without a message"))
            }
            Error::DockerResponseServerError { message, .. } => Self::Answer(message.trim().to_owned()),
            Error::RequestTimeoutError => Self::Silent(super::SILENCE_TIMEOUT.as_secs()),
            Error::DockerStreamError { error } => Self::Pull(error),
            other => Self::Engine(error_chain(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_job::FailureReason as R;

    use super::*;

    #[test]
    fn messages_of_engines_have_reason_and_remedy() {
        let cases = [
            (
                "Get \"https://r.example/v2/\": dial tcp: lookup r.example on 10.0.0.1:53: no such host",
                R::RunnerExternalDependencyFailure,
                "can reach it",
            ),
            (
                "Get \"https://r.example/v2/\": net/http: TLS handshake timeout",
                R::RunnerExternalDependencyFailure,
                "can reach it",
            ),
            (
                "manifest for r.example/app:9 not found: manifest unknown: manifest unknown",
                R::RunnerConfigurationError,
                "spelling",
            ),
            (
                "pull access denied for app, repository does not exist or may require 'docker login': denied: requested access to the resource is denied",
                R::RunnerConfigurationError,
                "DOCKER_AUTH_CONFIG",
            ),
            (
                "Head \"https://r.example/v2/app/manifests/1\": no basic auth credentials",
                R::RunnerConfigurationError,
                "DOCKER_AUTH_CONFIG",
            ),
            (
                "no matching manifest for linux/s390x in the manifest list entries",
                R::ImagePullFailure,
                "image:docker:platform",
            ),
            ("write /var/lib/docker/x: no space left on device", R::ImagePullFailure, "Free disk space"),
            (
                "Get \"https://r.example/v2/\": http: server gave HTTP response to HTTPS client",
                R::ImagePullFailure,
                "insecure-registries",
            ),
            (
                "Get \"https://r.example/v2/\": x509: certificate signed by unknown authority",
                R::ImagePullFailure,
                "CA certificate",
            ),
            ("toomanyrequests: You have reached your pull rate limit", R::ImagePullFailure, "mirror"),
        ];
        for (message, reason, remedy) in cases {
            let error = ImageError::Answer(message.to_owned());
            assert!(error.remedy().unwrap().contains(remedy), "{message}");
            assert_eq!(error.into_failure(String::new()).reason(), reason, "{message}");
        }
        assert_eq!(ImageError::Pull("unexpected EOF".to_owned()).remedy(), None);
    }

    #[test]
    fn only_unreachable_registries_are_retried() {
        assert!(ImageError::Pull("read tcp: connection reset by peer".to_owned()).is_transient());
        assert!(ImageError::Silent(300).is_transient());
        assert!(!ImageError::Answer("manifest unknown".to_owned()).is_transient());
        assert!(!ImageError::Engine("connection refused".to_owned()).is_transient());
        assert!(!ImageError::NotPresent("app".to_owned()).is_transient());
    }

    #[test]
    fn failures_of_the_engine_and_stops_are_not_failures_of_the_registry() {
        let reason = |error: ImageError| error.into_failure(String::new()).reason();
        assert_eq!(reason(ImageError::Engine("connection refused".to_owned())), R::RunnerSystemFailure);
        assert_eq!(reason(ImageError::NotPresent("app".to_owned())), R::RunnerConfigurationError);
        assert_eq!(reason(ImageError::Stopped(TerminationCause::TimedOut)), R::JobExecutionTimeout);
    }
}
