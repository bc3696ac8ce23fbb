//! `git clean` with libgit2.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use git2::{Pathspec, PathspecFlags, Repository, Status, StatusOptions};
use muster_steps::stop::StopToken;
use muster_steps::style;

/// Parsed value of `GIT_CLEAN_FLAGS`.
#[derive(Debug, PartialEq, Eq)]
struct Flags {
    /// `-d`: removes directories without tracked files, too.
    directories: bool,
    /// `-x`: removes files that `.gitignore` excludes, too.
    ignored: bool,
    /// `-X`: removes only files that `.gitignore` excludes.
    only_ignored: bool,
    /// `-e`: patterns of files to keep.
    excluded: Vec<String>,
}

/// Parses flags. The error is the first flag that is not supported.
fn parse(flags: &[String]) -> Result<Flags, &str> {
    let mut parsed = Flags { directories: false, ignored: false, only_ignored: false, excluded: Vec::new() };
    let mut flags = flags.iter().map(String::as_str);
    while let Some(flag) = flags.next() {
        if let Some(pattern) = flag.strip_prefix("--exclude=") {
            parsed.excluded.push(pattern.to_owned());
        } else if matches!(flag, "-e" | "--exclude") {
            parsed.excluded.push(flags.next().ok_or(flag)?.to_owned());
        } else if let Some(letters) = flag.strip_prefix('-').filter(|letters| !letters.starts_with('-')) {
            for letter in letters.chars() {
                match letter {
                    'f' | 'q' => {}
                    'd' => parsed.directories = true,
                    'x' => parsed.ignored = true,
                    'X' => parsed.only_ignored = true,
                    _ => return Err(flag),
                }
            }
        } else if !matches!(flag, "--force" | "--quiet") {
            return Err(flag);
        }
    }
    Ok(parsed)
}

/// Removes untracked files as `git clean` does, and prints their names.
pub(super) fn clean(
    repository: &Repository,
    flags: &[String],
    stop: &StopToken,
    print: &dyn Fn(&str),
) -> Result<(), git2::Error> {
    let flags = match parse(flags) {
        Ok(flags) => flags,
        Err(flag) => {
            let warning = format!(
                "GIT_CLEAN_FLAGS: `{flag}` requires the `git` command, but `git` is not in PATH; untracked files are not removed"
            );
            print(&style::warning(&warning));
            return Ok(());
        }
    };
    let mut options = StatusOptions::new();
    options.include_untracked(true).include_ignored(flags.ignored || flags.only_ignored).exclude_submodules(true);
    // A directory without tracked files is a single entry, unless files in it may have to be kept.
    options.recurse_untracked_dirs(flags.directories && (!flags.ignored || !flags.excluded.is_empty()));
    options.recurse_ignored_dirs(flags.directories && !flags.excluded.is_empty());
    let excluded = Pathspec::new(flags.excluded.iter().flat_map(|pattern| pathspecs(pattern)))?;
    let root = repository.workdir().unwrap_or_else(|| repository.path());
    for entry in repository.statuses(Some(&mut options))?.iter() {
        if stop.cause().is_some() {
            return Err(git2::Error::from_str("stopped"));
        }
        let is_removed = match entry.status() {
            status if status.contains(Status::WT_NEW) => !flags.only_ignored,
            status => status.contains(Status::IGNORED),
        };
        let path = Path::new(OsStr::from_bytes(entry.path_bytes()));
        let is_excluded = !flags.excluded.is_empty() && excluded.matches_path(path, PathspecFlags::DEFAULT);
        let is_kept_directory = !flags.directories && entry.path_bytes().ends_with(b"/");
        if !is_removed || is_excluded || is_kept_directory {
            continue;
        }
        let target = root.join(path);
        let removed = if fs::symlink_metadata(&target).is_ok_and(|found| found.is_dir()) {
            fs::remove_dir_all(&target)
        } else {
            fs::remove_file(&target)
        };
        match removed {
            Ok(()) => {
                print(&format!("Removing {}\n", path.display()));
                remove_empty_parents(root, &target);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(git2::Error::from_str(&format!("failed to remove `{}`: {error}", target.display())));
            }
        }
    }
    Ok(())
}

/// Returns pathspecs for a pattern in the syntax of `.gitignore`. They also match the content of directories.
fn pathspecs(pattern: &str) -> Vec<String> {
    let name = pattern.trim_end_matches('/');
    let at_every_level = !name.contains('/');
    let name = name.trim_start_matches('/');
    let mut pathspecs = vec![name.to_owned(), format!("{name}/*")];
    if at_every_level {
        pathspecs.extend([format!("*/{name}"), format!("*/{name}/*")]);
    }
    pathspecs
}

/// Removes the parent directories that are now empty.
fn remove_empty_parents(root: &Path, removed: &Path) {
    let parents = removed.ancestors().skip(1).take_while(|parent| *parent != root && parent.starts_with(root));
    for parent in parents {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_clean_flags_are_parsed_or_rejected() {
        let parse = |text: &str| {
            let flags: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            super::parse(&flags).map_err(str::to_owned)
        };
        let flags = |ignored, only_ignored, excluded: &[&str]| {
            Ok(Flags {
                directories: true,
                ignored,
                only_ignored,
                excluded: excluded.iter().map(|&text| text.to_owned()).collect(),
            })
        };
        assert_eq!(parse("-ffdx"), flags(true, false, &[]));
        assert_eq!(parse("-fdX -q"), flags(false, true, &[]));
        assert_eq!(parse("-ffd -x -e cache/ --exclude=*.o"), flags(true, false, &["cache/", "*.o"]));
        assert_eq!(parse("-ffdx -i"), Err("-i".to_owned()));
        assert_eq!(parse("--dry-run"), Err("--dry-run".to_owned()));
        assert_eq!(parse("-e"), Err("-e".to_owned()));
        assert!(!parse("-fx").unwrap().directories);
    }

    fn remaining(flags: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::init(directory.path()).unwrap();
        for name in ["file", "build/x", "lib/build/x", "lib/other"] {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let flags: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
        clean(&repository, &flags, &StopToken::default(), &|_| ()).unwrap();
        let names = ["file", "build/x", "lib/build/x", "lib/other"];
        names.into_iter().filter(|name| directory.path().join(name).exists()).map(str::to_owned).collect()
    }

    #[test]
    fn directories_are_removed_only_with_the_flag_and_exclusions_apply_at_every_level() {
        assert_eq!(remaining("-ffdx"), [""; 0]);
        assert_eq!(remaining("-fx"), ["build/x", "lib/build/x", "lib/other"]);
        assert_eq!(remaining("-ffdx -e build"), ["build/x", "lib/build/x"]);
        assert_eq!(remaining("-ffdx -e build/"), ["build/x", "lib/build/x"]);
        assert_eq!(remaining("-ffdx -e /build"), ["build/x"]);
    }
}
