//! Checkouts over a URL, by the `git` command (job-execution 2.2 to 2.7).
//!
//! Credentials live in a file of the job's temporary directory, which the repository's configuration includes and
//! which goes away with the job; the stored remote has none.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use muster_agent_api::builtin::Checkout;
use muster_steps::process::Command;
use muster_steps::stop::Stop;

use super::{clear, remove_tree, short, without_credentials};
use crate::context::Context;
use crate::failure::Failure;
use crate::trace::style;

/// Locks that a killed git leaves behind (job-execution 2.3).
const LEFTOVERS: [&str; 5] = ["index.lock", "shallow.lock", "HEAD.lock", "hooks/post-checkout", "config.lock"];

/// Fills the project directory with the commit.
pub(super) async fn check_out(context: &Context, checkout: &Checkout, stop: &Stop) -> Result<(), Failure> {
    let project = &context.project_dir;
    if checkout.strategy == "clone" {
        clear(context, stop).await?;
    }
    remove_leftovers(project);
    let include = write_credentials(context, checkout).map_err(Failure::io("cannot write the git configuration"))?;
    fetch(context, checkout, &include, stop).await?;
    if !checkout.checkout {
        context.say(&style::info("Skipping Git checkout"));
        return Ok(());
    }
    let notice = format!("Checking out {} as detached HEAD (ref is {})...", short(&checkout.sha), checkout.ref_name);
    context.say(&style::info(&notice));
    let args = ["-c", "submodule.recurse=false", "checkout", "-f", "-q", &checkout.sha];
    git(context, &args, project, stop).await?;
    if let Some(flags) = &checkout.clean_flags {
        let args: Vec<&str> = ["clean"].into_iter().chain(flags.iter().map(String::as_str)).collect();
        git(context, &args, project, stop).await?;
    }
    if !matches!(checkout.submodules.as_str(), "" | "none") {
        submodules(context, checkout, stop).await?;
    }
    Ok(())
}

async fn fetch(context: &Context, checkout: &Checkout, include: &Path, stop: &Stop) -> Result<(), Failure> {
    let project = &context.project_dir;
    context.say(&style::info(&match checkout.depth {
        depth @ 1.. => format!("Fetching changes with git depth set to {depth}..."),
        _ => "Fetching changes...".to_owned(),
    }));
    let fresh = !project.join(".git").exists();
    fs::create_dir_all(project).map_err(Failure::io("cannot make the project directory"))?;
    if fresh {
        let mut args = vec!["-c", "init.defaultBranch=none", "init", "--quiet", "--template="];
        if !matches!(checkout.object_format.as_str(), "" | "sha1") {
            args.extend(["--object-format", &checkout.object_format]);
        }
        git(context, &args, project, stop).await?;
        context.say(&style::info("Created fresh repository."));
    }
    let include = include.to_string_lossy();
    for (key, value) in [
        ("remote.origin.url", without_credentials(&checkout.repo_url).as_str()),
        ("include.path", &*include),
        ("fetch.recurseSubmodules", "false"),
        ("credential.interactive", "never"),
        ("gc.autoDetach", "false"),
    ] {
        git(context, &["config", "--replace-all", key, value], project, stop).await?;
    }
    let depth = checkout.depth.to_string();
    let agent = format!(
        "http.userAgent=gitlab-runner {} {}/{}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH
    );
    let mut args = vec!["-c", agent.as_str(), "fetch", "origin", "--no-recurse-submodules"];
    args.extend(checkout.refspecs.iter().map(String::as_str));
    if checkout.depth > 0 {
        args.extend(["--depth", &depth]);
    } else if project.join(".git/shallow").exists() {
        args.push("--unshallow");
    }
    args.extend(checkout.fetch_flags.iter().map(String::as_str));
    git(context, &args, project, stop).await
}

/// Brings the submodules to what the commit says (job-execution 2.7).
pub(super) async fn submodules(context: &Context, checkout: &Checkout, stop: &Stop) -> Result<(), Failure> {
    let recursive = match checkout.submodules.as_str() {
        "normal" => false,
        "recursive" => true,
        _ => return Err(Failure::Step("unknown GIT_SUBMODULE_STRATEGY".to_owned())),
    };
    let project = &context.project_dir;
    let depth = checkout.depth.to_string();
    context.say(&style::info(&format!(
        "Updating/initializing submodules{}{}...",
        if recursive { " recursively" } else { "" },
        if checkout.depth > 0 { format!(" with git depth set to {depth}") } else { String::new() }
    )));
    let with = |args: &[&'static str]| -> Vec<&'static str> {
        args.iter().copied().chain(recursive.then_some("--recursive")).collect()
    };
    git(context, &["submodule", "init"], project, stop).await?;
    git(context, &with(&["submodule", "sync", "--quiet"]), project, stop).await?;
    let include = format!("include.path={}", credentials_path(context).display());
    let update = |depth: &'static str| {
        let mut args = vec!["-c".to_owned(), include.clone()];
        args.extend(with(&["submodule", "update", "--init"]).into_iter().map(str::to_owned));
        if checkout.depth > 0 && depth == "--depth" {
            args.extend([depth.to_owned(), checkout.depth.to_string()]);
        }
        args
    };
    let first = update("--depth");
    let first: Vec<&str> = first.iter().map(String::as_str).collect();
    if let Err(failure) = git(context, &first, project, stop).await {
        if stop.cause().is_some() {
            return Err(failure);
        }
        context.say(&style::warning("Updating submodules failed. Retrying..."));
        git(context, &with(&["submodule", "sync", "--quiet"]), project, stop).await?;
        let second = update("");
        let second: Vec<&str> = second.iter().map(String::as_str).collect();
        git(context, &second, project, stop).await?;
        foreach(context, recursive, &["git", "reset", "--hard", "--quiet"], stop).await?;
    } else {
        context.say(&style::info("Updated submodules"));
        git(context, &with(&["submodule", "sync", "--quiet"]), project, stop).await?;
    }
    let clean = checkout.clean_flags.clone().filter(|flags| !flags.is_empty());
    let clean = clean.unwrap_or_else(|| vec!["-ffdx".to_owned()]);
    let clean: Vec<&str> = ["git", "clean", "--quiet"].into_iter().chain(clean.iter().map(String::as_str)).collect();
    foreach(context, recursive, &clean, stop).await
}

async fn foreach(context: &Context, recursive: bool, command: &[&str], stop: &Stop) -> Result<(), Failure> {
    let mut args = vec!["submodule", "--quiet", "foreach"];
    if recursive {
        args.push("--recursive");
    }
    args.extend(command);
    git(context, &args, &context.project_dir, stop).await
}

/// Runs git. Its environment is the agent's with the job's variables, but for those that would lead git elsewhere.
pub(super) async fn git(context: &Context, args: &[&str], dir: &Path, stop: &Stop) -> Result<(), Failure> {
    let leads_astray = |key: &OsString| {
        ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE"]
            .iter()
            .any(|name| key == name)
    };
    let mut env: Vec<_> = context.environment().into_iter().filter(|(key, _)| !leads_astray(key)).collect();
    env.push(("GIT_TERMINAL_PROMPT".into(), "0".into()));
    env.push(("GCM_INTERACTIVE".into(), "Never".into()));
    let command = Command {
        program: PathBuf::from("git"),
        args: args.iter().map(Into::into).collect(),
        env,
        work_dir: Some(dir.to_owned()),
        ..Command::default()
    };
    context.wait(command, stop).await
}

fn credentials_path(context: &Context) -> PathBuf {
    context.temp_dir.join(".gitlab-runner.ext.conf")
}

/// Writes the file that maps the remote without credentials to the one with them (job-execution 2.6).
fn write_credentials(context: &Context, checkout: &Checkout) -> std::io::Result<PathBuf> {
    let path = credentials_path(context);
    let _ = fs::remove_file(&path);
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    let plain = without_credentials(&checkout.repo_url);
    let mut pairs = vec![(checkout.repo_url.clone(), plain.clone())];
    if let (Some(with), Some(without)) = (base(&checkout.repo_url), base(&plain)) {
        pairs.push((with, without));
    }
    for (with, without) in pairs.into_iter().filter(|(with, without)| with != without) {
        writeln!(file, "[url \"{}\"]\n\tinsteadOf = \"{}\"", escape(&with), escape(&without))?;
    }
    writeln!(file, "[transfer]\n\tbundleURI = true")?;
    Ok(path)
}

/// Scheme and host, with the user if there is one.
fn base(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    matches!(scheme, "http" | "https").then(|| format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()))
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn remove_leftovers(project: &Path) {
    let git = project.join(".git");
    for name in LEFTOVERS {
        let _ = fs::remove_file(git.join(name));
    }
    for entry in walkdir::WalkDir::new(git.join("refs")).into_iter().flatten() {
        if entry.file_type().is_file() && entry.path().extension().is_some_and(|ext| ext == "lock") {
            let _ = fs::remove_file(entry.path());
        }
    }
    if git.exists() && !git.join("HEAD").exists() {
        // What a killed `git init` leaves is no repository.
        let _ = remove_tree(&git);
    }
}
