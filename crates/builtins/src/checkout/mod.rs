//! `builtin://checkout`: brings the project directory to a commit (job-execution 2).
//!
//! Two ways lead there. A commit of a repository on this machine is checked out once, as a [`template`], and copied
//! for every job. Any other is fetched by the `git` command ([`remote`]).

mod remote;
mod template;
mod tree;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use muster_agent_api::builtin::{Checkout, Script};
use muster_steps::stop::Stop;

use crate::context::Context;
use crate::failure::Failure;
use crate::script;
use crate::trace::style;
pub use template::Templates;

/// Runs the phase. `again` says that a try before this one failed.
pub(crate) async fn run(context: &Context, checkout: &Checkout, again: bool, stop: &Stop) -> Result<(), Failure> {
    let project = &context.project_dir;
    match checkout.strategy.as_str() {
        "none" => {
            context.say(&style::info("Skipping Git repository setup"));
            context.say(&style::info("Skipping Git checkout"));
            return fs::create_dir_all(project).map_err(Failure::io("cannot make the project directory"));
        }
        "empty" => {
            context.say(&style::info("Skipping Git repository setup and creating an empty build directory"));
            context.say(&style::info("Skipping Git checkout"));
            return clear(context, stop).await;
        }
        _ => {}
    }
    if again {
        context.say(&style::info("Deleting tracked and untracked files..."));
        clear(context, stop).await?;
    }
    hook(context, &checkout.pre_script, stop).await?;
    match &checkout.local_repository {
        Some(repository) => template::check_out(context, checkout, Path::new(repository), stop).await?,
        None => remote::check_out(context, checkout, stop).await?,
    }
    hook(context, &checkout.post_script, stop).await
}

async fn hook(context: &Context, commands: &[String], stop: &Stop) -> Result<(), Failure> {
    if commands.is_empty() {
        return Ok(());
    }
    fs::create_dir_all(&context.project_dir).map_err(Failure::io("cannot make the project directory"))?;
    let hook = Script { commands: commands.to_vec(), ..Script::default() };
    script::run(context, &hook, stop).await
}

/// Makes the project directory one that exists and is empty.
async fn clear(context: &Context, stop: &Stop) -> Result<(), Failure> {
    let (dir, shared) = (context.project_dir.clone(), Arc::clone(&context.shared));
    if let Some(cause) = stop.cause() {
        return Err(Failure::Stopped(cause));
    }
    Context::blocking(move || {
        let cleared = shared.trash.discard(&dir).and_then(|()| fs::create_dir_all(&dir));
        cleared.map_err(Failure::io(format!("cannot empty `{}`", dir.display())))
    })
    .await
}

/// Removes a directory if it is there, also where a job took away its own permission to write (job-execution 4.3).
pub(crate) fn remove_tree(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => {
            allow_writing(dir);
            fs::remove_dir_all(dir)
        }
    }
}

fn allow_writing(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = fs::set_permissions(dir, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        // The type of the entry itself: a link is not followed.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            allow_writing(&entry.path());
        }
    }
}

/// A URL without user and password, as it may stand in a file or in the trace.
fn without_credentials(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

fn short(sha: &str) -> &str {
    sha.get(..8).unwrap_or(sha)
}

#[cfg(test)]
mod tests;
