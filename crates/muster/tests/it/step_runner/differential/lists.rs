//! Lists of steps for Muster and GitLab's step-runner, with the reason for each difference between the results.

pub(in crate::step_runner) struct Case {
    pub(in crate::step_runner) steps: &'static str,
    pub(in crate::step_runner) differences: &'static [Difference],
}

pub(in crate::step_runner) struct Difference {
    /// Whether the results differ if Muster uses the legacy dialect.
    pub(in crate::step_runner) in_legacy: bool,
    /// Whether the results differ if Muster uses the current dialect.
    pub(in crate::step_runner) in_current: bool,
    /// Whether the exit statuses of the two programs differ.
    pub(in crate::step_runner) has_other_exit_status: bool,
    pub(in crate::step_runner) reason: &'static str,
}

const fn same(steps: &'static str) -> Case {
    Case { steps, differences: &[] }
}

const fn differs(steps: &'static str, differences: &'static [Difference]) -> Case {
    Case { steps, differences }
}

const fn both(reason: &'static str) -> Difference {
    Difference { in_legacy: true, in_current: true, has_other_exit_status: false, reason }
}

const fn legacy(reason: &'static str) -> Difference {
    Difference { in_current: false, ..both(reason) }
}

const fn current(reason: &'static str) -> Difference {
    Difference { in_legacy: false, ..both(reason) }
}

impl Difference {
    const fn with_other_exit_status(self) -> Self {
        Self { has_other_exit_status: true, ..self }
    }
}

const NUMBER: &str = "The results of the two programs have the same number in different notations.";
const JSON: &str = "The JSON parsers have different messages.";
const STEP_DIR: &str = "In Muster, `step_dir` is absolute. In step-runner, it is relative to the working directory of step-runner, and empty in expressions of the list itself.";
const WORK_DIR: &str = "In the current dialect, a relative `work_dir` is relative to the directory of the job, and the results have its absolute path.";
const ATTRIBUTE: &str =
    "In the current dialect, a missing value causes the message of Moa, the expression language of that dialect.";
const MOA: &str = "In the current dialect, the expression is valid.";
const REMEDY: &str = "Only Muster's message has a remedy or the operating system's text of the error.";
const FILE: &str =
    "Muster's message has the absolute path of the file, and a remedy or the operating system's text of the error.";
const EARLY: &str = "Muster checks references after the list has started, so it writes a result. step-runner rejects the list before it starts.";
const ENTRY: &str = "Muster's message names the step, and the keywords that a step accepts.";
const EXPORTS: &str =
    "Only in the current dialect, an export can replace a variable that existed when the sequence started.";
const NAMES: &str = "In Muster, a script also gets variables whose names are not identifiers. In step-runner, the wrapper of the script drops them.";
const SENSITIVE: &str = "Muster masks sensitive values in the log and in the results. step-runner does not.";
const DYNAMIC_SCRIPT: &str = "The command of a script is removed before the comparison, but not if an expression contains the name of the step `script`.";
const OBJECTS: &str = "step-runner rejects an object in an array of an input.";
const SPACE: &str = "Only Muster removes the space at the start of a reference.";
const ESCAPE: &str = "In the current dialect, `\\${{` is the text `${{`.";
const PARSER: &str = "In the current dialect, the message is from the parser of Moa.";
const URL: &str = "In the current dialect, the host may be `localhost`. The legacy dialect rejects it like step-runner, with a shorter message.";
const EMPTY: &str = "Muster rejects an empty list. step-runner runs it.";
const BRACES: &str =
    "Muster's message quotes the whole text, or the expression with its opening braces, and names a remedy.";

/// Lists for both programs. `/PROJECT` is the directory of the job, and `./NAME` is a step in `project/`.
#[rustfmt::skip]
pub(in crate::step_runner) const CASES: [Case; 96] = [
    // Inputs, their types and defaults.
    same(r"[{name: a, step: ./e}]"),
    same(r"[{name: a, step: ./e, inputs: {s: '${{job.CI_V}}', n: 2.50, b: false, o: {k: [1]}, a: [x, 1]}}]"),
    same(r"[{name: a, step: ./e, inputs: {n: abc, s: 42, b: 12}}]"),
    differs(r"[{name: a, step: ./e, inputs: {n: 12345678901234567890, a: [1000000, 1e21, 0.0000001]}}]", &[both(NUMBER)]),
    same(r"[{name: a, step: ./e, inputs: {o: {k: '<a>&b'}}}]"),
    same(r"[{name: a, step: ./e, inputs: {nope: 1}}]"),
    same(r"[{name: a, step: ./w}]"),
    same(r"[{step: ./e}, {name: a-b, script: echo named}]"),
    same(r"[{name: a, step: ./e, inputs: {a: ['${{job.CI_V}}', ['x${{job.CI_V}}']], o: {'${{job.CI_V}}': '${{job.CI_V}}'}}}]"),
    same(r"[{name: a, step: ./need}]"),
    same(r"[{name: a, step: ./need, inputs: {must: x}}]"),
    same(r"[{name: a, step: ./need, inputs: {must: null, opt: {k: [1, true]}}}]"),
    differs(r"[{name: a, step: ./need, inputs: {must: x, opt: {k: [{z: 2}]}}}]", &[both(OBJECTS).with_other_exit_status()]),
    differs(r"[{name: a, step: ./wrongdefault}]", &[both(FILE)]),
    // Outputs of each type, delegated outputs.
    same(r#"[{name: a, step: ./w, inputs: {line: '{"name":"x","value":"1"}'}}, {name: b, script: 'echo ${{steps.a.outputs.x}} ${{steps.a.outputs.n}}'}]"#),
    same(r#"[{name: a, step: ./w, inputs: {line: '{"name":"x","value":1}'}}]"#),
    same(r#"[{name: a, step: ./w, inputs: {line: '{"name":"z","value":1}'}}]"#),
    same(r#"[{name: a, step: ./w, inputs: {line: '{"name":"x"}'}}]"#),
    differs(r"[{name: a, step: ./w, inputs: {line: x=1}}]", &[both(JSON)]),
    differs(r"[{name: a, step: ./all}, {name: b, step: ./e, inputs: {s: '${{steps.a.outputs.s}}', n: '${{steps.a.outputs.n}}', b: '${{steps.a.outputs.b}}', o: '${{steps.a.outputs.o}}', a: '${{steps.a.outputs.a}}'}}]", &[both(NUMBER)]),
    same(r"[{name: a, step: ./must}]"),
    same(r#"[{name: a, step: ./w, inputs: {line: '{"name":"","value":true}'}}]"#),
    same(r#"[{name: a, step: ./w, inputs: {line: '{"NAME":"x","Value":"c","extra":1}'}}, {name: b, script: 'echo ${{steps.a.outputs.x}}'}]"#),
    same(r"[{name: a, step: ./result}, {name: b, script: 'echo ${{steps.a.outputs.l}} ${{steps.a.outputs.k}}'}]"),
    same(r"[{name: a, step: ./deleg}, {name: b, script: 'echo ${{steps.a.outputs.n}}'}]"),
    same(r"[{name: a, step: ./nodelegate}]"),
    differs(r"[{name: a, step: ./wrongoutputs}]", &[both(FILE)]),
    // Sequences in sequences.
    differs(r"[{name: a, step: ./seq, inputs: {who: me}}, {name: b, script: 'echo ${{steps.a.outputs.both}}'}]", &[both(STEP_DIR)]),
    differs(r"[{name: a, step: ./nest}, {name: b, script: 'echo ${{steps.a.outputs.all}}'}]", &[both(STEP_DIR)]),
    same(r#"[{name: a, step: ./e}, {name: a, step: ./w, inputs: {line: '{"name":"x","value":"2"}'}}, {name: b, script: 'echo ${{steps.a.outputs.x}}'}]"#),
    same(r"[{name: a, step: ./deep/a/b}]"),
    // Exports over several levels, and environment.
    same(r#"[{name: a, step: ./x, inputs: {line: '{"name":"E","value":1.50}'}}, {name: b, script: 'echo $E ${{env.E}}'}]"#),
    same(r#"[{name: a, step: ./x, inputs: {line: '{"name":"E","value":[1]}'}}]"#),
    same(r#"[{name: a, step: ./x, inputs: {line: '{"name":"E","value":null}'}}]"#),
    same(r"[{name: a, script: 'echo $A $CI_V $CI_STEPS_LOG_LEVEL', env: {A: '${{job.CI_V}}'}}, {name: b, script: 'echo [$A]'}]"),
    differs(r#"[{name: o, step: ./x, inputs: {line: '{"name":"OLD","value":"first"}'}}, {name: l, step: ./levels, env: {ITEM: i}}, {name: z, script: 'echo $NEW $OLD [$LEVEL] [$ITEM]'}]"#, &[current(EXPORTS)]),
    same(r#"[{name: x, step: ./x, inputs: {line: '{"name":"A","value":"export"}'}}, {name: a, step: ./env, env: {A: item, B: item}}]"#),
    differs(r#"[{name: x, step: ./x, inputs: {line: "{\"name\":\"A\",\"value\":true}\n\n{\"name\":\"A B\",\"value\":1e21}\n{\"name\":\"A\",\"value\":\"last\"}"}}, {name: a, script: 'echo $A; env | grep ^A'}]"#, &[both(NAMES)]),
    same(r#"[{name: x, step: ./x, inputs: {line: '{"name":"E","value":"e"}'}}, {name: f, script: exit 200}, {name: b, script: echo never}]"#),
    differs(r"[{name: a, script: 'echo $X', env: {X: '${{env.Y}}', Y: y}}]", &[current(ATTRIBUTE)]),
    same(r"[{name: a, script: 'echo $X', env: {X: 1.50}}]"),
    differs(r"[{name: a, step: ./e, env: {S: x}, inputs: {s: '${{env.S}}'}}]", &[current(ATTRIBUTE)]),
    // Sensitive values.
    differs(r"[{name: a, step: ./secret, inputs: {password: hunter22}}, {name: b, script: 'echo ${{steps.a.outputs.token}}'}]", &[both(SENSITIVE)]),
    // Working directories.
    differs(r"[{name: a, step: ./dir, env: {A: item}}]", &[legacy(STEP_DIR), current(WORK_DIR)]),
    differs(r"[{name: a, step: ./nodir}]", &[both(REMEDY)]),
    differs(r"[{name: a, step: ./tool, env: {OUTER: o}}]", &[both(REMEDY)]),
    differs(r##"[{name: t, script: 'printf "%s\n" "#!/bin/sh" "pwd; echo \$1 \$W" >tool/tool; chmod +x tool/tool'}, {name: a, step: ./tool, env: {OUTER: o}}]"##, &[current(WORK_DIR)]),
    // Expressions.
    same(r"[{name: a, script: 'echo ${{ job.CI_V }}:${{job.CI_V}}}'}]"),
    differs(r"[{name: a, script: 'echo ${{ nope }}'}]", &[current(ATTRIBUTE)]),
    differs(r"[{name: a, script: 'echo ${{ job.NOPE }}'}]", &[current(ATTRIBUTE)]),
    differs(r"[{name: a, script: 'echo ${{ }}'}]", &[current(PARSER)]),
    differs(r"[{name: a, script: 'echo ${{ job.CI_V'}]", &[both(BRACES)]),
    differs(r"[{name: a, script: 'echo }} x'}]", &[legacy(BRACES), current(MOA).with_other_exit_status()]),
    differs(r"[{name: a, script: 'echo ${{ work_dir }} ${{ step_dir }}'}]", &[both(STEP_DIR)]),
    differs(r"[{name: a, script: 'echo ${{ job . CI_V }}'}]", &[current(MOA).with_other_exit_status()]),
    differs(r"[{name: a, script: 'echo ${{ str(job.CI_V) }}'}]", &[current(MOA).with_other_exit_status()]),
    differs(r"[{name: a, step: ./w, inputs: {line: ''}}, {name: b, script: 'echo ${{ steps.a }}'}]", &[legacy(REMEDY), current(MOA).with_other_exit_status()]),
    differs(r"[{name: a, step: ./e}, {name: b, script: 'echo ${{ steps.a.status }}'}]", &[current(ATTRIBUTE)]),
    differs(r"[{name: a, script: 'echo ${{ steps.b.outputs.x }}'}, {name: b, step: ./e}]", &[current(ATTRIBUTE)]),
    differs(r"[{name: a, script: 'echo \${{ job.CI_V }}'}]", &[current(ESCAPE).with_other_exit_status()]),
    // References: local, dynamic, bundled, in subdirectories, Git.
    same(r#"[{name: x, step: ./x, inputs: {line: '{"name":"REF","value":"/PROJECT/e"}'}}, {name: a, step: '${{env.REF}}'}]"#),
    same(r"[{name: a, step: './${{job.CI_V}}/../e', inputs: {s: dynamic}}]"),
    differs(r"[{name: a, step: '${{job.NOPE}}'}]", &[current(ATTRIBUTE)]),
    differs(r#"[{name: x, step: ./x, inputs: {line: '{"name":"REF","value":"script"}'}}, {name: a, step: 'dist://${{env.REF}}', inputs: {script: 'echo bundled'}}]"#, &[both(DYNAMIC_SCRIPT)]),
    differs(r#"[{name: x, step: ./x, inputs: {line: '{"name":"REF","value":"no-version"}'}}, {name: a, step: '${{env.REF}}'}]"#, &[both(REMEDY)]),
    differs(r"[{name: a, step: ./none}]", &[both(FILE)]),
    differs(r"[{name: a, step: numdef}]", &[both(EARLY)]),
    differs(r"[{name: a, step: 'dist://nope'}]", &[both(REMEDY)]),
    same(r"[{name: a, step: 'dist://script', inputs: {script: 'echo $((1 + 1))'}}]"),
    differs(r"[{name: a, step: ' ./deep/../deep/./a//b/other.yml'}]", &[both(SPACE).with_other_exit_status()]),
    same(r"[{name: a, step: ./deep/../deep/./a//b/}]"),
    differs(r"[{name: a, step: {git: {url: localhost/x, rev: v1}}}]", &[both(URL)]),
    // Lists and step files that are rejected.
    differs(r"[{name: a}]", &[both(ENTRY)]),
    differs(r"[{name: a, step: ./single}]", &[both(FILE)]),
    differs(r"[{name: a, step: ./two}]", &[both(FILE)]),
    differs(r"[{name: a, script: 'echo x', inputs: {a: 1}}]", &[both(ENTRY)]),
    differs(r"[{name: a, script: 'echo x', step: ./e}]", &[both(ENTRY)]),
    differs(r"[{name: a, action: x, script: y}]", &[both(ENTRY)]),
    differs(r"[{name: a, step: {git: {url: x}}}]", &[both(ENTRY)]),
    differs(r"[]", &[both(EMPTY).with_other_exit_status()]),
    // Failures and signals.
    same(r"[{name: a, script: exit 3}, {name: b, script: echo never}]"),
    same(r"[{name: a, script: 'echo once', muster: {timeout: 10m, retry: 2, if: true}}]"),
    differs(
        r"[{name: a, script: exit 3, muster: {retry: {max: 1, delay: 1ms}}}]",
        &[both("step-runner ignores the key `muster`, so it runs the step once")],
    ),
    same(r"[{name: a, step: ./fail}]"),
    same(r"[{name: a, script: kill -9 $$}]"),
    same(r"[{name: a, step: ./lost}]"),
    same(r"[{name: a, script: 'kill -TERM $$'}]"),
    same(r#"[{name: a, script: 'trap "exit 9" TERM; kill -TERM $$'}]"#),
    same(r"[{name: a, script: 'set -e; false | true; echo $?; false; echo never'}]"),
    // Output: streams, blank lines, colors, many lines, long lines, background processes.
    same(r"[{name: a, script: 'echo out; echo err >&2; printf unterminated'}, {name: b, script: 'echo next'}]"),
    same(r#"[{name: a, script: 'echo; echo "  indented"; printf "a\rb\n"'}]"#),
    same(r"[{name: a, script: 'read line || echo no input'}]"),
    same(r"[{name: a, script: 'seq 1 20000'}]"),
    same(r#"[{name: a, script: 'head -c 100000 /dev/zero | tr "\\0" x; echo; echo after'}]"#),
    same(r#"[{name: a, script: 'printf "\n\n a \n\n\t\033[1mb\033[0m\n" >&2; printf "\t\n\n"'}]"#),
    same(r"[{name: a, script: 'sleep 0.1 & echo started'}, {name: b, step: ./tail}]"),
];
