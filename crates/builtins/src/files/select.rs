//! Selects files by the patterns of artifacts and caches (docs/spec/job-execution.md, section 9.2).

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Seek};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::blocking::blocking;
use crate::transfer::{MessageLevel, TransferContext};

/// Files to select.
#[derive(Debug, Clone, Copy, Default)]
pub struct FileSelection<'a> {
    /// Patterns, relative to the root.
    pub paths: &'a [String],
    /// Patterns of files to exclude.
    pub exclude: &'a [String],
    /// Whether to add all files that git does not track, including ignored files.
    pub untracked: bool,
}

/// Returns the sorted paths of the files, relative to the root. Prints the number of matches of each pattern.
pub(crate) async fn select(
    context: &dyn TransferContext,
    selection: FileSelection<'_>,
    stop: &StopToken,
) -> Result<Vec<PathBuf>, Failure> {
    let env: HashMap<OsString, OsString> = context.environment().into_iter().collect();
    let untracked = if selection.untracked { list_untracked(context, stop).await? } else { Vec::new() };
    let expanded = |list: &[String]| list.iter().map(|text| expand(text, &env)).collect::<Vec<_>>();
    let (paths, exclude) = (expanded(selection.paths), expanded(selection.exclude));
    let (root, watch, include_untracked) = (context.root().to_owned(), stop.clone(), selection.untracked);
    let (found, lines) = blocking(context, "finding the files", stop, move || {
        let mut search = Search::new(&root, &watch);
        let mut excludes = Excludes::new(&exclude, &mut search);
        for path in &paths {
            search.add_matches(path, &mut excludes)?;
        }
        if include_untracked {
            search.add_untracked(untracked, &mut excludes);
        }
        search.remove_paths_through_links();
        excludes.report(&mut search);
        Ok((search.found, search.lines))
    })
    .await?;
    for (level, line) in lines {
        context.report(level, &line);
    }
    Ok(found.into_iter().collect())
}

struct Search<'a> {
    root: &'a Path,
    found: BTreeSet<PathBuf>,
    links: BTreeSet<PathBuf>,
    lines: Vec<(MessageLevel, String)>,
    stop: &'a StopToken,
}

impl<'a> Search<'a> {
    fn new(root: &'a Path, stop: &'a StopToken) -> Self {
        Self { root, found: BTreeSet::new(), links: BTreeSet::new(), lines: Vec::new(), stop }
    }

    fn warn(&mut self, line: String) {
        self.lines.push((MessageLevel::Warning, line));
    }

    fn detail(&mut self, line: String) {
        self.lines.push((MessageLevel::Plain, line));
    }

    fn add_matches(&mut self, text: &str, excludes: &mut Excludes) -> Result<(), Failure> {
        let Some(pattern) = relative_pattern(self.root, text) else {
            self.warn(format!("artifact path is not a subpath of project directory: {text}"));
            return Ok(());
        };
        let before = self.found.len();
        let mut matches = 0;
        if pattern.contains(['*', '?', '[', '{']) {
            let Some(glob) = glob(&pattern) else {
                self.warn(format!("{text}: not a valid pattern"));
                return Ok(());
            };
            let start = self.root.join(fixed_prefix(&pattern));
            matches += self.walk(&start, Some(&glob), excludes)?;
        } else {
            matches += self.walk(&self.root.join(&pattern), None, excludes)?;
        }
        if matches == 0 && self.found.len() == before {
            self.warn(format!(
                "{text}: no matching files. Ensure that the artifact path is relative to the working directory ({})",
                self.root.display()
            ));
        } else {
            self.detail(format!("{text}: found {matches} matching artifact files and directories"));
        }
        Ok(())
    }

    /// Adds matches below `start`, and the content of directories that match. Returns the number of matches.
    ///
    /// A matching link is packed as a link. Links are followed only if the pattern names a path through them.
    fn walk(&mut self, start: &Path, glob: Option<&GlobMatcher>, excludes: &mut Excludes) -> Result<usize, Failure> {
        let mut matches = 0;
        // Depth of the matching directory that contains the entry.
        let mut matched_depth: Option<usize> = None;
        let follows_root_link = glob.is_some() || start == self.root;
        for entry in walkdir::WalkDir::new(start).follow_links(false).follow_root_links(follows_root_link) {
            if let Some(cause) = self.stop.cause() {
                return Err(Failure::Stopped(cause));
            }
            let Ok(entry) = entry else { continue };
            let Ok(relative) = entry.path().strip_prefix(self.root) else { continue };
            matched_depth = matched_depth.filter(|depth| entry.depth() > *depth);
            let is_selected = matched_depth.is_some() || glob.is_none_or(|glob| glob.is_match(relative));
            if !is_selected || relative.as_os_str().is_empty() {
                continue;
            }
            if matched_depth.is_none() && entry.file_type().is_dir() {
                matched_depth = Some(entry.depth());
            }
            if !excludes.matches(relative) {
                matches += 1;
                self.insert(relative.to_owned(), entry.path_is_symlink());
            }
        }
        Ok(matches)
    }

    fn insert(&mut self, relative: PathBuf, is_link: bool) {
        if is_link {
            self.links.insert(relative.clone());
        }
        self.found.insert(relative);
    }

    /// Removes paths through links that are packed, because an archive cannot contain both.
    fn remove_paths_through_links(&mut self) {
        if self.links.is_empty() {
            return;
        }
        let Self { found, links, lines, .. } = self;
        found.retain(|path| {
            let Some(link) = path.ancestors().skip(1).find(|ancestor| links.contains(*ancestor)) else { return true };
            let (path, link) = (path.display(), link.display());
            lines.push((
                MessageLevel::Warning,
                format!("{path}: skipped because `{link}` is packed as a symbolic link"),
            ));
            false
        });
    }

    fn add_untracked(&mut self, files: Vec<PathBuf>, excludes: &mut Excludes) {
        let mut matches = 0;
        for file in files {
            let Ok(metadata) = fs::symlink_metadata(self.root.join(&file)) else { continue };
            if !excludes.matches(&file) {
                matches += 1;
                self.insert(file, metadata.is_symlink());
            }
        }
        self.detail(match matches {
            0 => "untracked: no files".to_owned(),
            count => format!("untracked: found {count} files"),
        });
    }
}

/// Patterns of excluded files, with the number of matches. An invalid pattern has no matcher.
struct Excludes(Vec<(String, Option<GlobMatcher>, usize)>);

impl Excludes {
    fn new(patterns: &[String], search: &mut Search<'_>) -> Self {
        let matcher = |text: &String| {
            let glob = relative_pattern(search.root, text).and_then(|pattern| glob(&pattern));
            if glob.is_none() {
                search.warn(format!("{text}: not a valid exclude pattern"));
            }
            (text.clone(), glob, 0)
        };
        Self(patterns.iter().map(matcher).collect())
    }

    fn matches(&mut self, relative: &Path) -> bool {
        for (_, glob, count) in &mut self.0 {
            if glob.as_ref().is_some_and(|glob| glob.is_match(relative)) {
                *count += 1;
                return true;
            }
        }
        false
    }

    fn report(self, search: &mut Search<'_>) {
        for (text, _, count) in self.0.into_iter().filter(|(_, _, count)| *count > 0) {
            search.detail(format!("{text}: excluded {count} files"));
        }
    }
}

fn glob(pattern: &str) -> Option<GlobMatcher> {
    GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build().ok().map(|g| g.compile_matcher())
}

/// Returns the pattern relative to the root. `None` means that it points outside the root.
fn relative_pattern(root: &Path, text: &str) -> Option<String> {
    let path = Path::new(text.trim());
    let path = if path.is_absolute() { path.strip_prefix(root).ok()? } else { path };
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(parts.join("/"))
}

/// Returns the components of a pattern before the first one with a wildcard or an escape.
fn fixed_prefix(pattern: &str) -> PathBuf {
    let parts: Vec<&str> = pattern.split('/').collect();
    let fixed = parts.iter().position(|part| part.contains(['*', '?', '[', '{', '\\'])).unwrap_or(parts.len());
    parts.into_iter().take(fixed).collect()
}

/// Replaces `$NAME` and `${NAME}` with the value of a variable, or with nothing if it is not set.
pub(crate) fn expand(text: &str, env: &HashMap<OsString, OsString>) -> String {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let value = |name: &str| env.get(&OsString::from(name)).map(|value| value.to_string_lossy().into_owned());
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        if let Some((name, after_name)) = braced.filter(|(name, _)| is_name(name)) {
            out.push_str(&value(name).unwrap_or_default());
            rest = after_name;
            continue;
        }
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let (name, after_name) = after.split_at(end);
        if is_name(name) {
            out.push_str(&value(name).unwrap_or_default());
            rest = after_name;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Returns the files that git does not track, also ignored files. If git fails, prints a warning and returns no files.
async fn list_untracked(context: &dyn TransferContext, stop: &StopToken) -> Result<Vec<PathBuf>, Failure> {
    use std::os::unix::ffi::OsStringExt;
    let failed = || Failure::io("failed to store or read the list of untracked files");
    let list = Arc::new(tempfile::tempfile().map_err(failed())?);
    if !context.git(&["ls-files", "-o", "-z"], Arc::clone(&list), stop).await? {
        context.report(MessageLevel::Warning, "untracked: git failed to list the files");
        return Ok(Vec::new());
    }
    let mut out = Vec::new();
    let mut list = &*list;
    list.rewind().and_then(|()| list.read_to_end(&mut out)).map_err(failed())?;
    let names = out.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| PathBuf::from(OsString::from_vec(name.to_vec()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Selects files in a directory with some text files and the link `a/link` to `a/b`. Returns paths and messages.
    fn found(paths: &[&str], exclude: &[&str]) -> (Vec<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/one.txt", "a/b/two.txt", "a/b/three.log", "top.txt", "a/.hidden"] {
            fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            fs::write(dir.path().join(path), "").unwrap();
        }
        std::os::unix::fs::symlink("b", dir.path().join("a/link")).unwrap();
        let stop = StopToken::new();
        let mut search = Search::new(dir.path(), &stop);
        let exclude: Vec<String> = exclude.iter().map(ToString::to_string).collect();
        let mut excludes = Excludes::new(&exclude, &mut search);
        for path in paths {
            search.add_matches(path, &mut excludes).unwrap();
        }
        search.remove_paths_through_links();
        excludes.report(&mut search);
        let found = search.found.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        (found, search.lines.into_iter().map(|(_, line)| line).collect())
    }

    #[test]
    fn directory_pattern_selects_its_content_without_following_links() {
        let all = ["a", "a/.hidden", "a/b", "a/b/three.log", "a/b/two.txt", "a/link", "a/one.txt"];
        assert_eq!(found(&["a"], &[]).0, all);
        assert_eq!(found(&["./a/"], &[]).0, all);
    }

    #[test]
    fn pattern_can_select_link_or_path_through_link() {
        assert_eq!(found(&["a/link"], &[]).0, ["a/link"]);
        assert_eq!(found(&["a/link/"], &[]).0, ["a/link"]);
        assert_eq!(found(&["a/link/two.txt"], &[]).0, ["a/link/two.txt"]);
        assert_eq!(found(&["a/link/*.log"], &[]).0, ["a/link/three.log"]);
        let (found, lines) = found(&["a/link", "a/link/two.txt"], &[]);
        assert_eq!(found, ["a/link"]);
        let message = "a/link/two.txt: skipped because `a/link` is packed as a symbolic link".to_owned();
        assert!(lines.contains(&message), "{lines:?}");
    }

    #[test]
    fn only_double_star_matches_across_directories() {
        assert_eq!(found(&["*.txt"], &[]).0, ["top.txt"]);
        assert_eq!(found(&["**/*.txt"], &[]).0, ["a/b/two.txt", "a/one.txt", "top.txt"]);
        assert_eq!(found(&["a/*/{two,three}.*"], &[]).0, ["a/b/three.log", "a/b/two.txt"]);
        assert_eq!(found(&["?/b"], &[]).0, ["a/b", "a/b/three.log", "a/b/two.txt"]);
    }

    #[test]
    fn excluding_directory_keeps_its_content() {
        assert_eq!(found(&["a/b"], &["a/b"]).0, ["a/b/three.log", "a/b/two.txt"]);
        let (found, lines) = found(&["a/b"], &["a/b/**"]);
        assert_eq!(found, ["a/b"]);
        assert!(lines.contains(&"a/b/**: excluded 2 files".to_owned()), "{lines:?}");
    }

    #[test]
    fn paths_outside_root_and_missing_paths_are_reported() {
        let (found, lines) = found(&["../x", "/etc/passwd", "none", "a/../../x"], &[]);
        assert!(found.is_empty());
        assert_eq!(lines.iter().filter(|line| line.contains("not a subpath")).count(), 3, "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("none: no matching files")), "{lines:?}");
    }

    #[test]
    fn variables_in_patterns_are_expanded() {
        let env = HashMap::from([("A".into(), "x".into())]);
        assert_eq!(expand("$A/${A}b/$NONE/$1/${-}/$", &env), "x/xb//$1/${-}/$");
    }
}
