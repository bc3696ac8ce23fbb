//! Compares `step-runner ci` with that of GitLab's step-runner 0.11.0: exit status, lines of output, and result tree.
//!
//! The variable `MUSTER_TEST_STEP_RUNNER` has the path of GitLab's program. Without it, the test is skipped. Both programs run in the legacy
//! dialect. Each list of steps that has a different result is marked with the reason. These differences are the same for all lists, and are
//! removed before the comparison:
//! - The lines before the first step: Muster prints its own version, and does not warn of images that GitLab no longer supports.
//! - The command of a script: Muster passes the text on standard input, because other users can read the arguments of a process.
//! - Paths of temporary files.

use std::path::Path;

use serde_json::{Value, json};

use super::*;

/// Files of the job of every list.
const FILES: [(&str, &str); 8] = [
    (
        "e/step.yml",
        "spec:\n  inputs:\n    s: {type: string, default: d}\n    n: {type: number, default: 1}\n    b: {type: boolean, default: true}\n    \
         o: {type: struct, default: {}}\n    a: {type: array, default: []}\n  outputs:\n    x: {type: string, default: dx}\n---\n\
         exec: {command: [printf, '%s|%s|%s|%s|%s|\\n', '${{inputs.s}}', '${{inputs.n}}', '${{inputs.b}}', '${{inputs.o}}', '${{inputs.a}}']}\n",
    ),
    (
        "w/step.yml",
        "spec:\n  inputs: {line: {type: string}}\n  outputs: {x: {type: string, default: dx}, n: {type: number, default: 2}}\n---\n\
         exec: {command: [sh, -c, 'printf \"%s\\n\" \"$1\" >\"$2\"', w, '${{inputs.line}}', '${{output_file}}']}\n",
    ),
    (
        "x/step.yml",
        "spec:\n  inputs: {line: {type: string}}\n---\n\
         exec: {command: [sh, -c, 'printf \"%s\\n\" \"$1\" >\"$2\"', x, '${{inputs.line}}', '${{export_file}}']}\n",
    ),
    (
        "seq/step.yml",
        "spec:\n  inputs: {who: {type: string}}\n  outputs: {both: {type: string}}\n---\nenv: {LEVEL: sequence}\nrun:\n  \
         - {name: first, step: ../w, inputs: {line: '{\"name\":\"x\",\"value\":\"${{inputs.who}}\"}'}}\n  \
         - {name: second, script: 'echo $LEVEL ${{steps.first.outputs.x}} ${{step_dir}}'}\n\
         outputs: {both: '${{steps.first.outputs.x}} and ${{steps.first.outputs.n}}'}\n",
    ),
    (
        "deleg/step.yml",
        "spec: {outputs: delegate}\n---\nrun:\n  - {name: w, step: ../w, inputs: {line: '{\"name\":\"n\",\"value\":7}'}}\ndelegate: w\n",
    ),
    ("fail/step.yml", "spec:\n---\nrun: [{name: inner, script: exit 7}, {name: never, script: echo never}]\n"),
    ("dir/step.yml", "spec:\n---\nexec: {command: [pwd], work_dir: '${{step_dir}}'}\nenv: {A: b}\n"),
    ("lost/step.yml", "spec:\n---\nexec: {command: [no-such-program]}\n"),
];

/// List of steps, and the reason why Muster's result differs. `None` means that it does not.
struct Case(&'static str, Option<&'static str>);

const CASES: [Case; 42] = [
    // Inputs and types.
    Case("[{name: a, step: ./e}]", None),
    Case("[{name: a, step: ./e, inputs: {s: '${{job.CI_V}}', n: 2.50, b: false, o: {k: [1]}, a: [x, 1]}}]", None),
    Case("[{name: a, step: ./e, inputs: {n: abc, s: 42, b: 12}}]", None),
    Case(
        "[{name: a, step: ./e, inputs: {n: 12345678901234567890, a: [1000000, 1e21, 0.0000001]}}]",
        Some("the results have the same number in another notation"),
    ),
    Case("[{name: a, step: ./e, inputs: {o: {k: '<a>&b'}}}]", None),
    Case("[{name: a, step: ./e, inputs: {nope: 1}}]", None),
    Case("[{name: a, step: ./w}]", None),
    Case("[{step: ./e}, {name: a-b, script: echo named}]", None),
    // Outputs.
    Case(
        "[{name: a, step: ./w, inputs: {line: '{\"name\":\"x\",\"value\":\"1\"}'}}, {name: b, script: 'echo ${{steps.a.outputs.x}} ${{steps.a.outputs.n}}'}]",
        None,
    ),
    Case("[{name: a, step: ./w, inputs: {line: '{\"name\":\"x\",\"value\":1}'}}]", None),
    Case("[{name: a, step: ./w, inputs: {line: '{\"name\":\"z\",\"value\":1}'}}]", None),
    Case("[{name: a, step: ./w, inputs: {line: '{\"name\":\"x\"}'}}]", None),
    Case("[{name: a, step: ./w, inputs: {line: x=1}}]", Some("the JSON parsers have different messages")),
    Case(
        "[{name: a, step: ./seq, inputs: {who: me}}, {name: b, script: 'echo ${{steps.a.outputs.both}}'}]",
        Some("`step_dir` is absolute; in step-runner it is relative to its own working directory"),
    ),
    Case("[{name: a, step: ./deleg}, {name: b, script: 'echo ${{steps.a.outputs.n}}'}]", None),
    // Exports and environment.
    Case(
        "[{name: a, step: ./x, inputs: {line: '{\"name\":\"E\",\"value\":1.50}'}}, {name: b, script: 'echo $E ${{env.E}}'}]",
        None,
    ),
    Case("[{name: a, step: ./x, inputs: {line: '{\"name\":\"E\",\"value\":[1]}'}}]", None),
    Case("[{name: a, step: ./x, inputs: {line: '{\"name\":\"E\",\"value\":null}'}}]", None),
    Case(
        "[{name: a, script: 'echo $A $CI_V $CI_STEPS_LOG_LEVEL', env: {A: '${{job.CI_V}}'}}, {name: b, script: 'echo [$A]'}]",
        None,
    ),
    Case(
        "[{name: a, step: ./dir, env: {A: item}}]",
        Some("`step_dir` is absolute; in step-runner it is relative to its own working directory"),
    ),
    // Expressions.
    Case("[{name: a, script: 'echo ${{ job.CI_V }}:${{job.CI_V}}}'}]", None),
    Case("[{name: a, script: 'echo ${{ nope }}'}]", None),
    Case("[{name: a, script: 'echo ${{ job.NOPE }}'}]", None),
    Case("[{name: a, script: 'echo ${{ }}'}]", None),
    Case("[{name: a, script: 'echo ${{ job.CI_V'}]", Some("the message quotes the expression with its opening braces")),
    Case("[{name: a, script: 'echo }} x'}]", Some("the message quotes the whole text, and names a remedy")),
    Case(
        "[{name: a, script: 'echo ${{ work_dir }} ${{ step_dir }}'}]",
        Some("`step_dir` of the list is the directory of the job; in step-runner it is empty"),
    ),
    // References.
    Case(
        "[{name: x, step: ./x, inputs: {line: '{\"name\":\"REF\",\"value\":\"/PROJECT/e\"}'}}, {name: a, step: '${{env.REF}}'}]",
        None,
    ),
    Case("[{name: a, step: ./none}]", Some("the message has the system's text of the error")),
    Case("[{name: a, step: numdef}]", Some("references are checked when the list starts, so there is a result")),
    Case("[{name: a, step: 'dist://nope'}]", Some("the message names the steps that exist")),
    Case("[{name: a, step: 'dist://script', inputs: {script: 'echo $((1 + 1))'}}]", None),
    // Failures.
    Case("[{name: a, script: exit 3}, {name: b, script: echo never}]", None),
    Case("[{name: a, step: ./fail}]", None),
    Case("[{name: a, script: kill -9 $$}]", None),
    Case("[{name: a, script: 'echo once', muster: {timeout: 10m, retry: 2, if: true}}]", None),
    Case(
        "[{name: a, script: exit 3, muster: {retry: {max: 1, delay: 1ms}}}]",
        Some("step-runner ignores the key `muster`, so it runs the step once"),
    ),
    Case("[{name: a, step: ./lost}]", None),
    Case("[{name: a, script: 'echo out; echo err >&2; printf unterminated'}, {name: b, script: 'echo next'}]", None),
    Case("[{name: a, script: 'echo; echo \"  indented\"; printf \"a\\rb\\n\"'}]", None),
    Case("[{name: a, script: 'read line || echo no input'}]", None),
    Case("[{name: a}]", Some("the message names the step, and the keys that it accepts")),
];

/// What a program did.
#[derive(Debug, PartialEq)]
struct Run {
    code: i32,
    /// Lines of standard output and standard error, from the first step on, in their order.
    lines: Vec<String>,
    results: Value,
}

#[test]
fn step_lists_have_the_results_of_step_runner() {
    let Some(theirs) = std::env::var_os("MUSTER_TEST_STEP_RUNNER") else {
        println!("skipped: MUSTER_TEST_STEP_RUNNER is not set to the path of GitLab's step-runner 0.11.0");
        return;
    };
    let problems: Vec<_> = CASES.iter().filter_map(|case| compare(case, Path::new(&theirs))).collect();
    assert!(problems.is_empty(), "{} of {} lists:\n{}", problems.len(), CASES.len(), problems.join("\n"));
}

/// Returns a description if the results differ without a reason, or if they are the same despite a reason.
fn compare(Case(steps, reason): &Case, theirs: &Path) -> Option<String> {
    let ours = run(Path::new(env!("CARGO_BIN_EXE_muster")), &["step-runner", "ci"], steps);
    let theirs = run(theirs, &["ci"], steps);
    assert_eq!(ours.code, theirs.code, "{steps}: {ours:#?} {theirs:#?}");
    match (ours == theirs, reason) {
        (true, None) | (false, Some(_)) => None,
        (true, Some(reason)) => Some(format!("{steps}: the results are the same, so remove the reason {reason:?}")),
        (false, None) => Some(format!("{steps}:\n  ours: {ours:?}\n  theirs: {theirs:?}")),
    }
}

fn run(program: &Path, arguments: &[&str], steps: &str) -> Run {
    let project = Project::new();
    for (path, text) in FILES {
        project.file(path, text);
    }
    let work = project.work().to_str().unwrap().to_owned();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = project.program(program, arguments);
    command.arg("--write-steps-results").stdout(writer.try_clone().unwrap()).stderr(writer);
    command.env("CI_STEPS_DIALECT", "legacy").env("CI_PROJECT_DIR", &work).env("CI_V", "v");
    command.env("STEPS", steps.replace("/PROJECT", &work));
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    let normalize = |text: &str| {
        let text = text.replace(&work, "<project>").replace(project.tmp().to_str().unwrap(), "<tmp>");
        let words = text.split_inclusive([' ', '"']);
        let word = |word: &str| match word.strip_prefix("<tmp>") {
            Some(_) => format!("<file>{}", word.trim_start_matches(|c| c != ' ' && c != '"')),
            None => word.to_owned(),
        };
        words.map(word).collect::<String>()
    };
    let output = normalize(&String::from_utf8(output).unwrap());
    let lines =
        output.split_inclusive('\n').skip_while(|line| !line.starts_with("Running") && !line.starts_with("Error"));
    let results = std::fs::read_to_string(project.work().join("step-results.json"));
    let mut results = serde_json::from_str(&normalize(&results.unwrap_or("null".to_owned()))).unwrap();
    hide_commands_of_scripts(&mut results);
    Run { code, lines: lines.map(str::to_owned).collect(), results }
}

/// Removes the command of each bundled script from a result and the results inside it.
fn hide_commands_of_scripts(result: &mut Value) {
    if result["step"]["step"]["protocol"] == "dist" {
        for place in ["/specDefinition/definition/exec", "/execResult/command"] {
            if let Some(command) = result.pointer_mut(place) {
                *command = Value::Null;
            }
        }
        if let Some(definition) = result.pointer_mut("/specDefinition/definition") {
            *definition = json!({"type": "exec"});
        }
    }
    if let Some(inner) = result.get_mut("subStepResults").and_then(Value::as_array_mut) {
        inner.iter_mut().for_each(hide_commands_of_scripts);
    }
}
