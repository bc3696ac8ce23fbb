//! Submodules with libgit2 (docs/spec/job-execution.md, section 2.7).

use git2::{Oid, Pathspec, PathspecFlags, Repository};
use muster_steps::stop::StopToken;
use muster_steps::style;

use super::{CheckoutRun, check_out_commit, check_out_head, clean, replace_all};
use crate::git_http::without_credentials;

const ALL_BRANCHES: &str = "+refs/heads/*:refs/remotes/origin/*";

pub(super) fn update(work: &CheckoutRun<'_>, repository: &Repository, recursive: bool) -> Result<(), git2::Error> {
    let depth = work.checkout.submodule_depth;
    work.print(&format!(
        "Updating/initializing submodules{}{}...",
        if recursive { " recursively" } else { "" },
        if depth > 0 { format!(" with git depth set to {depth}") } else { String::new() }
    ));
    update_in(work, repository, recursive, &work.checkout.submodule_paths)?;
    work.print("Updated submodules");
    Ok(())
}

/// Updates the submodules of one repository. Empty `paths` (`GIT_SUBMODULE_PATHS`) select all submodules.
fn update_in(
    work: &CheckoutRun<'_>,
    repository: &Repository,
    recursive: bool,
    paths: &[String],
) -> Result<(), git2::Error> {
    let selected = Selection::new(paths)?;
    for mut submodule in repository.submodules()? {
        if !selected.includes(submodule.path()) {
            continue;
        }
        submodule.init(true)?;
        let name = submodule.name()?.to_owned();
        let failed = |error: git2::Error| {
            git2::Error::new(error.code(), error.class(), format!("submodule `{name}`: {}", error.message()))
        };
        // libgit2 has no transport for SSH, so SSH URLs of the coordinator's host become HTTP URLs.
        let mut config = repository.config()?;
        let key = format!("submodule.{name}.url");
        let url = without_credentials(&work.session.credentials.rewrite(&config.get_string(&key)?));
        // Only HTTP is supported, because a stop would not interrupt the other transports of libgit2.
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(failed(git2::Error::from_str(&format!(
                "the URL {url} requires the `git` command, but `git` is not in PATH; use an image that has git"
            ))));
        }
        replace_all(&mut config, &key, &url)?;
        submodule.reload(true)?;
        let Some(sha) = submodule.index_id() else { continue };
        let inner = submodule.open().or_else(|_| submodule.repo_init(true)).map_err(failed)?;
        // `remove_config` may have removed the configuration of the submodule.
        let mut inner_config = inner.config()?;
        replace_all(&mut inner_config, "remote.origin.url", &url)?;
        replace_all(&mut inner_config, "remote.origin.fetch", ALL_BRANCHES)?;
        fetch(work, &inner, &url, sha).map_err(failed)?;
        check_out_commit(&inner, sha, &|| work.is_stopped()).map_err(failed)?;
        clean::clean(&inner, &clean_flags(work), &work.session.stop, &|line| work.context.print(line))?;
        if recursive {
            update_in(work, &inner, true, &[]).map_err(failed)?;
        }
    }
    Ok(())
}

/// Fetches the commit of a submodule if it is missing. Fetches all branches if the server refuses the hash.
fn fetch(work: &CheckoutRun<'_>, repository: &Repository, url: &str, sha: Oid) -> Result<(), git2::Error> {
    let is_missing = || repository.find_commit(sha).is_err();
    let depth = work.checkout.submodule_depth;
    if is_missing() && (work.fetch(repository, url, &[sha.to_string()], depth).is_err() || is_missing()) {
        work.fetch(repository, url, &[ALL_BRANCHES], 0)?;
    }
    Ok(())
}

fn clean_flags(work: &CheckoutRun<'_>) -> Vec<String> {
    let flags = work.checkout.clean_flags.clone().filter(|flags| !flags.is_empty());
    flags.unwrap_or_else(|| vec!["-ffdx".to_owned()])
}

pub(super) fn clean(
    repository: &Repository,
    recursive: bool,
    flags: &[String],
    stop: &StopToken,
    print: &dyn Fn(&str),
) -> Result<(), git2::Error> {
    for submodule in repository.submodules()? {
        let Ok(inner) = submodule.open() else {
            let name = submodule.name().unwrap_or_default();
            print(&style::info(&format!("Skipping the submodule `{name}`: it is not checked out")));
            continue;
        };
        clean::clean(&inner, flags, stop, print)?;
        check_out_head(&inner, stop)?;
        if recursive {
            clean(&inner, true, flags, stop, print)?;
        }
    }
    Ok(())
}

struct Selection {
    included: Option<Pathspec>,
    excluded: Option<Pathspec>,
}

impl Selection {
    fn new(paths: &[String]) -> Result<Self, git2::Error> {
        let is_exclusion = |path: &&String| path.starts_with(":(exclude)") || path.starts_with(":!");
        let pathspec = |paths: Vec<&str>| (!paths.is_empty()).then(|| Pathspec::new(paths)).transpose();
        let strip = |path: &'_ String| path.trim_start_matches(":(exclude)").trim_start_matches(":!").to_owned();
        let excluded: Vec<String> = paths.iter().filter(is_exclusion).map(strip).collect();
        Ok(Self {
            included: pathspec(paths.iter().filter(|path| !is_exclusion(path)).map(String::as_str).collect())?,
            excluded: pathspec(excluded.iter().map(String::as_str).collect())?,
        })
    }

    fn includes(&self, path: &std::path::Path) -> bool {
        let matches = |spec: &Pathspec| spec.matches_path(path, PathspecFlags::DEFAULT);
        self.included.as_ref().is_none_or(matches) && !self.excluded.as_ref().is_some_and(matches)
    }
}
