//! Command-line arguments of `muster ci`.

use std::path::PathBuf;

use clap::ValueEnum;

/// Arguments of `muster ci`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "You can set a default for each flag in the environment variable MUSTER_CI_<FLAG>, such as MUSTER_CI_EVENT or MUSTER_CI_VAR."
)]
pub(crate) struct CiArgs {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

impl CiArgs {
    pub(super) fn into_command(self) -> Command {
        self.command.unwrap_or(Command::Run(self.run))
    }
}

/// Subcommands of `muster ci`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Run the pipeline. This is the default.
    Run(RunArgs),
    /// List the jobs of the pipeline.
    List(ListArgs),
    /// Draw the jobs and their dependencies.
    Graph(GraphArgs),
    /// Check the configuration, and show all errors and warnings.
    Lint(LintArgs),
    /// Explain why a job is in the pipeline or not, and where its settings come from.
    Explain(ExplainArgs),
    /// Download the includes from other projects, components, templates and URLs, and pin them in `muster-ci.lock`.
    Vendor(VendorArgs),
    /// Show past runs: their jobs, logs, step results and artifacts.
    Show(ShowArgs),
    /// Open a shell in a finished job's workspace, with its variables.
    Shell(ShellArgs),
    /// Delete logs, artifacts, workspaces and caches of past runs.
    Clean(CleanArgs),
}

/// Arguments that select the repository.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RepositoryArgs {
    /// Use the repository that contains this directory.
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(super) directory: PathBuf,
}

/// Arguments that select the pipeline: its file, event and variables.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PipelineArgs {
    #[command(flatten)]
    pub(super) repository: RepositoryArgs,
    /// Pipeline configuration file [default: .gitlab-ci.yml at the top of the repository].
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Do not use the network: take includes from pins, local directories and the cache.
    #[arg(long)]
    pub(super) offline: bool,
    /// Event that starts the pipeline. Sets CI_PIPELINE_SOURCE and the variables that depend on it.
    #[arg(long, value_enum, default_value_t, hide_default_value = true, help_heading = "Event")]
    pub(super) event: Event,
    /// Branch name to use for the pipeline [default: the current branch].
    #[arg(long = "ref", value_name = "BRANCH", help_heading = "Event")]
    pub(super) branch: Option<String>,
    /// Run a pipeline for a tag of this name. The tag need not exist.
    #[arg(long, value_name = "TAG", conflicts_with = "branch", help_heading = "Event")]
    pub(super) tag: Option<String>,
    /// Target branch of the merge request [default: the default branch]. Implies `--event merge_request_event`.
    #[arg(long, value_name = "BRANCH", help_heading = "Event")]
    pub(super) mr_target: Option<String>,
    /// Branch, tag or commit that `rules:changes` compares with, for any event.
    #[arg(long, value_name = "REF", help_heading = "Event")]
    pub(super) changed_since: Option<String>,
    /// Set a pipeline variable. Overrides variables of the configuration. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Variables")]
    pub(super) var: Vec<String>,
    /// Set pipeline variables from a file of NAME=VALUE lines. `--var` overrides them. Can be repeated.
    #[arg(long, value_name = "FILE", help_heading = "Variables")]
    pub(super) var_file: Vec<PathBuf>,
    /// Set a variable of type file: jobs get the path of a file with this file's content. Can be repeated.
    #[arg(long, value_name = "NAME=FILE", help_heading = "Variables")]
    pub(super) file_var: Vec<String>,
    /// Remove the variable of this name, wherever it is set. Can be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Variables")]
    pub(super) unset_variable: Vec<String>,
    /// Set an input of `spec:inputs`, for the configuration file and the files that it includes. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Variables")]
    pub(super) input: Vec<String>,
}

/// Arguments that select a pipeline to inspect without running it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    /// Ignore includes that are not available on this machine, and mark the jobs that are incomplete without them.
    #[arg(long)]
    pub(super) include_stub: bool,
}

/// Arguments of `muster ci run`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RunArgs {
    /// Jobs to run; all by default. A name without its matrix part selects all jobs of the matrix. Manual jobs run only if named here or with `--manual`.
    #[arg(value_name = "JOB")]
    pub(super) jobs: Vec<String>,
    /// Run only the jobs of this stage. Manual jobs run only if named.
    #[arg(long, value_name = "STAGE")]
    pub(super) stage: Option<String>,
    /// Also run the jobs that the selected jobs need.
    #[arg(long)]
    pub(super) needs: bool,
    /// Run the jobs that the selected jobs need, but not the selected jobs.
    #[arg(long)]
    pub(super) only_needs: bool,
    /// Also run this manual job. Can be repeated.
    #[arg(long, value_name = "JOB")]
    pub(super) manual: Vec<String>,
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    /// Maximum number of jobs to run at the same time [default: the number of processors, at least 8].
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) concurrent: Option<u16>,
    /// Timeout for jobs without one: seconds, or a duration such as `1h 30m`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) timeout: Option<std::time::Duration>,
    /// Logs to show [default: `live` if one job runs; otherwise `tail`, or `failed` with --output json or junit].
    #[arg(long, value_enum)]
    pub(super) log: Option<LogMode>,
    /// Show the time of each log line.
    #[arg(long)]
    pub(super) timestamps: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: OutputMode,
    /// Where to run jobs.
    #[arg(long, value_enum, default_value_t)]
    pub(super) executor: Executor,
    /// Image of jobs without `image:`, for `--executor docker`.
    #[arg(long, value_name = "IMAGE")]
    pub(super) image: Option<String>,
    /// Address to serve the runner API on, for `--executor external`.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub(super) listen: std::net::SocketAddr,
    /// Give each job a separate workspace, and keep it for `muster ci shell`.
    #[arg(long)]
    pub(super) keep: bool,
}

impl RunArgs {
    /// Returns the logs to show: the value of `--log`, or the default for this number of jobs.
    pub(super) fn log_mode(&self, jobs: usize) -> LogMode {
        let for_several = if self.output == OutputMode::Human { LogMode::Tail } else { LogMode::Failed };
        self.log.unwrap_or(if jobs == 1 { LogMode::Live } else { for_several })
    }
}

/// Arguments of `muster ci list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub(super) inspect: InspectArgs,
    /// Also list the jobs that rules exclude.
    #[arg(long, short)]
    pub(super) all: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: ListOutput,
}

/// Arguments of `muster ci graph`.
#[derive(Debug, clap::Args)]
pub(super) struct GraphArgs {
    #[command(flatten)]
    pub(super) inspect: InspectArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: GraphFormat,
}

/// Arguments of `muster ci lint`.
#[derive(Debug, clap::Args)]
pub(super) struct LintArgs {
    #[command(flatten)]
    pub(super) inspect: InspectArgs,
    /// Print the configuration after resolving includes, `extends`, `!reference` and `default`.
    #[arg(long)]
    pub(super) preview: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "preview")]
    pub(super) json: bool,
}

/// Arguments of `muster ci explain`.
#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// Name of the job, even if it is not in the pipeline.
    pub(super) job: String,
    #[command(flatten)]
    pub(super) inspect: InspectArgs,
}

/// Arguments of `muster ci vendor`.
#[derive(Debug, clap::Args)]
pub(super) struct VendorArgs {
    /// Store the files in this directory of the repository [default: the directory in `muster-ci.lock`, or else this machine's cache].
    #[arg(long, value_name = "DIR")]
    pub(super) into: Option<PathBuf>,
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
}

/// Arguments of `muster ci show`.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// Number of the run to show, or `last`. The name of a job shows this job of the last run. By default, all runs are listed.
    #[arg(value_name = "RUN")]
    pub(super) run: Option<String>,
    /// Name or ID of a job whose log, step results and artifacts to show.
    #[arg(value_name = "JOB")]
    pub(super) job: Option<String>,
    /// Extract the job's artifacts to this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) extract: Option<PathBuf>,
    /// Print the CPU time, peak memory, I/O and network traffic of each step, as far as they were measured.
    #[arg(long, conflicts_with_all = ["log", "raw", "extract"])]
    pub(super) usage: bool,
    /// Print the job's result tree as JSON, with the parameters of each step, for `muster step results` and `muster step repeat`.
    #[arg(long, conflicts_with_all = ["log", "raw", "extract", "usage", "timestamps"])]
    pub(super) results: bool,
    /// Print only the job's log.
    #[arg(long)]
    pub(super) log: bool,
    /// Print the time of each log line.
    #[arg(long)]
    pub(super) timestamps: bool,
    /// Print the log exactly as the runner sent it, with timestamps, section markers and color codes.
    #[arg(long, conflicts_with_all = ["log", "timestamps", "extract"])]
    pub(super) raw: bool,
    #[command(flatten)]
    pub(super) repository: RepositoryArgs,
}

/// Arguments of `muster ci shell`.
#[derive(Debug, clap::Args)]
pub(super) struct ShellArgs {
    /// Name or ID of the job.
    #[arg(value_name = "JOB")]
    pub(super) job: String,
    /// Number of the run [default: the last one].
    #[arg(long, value_name = "RUN")]
    pub(super) run: Option<u64>,
    #[command(flatten)]
    pub(super) repository: RepositoryArgs,
}

/// Arguments of `muster ci clean`.
#[derive(Debug, clap::Args)]
pub(super) struct CleanArgs {
    #[command(flatten)]
    pub(super) repository: RepositoryArgs,
    /// Clean all repositories, not only this one.
    #[arg(long)]
    pub(super) all: bool,
}

/// Events that start a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Event {
    /// A push of commits to the branch.
    #[default]
    Push,
    /// A merge request from the branch to `--mr-target`.
    #[value(name = "merge_request_event", alias = "mr")]
    MergeRequest,
    /// A push of a tag: `--tag`, or the current commit's tag.
    Tag,
    /// A schedule.
    Schedule,
    /// "Run pipeline" in the web interface.
    Web,
    /// A request to the API.
    Api,
    /// A trigger token.
    Trigger,
    /// A pipeline of another project.
    Pipeline,
    /// A chat command.
    Chat,
    /// An external CI service.
    External,
    /// A pull request on GitHub.
    #[value(name = "external_pull_request_event")]
    ExternalPullRequest,
    /// The Web IDE.
    Webide,
}

/// Logs that a run shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogMode {
    /// Log of each job while it runs.
    Live,
    /// Log of each job after it has finished.
    All,
    /// Logs of failed jobs.
    Failed,
    /// Last lines of the logs of failed jobs.
    Tail,
    /// No logs.
    None,
}

/// Output format of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum OutputMode {
    /// Progress and a summary for humans.
    #[default]
    Human,
    /// One JSON object per event, each on its own line.
    Json,
    /// One JUnit report at the end, with a test case per job.
    Junit,
}

/// Output format of a list of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum ListOutput {
    /// Human-readable table.
    #[default]
    Table,
    /// JSON.
    Json,
    /// Semicolon-separated values with a header line, as printed by gitlab-ci-local.
    Csv,
}

/// Where jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Executor {
    /// Jobs with an image in containers if a Docker or Podman engine on this machine responds, all other jobs on this machine.
    #[default]
    Auto,
    /// On this machine, as processes of the current user.
    Host,
    /// In containers of a Docker or Podman engine on this machine.
    Docker,
    /// On runners that you connect to the printed address.
    External,
}

/// Output format of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum GraphFormat {
    /// Stages with their jobs.
    #[default]
    Text,
    /// Graphviz DOT.
    Dot,
    /// SVG image.
    Svg,
}

#[derive(Debug, thiserror::Error)]
#[error("not a valid duration; write it as `90`, `45 minutes` or `1h 30m`")]
struct InvalidDuration;

/// Parses a positive duration in GitLab's format, such as `90`, `90s` or `1h 30m`.
fn parse_duration(text: &str) -> Result<std::time::Duration, InvalidDuration> {
    match muster_pipeline::duration::parse(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(InvalidDuration),
    }
}
