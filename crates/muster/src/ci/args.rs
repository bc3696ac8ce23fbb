//! The command line of `muster ci`.

use std::path::PathBuf;

use clap::ValueEnum;

/// Arguments of `muster ci`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Each flag has a default in the environment: MUSTER_CI_<FLAG>, such as MUSTER_CI_EVENT or MUSTER_CI_VAR."
)]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

impl Args {
    /// The subcommand; `run` where none is named.
    pub(super) fn into_command(self) -> Command {
        self.command.unwrap_or(Command::Run(self.run))
    }
}

/// Subcommands of `muster ci`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Run the pipeline (this is what `muster ci` does without a subcommand).
    Run(RunArgs),
    /// List the jobs of the pipeline.
    List(ListArgs),
    /// Draw the jobs and what each waits for.
    Graph(GraphArgs),
    /// Check the configuration, and show all errors and warnings.
    Lint(LintArgs),
    /// Say what made a job what it is, or kept it out of the pipeline.
    Explain(ExplainArgs),
    /// Fetch what includes of other projects, components, templates and URLs name, and pin it.
    Vendor(VendorArgs),
    /// Show past runs: jobs, logs, result trees, artifacts.
    Show(ShowArgs),
    /// Open a shell in a finished job's workspace, with its variables.
    Shell(ShellArgs),
    /// Delete logs, artifacts, workspaces and caches of past runs.
    Clean(CleanArgs),
}

/// Where the repository is.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PlaceArgs {
    /// Work on the repository around this directory.
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".", hide_default_value = true)]
    pub(super) directory: PathBuf,
}

/// Which pipeline is meant: the file, the event, the variables.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PipelineArgs {
    #[command(flatten)]
    pub(super) place: PlaceArgs,
    /// The file that the pipeline is written in [default: .gitlab-ci.yml at the top of the repository].
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Ask no network: includes come from pins, local folders and kept copies.
    #[arg(long)]
    pub(super) offline: bool,
    /// The event that starts the pipeline; sets CI_PIPELINE_SOURCE and all that follows from it.
    #[arg(long, value_enum, default_value_t, hide_default_value = true, help_heading = "Event")]
    pub(super) event: Event,
    /// Take this for the name of the branch [default: the branch that is checked out].
    #[arg(long = "ref", value_name = "BRANCH", help_heading = "Event")]
    pub(super) branch: Option<String>,
    /// Make it a pipeline for a tag of this name; the tag need not exist.
    #[arg(long, value_name = "TAG", conflicts_with = "branch", help_heading = "Event")]
    pub(super) tag: Option<String>,
    /// The branch that the merge request goes to [default: the default branch]; implies `--event merge_request_event`.
    #[arg(long, value_name = "BRANCH", help_heading = "Event")]
    pub(super) mr_target: Option<String>,
    /// Let `rules:changes` compare with this branch, tag or commit, whatever the event.
    #[arg(long, value_name = "REF", help_heading = "Event")]
    pub(super) changed_since: Option<String>,
    /// Set a pipeline variable; it beats those of the configuration. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Variables")]
    pub(super) var: Vec<String>,
    /// Set pipeline variables from a file of NAME=VALUE lines. May be repeated; `--var` beats it.
    #[arg(long, value_name = "FILE", help_heading = "Variables")]
    pub(super) var_file: Vec<PathBuf>,
    /// Set a variable of type file: jobs see the path of a file with this file's content. May be repeated.
    #[arg(long, value_name = "NAME=FILE", help_heading = "Variables")]
    pub(super) file_var: Vec<String>,
    /// Let no variable of this name be set, by whatever means. May be repeated.
    #[arg(long, value_name = "NAME", help_heading = "Variables")]
    pub(super) unset_variable: Vec<String>,
    /// Give a value to an input of `spec:inputs`, of the file itself or else of the files that it includes. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Variables")]
    pub(super) input: Vec<String>,
}

/// Which pipeline is looked at, without running it.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct LookArgs {
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    /// Go on without includes that are not on this machine; jobs that lack parts are marked.
    #[arg(long)]
    pub(super) include_stub: bool,
}

/// Arguments of `muster ci run`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct RunArgs {
    /// Run only these jobs; a name without its matrix part means all cells. Manual jobs run only when named here.
    #[arg(value_name = "JOB")]
    pub(super) jobs: Vec<String>,
    /// Run only the jobs of this stage; manual ones among them only if they are named.
    #[arg(long, value_name = "STAGE")]
    pub(super) stage: Option<String>,
    /// Also run what the named jobs, or those of `--stage`, need.
    #[arg(long)]
    pub(super) needs: bool,
    /// Run what the named jobs, or those of `--stage`, need, but not these jobs themselves.
    #[arg(long)]
    pub(super) only_needs: bool,
    /// Also run this manual job, in a run of the whole pipeline too. May be repeated.
    #[arg(long, value_name = "JOB")]
    pub(super) manual: Vec<String>,
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    /// How many jobs run at the same time [default: the number of processors, at least 8].
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) concurrent: Option<u16>,
    /// Time limit of jobs that set none: seconds, or as in `1h 30m`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) timeout: Option<std::time::Duration>,
    /// Whose log is shown [default: the end of those of failed jobs; live when one job runs].
    #[arg(long, value_enum)]
    pub(super) log: Option<LogMode>,
    /// Show the time of each line of a log.
    #[arg(long)]
    pub(super) timestamps: bool,
    /// What is printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: OutputMode,
    /// Where jobs run.
    #[arg(long, value_enum, default_value_t)]
    pub(super) executor: Executor,
    /// The address to serve the runner API on; for `--executor external`.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub(super) listen: std::net::SocketAddr,
    /// Give each job a workspace of its own, and keep it for `muster ci shell`.
    #[arg(long)]
    pub(super) keep: bool,
}

impl RunArgs {
    /// Whose log is shown in a run of so many jobs. A program that reads the output gets the whole.
    pub(super) fn log_mode(&self, jobs: usize) -> LogMode {
        let short = if self.output == OutputMode::Human { LogMode::Tail } else { LogMode::Failed };
        self.log.unwrap_or(if jobs == 1 { LogMode::Live } else { short })
    }
}

/// Arguments of `muster ci list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub(super) look: LookArgs,
    /// Also list the jobs that rules keep out.
    #[arg(long, short)]
    pub(super) all: bool,
    /// What is printed.
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: ListOutput,
}

/// Arguments of `muster ci graph`.
#[derive(Debug, clap::Args)]
pub(super) struct GraphArgs {
    #[command(flatten)]
    pub(super) look: LookArgs,
    /// The form of the graph.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: GraphFormat,
}

/// Arguments of `muster ci lint`.
#[derive(Debug, clap::Args)]
pub(super) struct LintArgs {
    #[command(flatten)]
    pub(super) look: LookArgs,
    /// Print the configuration as it is after includes, `extends`, `!reference` and `default`.
    #[arg(long)]
    pub(super) preview: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "preview")]
    pub(super) json: bool,
}

/// Arguments of `muster ci explain`.
#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// The job, also one that is not in the pipeline.
    pub(super) job: String,
    #[command(flatten)]
    pub(super) look: LookArgs,
}

/// Arguments of `muster ci vendor`.
#[derive(Debug, clap::Args)]
pub(super) struct VendorArgs {
    /// Keep the contents in this directory of the repository [default: as `muster-ci.lock` says, else the cache of this machine].
    #[arg(long, value_name = "DIR")]
    pub(super) into: Option<PathBuf>,
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
}

/// Arguments of `muster ci show`.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The number of a run, or `last`; none lists the runs. A job's name means that job in the last run.
    #[arg(value_name = "RUN")]
    pub(super) run: Option<String>,
    /// The name or id of a job: shows its log, result tree and artifacts.
    #[arg(value_name = "JOB")]
    pub(super) job: Option<String>,
    /// Unpack the job's artifacts into this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) extract: Option<PathBuf>,
    /// Print nothing but the job's log.
    #[arg(long)]
    pub(super) log: bool,
    /// Print the time of each line of the log.
    #[arg(long)]
    pub(super) timestamps: bool,
    /// Print the trace as the runner sent it, byte for byte: with times, section markers and colours.
    #[arg(long, conflicts_with_all = ["log", "timestamps", "extract"])]
    pub(super) raw: bool,
    #[command(flatten)]
    pub(super) place: PlaceArgs,
}

/// Arguments of `muster ci shell`.
#[derive(Debug, clap::Args)]
pub(super) struct ShellArgs {
    /// The name or id of a job.
    #[arg(value_name = "JOB")]
    pub(super) job: String,
    /// The number of the run [default: the last].
    #[arg(long, value_name = "RUN")]
    pub(super) run: Option<u64>,
    #[command(flatten)]
    pub(super) place: PlaceArgs,
}

/// Arguments of `muster ci clean`.
#[derive(Debug, clap::Args)]
pub(super) struct CleanArgs {
    #[command(flatten)]
    pub(super) place: PlaceArgs,
    /// Of all repositories, not only of this one.
    #[arg(long)]
    pub(super) all: bool,
}

/// The events that start a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Event {
    /// A push of commits to the branch.
    #[default]
    Push,
    /// A merge request from the branch to `--mr-target`.
    #[value(name = "merge_request_event", alias = "mr")]
    MergeRequest,
    /// A push of a tag: `--tag`, or the tag that the commit has.
    Tag,
    /// A schedule.
    Schedule,
    /// The run form of the web pages.
    Web,
    /// A call of the API.
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

/// Whose log is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LogMode {
    /// Each job's log as it grows.
    Live,
    /// Each job's log when it has ended.
    All,
    /// The logs of failed jobs.
    Failed,
    /// The last lines of the logs of failed jobs.
    Tail,
    /// None.
    None,
}

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum OutputMode {
    /// Progress and a summary, for people.
    #[default]
    Human,
    /// One JSON object per line for each event.
    Json,
    /// One JUnit report at the end: a test case per job.
    Junit,
}

/// The form of a list of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum ListOutput {
    /// A table, for people.
    #[default]
    Table,
    /// JSON.
    Json,
    /// Values between semicolons, with a line of names, as gitlab-ci-local has it.
    Csv,
}

/// Where jobs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Executor {
    /// On this machine, as processes of the user.
    #[default]
    Host,
    /// In containers.
    Docker,
    /// On runners that register themselves with the address that is printed.
    External,
}

/// The form of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum GraphFormat {
    /// Stages with their jobs.
    #[default]
    Text,
    /// Graphviz.
    Dot,
    /// A picture.
    Svg,
}

/// GitLab's way to write times: `90`, `90s`, `1h 30m`.
fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    match muster_pipeline::duration::parse(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("write it as in `90`, `45 minutes` or `1h 30m`".to_owned()),
    }
}
