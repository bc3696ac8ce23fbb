//! Updates and cleans submodules (docs/spec/job-execution.md, section 2.7).

use muster_agent_api::builtin::{Checkout, Cleanup};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::config::external_path;
use super::remote::{git, has_lfs};
use crate::context::Context;

const RECURSIVE: &str = "--recursive";
const RESET: [&str; 3] = ["git", "reset", "--hard"];

pub(super) async fn update(context: &Context, checkout: &Checkout, stop: &StopToken) -> Result<(), Failure> {
    let recursive = match checkout.submodules.as_str() {
        "normal" => false,
        "recursive" => true,
        _ => return Err(Failure::Step("unknown GIT_SUBMODULE_STRATEGY".to_owned())),
    };
    let (project, depth) = (&context.project_dir, checkout.submodule_depth);
    context.print(&style::info(&format!(
        "Updating/initializing submodules{}{}...",
        if recursive { " recursively" } else { "" },
        if depth > 0 { format!(" with git depth set to {depth}") } else { String::new() }
    )));
    git(context, &["submodule", "init"], project, stop).await?;
    let sync = sync(checkout, recursive);
    let sync: Vec<&str> = sync.iter().map(String::as_str).collect();
    git(context, &sync, project, stop).await?;
    let clean = clean_command(checkout.clean_flags.as_ref());
    let clean: Vec<&str> = clean.iter().map(String::as_str).collect();
    foreach(context, recursive, &clean, stop).await?;
    foreach(context, recursive, &RESET, stop).await?;
    let update = update_command(context, checkout, recursive);
    let update: Vec<&str> = update.iter().map(String::as_str).collect();
    match git(context, &update, project, stop).await {
        Ok(()) => {
            context.print(&style::info("Updated submodules"));
            git(context, &sync, project, stop).await?;
        }
        Err(failure) if stop.cause().is_some() => return Err(failure),
        Err(_) => {
            context.print(&style::warning("Updating submodules failed. Retrying..."));
            if checkout.submodule_flags.iter().any(|flag| flag == "--remote") {
                let include = include(context);
                let fetch = ["git", "-c", &include, "fetch", "origin", "+refs/heads/*:refs/remotes/origin/*"];
                foreach(context, recursive, &fetch, stop).await?;
            }
            git(context, &sync, project, stop).await?;
            git(context, &update, project, stop).await?;
            foreach(context, recursive, &RESET, stop).await?;
        }
    }
    foreach(context, recursive, &clean, stop).await?;
    let external = external_path(&context.temp_dir);
    let set_include =
        ["git", "config", "--replace-all", "include.path", &*external.to_string_lossy()].map(str::to_owned);
    let set_include: Vec<&str> = set_include.iter().map(String::as_str).collect();
    foreach(context, true, &set_include, stop).await?;
    if !checkout.skip_lfs && has_lfs(context) {
        foreach(context, recursive, &["git", "lfs", "pull"], stop).await?;
    }
    Ok(())
}

pub(super) async fn clean(context: &Context, cleanup: &Cleanup, stop: &StopToken) -> Result<(), Failure> {
    let recursive = match cleanup.submodules.as_str() {
        "normal" => false,
        "recursive" => true,
        _ => return Ok(()),
    };
    let clean = clean_command(cleanup.clean_flags.as_ref());
    let clean: Vec<&str> = clean.iter().map(String::as_str).collect();
    foreach(context, recursive, &clean, stop).await?;
    foreach(context, recursive, &RESET, stop).await
}

fn include(context: &Context) -> String {
    format!("include.path={}", external_path(&context.temp_dir).display())
}

fn sync(checkout: &Checkout, recursive: bool) -> Vec<String> {
    let args = ["submodule", "sync"].into_iter().chain(recursive.then_some(RECURSIVE)).map(str::to_owned);
    args.chain(paths(checkout)).collect()
}

fn update_command(context: &Context, checkout: &Checkout, recursive: bool) -> Vec<String> {
    let mut args = vec!["-c".to_owned(), include(context)];
    args.extend(["submodule", "update", "--init"].map(str::to_owned));
    args.extend(recursive.then(|| RECURSIVE.to_owned()));
    if checkout.submodule_depth > 0 {
        args.extend(["--depth".to_owned(), checkout.submodule_depth.to_string()]);
    }
    args.extend(checkout.submodule_flags.iter().cloned());
    args.extend(paths(checkout));
    args
}

fn paths(checkout: &Checkout) -> Vec<String> {
    let separator = (!checkout.submodule_paths.is_empty()).then(|| "--".to_owned());
    separator.into_iter().chain(checkout.submodule_paths.iter().cloned()).collect()
}

fn clean_command(flags: Option<&Vec<String>>) -> Vec<String> {
    let default_flags = || vec!["-ffdx".to_owned()];
    let flags = flags.filter(|flags| !flags.is_empty()).cloned().unwrap_or_else(default_flags);
    ["git", "clean"].map(str::to_owned).into_iter().chain(flags).collect()
}

async fn foreach(context: &Context, recursive: bool, command: &[&str], stop: &StopToken) -> Result<(), Failure> {
    let mut args = vec!["submodule", "foreach"];
    args.extend(recursive.then_some(RECURSIVE));
    args.extend(command);
    git(context, &args, &context.project_dir, stop).await
}
