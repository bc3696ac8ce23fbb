//! State that the built-in steps of one job share.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use muster_agent_api::builtin::{Tls, UnpackLimits};
use muster_agent_api::development::Development;
use muster_agent_api::plan::{ArtifactEndpoint, JobPlan, Step, job_steps};
use muster_agent_api::result::ResourceUsage;
use muster_agent_api::step_runner::{Job, RunRequest};
use muster_archive::{Limits, Root};
use muster_job::{StepPolicy, milliseconds};
use muster_runner_api::client::{Client, TlsFiles};
use muster_steps::builtin::OpenTarget;
use muster_steps::bundled::BundledSteps;
use muster_steps::engine::{self, Job as _};
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::{Command, JobNetwork, ProcessEnd, Processes};
use muster_steps::remote::StepSource;
use muster_steps::stop::StopToken;
use muster_steps::style;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use time::OffsetDateTime;

use crate::agent_resources::AgentResources;
use crate::blocking::blocking;
use crate::declared::Declared;
use crate::docker::ServiceHost;
use crate::driver_state::DriverState;
use crate::extraction::{Extraction, LimitsFrom};
use crate::mirrors::View;
use crate::restored_cache::Restored;
use crate::running_service::RunningService;
use crate::step_source::StepFetcher;
use crate::trace::Trace;
use crate::transfer::{MessageLevel, TransferContext};
use crate::variables::Variables;

type BundledStepsOf = fn(&Arc<Context>) -> Arc<dyn BundledSteps>;

/// Default time between TERM and KILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Job ID at an agent that runs delegated steps.
const DELEGATED_JOB_ID: &str = "delegated";

/// Number of the first service that a list of steps starts. Services of the plan have lower numbers.
pub(crate) const FIRST_STEP_SERVICE: u32 = 1000;

/// Directory of fetched steps, in the temporary directory of the job.
const STEPS_DIR: &str = "remote-steps";

/// Callback before the user's first command. If it fails, the command is not started.
///
/// If the future is dropped before it completes, the callback is called again.
pub type OnUserCode = Box<dyn Fn() -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

/// Returns the limits of a plan. 0 means the default.
fn limits(plan: UnpackLimits) -> Limits {
    let default = Limits::default();
    let or_default = |value: u64, default: u64| if value == 0 { default } else { value };
    Limits {
        bytes: or_default(plan.max_bytes, default.bytes),
        entries: or_default(plan.max_entries, default.entries),
        ratio: or_default(plan.max_ratio, default.ratio),
        header_bytes: or_default(plan.max_header_bytes, default.header_bytes),
        ..default
    }
}

/// State that the built-in steps of one job share.
pub struct Context {
    /// Directory of the checkout.
    pub project_dir: PathBuf,
    /// Directory for temporary files, usually `<project_dir>.tmp`.
    pub temp_dir: PathBuf,
    /// Variables of the job.
    pub variables: Variables,
    /// Time between TERM and KILL.
    pub grace: Duration,
    /// Time when the agent started the job.
    pub started_at: OffsetDateTime,
    /// Directory and limits for unpacking archives.
    pub(crate) extraction: Extraction,
    /// Coordinator that stores the job's artifacts.
    pub coordinator: ArtifactEndpoint,
    /// Plan of the job without messages for the log.
    plan: JobPlan,
    /// All processes of the job.
    pub processes: Processes,
    /// Network of the job. `None` means that its traffic cannot be counted, usually because it is shared.
    pub(crate) network: Option<JobNetwork>,
    /// Trace of the job.
    pub trace: Arc<Trace>,
    /// Resources that the jobs of the agent share.
    pub shared: Arc<AgentResources>,
    /// Services that run on this machine until the job ends.
    pub(crate) services: Mutex<Vec<RunningService>>,
    /// Restored archives of caches, by path.
    pub(crate) restored_caches: Mutex<HashMap<PathBuf, Restored>>,
    /// The job's view of a mirror. `None` means that the job has no view, or that the view is in a container.
    pub(crate) mirror_view: Mutex<Option<View>>,
    /// Time that the preparation of the mirror took. It counts against the timeout of the sources.
    pub(crate) mirror_time: Mutex<Duration>,
    /// What the steps that start services need. `None` except while these steps run.
    pub(crate) service_host: Mutex<Option<Arc<ServiceHost>>>,
    /// Driver of the custom executor, between preparation and cleanup.
    pub(crate) driver: Mutex<Option<Arc<DriverState>>>,
    /// Debugger of the job. `None` means that the job cannot be paused.
    pub debugger: Option<Arc<engine::Debugger>>,
    /// Callback for the results of step files. `None` means that they are written to a file if `CI_STEPS_DEBUG` is set.
    pub on_results: Option<engine::OnResults>,
    /// Sources, caches and dependencies that lists of steps may use.
    pub declared: Declared,
    /// Number of the next service that a list of steps starts.
    pub(crate) next_step_service: AtomicU32,
    /// Bundled steps for lists of steps. Set when the job starts.
    pub(crate) bundled_steps: OnceLock<BundledStepsOf>,
    /// Files that steps of the operator add to the archives of the job's artifacts.
    pub(crate) added_artifacts: Mutex<Vec<String>>,
    on_user_code: OnUserCode,
    user_code_started: tokio::sync::Mutex<bool>,
    /// Resource usage of services, and of delegated steps in their environments.
    pub(crate) delegated_usage: Mutex<Vec<ResourceUsage>>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("project_dir", &self.project_dir).finish_non_exhaustive()
    }
}

impl Context {
    /// Returns the state for the job of a plan.
    pub fn new(
        plan: &JobPlan,
        variables: Variables,
        processes: Processes,
        trace: Arc<Trace>,
        shared: Arc<AgentResources>,
        on_user_code: OnUserCode,
    ) -> Self {
        let project_dir = PathBuf::from(&plan.project_dir);
        let mut temp_dir = project_dir.clone().into_os_string();
        temp_dir.push(".tmp");
        let grace = if plan.grace_ms == 0 { DEFAULT_GRACE } else { Duration::from_millis(plan.grace_ms) };
        let extraction = Extraction {
            root_trust: Root::Below(plan.builds_dir.clone().into()),
            limits: limits(plan.unpack),
            limits_from: if plan.unpack.set_in_ci_toml { LimitsFrom::CiConfig } else { LimitsFrom::Config },
            ..Extraction::new(project_dir.clone())
        };
        Self {
            project_dir,
            extraction,
            temp_dir: temp_dir.into(),
            variables,
            grace,
            started_at: OffsetDateTime::now_utc(),
            coordinator: plan.coordinator.clone(),
            plan: JobPlan { header: Vec::new(), notices: Vec::new(), warnings: Vec::new(), ..plan.clone() },
            processes,
            network: if plan.has_own_network { JobNetwork::at_start() } else { None },
            trace,
            shared,
            services: Mutex::default(),
            restored_caches: Mutex::default(),
            mirror_view: Mutex::default(),
            mirror_time: Mutex::new(Duration::from_millis(plan.sources_time_ms)),
            service_host: Mutex::default(),
            driver: Mutex::default(),
            debugger: None,
            on_results: None,
            declared: Declared::default(),
            next_step_service: AtomicU32::new(FIRST_STEP_SERVICE),
            bundled_steps: OnceLock::new(),
            added_artifacts: Mutex::default(),
            on_user_code,
            user_code_started: tokio::sync::Mutex::new(false),
            delegated_usage: Mutex::default(),
        }
    }

    /// Writes a message of Muster to the trace.
    pub fn print(&self, line: &str) {
        self.trace.write(Stream::Runner, line.as_bytes());
    }

    /// Creates the temporary directory, and writes the file variables.
    pub(crate) async fn write_files(self: &Arc<Self>, stop: &StopToken) -> Result<(), Failure> {
        let context = Arc::clone(self);
        blocking(&**self, "writing the job's temporary files", stop, move || {
            let written = context.variables.write_files(&context.temp_dir, &context.extraction.root_trust);
            written.map_err(Failure::io("failed to write the job's temporary files"))
        })
        .await
    }

    /// Empties the job's temporary directory.
    pub(crate) async fn clear_files(&self, stop: &StopToken) -> Result<(), Failure> {
        let temp_dir = self.temp_dir.clone();
        blocking(self, "removing the job's temporary files", stop, move || {
            Variables::clear_files(&temp_dir).map_err(Failure::io("failed to remove the job's temporary files"))
        })
        .await
    }

    /// Creates the project directory unless it exists.
    ///
    /// # Errors
    /// For example, if the path contains a symbolic link that a job could have created.
    pub(crate) async fn create_project_dir(&self, stop: &StopToken) -> Result<(), Failure> {
        let extraction = self.extraction.clone();
        blocking(self, "creating the project directory", stop, move || extraction.open_root().map(drop)).await
    }

    /// Returns whether the job has a cgroup for its share of the machine.
    pub(crate) fn has_share(&self) -> bool {
        self.plan.share.as_ref().is_some_and(|share| !share.cgroup.is_empty())
    }

    /// Returns a client for the job's coordinator.
    pub(crate) async fn client(&self, stop: &StopToken) -> Result<Client, Failure> {
        let tls = self.tls_files(&self.coordinator.tls);
        let (shared, url) = (Arc::clone(&self.shared), self.coordinator.url.clone());
        let failed = |error| Failure::System(format!("failed to reach the coordinator: {error}"));
        blocking(self, "reading the coordinator's certificates", stop, move || {
            shared.client(&url, &tls).map_err(failed)
        })
        .await
    }

    /// Returns the paths of the file variables that contain certificates.
    pub(crate) fn tls_files(&self, variables: &Tls) -> TlsFiles {
        let file = |name: &Option<String>| name.as_ref().map(|name| self.temp_dir.join(name));
        TlsFiles { ca: file(&variables.ca), certificate: file(&variables.certificate), key: file(&variables.key) }
    }

    /// Returns the value of a variable in the environment of the job's processes.
    pub(crate) fn environment_value(&self, name: &str) -> Option<OsString> {
        self.environment().into_iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// Returns the environment for a process of the job.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        self.variables.environment(self.processes.environment(), &self.temp_dir)
    }

    /// Runs a command, and writes its output to the trace.
    ///
    /// # Errors
    /// If the command cannot be started, is stopped, or exits with a status other than 0.
    pub(crate) async fn run_command(&self, command: Command, stop: &StopToken) -> Result<(), Failure> {
        match self.processes.run(command, &self.log(), stop, self.grace).await? {
            ProcessEnd::Exited(status) => {
                let failure = Failure::from_status(status);
                // If the plan is bare, this agent runs in a container, and exit codes must be marked as coming from
                // a container. The plan of a step file is bare, too, but exit codes of step files are not reported.
                failure.map_or(Ok(()), |failure| Err(if self.plan.bare { failure.in_container() } else { failure }))
            }
            ProcessEnd::Stopped(cause) => Err(Failure::Stopped(cause)),
        }
    }
}

impl Context {
    pub(crate) fn step_fetcher(&self) -> StepFetcher {
        let mut fetcher = StepFetcher::new(Arc::clone(&self.shared.steps), self.temp_dir.join(STEPS_DIR));
        fetcher.servers.push(self.coordinator.url.clone());
        fetcher.tls = self.tls_files(&self.coordinator.tls);
        fetcher
    }
}

impl engine::Job for Context {
    fn processes(&self) -> &Processes {
        &self.processes
    }

    fn log(&self) -> Arc<dyn Log> {
        Arc::<Trace>::clone(&self.trace)
    }

    fn grace(&self) -> Duration {
        self.grace
    }

    fn work_dir(&self) -> &Path {
        &self.project_dir
    }

    fn image(&self) -> &str {
        &self.plan.image
    }

    fn temp_dir(&self) -> &Path {
        &self.temp_dir
    }

    fn values(&self) -> Map<String, Value> {
        self.variables.values(&self.temp_dir)
    }

    fn step_policy(&self) -> Option<&StepPolicy> {
        self.plan.step_policy.as_ref()
    }

    fn on_results(&self) -> Option<engine::OnResults> {
        self.on_results.clone()
    }

    fn step_environment(&self) -> Vec<(OsString, OsString)> {
        self.environment()
    }

    fn development(&self) -> Option<&Development> {
        Some(&self.plan.development).filter(|development| !development.is_default())
    }

    fn records_calls(&self) -> bool {
        self.plan.record_calls
    }

    fn debugger(&self) -> Option<&Arc<engine::Debugger>> {
        self.debugger.as_ref()
    }

    fn step_source(&self) -> Option<Arc<dyn StepSource>> {
        Some(Arc::new(self.step_fetcher()))
    }

    fn bundled_steps(self: &Arc<Self>) -> Option<Arc<dyn BundledSteps>> {
        self.bundled_steps.get().map(|bundled_steps| bundled_steps(self))
    }

    fn network(&self) -> Option<&JobNetwork> {
        self.network.as_ref()
    }

    fn sources_time(&self) -> Duration {
        *self.mirror_time.lock()
    }

    fn set_status(&self, status: &'static str) {
        self.variables.set("CI_JOB_STATUS", status);
    }

    fn delegate_request(&self, target: &dyn OpenTarget, steps: &[Step]) -> Result<RunRequest, Failure> {
        let project_dir = target.project_dir().to_string_lossy().into_owned();
        let plan = JobPlan {
            builds_dir: project_dir.clone(),
            project_dir: project_dir.clone(),
            image: target.image().to_owned(),
            steps: steps.to_vec(),
            bare: true,
            // The first agent applies the limit and timestamps of the log, and the timeout.
            output_limit: u64::MAX,
            timestamps: false,
            timeout_ms: 0,
            sources_time_ms: milliseconds(self.sources_time()),
            require_start_approval: false,
            share: None,
            has_own_network: target.has_own_network(),
            // The debugger is attached to the first agent.
            development: Development { debug: None, ..self.plan.development.clone() },
            ..self.plan.clone()
        };
        let steps = job_steps(&plan).map_err(|error| Failure::System(format!("failed to write a plan: {error}")))?;
        let job = Job { variables: self.variables.current(), build_dir: project_dir };
        Ok(RunRequest { id: DELEGATED_JOB_ID.to_owned(), steps, job: Some(job), ..RunRequest::default() })
    }

    fn mask_values(&self, values: &[String]) {
        values.iter().for_each(|value| self.trace.add_secret(value));
    }

    fn add_variables(&self, variables: Vec<engine::ExportedVariable>) -> Result<(), Failure> {
        for variable in variables.iter().filter(|variable| variable.kind.is_masked()) {
            self.trace.add_secret(&variable.value);
        }
        self.variables.add_exported(variables, &self.temp_dir).map_err(Failure::io("failed to replace a file variable"))
    }

    fn add_artifact_files(&self, files: Vec<String>) {
        self.added_artifacts.lock().extend(files);
    }

    fn add_delegated_usage(&self, usage: &ResourceUsage) {
        self.delegated_usage.lock().push(usage.clone());
    }

    /// Recreates missing temporary files, and reads variables that earlier steps wrote to `GITLAB_ENV`.
    async fn begin_step(self: &Arc<Self>, stop: &StopToken) -> Result<(), Failure> {
        let context = Arc::clone(self);
        blocking(&**self, "preparing the step", stop, move || {
            let Self { variables, temp_dir, extraction, .. } = &*context;
            // This also detects a symbolic link in place of the directory.
            variables.read_gitlab_env(temp_dir)?;
            let restored = variables.restore_files(temp_dir, &extraction.root_trust);
            restored.map_err(Failure::io("failed to restore the temporary files of the job"))
        })
        .await
    }

    /// Records the start of the user's code. Fails if the record cannot be written or the job is stopped.
    async fn wait_until_user_code_may_run(&self, stop: &StopToken) -> Result<(), Failure> {
        let mut started = self.user_code_started.lock().await;
        if *started {
            return Ok(());
        }
        let recorded = tokio::select! {
            biased;
            cause = stop.stopped() => return Err(Failure::Stopped(cause)),
            recorded = (self.on_user_code)() => recorded,
        };
        recorded.map_err(Failure::io("failed to record the start of the script in the spool"))?;
        *started = true;
        Ok(())
    }
}

#[async_trait]
impl TransferContext for Context {
    fn root(&self) -> &Path {
        &self.project_dir
    }

    fn extraction(&self) -> Extraction {
        self.extraction.clone()
    }

    fn staging(&self) -> &Path {
        &self.temp_dir
    }

    fn environment(&self) -> Vec<(OsString, OsString)> {
        Context::environment(self)
    }

    fn report(&self, level: MessageLevel, line: &str) {
        match level {
            MessageLevel::Plain => self.print(&format!("{line}\n")),
            MessageLevel::Notice => self.print(&style::info(line)),
            MessageLevel::Warning => self.print(&style::warning(line)),
            MessageLevel::Error => self.print(&style::error(line)),
        }
    }

    async fn git(&self, args: &[&str], out: Arc<File>, stop: &StopToken) -> Result<bool, Failure> {
        let command = Command {
            program: "git".into(),
            args: args.iter().map(Into::into).collect(),
            env: Context::environment(self),
            work_dir: Some(self.project_dir.clone()),
            stdin: None,
            stdout: Some(out),
        };
        match self.processes.run(command, &self.log(), stop, self.grace).await? {
            ProcessEnd::Stopped(cause) => Err(Failure::Stopped(cause)),
            ProcessEnd::Exited(status) => Ok(status.success()),
        }
    }
}
