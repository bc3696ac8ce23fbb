//! Git commands for a mirror.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use muster_agent_api::builtin::{Checkout, GitMirror};
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::process::{Command, ProcessEnd};
use muster_steps::stop::StopToken;
use tempfile::TempDir;

use crate::checkout::config::{external_text, user_agent};
use crate::context::Context;
use crate::git_http::without_credentials;
use crate::mirrors::{COMMAND_PREFIX, Mirror, Refs, Refspec, read_refs};

/// Prefix of fetched refs, which replaces `refs/`.
const FETCHED: &str = "refs/fetched/";
const MAX_OUTPUT_BYTES: u64 = 256 * 1024 * 1024;
const NO_GIT: &str = "there is no `git` in the PATH of this machine; install it";

/// Directory for the git commands of one job, with the objects of the mirror but its own configuration and refs.
pub(super) struct GitDir<'a> {
    context: &'a Context,
    inputs: &'a GitMirror,
    mirror: &'a Mirror,
    dir: TempDir,
}

impl<'a> GitDir<'a> {
    /// Creates the directory. The caller must hold the lock of the mirror.
    pub(super) async fn new(
        context: &'a Arc<Context>,
        inputs: &'a GitMirror,
        mirror: &'a Mirror,
        stop: &StopToken,
    ) -> Result<Self, Failure> {
        let plain = without_credentials(&inputs.repo_url);
        if !plain.starts_with("http://") && !plain.starts_with("https://") {
            return Err(Failure::Step(
                "the URL of the repository is not an HTTP URL; mirrors support only HTTP".to_owned(),
            ));
        }
        let (mirror_dir, temp_dir) = (mirror.clone(), context.temp_dir.clone());
        // The URL rewrites of the job are left out, because the job's variables can affect them.
        let checkout = Checkout {
            repo_url: inputs.repo_url.clone(),
            credential_helper: inputs.credential_helper,
            tls: inputs.tls.clone(),
            ..Checkout::default()
        };
        let dir = crate::blocking::blocking(&**context, "preparing the git mirror", stop, move || {
            let create = || -> io::Result<TempDir> {
                mirror_dir.prepare()?;
                let dir = tempfile::Builder::new().prefix(COMMAND_PREFIX).tempdir_in(&mirror_dir.dir)?;
                fs::create_dir(dir.path().join("refs"))?;
                fs::write(dir.path().join("HEAD"), "ref: refs/heads/none\n")?;
                fs::write(dir.path().join("config"), "[core]\n\trepositoryformatversion = 0\n\tbare = true\n")?;
                std::os::unix::fs::symlink(mirror_dir.objects(), dir.path().join("objects"))?;
                let credentials = dir.path().join("credentials");
                let mut file = File::options().write(true).create_new(true).mode(0o600).open(credentials)?;
                file.write_all(external_text(&temp_dir, &checkout).as_bytes())?;
                Ok(dir)
            };
            create().map_err(Failure::io("failed to prepare the git mirror"))
        })
        .await?;
        Ok(Self { context, inputs, mirror, dir })
    }

    /// Returns the recorded commits that the mirror still has.
    ///
    /// Only commits with a complete history are recorded.
    pub(super) async fn existing_tips(&self, stop: &StopToken) -> Result<Vec<String>, Failure> {
        let tips = self.mirror.tips();
        let missing = self.missing(tips.iter().map(String::as_str), stop).await?;
        Ok(tips.into_iter().filter(|tip| !missing.contains(tip)).collect())
    }

    /// Returns whether the mirror has the commit `sha` and the objects of `refs`. Their history is not checked.
    pub(super) async fn has_objects(&self, refs: &Refs, sha: &str, stop: &StopToken) -> Result<bool, Failure> {
        let all = refs.0.iter().map(|(hash, _)| hash.as_str()).chain([sha]);
        Ok(self.missing(all, stop).await?.is_empty())
    }

    async fn missing(&self, hashes: impl Iterator<Item = &str>, stop: &StopToken) -> Result<Vec<String>, Failure> {
        let input: String = hashes.map(|hash| format!("{hash}\n")).collect();
        if input.is_empty() {
            return Ok(Vec::new());
        }
        let output = self.output(&["cat-file", "--batch-check"], Some(input), stop).await?;
        Ok(output.lines().filter_map(|line| line.strip_suffix(" missing")).map(str::to_owned).collect())
    }

    /// Fetches and returns refs with their history, except the history of `tips`.
    pub(super) async fn fetch(&self, tips: &[String], refspecs: &[Refspec], stop: &StopToken) -> Result<Refs, Failure> {
        self.write_tips(tips)?;
        let mut args = vec!["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--force", "--"];
        let url = without_credentials(&self.inputs.repo_url);
        args.push(&url);
        let fetched = |source: &str| format!("+{source}:{FETCHED}{}", source.trim_start_matches("refs/"));
        let refspecs: Vec<String> = refspecs.iter().map(|refspec| fetched(&refspec.source)).collect();
        args.extend(refspecs.iter().map(String::as_str));
        self.run(&args, None, None, stop).await?;
        let output = self.output(&["for-each-ref", "--format=%(objectname) %(refname)", FETCHED], None, stop).await?;
        let names = read_refs(&output).into_iter().map(|(hash, name)| {
            let name = name.replacen(FETCHED, "refs/", 1);
            (hash, name)
        });
        Ok(Refs(names.collect()))
    }

    /// Returns whether the server has each ref that `refspecs` name without wildcards. Returns false if it cannot be
    /// queried.
    pub(super) async fn server_has(&self, refspecs: &[Refspec], stop: &StopToken) -> Result<bool, Failure> {
        let url = without_credentials(&self.inputs.repo_url);
        let names: Vec<&str> =
            refspecs.iter().map(|refspec| refspec.source.as_str()).filter(|name| !name.contains('*')).collect();
        let mut args = vec!["ls-remote", "--quiet", "--", &url, "HEAD"];
        args.extend(&names);
        match self.output(&args, None, stop).await {
            Ok(found) => {
                let found: Vec<&str> = found.lines().filter_map(|line| Some(line.split_once('\t')?.1)).collect();
                Ok(names.iter().all(|name| found.contains(name)))
            }
            Err(failure @ Failure::Stopped(_)) => Err(failure),
            Err(_) => Ok(false),
        }
    }

    pub(super) async fn repack(&self, refs: &Refs, tips: &[String], stop: &StopToken) -> Result<(), Failure> {
        let all: Vec<String> = refs.0.iter().map(|(hash, _)| hash.clone()).chain(tips.iter().cloned()).collect();
        self.write_tips(&all)?;
        match self.run(&["repack", "--geometric=2", "-d", "--quiet"], None, None, stop).await {
            Err(failure @ Failure::Stopped(_)) => Err(failure),
            Err(failure) => {
                tracing::warn!(error = %failure, mirror = %self.mirror.dir.display(), "failed to combine the packs of a git mirror");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Creates a ref for each commit of `tips`, so that git knows that the mirror has its history.
    fn write_tips(&self, tips: &[String]) -> Result<(), Failure> {
        let text: String = tips.iter().enumerate().map(|(index, tip)| format!("{tip} refs/known/{index}\n")).collect();
        fs::write(self.dir.path().join("packed-refs"), text).map_err(Failure::io("failed to prepare the git mirror"))
    }

    async fn output(&self, args: &[&str], stdin: Option<String>, stop: &StopToken) -> Result<String, Failure> {
        let failed = || Failure::io("failed to read the output of git");
        // The file has no name, because a job could replace the content of a file that it can open.
        let file = Arc::new(tempfile::tempfile().map_err(failed())?);
        self.run(args, stdin, Some(Arc::clone(&file)), stop).await?;
        read_all(&file, MAX_OUTPUT_BYTES).map_err(failed())
    }

    async fn run(
        &self,
        args: &[&str],
        stdin: Option<String>,
        stdout: Option<Arc<File>>,
        stop: &StopToken,
    ) -> Result<(), Failure> {
        let command = Command {
            program: "git".into(),
            args: self.options().into_iter().chain(args.iter().map(OsString::from)).collect(),
            env: self.environment()?,
            work_dir: Some(self.dir.path().to_owned()),
            stdin: stdin.map(String::into_bytes),
            stdout,
        };
        let ended = self.context.processes.run(command, &self.context.log(), stop, self.context.grace).await?;
        match ended {
            ProcessEnd::Stopped(cause) => Err(Failure::Stopped(cause)),
            ProcessEnd::Exited(status) if status.success() => Ok(()),
            ProcessEnd::Exited(status) => {
                let name = args.first().copied().unwrap_or_default();
                Err(Failure::Step(format!("git {name} failed with {status}")))
            }
        }
    }

    fn options(&self) -> Vec<OsString> {
        let mut git_dir = OsString::from("--git-dir=");
        git_dir.push(self.dir.path());
        let mut include = OsString::from("include.path=");
        include.push(self.dir.path().join("credentials"));
        let mut options = vec![git_dir, "-c".into(), include];
        let user_agent = format!("http.userAgent={}", user_agent());
        let settings = [
            user_agent.as_str(),
            "core.hooksPath=/dev/null",
            "protocol.allow=never",
            "protocol.http.allow=always",
            "protocol.https.allow=always",
            "fetch.unpackLimit=1",
            "transfer.unpackLimit=1",
            "fetch.writeCommitGraph=false",
            "gc.auto=0",
            "maintenance.auto=false",
        ];
        options.extend(settings.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]));
        options
    }

    /// Returns the environment of the agent, without `GIT_` variables and with the job's token.
    ///
    /// The job's other variables are left out, because they could make git execute a command outside of the container.
    fn environment(&self) -> Result<Vec<(OsString, OsString)>, Failure> {
        let base = self.context.processes.environment();
        let mut env: Vec<_> = base.iter().filter(|(key, _)| !key.as_bytes().starts_with(b"GIT_")).cloned().collect();
        let path = env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone()).unwrap_or_default();
        if !has_git(&path) {
            return Err(Failure::Step(NO_GIT.to_owned()));
        }
        env.push(("GIT_TERMINAL_PROMPT".into(), "0".into()));
        env.push(("GCM_INTERACTIVE".into(), "Never".into()));
        // The credential helper reads this variable.
        env.push(("CI_JOB_TOKEN".into(), self.context.coordinator.token.clone().into()));
        Ok(env)
    }
}

/// Returns the content of a file. Fails if it has more than `max` bytes, because a part of it would look like a
/// complete list of refs.
fn read_all(mut file: &File, max: u64) -> io::Result<String> {
    if file.metadata()?.len() > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {max} bytes")));
    }
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn has_git(path: &OsStr) -> bool {
    std::env::split_paths(path).any(|directory: std::path::PathBuf| Path::is_file(&directory.join("git")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_too_large_is_an_error() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"refs").unwrap();
        assert_eq!(read_all(&file, 4).unwrap(), "refs");
        assert_eq!(read_all(&file, 3).unwrap_err().to_string(), "it is larger than 3 bytes");
    }
}
