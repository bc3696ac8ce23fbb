//! Variables in the files of gitlab-ci-local, for people who come from it: `.gitlab-ci-local-variables.yml` at the top of the
//! repository, and `~/.gitlab-ci-local/variables.yml`.

use std::path::{Path, PathBuf};

use muster_job::Variable;
use muster_pipeline::context::ScopedVariable;
use muster_pipeline::limits::Limits;
use muster_pipeline::node::{Map, Node, Value};
use muster_pipeline::source_map::SourceMap;
use muster_pipeline::yaml;

use super::config::at_home;
use super::error::CiError;
use super::git_facts::ProjectIdentity;
use super::read::whole_text;
use super::ui;
use super::variables::parse_file;

/// The variables of a project, at the top of its repository.
const OF_PROJECT: &str = ".gitlab-ci-local-variables.yml";
/// The variables of a person, below the home folder.
const OF_HOME: &str = ".gitlab-ci-local/variables.yml";

/// A file that was read.
struct File {
    path: PathBuf,
    text: String,
}

/// The variables of both files, weakest first: global, group, project, and those of the repository. Says which files count.
pub(super) fn variables(worktree: &Path, identity: &ProjectIdentity) -> Result<Vec<ScopedVariable>, CiError> {
    let mut found = Vec::new();
    let mut files = Vec::new();
    let home = std::env::home_dir().map(|home| home.join(OF_HOME));
    if let Some(file) = home.map(File::read).transpose()?.flatten() {
        let map = file.map()?.ok_or_else(|| file.wrong("it is not a map with `global`, `group` and `project`"))?;
        file.of_home(&map, identity, &mut found)?;
        files.push(file.path);
    }
    if let Some(file) = File::read(worktree.join(OF_PROJECT))? {
        match file.map()? {
            Some(map) => file.all(&map, &mut found)?,
            None => {
                let lines = parse_file(&file.path, &file.text)?;
                found.extend(lines.into_iter().map(|(key, value)| scoped(&key, value, false, "*")));
            }
        }
        files.push(file.path);
    }
    if !files.is_empty() {
        let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        ui::note(&format!("variables are taken from {}", files.join(" and ")));
    }
    Ok(found)
}

impl File {
    fn read(path: PathBuf) -> Result<Option<Self>, CiError> {
        match whole_text(&path) {
            Ok(text) => Ok(Some(Self { path, text })),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(source) => Err(CiError::Read { path, source }),
        }
    }

    fn wrong(&self, what: &str) -> CiError {
        CiError::Usage(format!("`{}` is not right: {what}", self.path.display()))
    }

    /// The file as a map; `None` if it is none, as a file of `NAME=VALUE` lines.
    fn map(&self) -> Result<Option<Map>, CiError> {
        let mut sources = SourceMap::default();
        let source = sources.add(self.path.display().to_string(), self.text.as_str());
        let Ok(parsed) = yaml::parse(source, &self.text, &Limits::default()) else { return Ok(None) };
        let Some(root) = parsed.documents.into_iter().next().map(|document| document.root) else {
            return Ok(Some(Map::default()));
        };
        match &root.value {
            Value::Null => Ok(Some(Map::default())),
            Value::Map(map) => Ok(Some(Map::clone(map))),
            Value::String(_) => Ok(None),
            _ => Err(self.wrong(&format!("it is {}, not a map of variables", root.kind()))),
        }
    }

    /// `global`, then the groups and projects whose names the remote has.
    fn of_home(&self, map: &Map, identity: &ProjectIdentity, found: &mut Vec<ScopedVariable>) -> Result<(), CiError> {
        let host = identity.server_url.as_deref().and_then(|url| url.split_once("://")).map_or("", |(_, host)| host);
        let group = format!("{host}/{}/", identity.namespace());
        let project = format!("{host}/{}.git", identity.path);
        // The more exact a part, the later it is read, and so the stronger.
        let parts = [("global", None), ("group", Some(&group)), ("project", Some(&project))];
        if let Some(key) = map.keys().find(|key| !parts.iter().any(|(known, _)| known == &&***key)) {
            return Err(self.wrong(&format!("`{key}` is none of `global`, `group`, `project`")));
        }
        for (key, name) in parts {
            let Some(node) = map.get(key).filter(|node| !node.is_null()) else { continue };
            let wrong = || self.wrong(&format!("`{key}` is {}, not a map", node.kind()));
            let part = node.as_map().ok_or_else(wrong)?;
            let Some(name) = name else {
                self.all(part, found)?;
                continue;
            };
            for (place, entry) in part.iter().filter(|(place, _)| name.contains(&place.replacen(':', "/", 1))) {
                let wrong = || self.wrong(&format!("`{place}` is {}, not a map of variables", entry.node.kind()));
                self.all(entry.node.as_map().ok_or_else(wrong)?, found)?;
            }
        }
        Ok(())
    }

    fn all(&self, map: &Map, found: &mut Vec<ScopedVariable>) -> Result<(), CiError> {
        for (key, entry) in map.iter() {
            match entry.node.as_map() {
                None => self.one(key, &entry.node, None, "*", found)?,
                Some(long) => {
                    let kind = long.get("type").and_then(Node::as_str).unwrap_or("variable");
                    let values = long.get("values").and_then(Node::as_map);
                    let values = values.ok_or_else(|| self.wrong(&format!("variable `{key}` has no map `values`")))?;
                    for (scope, entry) in values.iter() {
                        self.one(key, &entry.node, Some(kind), scope, found)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One value. Without a type, the path of a file that exists is a variable of type file.
    fn one(
        &self,
        key: &str,
        node: &Node,
        kind: Option<&str>,
        scope: &str,
        found: &mut Vec<ScopedVariable>,
    ) -> Result<(), CiError> {
        let text = self
            .written(node)
            .ok_or_else(|| self.wrong(&format!("the value of `{key}` is {}, not a text", node.kind())))?;
        let is_path = kind.is_none() && text.starts_with(['/', '~']);
        let file = is_path.then(|| at_home(Path::new(&text))).filter(|path| path.is_file());
        found.push(match file {
            Some(path) => {
                let content = whole_text(&path).map_err(|source| CiError::Read { path, source })?;
                scoped(key, content, true, scope)
            }
            None => scoped(key, text, kind == Some("file"), scope),
        });
        Ok(())
    }

    /// A scalar as it is written: `010` is no number here.
    fn written(&self, node: &Node) -> Option<String> {
        match &node.value {
            Value::String(text) => Some(text.to_string()),
            Value::List(_) | Value::Map(_) | Value::Reference(_) => None,
            _ => {
                let range = usize::try_from(node.span.start).ok()?..usize::try_from(node.span.end).ok()?;
                Some(self.text.get(range).unwrap_or_default().trim().to_owned())
            }
        }
    }
}

fn scoped(key: &str, value: String, file: bool, scope: &str) -> ScopedVariable {
    let variable = Variable { file, public: false, ..Variable::public(key, value) };
    ScopedVariable { variable, protected: false, environment_scope: scope.to_owned() }
}
