//! Runs a step twice, each time in a copy of the working directory at the same path, and compares what it produced.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_agent_api::result::{JobResult, StepNode};

use super::local::LocalAgent;
use super::request::{record_calls, request};
use super::run::{CommandError, TargetArgs, print_log, run_to_end};

/// Names of the runs, and of their directories.
const RUNS: [&str; 2] = ["first", "second"];

/// Result of a run, compared with an earlier run.
pub(super) struct Comparison {
    /// Result of the later run, or of the run that failed.
    pub(super) result: JobResult,
    /// Differences between the runs. [`run_twice`] does not compare files and outputs if a run failed.
    pub(super) differences: Vec<String>,
}

/// Runs a step twice, and compares the files and directories at `paths`, and the outputs of the step.
///
/// If the first run fails, there is no second run. If only the second run fails, its failure is the only difference.
pub(super) async fn run_twice(
    agent: &LocalAgent,
    target: &TargetArgs,
    paths: &[PathBuf],
) -> Result<Comparison, CommandError> {
    let source = std::env::current_dir().map_err(CommandError::WorkDir)?;
    let paths = paths.iter().map(|path| in_work_dir(&source, path)).collect::<Result<Vec<_>, _>>()?;
    let copies = agent.temp_dir().join("copies");
    let work_dir = copies.join("work");
    let copy_error = |path: &Path| {
        let path = path.to_owned();
        move |source| CommandError::Copy { path, source }
    };
    let mut results = Vec::new();
    for name in RUNS {
        copy(&source, &work_dir).map_err(copy_error(&source))?;
        let (mut plan, variables) = target.plan_in(&work_dir)?;
        record_calls(&mut plan, true);
        let result = run_to_end(agent, request(name, &plan, &variables)?, print_log).await?;
        let has_failed = result.tree.status != muster_agent_api::result::StepStatus::Success;
        if has_failed {
            let is_second = !results.is_empty();
            let difference = is_second.then(|| "the first run succeeded, and the second one failed".to_owned());
            return Ok(Comparison { result, differences: difference.into_iter().collect() });
        }
        results.push(result);
        fs::rename(&work_dir, copies.join(name)).map_err(copy_error(&work_dir))?;
    }
    let mut differences = Vec::new();
    if let [first, second] = results.as_slice() {
        for path in &paths {
            let [a, b] = RUNS.map(|name| copies.join(name).join(path));
            differences.extend(compare(&a, &b, path).map_err(copy_error(path))?);
        }
        compare_outputs("", &first.tree, &second.tree, &mut differences);
    }
    let Some(result) = results.pop() else { return Err(CommandError::WorkDir(io::ErrorKind::NotFound.into())) };
    Ok(Comparison { result, differences })
}

/// Returns a path relative to the working directory, whose copies are compared.
fn in_work_dir(work_dir: &Path, path: &Path) -> Result<PathBuf, CommandError> {
    let relative = crate::paths::relative_to(work_dir, &work_dir.join(path));
    let relative = relative.ok_or_else(|| CommandError::NotInWorkDir { path: path.to_owned() })?;
    Ok(if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative })
}

/// Copies a directory with `cp`, which keeps times, modes and links.
fn copy(source: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    let output = Command::new("cp").arg("-a").arg(source.join(".")).arg(target).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Compares `a`, from the first run, with `b`, from the second run. `path` names them in the differences. Fails if
/// neither exists.
pub(super) fn compare(a: &Path, b: &Path, path: &Path) -> io::Result<Vec<String>> {
    let name = path.display();
    let (first, second) = match (fs::symlink_metadata(a), fs::symlink_metadata(b)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(first), Err(_)) => return Err(first),
        (Ok(_), Err(_)) => return Ok(vec![format!("{name} exists only after the first run")]),
        (Err(_), Ok(_)) => return Ok(vec![format!("{name} exists only after the second run")]),
    };
    if first.file_type() != second.file_type() {
        return Ok(vec![format!("{name} is of another type after the second run")]);
    }
    let mut differences = Vec::new();
    let modes = [&first, &second].map(|metadata| metadata.permissions().mode() & 0o7777);
    if let [a, b] = modes
        && a != b
    {
        differences.push(format!("{name} has mode {a:04o} after the first run, and {b:04o} after the second"));
    }
    if first.is_symlink() {
        let (a, b) = (fs::read_link(a)?, fs::read_link(b)?);
        if a != b {
            differences.push(format!(
                "{name} points to {} after the first run, and to {} after the second",
                a.display(),
                b.display()
            ));
        }
    } else if first.is_dir() {
        let mut names = BTreeSet::new();
        for dir in [a, b] {
            for entry in fs::read_dir(dir)? {
                names.insert(entry?.file_name());
            }
        }
        for entry in names {
            differences.extend(compare(&a.join(&entry), &b.join(&entry), &path.join(&entry))?);
        }
    } else if first.is_file()
        && let Some(offset) = first_difference(File::open(a)?, File::open(b)?)?
    {
        let (a, b) = (first.len(), second.len());
        let sizes = if a == b {
            String::new()
        } else {
            format!("; it has {a} bytes after the first run, and {b} after the second")
        };
        differences.push(format!("{name} differs at byte {offset}{sizes}"));
    }
    Ok(differences)
}

/// Returns the offset of the first byte that differs. `None` means that the contents are equal.
fn first_difference(a: impl Read, b: impl Read) -> io::Result<Option<u64>> {
    let (mut a, mut b) = (BufReader::new(a).bytes(), BufReader::new(b).bytes());
    for offset in 0.. {
        match (a.next().transpose()?, b.next().transpose()?) {
            (None, None) => break,
            (a, b) if a != b => return Ok(Some(offset)),
            _ => {}
        }
    }
    Ok(None)
}

/// Compares the outputs, the exports and the number of inner steps of each step in two runs. Adds what differs to
/// `differences`.
pub(super) fn compare_outputs(parent: &str, first: &StepNode, second: &StepNode, differences: &mut Vec<String>) {
    let values = |node: &StepNode| node.call.as_ref().map(|call| (call.outputs.clone(), call.exports.clone()));
    let path = if parent.is_empty() { first.name.clone() } else { format!("{parent}/{}", first.name) };
    if let (Some(a), Some(b)) = (values(first), values(second)) {
        for (kind, a, b) in [("output", &a.0, &b.0), ("exported variable", &a.1, &b.1)] {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names.into_iter().filter(|name| a.get(*name) != b.get(*name)) {
                let text = |value: Option<&serde_json::Value>| value.map_or("missing".to_owned(), ToString::to_string);
                let (a, b) = (text(a.get(name)), text(b.get(name)));
                differences
                    .push(format!("{kind} {name:?} of step {path} is {a} in the first run, and {b} in the second"));
            }
        }
    }
    let (a, b) = (first.steps.len(), second.steps.len());
    if a != b {
        differences.push(format!("step {path} has {a} inner steps in the first run, and {b} in the second"));
    }
    for (first, second) in first.steps.iter().zip(&second.steps) {
        compare_outputs(if parent.is_empty() && first.call.is_none() { "" } else { &path }, first, second, differences);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_differing_byte_is_found() {
        for (a, b, expected) in [("abc", "abc", None), ("abc", "abd", Some(2)), ("ab", "abc", Some(2)), ("", "", None)]
        {
            assert_eq!(first_difference(a.as_bytes(), b.as_bytes()).unwrap(), expected, "{a} {b}");
        }
    }

    #[test]
    fn missing_steps_are_differences() {
        let node = |name: &str, steps: &[serde_json::Value]| serde_json::json!({"name": name, "status": "success", "started_ms": 0, "duration_ms": 0, "steps": steps});
        let inner = node("inner", &[]);
        let [first, second]: [StepNode; 2] = [node("list", &[inner.clone(), inner.clone()]), node("list", &[inner])]
            .map(|tree| serde_json::from_value(tree).unwrap());
        let mut differences = Vec::new();
        compare_outputs("", &first, &first, &mut differences);
        assert!(differences.is_empty(), "{differences:?}");
        compare_outputs("", &first, &second, &mut differences);
        assert_eq!(differences, ["step list has 2 inner steps in the first run, and 1 in the second"]);
    }

    #[test]
    fn comparison_includes_names_modes_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        for (root, text, mode) in [(&a, "one", 0o644), (&b, "two", 0o600)] {
            fs::create_dir(root).unwrap();
            fs::write(root.join("text"), text).unwrap();
            fs::write(root.join("mode"), "same").unwrap();
            fs::set_permissions(root.join("mode"), fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::symlink(text, root.join("link")).unwrap();
        }
        fs::write(a.join("only"), "").unwrap();
        let differences = compare(&a, &b, Path::new("out")).unwrap();
        let expected = [
            "out/link points to one after the first run, and to two after the second",
            "out/mode has mode 0644 after the first run, and 0600 after the second",
            "out/only exists only after the first run",
            "out/text differs at byte 0",
        ];
        assert_eq!(differences, expected);
    }
}
