//! Evaluates the clauses of rules: `if`, `changes`, `exists` (docs/spec/pipeline-yaml.md, sections 3.2 to 3.4).
//!
//! Results are cached, because thousands of jobs may share a clause.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use crate::conditions::scope::Scope;
use crate::config::parsing::Problems;
use crate::config::rules::{Changes, Condition, Exists, PathTest, Rule};
use crate::context::{self, Context, Origin, Sources};
use crate::diagnostic::Diagnostic;
use crate::expand::Unknown;
use crate::expression::Value;
use crate::glob::Glob;
use crate::node::Span;

/// Maximum number of comparisons of a path with a pattern. A clause that needs more counts as true, as on GitLab.
const MAX_COMPARISONS: usize = 50_000;

/// Paths whose content differs from that at a ref. `None` means that the ref does not exist.
type Compared = Option<Rc<context::Changes>>;

pub(crate) struct Clauses<'a> {
    context: &'a Context,
    sources: &'a dyn Sources,
    /// `exists` without `project` searches this tree.
    origin: &'a Origin,
    globs: RefCell<HashMap<String, Option<Rc<Glob>>>>,
    changes_by_ref: RefCell<HashMap<String, Compared>>,
    changes_results: RefCell<HashMap<(Option<String>, String), bool>>,
    exists_results: RefCell<HashMap<String, bool>>,
}

impl<'a> Clauses<'a> {
    pub(crate) fn new(context: &'a Context, sources: &'a dyn Sources, origin: &'a Origin) -> Self {
        Self {
            context,
            sources,
            origin,
            globs: RefCell::default(),
            changes_by_ref: RefCell::default(),
            changes_results: RefCell::default(),
            exists_results: RefCell::default(),
        }
    }

    pub(crate) fn context(&self) -> &'a Context {
        self.context
    }

    pub(crate) fn matches(&self, rule: &Rule, scope: &Scope<'_>, problems: &mut Problems) -> bool {
        rule.condition.as_ref().is_none_or(|condition| self.condition(condition, scope, problems))
            && rule.changes.as_ref().is_none_or(|changes| self.changes(changes, scope, problems))
            && rule.exists.as_ref().is_none_or(|exists| self.exists(exists, scope, problems))
    }

    /// Returns whether an `if` clause is true. An invalid pattern in a variable makes the clause false, as on GitLab,
    /// and adds a warning.
    pub(crate) fn condition(&self, condition: &Condition, scope: &Scope<'_>, problems: &mut Problems) -> bool {
        match condition.expression.evaluate_within(
            &|name| scope.unexpanded_value(name),
            &|_| Value::Null,
            &mut problems.patterns,
        ) {
            Ok(is_met) => is_met,
            Err(error) => {
                let message = format!("`{}` evaluates to false: {error}", condition.text);
                problems.push(Diagnostic::warning(condition.span, message).inside(&condition.text, error.range()));
                false
            }
        }
    }

    /// Returns whether a `changes` clause is true. Without `compare_to`, it is true if the event has no commit to
    /// compare with.
    pub(crate) fn changes(&self, changes: &Changes, scope: &Scope<'_>, problems: &mut Problems) -> bool {
        let compare_to = changes.compare_to.as_ref().map(|(text, span)| (scope.expand(text, Unknown::Empty), *span));
        let compared;
        let paths: &[String] = match &compare_to {
            None => match &self.context.changed_paths {
                Some(paths) => paths,
                None => return true,
            },
            Some((git_ref, span)) => {
                compared = self.changes_since(git_ref, *span, problems);
                compared.as_deref().map(|changes| changes.paths.as_slice()).unwrap_or_default()
            }
        };
        match &changes.paths {
            PathTest::Regexp(regexp) => paths.iter().any(|path| regexp.is_match(path)),
            PathTest::Globs(patterns) if paths.len().saturating_mul(patterns.len()) > MAX_COMPARISONS => true,
            PathTest::Globs(patterns) => patterns.iter().any(|pattern| {
                let key =
                    (compare_to.as_ref().map(|(git_ref, _)| git_ref.clone()), scope.expand(pattern, Unknown::Keep));
                if let Some(&cached) = self.changes_results.borrow().get(&key) {
                    return cached;
                }
                let glob = self.glob(&key.1);
                let matches = glob.is_some_and(|glob| paths.iter().any(|path| glob.is_match(path)));
                self.changes_results.borrow_mut().insert(key, matches);
                matches
            }),
        }
    }

    /// Returns the paths that changed since a ref. If the ref does not exist, reports an error and returns `None`.
    pub(crate) fn changes_since(&self, git_ref: &str, span: Span, problems: &mut Problems) -> Compared {
        let cached = self.changes_by_ref.borrow().get(git_ref).cloned();
        let compared = cached.unwrap_or_else(|| {
            let compared = self.sources.changed_since(git_ref).map(Rc::new);
            self.changes_by_ref.borrow_mut().insert(git_ref.to_owned(), compared.clone());
            compared
        });
        if compared.is_none() {
            let message = format!("rules:changes:compare_to is not a valid ref: `{git_ref}`");
            problems.push(Diagnostic::error(span, message).help("name a branch, tag or commit of this repository"));
        }
        compared
    }

    pub(crate) fn exists(&self, exists: &Exists, scope: &Scope<'_>, problems: &mut Problems) -> bool {
        let origin = match &exists.project {
            None => self.origin.clone(),
            Some(project) => Origin::Project {
                project: scope.expand(project, Unknown::Empty),
                git_ref: exists.git_ref.as_ref().map(|git_ref| scope.expand(git_ref, Unknown::Empty)),
            },
        };
        let tree = match &origin {
            Origin::Root => Ok(Arc::clone(&self.context.tracked_paths)),
            Origin::Detached => Ok(Arc::default()),
            Origin::Project { .. } => self.sources.paths(&origin),
        };
        match tree {
            Ok(paths) => self.exists_in(&exists.paths, &paths, scope, origin == Origin::Root),
            Err(error) => {
                problems.push(Diagnostic::error(exists.span, format!("rules:exists: {error}")));
                false
            }
        }
    }

    /// Returns whether a path in `tracked` matches. Caches results only for the tree of the pipeline's own project.
    fn exists_in(
        &self,
        test: &PathTest,
        tracked: &Arc<BTreeSet<String>>,
        scope: &Scope<'_>,
        is_own_tree: bool,
    ) -> bool {
        let patterns = match test {
            PathTest::Regexp(regexp) => return tracked.iter().any(|path| regexp.is_match(path)),
            PathTest::Globs(patterns) => patterns,
        };
        let globs: Vec<Rc<Glob>> =
            patterns.iter().filter_map(|pattern| self.glob(&scope.expand(pattern, Unknown::Keep))).collect();
        let (exact, patterned): (Vec<_>, Vec<_>) = globs.into_iter().partition(|glob| glob.is_exact());
        if exact.iter().any(|glob| glob.exists_in(tracked)) {
            return true;
        }
        if tracked.len().saturating_mul(patterned.len()) > MAX_COMPARISONS {
            return true;
        }
        patterned.iter().any(|glob| {
            let cached = is_own_tree.then(|| self.exists_results.borrow().get(glob.as_str()).copied()).flatten();
            cached.unwrap_or_else(|| {
                let found = glob.exists_in(tracked);
                if is_own_tree {
                    self.exists_results.borrow_mut().insert(glob.as_str().to_owned(), found);
                }
                found
            })
        })
    }

    /// Returns the compiled pattern. `None` means that the pattern is too large, so that it matches nothing.
    fn glob(&self, pattern: &str) -> Option<Rc<Glob>> {
        if let Some(cached) = self.globs.borrow().get(pattern) {
            return cached.clone();
        }
        let glob = Glob::new(pattern).ok().map(Rc::new);
        self.globs.borrow_mut().insert(pattern.to_owned(), glob.clone());
        glob
    }

    /// Returns the tracked paths that match a pattern. If the pattern has no wildcards or is too large, it is returned
    /// unchanged.
    pub(crate) fn matching_paths(&self, pattern: &str) -> Vec<String> {
        match self.glob(pattern) {
            Some(glob) if !glob.is_exact() => {
                self.context.tracked_paths.iter().filter(|path| glob.is_match(path)).cloned().collect()
            }
            _ => vec![pattern.to_owned()],
        }
    }

    pub(crate) fn sources(&self) -> &'a dyn Sources {
        self.sources
    }
}
