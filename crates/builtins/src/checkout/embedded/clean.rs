//! `git clean` with libgit2.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use git2::{ErrorCode, Index, Pathspec, PathspecFlags, Repository, RepositoryOpenFlags};
use muster_steps::stop::StopToken;
use muster_steps::style;
use walkdir::WalkDir;

use crate::removal::remove_tree;

/// Parsed value of `GIT_CLEAN_FLAGS`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Flags {
    /// Second `-f`: removes other repositories, too.
    repositories: bool,
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
    let mut parsed = Flags::default();
    let mut forces = 0;
    let mut flags = flags.iter().map(String::as_str);
    while let Some(flag) = flags.next() {
        if let Some(pattern) = flag.strip_prefix("--exclude=") {
            parsed.excluded.push(pattern.to_owned());
        } else if matches!(flag, "-e" | "--exclude") {
            parsed.excluded.push(flags.next().ok_or(flag)?.to_owned());
        } else if let Some(letters) = flag.strip_prefix('-').filter(|letters| !letters.starts_with('-')) {
            for letter in letters.chars() {
                match letter {
                    'f' => forces += 1,
                    'q' => {}
                    'd' => parsed.directories = true,
                    'x' if !parsed.only_ignored => parsed.ignored = true,
                    'X' if !parsed.ignored => parsed.only_ignored = true,
                    _ => return Err(flag),
                }
            }
        } else if flag == "--force" {
            forces += 1;
        } else if flag != "--quiet" {
            return Err(flag);
        }
    }
    parsed.repositories = forces > 1;
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
    let root = repository.workdir().unwrap_or_else(|| repository.path());
    let mut index = repository.index()?;
    index.read(false)?;
    let excluded = Pathspec::new(flags.excluded.iter().flat_map(|pattern| pathspecs(pattern)))?;
    let cleaning = Cleaning { repository, index, root, flags, excluded };
    // Untracked directories that are not removed as a whole, parents first.
    let mut entered = Vec::new();
    // Directories from which something was removed.
    let mut shrunk = HashSet::new();
    let mut entries = WalkDir::new(root).min_depth(1).sort_by_file_name().into_iter();
    while let Some(entry) = entries.next() {
        if stop.cause().is_some() {
            return Err(git2::Error::from_str("stopped"));
        }
        let entry = match entry {
            Err(error) if error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) => continue,
            entry => entry.map_err(|error| git2::Error::from_str(&error.to_string()))?,
        };
        let (is_dir, path) = (entry.file_type().is_dir(), entry.path());
        let decision = cleaning.decide(path, is_dir)?;
        match decision {
            Decision::Enter { removes_empty } => entered.push((path.to_owned(), removes_empty)),
            Decision::Remove => {
                remove(path, is_dir)?;
                print(&removing(root, path, is_dir));
                shrunk.extend(path.parent().map(Path::to_owned));
            }
            Decision::KeepRepository => print(&format!("Skipping repository {}\n", relative(root, path).display())),
            Decision::Keep | Decision::EnterTracked => {}
        }
        if is_dir && !matches!(decision, Decision::Enter { .. } | Decision::EnterTracked) {
            entries.skip_current_dir();
        }
    }
    for (dir, removes_empty) in entered.into_iter().rev() {
        let has_shrunk = shrunk.contains(&dir);
        if (has_shrunk || removes_empty) && fs::remove_dir(&dir).is_ok() {
            if !has_shrunk {
                print(&removing(root, &dir, true));
            }
            shrunk.extend(dir.parent().map(Path::to_owned));
        }
    }
    Ok(())
}

fn relative<'a>(root: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}

fn removing(root: &Path, path: &Path, is_dir: bool) -> String {
    format!("Removing {}{}\n", relative(root, path).display(), if is_dir { "/" } else { "" })
}

fn remove(path: &Path, is_dir: bool) -> Result<(), git2::Error> {
    match if is_dir { remove_tree(path) } else { fs::remove_file(path) } {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(git2::Error::from_str(&format!("failed to remove `{}`: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// What to do with a file or directory.
#[derive(Debug, Clone, Copy)]
enum Decision {
    Keep,
    /// Another repository, which only a second `-f` removes.
    KeepRepository,
    Remove,
    /// An untracked directory, whose content is decided separately. With `removes_empty`, the directory is removed even if
    /// it was empty before.
    Enter {
        removes_empty: bool,
    },
    /// A directory with tracked files.
    EnterTracked,
}

struct Cleaning<'a> {
    repository: &'a Repository,
    index: Index,
    root: &'a Path,
    flags: Flags,
    excluded: Pathspec,
}

impl Cleaning<'_> {
    fn decide(&self, path: &Path, is_dir: bool) -> Result<Decision, git2::Error> {
        let (flags, name) = (&self.flags, relative(self.root, path));
        // `git` does not look at the `.git` of a directory with tracked files.
        let is_git = path.file_name() == Some(OsStr::new(".git"));
        if is_git && name.parent().is_none_or(|parent| parent == Path::new("") || self.has_tracked(parent)) {
            return Ok(Decision::Keep);
        }
        if self.is_tracked(name, is_dir) {
            return Ok(Decision::Keep);
        }
        if is_dir && self.has_tracked(name) {
            return Ok(Decision::EnterTracked);
        }
        let is_match = self.matches(name)?;
        let is_removed = is_match == flags.only_ignored;
        let own = if is_removed { Decision::Remove } else { Decision::Keep };
        if !is_dir {
            return Ok(own);
        }
        if !flags.directories {
            return Ok(Decision::Keep);
        }
        if is_repository(path) {
            return Ok(if flags.repositories { own } else { Decision::KeepRepository });
        }
        if is_match && !flags.only_ignored {
            return Ok(Decision::Keep);
        }
        let may_contain_exceptions = !is_match && (!flags.ignored || !flags.excluded.is_empty());
        Ok(if may_contain_exceptions || !flags.repositories {
            Decision::Enter { removes_empty: is_removed }
        } else {
            own
        })
    }

    /// Returns whether the index has a file below this directory.
    fn has_tracked(&self, directory: &Path) -> bool {
        self.index.find_prefix([directory.as_os_str().as_bytes(), b"/"].concat()).is_ok()
    }

    /// Returns whether the index has a file or submodule of this name.
    fn is_tracked(&self, name: &Path, is_dir: bool) -> bool {
        const SUBMODULE: u32 = 0o160_000;
        // The stages above 0 belong to conflicts.
        (0..=3).filter_map(|stage| self.index.get_path(name, stage)).any(|entry| (entry.mode == SUBMODULE) == is_dir)
    }

    /// Returns whether the flags or `.gitignore` exclude a file or directory. `-X` removes these, others keep them.
    fn matches(&self, name: &Path) -> Result<bool, git2::Error> {
        let is_excluded = !self.flags.excluded.is_empty() && self.excluded.matches_path(name, PathspecFlags::DEFAULT);
        // libgit2 ignores `.git` at every level, but a directory of this name may not be a repository.
        let asks_libgit2 = !self.flags.ignored && !name.iter().any(|part| part == ".git");
        Ok(is_excluded || (asks_libgit2 && self.repository.is_path_ignored(name)?))
    }
}

/// Returns whether a directory is the work tree of a repository. An unreadable repository counts, too.
fn is_repository(dir: &Path) -> bool {
    let none: [&OsStr; 0] = [];
    fs::symlink_metadata(dir.join(".git")).is_ok()
        && !Repository::open_ext(dir, RepositoryOpenFlags::NO_SEARCH, none)
            .is_err_and(|error| error.code() == ErrorCode::NotFound)
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    #[test]
    fn git_clean_flags_are_parsed_or_rejected() {
        let parse = |text: &str| {
            let flags: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            super::parse(&flags).map_err(str::to_owned)
        };
        let flags = |repositories, ignored, only_ignored, excluded: &[&str]| {
            Ok(Flags {
                repositories,
                directories: true,
                ignored,
                only_ignored,
                excluded: excluded.iter().map(|&text| text.to_owned()).collect(),
            })
        };
        assert_eq!(parse("-ffdx"), flags(true, true, false, &[]));
        assert_eq!(parse("-fdX -q"), flags(false, false, true, &[]));
        assert_eq!(parse("-ffd -x -e cache/ --exclude=*.o"), flags(true, true, false, &["cache/", "*.o"]));
        assert_eq!(parse("-ffdx -i"), Err("-i".to_owned()));
        assert_eq!(parse("--dry-run"), Err("--dry-run".to_owned()));
        assert_eq!(parse("-e"), Err("-e".to_owned()));
        assert_eq!(parse("-fx -X"), Err("-X".to_owned()));
        assert!(!parse("-fx").unwrap().directories);
        assert!(parse("-f --force").unwrap().repositories);
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

    /// Creates a repository in `root` with files and directories of every kind.
    fn create_work_tree(root: &Path) {
        let git = |dir: &Path, arguments: &[&str]| {
            let user = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
            let output = Command::new("git").current_dir(dir).args(user).args(arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        let write = |name: &str| {
            fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            fs::write(root.join(name), "").unwrap();
        };
        ["src/a", "src/deep/b", "lost/c"].into_iter().for_each(write);
        fs::write(root.join(".gitignore"), "*.o\nout/\n").unwrap();
        git(root, &["init", "-q"]);
        git(root, &["add", "."]);
        git(root, &["commit", "-q", "-m", "first"]);
        fs::remove_file(root.join("lost/c")).unwrap();
        let untracked = "new new.o src/new src/new.o build/new build/new.o build/objects/new.o out/new objects/new.o";
        untracked.split(' ').chain(["no-repository/.git/file", "no-repository/new"]).for_each(write);
        for name in ["empty", "src/empty", "build/empty/empty", "out/empty"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["repository", "src/repository", "build/repository", "out/repository"] {
            git(root, &["init", "-q", name]);
            write(&format!("{name}/new"));
        }
        // A directory with tracked files may be a repository, too.
        git(root, &["init", "-q", "src"]);
        write("src/deep/.git");
        std::os::unix::fs::symlink("src", root.join("link")).unwrap();
    }

    /// Returns the paths in a work tree, without the content of `.git` directories.
    fn paths(root: &Path) -> Vec<PathBuf> {
        let entries = WalkDir::new(root).min_depth(1).sort_by_file_name().into_iter();
        let entries =
            entries.filter_entry(|entry| entry.path().parent().is_none_or(|parent| !parent.ends_with(".git")));
        entries.map(|entry| entry.unwrap().path().strip_prefix(root).unwrap().to_owned()).collect()
    }

    #[test]
    fn work_tree_is_cleaned_as_by_the_git_command() {
        let all = "-f,-ff,-fx,-fd,-ffd,-fdx,-ffdx,-fdX,-ffdX,-ffdx -e build,-ffd -e build/objects,-ffd -e /build/new,-ffd -e empty,\
                   -ffdx -e empty,-fdx -e repository,-ffdx -e *.o,-ffdX -e empty";
        for flags in all.split(',') {
            let (with_git, without_git) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            [&with_git, &without_git].into_iter().for_each(|dir| create_work_tree(dir.path()));
            let words: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
            let output = Command::new("git").current_dir(&with_git).arg("clean").args(&words).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let repository = Repository::open(without_git.path()).unwrap();
            clean(&repository, &words, &StopToken::default(), &|_| ()).unwrap();
            assert_eq!(paths(without_git.path()), paths(with_git.path()), "{flags}");
        }
    }
}
