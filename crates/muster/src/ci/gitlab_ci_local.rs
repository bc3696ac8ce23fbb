//! Reads the variable files of gitlab-ci-local, so that its users need not move their variables.

use std::path::{Path, PathBuf};

use muster_job::Variable;
use muster_pipeline::context::ScopedVariable;
use muster_pipeline::limits::Limits;
use muster_pipeline::node::{Map, Node, Value};
use muster_pipeline::source_map::SourceMap;
use muster_pipeline::yaml;

use super::config::expand_home;
use super::error::CiError;
use super::git_facts::ProjectIdentity;
use super::read::read_text_file;
use super::ui;
use super::variables::parse_file;

/// File with a project's variables, at the top of its repository.
const PROJECT_FILE: &str = ".gitlab-ci-local-variables.yml";
/// File with a user's variables, in the home directory.
const HOME_FILE: &str = ".gitlab-ci-local/variables.yml";

struct VariableFile {
    path: PathBuf,
    text: String,
}

/// Reads the variables of both files, in ascending precedence: global, group, project, repository.
pub(super) fn variables(worktree: &Path, identity: &ProjectIdentity) -> Result<Vec<ScopedVariable>, CiError> {
    let mut variables = Vec::new();
    let mut files = Vec::new();
    let home = std::env::home_dir().map(|home| home.join(HOME_FILE));
    if let Some(file) = home.map(VariableFile::read).transpose()?.flatten() {
        let map = file
            .yaml_map()?
            .ok_or_else(|| file.invalid("expected a map with the keys `global`, `group` and `project`"))?;
        file.add_home(&map, identity, &mut variables)?;
        files.push(file.path);
    }
    if let Some(file) = VariableFile::read(worktree.join(PROJECT_FILE))? {
        match file.yaml_map()? {
            Some(map) => file.add_all(&map, &mut variables)?,
            None => {
                let lines = parse_file(&file.path, &file.text)?;
                variables.extend(lines.into_iter().map(|(key, value)| scoped(&key, value, false, "*")));
            }
        }
        files.push(file.path);
    }
    if !files.is_empty() {
        let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        ui::note(&format!("using variables from {}", files.join(" and ")));
    }
    Ok(variables)
}

impl VariableFile {
    /// Reads a file. Returns `None` if it does not exist.
    fn read(path: PathBuf) -> Result<Option<Self>, CiError> {
        match read_text_file(&path) {
            Ok(text) => Ok(Some(Self { path, text })),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(source) => Err(CiError::Read { path, source }),
        }
    }

    fn invalid(&self, problem: &str) -> CiError {
        CiError::Failed(format!("`{}` is invalid: {problem}", self.path.display()))
    }

    /// Parses the file as a YAML map. Returns `None` if it has another format, such as `NAME=VALUE` lines.
    fn yaml_map(&self) -> Result<Option<Map>, CiError> {
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
            _ => Err(self.invalid(&format!("expected a map of variables, found {}", root.kind()))),
        }
    }

    /// Adds the variables of `global`, and of the groups and projects that match the remote.
    fn add_home(
        &self,
        map: &Map,
        identity: &ProjectIdentity,
        variables: &mut Vec<ScopedVariable>,
    ) -> Result<(), CiError> {
        let host = identity.server_url.as_deref().and_then(|url| url.split_once("://")).map_or("", |(_, host)| host);
        let group = format!("{host}/{}/", identity.namespace());
        let project = format!("{host}/{}.git", identity.path);
        // In ascending precedence: more specific parts are read later.
        let parts = [("global", None), ("group", Some(&group)), ("project", Some(&project))];
        if let Some(key) = map.keys().find(|key| !parts.iter().any(|(known, _)| known == &&***key)) {
            return Err(self.invalid(&format!("unknown key `{key}`; expected `global`, `group` or `project`")));
        }
        for (key, name) in parts {
            let Some(node) = map.get(key).filter(|node| !node.is_null()) else { continue };
            let invalid = || self.invalid(&format!("`{key}` is {}, expected a map", node.kind()));
            let part = node.as_map().ok_or_else(invalid)?;
            let Some(name) = name else {
                self.add_all(part, variables)?;
                continue;
            };
            for (pattern, entry) in part.iter().filter(|(pattern, _)| name.contains(&pattern.replacen(':', "/", 1))) {
                let invalid =
                    || self.invalid(&format!("`{pattern}` is {}, expected a map of variables", entry.node.kind()));
                self.add_all(entry.node.as_map().ok_or_else(invalid)?, variables)?;
            }
        }
        Ok(())
    }

    fn add_all(&self, map: &Map, variables: &mut Vec<ScopedVariable>) -> Result<(), CiError> {
        for (key, entry) in map.iter() {
            match entry.node.as_map() {
                None => self.add_one(key, &entry.node, None, "*", variables)?,
                Some(long) => {
                    let kind = long.get("type").and_then(Node::as_str).unwrap_or("variable");
                    let values = long.get("values").and_then(Node::as_map);
                    let values =
                        values.ok_or_else(|| self.invalid(&format!("variable `{key}` has no `values` map")))?;
                    for (scope, entry) in values.iter() {
                        self.add_one(key, &entry.node, Some(kind), scope, variables)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds one value. Without a `kind`, an absolute or `~` path of a file becomes a file variable with the file's
    /// content.
    fn add_one(
        &self,
        key: &str,
        node: &Node,
        kind: Option<&str>,
        scope: &str,
        variables: &mut Vec<ScopedVariable>,
    ) -> Result<(), CiError> {
        let text = self
            .source_text(node)
            .ok_or_else(|| self.invalid(&format!("the value of `{key}` is {}, expected a scalar", node.kind())))?;
        let is_path = kind.is_none() && text.starts_with(['/', '~']);
        let file = is_path.then(|| expand_home(Path::new(&text))).filter(|path| path.is_file());
        variables.push(match file {
            Some(path) => {
                let content = read_text_file(&path).map_err(|source| CiError::Read { path, source })?;
                scoped(key, content, true, scope)
            }
            None => scoped(key, text, kind == Some("file"), scope),
        });
        Ok(())
    }

    /// Returns a scalar as it is written in the file, so that `010` does not become a number.
    fn source_text(&self, node: &Node) -> Option<String> {
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
