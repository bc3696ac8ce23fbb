//! Images of containers: pull policies, credentials and progress (docs/spec/job-execution.md, sections 5.7 and 5.8).

mod credentials;
mod error;
mod platform;
mod progress;
mod reference;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::{FutureExt, StreamExt, TryStreamExt};
use muster_agent_api::builtin::{ImageSpec, RegistryCredentials};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;
use parking_lot::Mutex;
use reqwest::header::HeaderValue;
use tokio::time::{Instant, sleep, timeout};

use credentials::Login;
use error::ImageError;
use platform::Platform;
use progress::PullProgress;
use reference::Reference;

const INSPECT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time without a message of the engine during a pull.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of attempts if the registry is unreachable.
const MAX_ATTEMPTS: u32 = 3;
const RETRY_DELAY: std::ops::RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(10);
const AUTH_HEADER: &str = "x-registry-auth";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ResolvedImage {
    pub(crate) id: String,
    pub(crate) inspect: ImageInspect,
}

/// Function that prints a line, which ends with a line break.
pub(crate) type Print = Arc<dyn Fn(&str) + Send + Sync>;

/// Images of one job. Clones share the list of used images, which are not pulled again.
#[derive(Clone)]
pub(crate) struct Images {
    engine: Docker,
    credentials: Arc<[RegistryCredentials]>,
    print: Print,
    stop: StopToken,
    /// IDs of used images, by reference and platform.
    used: Arc<Mutex<BTreeMap<(String, String), String>>>,
    /// Search path of credential helpers. `None` means the agent's `PATH`.
    helper_path: Option<OsString>,
    /// Returns the delay between two attempts.
    retry_delay: fn() -> Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    fn parse(text: &str) -> Result<Self, Failure> {
        match text {
            "always" => Ok(Self::Always),
            "if-not-present" => Ok(Self::IfNotPresent),
            "never" => Ok(Self::Never),
            other => Err(Failure::Configuration(format!(
                "{other:?} is not a valid pull policy; use \"always\", \"if-not-present\" or \"never\""
            ))),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "if-not-present",
            Self::Never => "never",
        }
    }
}

/// An image that a job requires, after validation.
struct ImageRequest {
    reference: Reference,
    policies: Vec<PullPolicy>,
    platform: Option<Platform>,
}

impl ImageRequest {
    fn new(spec: &ImageSpec) -> Result<Self, Failure> {
        let reference = Reference::parse(&spec.name).map_err(|error| Failure::Configuration(error.to_string()))?;
        let policies: Vec<PullPolicy> = match spec.pull_policies.as_slice() {
            [] => vec![PullPolicy::Always],
            policies => policies.iter().map(|policy| PullPolicy::parse(policy)).collect::<Result<_, _>>()?,
        };
        let platform = Some(spec.platform.as_str()).filter(|platform| !platform.is_empty()).map(Platform::parse);
        let platform = platform.transpose().map_err(|error| Failure::Configuration(error.to_string()))?;
        Ok(Self { reference, policies, platform })
    }

    fn name(&self) -> &str {
        self.reference.as_str()
    }

    fn policy_list(&self) -> String {
        self.policies.iter().map(|policy| policy.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn platform(&self) -> String {
        self.platform.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

impl Images {
    /// Returns the images of a job. `stop` ends a pull.
    pub(crate) fn new(engine: &Docker, credentials: &[RegistryCredentials], print: Print, stop: &StopToken) -> Self {
        let retry_delay = || rand::random_range(RETRY_DELAY);
        let (engine, credentials, stop) = (engine.clone(), credentials.into(), stop.clone());
        Self { engine, credentials, print, stop, used: Arc::default(), helper_path: None, retry_delay }
    }

    /// Returns a clone that another token stops.
    pub(crate) fn stopped_by(&self, stop: &StopToken) -> Self {
        Self { stop: stop.clone(), ..self.clone() }
    }

    /// Makes sure that the engine has an image, with the first pull policy that succeeds.
    ///
    /// # Errors
    /// [`Failure`] of docs/spec/job-execution.md, section 11.3. Remedies are printed.
    pub(crate) async fn ensure(&self, spec: &ImageSpec) -> Result<ResolvedImage, Failure> {
        let wanted = ImageRequest::new(spec)?;
        let name = wanted.name();
        if let Some(platform) = wanted.platform.as_ref().filter(|platform| !platform.has_known_os()) {
            self.warn(&format!("the operating system of the platform {platform} of image {name} is unknown"));
        }
        let list = wanted.policy_list();
        self.print_plain(&format!("Using effective pull policy of [{list}] for container {name}"));
        let (mut last, mut remedies) = (None, Vec::new());
        for (index, policy) in wanted.policies.iter().enumerate() {
            if index > 0 {
                let line = format!("Attempt #{}: Trying {:?} pull policy", index + 1, policy.as_str());
                (self.print)(&style::info(&line));
            }
            match self.apply_policy(*policy, &wanted).await {
                Ok(image) => {
                    self.mark_used(&wanted, &image);
                    return Ok(image);
                }
                Err(ImageError::Stopped(cause)) => return Err(Failure::Stopped(cause)),
                Err(error) => {
                    self.warn(&format!("Failed to pull image with policy {:?}: {error}", policy.as_str()));
                    remedies.extend(error.remedy().filter(|remedy| !remedies.contains(remedy)));
                    last = Some(error);
                }
            }
        }
        for remedy in remedies {
            self.print_plain(remedy);
        }
        let error = last.unwrap_or_else(|| ImageError::NotPresent(name.to_owned()));
        let message = format!("failed to pull image {name:?} with specified policies [{list}]: {error}");
        Err(error.into_failure(message))
    }

    async fn apply_policy(&self, policy: PullPolicy, wanted: &ImageRequest) -> Result<ResolvedImage, ImageError> {
        let name = wanted.name();
        let present = self.inspect(name).await?;
        let found = match present {
            Some(image) => check_platform(wanted, image).map_err(Some),
            None => Err(None),
        };
        match (found, policy) {
            (Ok(image), PullPolicy::Never) => return Ok(image),
            // The job has already used this image, or names it by its ID, which cannot be pulled.
            (Ok(image), _) if self.was_used(wanted, &image) || image.id == name => return Ok(image),
            (Ok(image), PullPolicy::IfNotPresent) => {
                self.print_plain("Using locally found image version due to \"if-not-present\" pull policy");
                return Ok(image);
            }
            (Err(error), PullPolicy::Never) => {
                return Err(error.unwrap_or_else(|| ImageError::NotPresent(name.to_owned())));
            }
            (_, PullPolicy::Always) | (Err(_), PullPolicy::IfNotPresent) => {}
        }
        self.pull(wanted).await?;
        let missing = || ImageError::Pull("the engine does not have the image after the pull".to_owned());
        check_platform(wanted, self.inspect(name).await?.ok_or_else(missing)?)
    }

    /// Pulls an image. Retries if the registry is unreachable.
    async fn pull(&self, wanted: &ImageRequest) -> Result<(), ImageError> {
        let login = self.login(&wanted.reference).await?;
        let (name, platform) = (wanted.name(), wanted.platform());
        let of_platform = if platform.is_empty() { String::new() } else { format!(" for platform {platform}") };
        self.print_plain(&format!("Pulling docker image {name}{of_platform} ..."));
        let mut attempt = 1;
        loop {
            match self.pull_once(wanted, login.as_ref()).await {
                Err(error) if attempt < MAX_ATTEMPTS && error.is_transient() => {
                    self.warn(&format!("Failed to pull image {name:?} (attempt #{attempt}), retrying: {error}"));
                    attempt += 1;
                    let delay = sleep((self.retry_delay)()).map(Ok);
                    self.unless_stopped(delay).await?;
                }
                result => return result,
            }
        }
    }

    async fn pull_once(&self, wanted: &ImageRequest, login: Option<&Login>) -> Result<(), ImageError> {
        let mut engine = self.engine.clone().with_timeout(SILENCE_TIMEOUT);
        if let Some(login) = login {
            let mut header = HeaderValue::try_from(login.to_header())
                .map_err(|_| ImageError::Credentials("the credentials cannot be sent to the engine".to_owned()))?;
            header.set_sensitive(true);
            // Engines do not accept the encoding in which `bollard` sends credentials.
            engine = engine.with_request_modifier(move |mut request| {
                request.headers_mut().insert(AUTH_HEADER, header.clone());
                request
            });
        }
        let options = CreateImageOptionsBuilder::new()
            .from_image(&wanted.reference.for_pull())
            .platform(&wanted.platform())
            .build();
        let mut events = engine.create_image(Some(options), None, None).boxed();
        let mut progress = PullProgress::new(Instant::now().into_std());
        loop {
            let next = self.unless_stopped(async {
                let silent = |_| ImageError::Silent(SILENCE_TIMEOUT.as_secs());
                Ok(timeout(SILENCE_TIMEOUT, events.try_next()).await.map_err(silent)??)
            });
            let Some(event) = next.await? else { return Ok(()) };
            if let Some(line) = progress.on_event(&event, Instant::now().into_std()) {
                self.print_plain(&format!("Pulling {}: {line}", wanted.name()));
            }
        }
    }

    async fn login(&self, image: &Reference) -> Result<Option<Login>, ImageError> {
        for entry in credentials::matching(&self.credentials, image) {
            let found = async { Ok(credentials::login(entry, image, self.helper_path.as_ref()).await) };
            match self.unless_stopped(found).await? {
                Ok(Some(login)) => {
                    self.print_plain(&format!("Authenticating with credentials from {}", entry.source));
                    return Ok(Some(login));
                }
                Ok(None) => {}
                Err(error) if error.is_fatal() => return Err(ImageError::Credentials(error.to_string())),
                Err(error) => self.warn(&format!("Failed to get credentials from {}: {error}", entry.source)),
            }
        }
        Ok(None)
    }

    /// Returns the image, if the engine has it.
    async fn inspect(&self, name: &str) -> Result<Option<ResolvedImage>, ImageError> {
        let inspect = async {
            let no_answer = |_| ImageError::Engine(format!("no answer within {} s", INSPECT_TIMEOUT.as_secs()));
            match timeout(INSPECT_TIMEOUT, self.engine.inspect_image(name)).await.map_err(no_answer)? {
                Ok(inspect) => Ok(Some(inspect)),
                Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let Some(inspect) = self.unless_stopped(inspect).await? else { return Ok(None) };
        match inspect.id.clone() {
            Some(id) if !id.is_empty() => Ok(Some(ResolvedImage { id, inspect })),
            _ => Err(ImageError::Engine(format!("the image {name} has no ID"))),
        }
    }

    fn was_used(&self, wanted: &ImageRequest, image: &ResolvedImage) -> bool {
        let key = (wanted.name().to_owned(), wanted.platform());
        self.used.lock().get(&key).is_some_and(|id| *id == image.id)
    }

    fn mark_used(&self, wanted: &ImageRequest, image: &ResolvedImage) {
        let name = wanted.name();
        self.used.lock().insert((name.to_owned(), wanted.platform()), image.id.clone());
        if image.id == name {
            return;
        }
        let digests = image.inspect.repo_digests.as_deref().unwrap_or_default();
        let is_of_repository = |digest: &&String| {
            Reference::parse(digest).is_ok_and(|digest| digest.repository() == wanted.reference.repository())
        };
        let digest = match digests.iter().find(is_of_repository).or_else(|| digests.first()) {
            Some(digest) => format!(" with digest {digest}"),
            None => String::new(),
        };
        self.print_plain(&format!("Using docker image {} for {name}{digest} ...", image.id));
    }

    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T, ImageError>>) -> Result<T, ImageError> {
        tokio::select! {
            biased;
            cause = self.stop.stopped() => Err(ImageError::Stopped(cause)),
            result = work => result,
        }
    }

    fn print_plain(&self, line: &str) {
        (self.print)(&style::plain(line));
    }

    fn warn(&self, line: &str) {
        (self.print)(&style::warning(line));
    }
}

/// Checks the platform of an image, because some engines fall back to an image for another platform.
fn check_platform(wanted: &ImageRequest, image: ResolvedImage) -> Result<ResolvedImage, ImageError> {
    let ImageInspect { os, architecture, variant, .. } = &image.inspect;
    let [os, architecture, variant] = [os, architecture, variant].map(|value| value.as_deref().unwrap_or_default());
    match &wanted.platform {
        Some(platform) if !platform.matches(os, architecture, variant) => {
            let parts: Vec<&str> = [os, architecture, variant].into_iter().filter(|part| !part.is_empty()).collect();
            let image = wanted.name().to_owned();
            Err(ImageError::OtherPlatform { image, found: parts.join("/"), wanted: platform.to_string() })
        }
        _ => Ok(image),
    }
}
