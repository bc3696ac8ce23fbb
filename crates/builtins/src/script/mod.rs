//! `builtin://script`: runs the user's commands in one shell (docs/spec/job-execution.md, sections 4.3, 4.4 and 4.7).
//!
//! The script equals gitlab-runner's. It is never in an argument list, but in standard input or a file (J6 of
//! ARCHITECTURE.md).

mod offer;
mod posix;
mod powershell;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::Script;
use muster_steps::builtin::{Builtin, Offer, Role};
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::process::{Command, find_program};
use muster_steps::shell::shell_not_found;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::blocking::blocking;
use crate::context::Context;
use crate::private_file;
use crate::shell_text::{ScriptBlock, commands};
use crate::variables::ResolvedVariable;

/// File in the temporary directory that the shell writes after it has executed its profile.
const STARTED_FILE: &str = ".shell_started";

#[async_trait]
impl Builtin<Context> for Script {
    fn role(&self) -> Role {
        if self.after_script { Role::AfterScript } else { Role::Script }
    }

    fn is_idle(&self) -> bool {
        self.commands.is_empty()
    }

    fn offer(&self, _context: &Context) -> Option<Offer> {
        Some(offer::script(self))
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        let block = if self.after_script { "after_script_step" } else { "script_step" };
        let blocks =
            [("pre_build_script", &*self.before), (block, &*self.commands), ("post_build_script", &*self.after)];
        if self.after_script {
            context.print(&style::info("Running after script..."));
        }
        run_blocks(context, self, &blocks, stop).await
    }
}

pub(crate) async fn run_blocks(
    context: &Context,
    script: &Script,
    blocks: &[ScriptBlock<'_>],
    stop: &StopToken,
) -> Result<(), Failure> {
    context.wait_until_user_code_may_run(stop).await?;
    let marker = if script.login { Some(ProfileMarker::new(context, stop).await?) } else { None };
    let started = marker.as_ref().map(|marker| marker.path.as_path());
    let frame = ScriptFrame { script, directory: &context.project_dir, started, blocks };
    let command = match script.shell.as_str() {
        "" | "bash" | "sh" => posix::command(context, &frame)?,
        "pwsh" | "powershell" => powershell::command(context, &frame)?,
        other => {
            return Err(Failure::Configuration(format!(
                "the shell `{other}` is not supported; use `bash`, `sh`, `pwsh` or `powershell`"
            )));
        }
    };
    let ended = context.run_command(command, stop).await;
    let marker = marker
        .filter(|_| matches!(ended, Ok(()) | Err(Failure::Exit(_) | Failure::ContainerExit(_) | Failure::Signal(_))));
    let Some(marker) = marker else { return ended };
    if blocking(context, "checking the start of the shell", stop, move || Ok(marker.is_set())).await? {
        return ended;
    }
    Err(match ended {
        Ok(()) => Failure::Profile("exit status 0".to_owned(), None),
        Err(failure) => Failure::Profile(failure.to_string(), failure.exit_code()),
    })
}

/// File that the shell writes after it has executed its profile. It is open, because the script may remove it.
struct ProfileMarker {
    path: PathBuf,
    file: fs::File,
}

impl ProfileMarker {
    async fn new(context: &Context, stop: &StopToken) -> Result<Self, Failure> {
        let path = context.temp_dir.join(STARTED_FILE);
        blocking(context, "preparing the start of the shell", stop, move || {
            let file = private_file::create(&path).map_err(Failure::io("failed to prepare the start of the shell"))?;
            Ok(Self { path, file })
        })
        .await
    }

    fn is_set(&self) -> bool {
        let is_written = |found: io::Result<fs::Metadata>| found.is_ok_and(|found| found.is_file() && found.len() > 0);
        // If the profile removed the file, the shell created a new one.
        is_written(self.file.metadata()) || is_written(fs::symlink_metadata(&self.path))
    }
}

struct ScriptFrame<'a> {
    script: &'a Script,
    directory: &'a Path,
    /// File that the shell writes after it has executed its profile. `None` means that it executes no profile.
    started: Option<&'a Path>,
    blocks: &'a [ScriptBlock<'a>],
}

impl ScriptFrame<'_> {
    /// Returns the variables that the script sets: `of_job` and its own. An operator's script excludes variables of the
    /// job that select programs.
    fn exports<'b>(&'b self, of_job: Vec<ResolvedVariable<'b>>) -> Vec<ResolvedVariable<'b>> {
        let of_job = of_job.into_iter().filter(|(key, _)| !self.script.by_operator || !selects_programs(key));
        of_job.chain(self.script.env.iter().map(|(key, value)| (key.into(), value.into()))).collect()
    }

    /// Returns the process of a shell. `text` is its standard input. `None` means that the script is a file.
    fn shell_process(&self, context: &Context, program: PathBuf, args: Vec<OsString>, text: Option<String>) -> Command {
        let mut env = context.environment();
        if self.script.by_operator {
            let is_selecting = |(key, _): &(OsString, OsString)| selects_programs(&key.to_string_lossy());
            env.retain(|variable| !is_selecting(variable));
            env.extend(context.processes().environment().iter().filter(|variable| is_selecting(variable)).cloned());
        }
        Command { program, args, env, stdin: text.map(String::into_bytes), ..Command::default() }
    }

    fn commands(&self) -> impl Iterator<Item = (String, &str)> {
        commands(self.blocks)
    }
}

/// Returns the failure for missing shells. In a container, it is a configuration error of the job's image.
fn no_shell(context: &Context, names: &[&str]) -> Failure {
    let message = shell_not_found(names, context.image());
    if context.image().is_empty() { Failure::System(message) } else { Failure::Configuration(message) }
}

fn program(name: &str) -> Option<PathBuf> {
    find_program(name)
}

/// Returns whether a variable changes which programs a shell or a common program executes, or how.
fn selects_programs(key: &str) -> bool {
    const PREFIXES: [&str; 8] = ["LD_", "BASH_FUNC_", "PYTHON", "PERL5", "RUBY", "NODE_", "GIT_CONFIG", "GIT_SSH"];
    let names = ["PATH", "IFS", "CDPATH", "SHELLOPTS", "BASHOPTS", "PS4", "GIT_EXEC_PATH", "GIT_ASKPASS"];
    names.contains(&key) || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests;
