//! Checks out a commit of a repository on this machine: git runs once per commit, and jobs get copies.
//!
//! If the project directory already contains this commit, only changes are reverted ([`crate::templates`]).
//!
//! Each job has its own `.git` directory, which borrows objects from the repository (`objects/info/alternates`). The
//! copied index is valid because git is configured to compare only sizes and modification times.

use std::fs;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_agent_api::builtin::Checkout;
use muster_files::{Limit, open, read_open};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::{config, remote, short_sha, submodules};
use crate::blocking::blocking;
use crate::context::Context;
use crate::git_http::without_credentials;
use crate::templates::{Template, TemplateKey, Tree};
use crate::transfer::TransferContext;

const REFS_LIMIT: Limit = Limit { bytes: 64 * 1024 * 1024, remedy: "the checkout has no tags" };

pub(super) async fn check_out(
    context: &Arc<Context>,
    checkout: &Checkout,
    repository: &Path,
    stop: &StopToken,
) -> Result<(), Failure> {
    let key = TemplateKey {
        repository: repository.to_owned(),
        sha: checkout.sha.clone(),
        url: without_credentials(&checkout.repo_url),
    };
    let template = template(context, checkout, &key, stop).await?;
    if checkout.checkout {
        let notice = format!("Checking out {} as detached HEAD (ref is {})...", short_sha(&key.sha), checkout.ref_name);
        context.print(&style::info(&notice));
    } else {
        context.print(&style::info("Skipping Git checkout"));
    }
    let (project, bare, watch) = (context.project_dir.clone(), !checkout.checkout, stop.clone());
    let shared = Arc::clone(&context.shared);
    let extraction = context.extraction();
    blocking(&**context, "filling the project directory", stop, move || {
        let should_continue = || watch.cause().is_none();
        extraction.create_parent()?;
        let restored = shared.templates.restore(&template, (&project, bare), &shared.trash, &should_continue);
        match (restored, watch.cause()) {
            (Err(_), Some(cause)) => Err(Failure::Stopped(cause)),
            (restored, _) => restored.map_err(Failure::io(format!("failed to fill `{}`", project.display()))),
        }
    })
    .await?;
    if checkout.checkout && !matches!(checkout.submodules.as_str(), "" | "none") {
        config::write(context, checkout, stop).await?;
        submodules::update(context, checkout, stop).await
    } else {
        context.print(&style::info("Skipping Git submodules setup"));
        Ok(())
    }
}

/// Returns the template of a commit. Creates it if necessary.
///
/// Jobs wait while another job creates their template. If that job is stopped, a waiting job creates it.
async fn template(
    context: &Context,
    checkout: &Checkout,
    key: &TemplateKey,
    stop: &StopToken,
) -> Result<Arc<Template>, Failure> {
    let cell = context.shared.templates.cell(key);
    let is_building = AtomicBool::new(false);
    let mut template = pin!(cell.get_or_try_init(|| {
        is_building.store(true, Ordering::Relaxed);
        build(context, checkout, key, stop)
    }));
    let template = tokio::select! {
        biased;
        template = &mut template => template,
        cause = stop.stopped() => match is_building.load(Ordering::Relaxed) {
            // The git process of this job must end first.
            true => template.await,
            false => return Err(Failure::Stopped(cause)),
        },
    };
    template.map(Arc::clone)
}

async fn build(
    context: &Context,
    checkout: &Checkout,
    key: &TemplateKey,
    stop: &StopToken,
) -> Result<Arc<Template>, Failure> {
    let failed = || Failure::io("failed to prepare the checkout");
    let directory = context.shared.templates.create_directory().map_err(failed())?;
    // The tree is a new directory, because the temporary directory does not have the usual permissions.
    let root = directory.path().join("tree");
    let (target, owned_checkout, owned_key) = (root.clone(), checkout.clone(), key.clone());
    blocking(context, "preparing the checkout", stop, move || {
        write_repository(&target, &owned_checkout, &owned_key).map_err(Failure::io("failed to prepare the checkout"))
    })
    .await?;
    remote::git(context, &["checkout", "--force", "--quiet", "--detach", &key.sha], &root, stop).await?;
    let read = move || Tree::read(&root).map_err(Failure::io("failed to read the checkout"));
    let tree = blocking(context, "reading the checkout", stop, read).await?;
    Ok(context.shared.templates.new_template(tree, directory))
}

/// Creates `.git` as `git init` would, and borrows the objects of the repository.
fn write_repository(root: &Path, checkout: &Checkout, key: &TemplateKey) -> io::Result<()> {
    let git = root.join(".git");
    fs::create_dir_all(git.join("objects/info"))?;
    fs::create_dir_all(git.join("refs/heads"))?;
    fs::create_dir_all(git.join("info"))?;
    let objects = fs::canonicalize(key.repository.join("objects"))
        .or_else(|_| fs::canonicalize(key.repository.join(".git/objects")))?;
    fs::write(git.join("objects/info/alternates"), format!("{}\n", objects.display()))?;
    fs::write(git.join("HEAD"), format!("{}\n", key.sha))?;
    let (version, extension) = match checkout.object_format.as_str() {
        "sha256" => (1, "[extensions]\n\tobjectformat = sha256\n"),
        _ => (0, ""),
    };
    fs::write(
        git.join("config"),
        format!(
            "[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = false\n\
             \tlogallrefupdates = true\n\tcheckStat = minimal\n\ttrustctime = false\n{extension}\
             [remote \"origin\"]\n\turl = \"{}\"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
             [gc]\n\tauto = 0\n",
            key.url.replace('\\', "\\\\").replace('"', "\\\"")
        ),
    )?;
    let mut refs = String::from("# pack-refs with: peeled fully-peeled sorted\n");
    if let Some(name) = checkout.ref_name.strip_prefix("refs/").or(Some(&checkout.ref_name)).filter(|n| is_plain(n)) {
        refs.push_str(&format!("{} refs/remotes/origin/{name}\n", key.sha));
    }
    refs.push_str(&tags(&key.repository));
    fs::write(git.join("packed-refs"), refs)
}

/// Returns the packed tags of the repository, for `git describe`.
fn tags(repository: &Path) -> String {
    // `packed-refs` may be a symbolic link, such as in a work tree of `git-new-workdir`. `open` rejects links.
    let path = ["packed-refs", ".git/packed-refs"].iter().find_map(|name| fs::canonicalize(repository.join(name)).ok());
    let Some(path) = path else { return String::new() };
    let packed = open(&path).and_then(|file| read_open(file, &path, REFS_LIMIT)).unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to read the tags of a repository, checking out without tags");
        Vec::new()
    });
    let packed = String::from_utf8_lossy(&packed);
    let mut lines = String::new();
    let mut in_tag = false;
    for line in packed.lines() {
        in_tag = if line.starts_with('^') { in_tag } else { line.contains(" refs/tags/") };
        if in_tag {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

/// Returns whether a ref name is valid. Rejects some unusual names that git permits.
fn is_plain(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '+');
    !name.is_empty()
        && name.chars().all(is_allowed)
        && !name.contains("..")
        && !name.contains("//")
        && !name.ends_with(['/', '.'])
        && !name.starts_with(['/', '-', '.'])
        && !name.ends_with(".lock")
}
