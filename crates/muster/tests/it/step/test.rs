//! `muster step test`.

use super::Project;

const PASSING: &str = r"tests:
  - name: greets by name
    inputs: {name: you, times: 3}
    env: {WHO: me}
    expect:
      exit_code: 0
      outputs: {text: you}
      log: ['^Hello you 3 me$']
      log_excludes: [world]
      steps: []
  - name: rejects unknown inputs
    inputs: {nope: 1}
    expect:
      status: failure
      error: does not accept input
";

/// Tests of a step that calls a remote step. A fake replaces the remote step.
const WITH_FAKES: &str = r#"tests:
  - name: publishes the archive
    inputs: {version: v1.0}
    files:
      deep/input.txt: "text\n"
    fakes:
      - step: gitlab.com/components/publish@v1
        outputs: {url: "https://example.invalid/v1.0"}
        exports: {PUBLISHED: "yes"}
        log: uploading
    expect:
      outputs: {url: "https://example.invalid/v1.0"}
      log: [uploading, done]
      files:
        note.txt: {content: "published https://example.invalid/v1.0\n"}
        deep/input.txt: {matches: '^te.t$'}
        other.txt: {exists: false}
      steps:
        - step: publish
          inputs: {file: v1.0.tar}
          status: success
        - step: note
          env: {PUBLISHED: "yes"}
        - step: rollback
          called: false
  - name: stops if publishing fails
    inputs: {version: v1.0}
    fakes:
      - {step: publish, exit_code: 7}
    expect:
      status: failure
      exit_code: 7
      error: exit status 7
      steps:
        - {step: note, called: false}
"#;

/// Tests of a step that uses Muster's own keys (`muster:`).
const WITH_OWN_KEYS: &str = r#"tests:
  - name: builds for all targets and does not publish
    inputs: {targets: [linux, mac]}
    fakes:
      - {step: publish, exit_code: 1}
      - {step: "build: [mac]", outputs: {file: fake.tar}}
    expect:
      outputs: {files: [linux.tar, fake.tar]}
      log: ['building linux']
      steps:
        - {step: build, inputs: {target: linux}}
        - {step: "build: [mac]", inputs: {target: mac}}
        - {step: publish, called: false}
        - {step: flaky, status: success}
"#;

#[test]
fn steps_with_conditions_retries_and_a_matrix_are_tested() {
    let project = Project::new();
    project.write(
        "build/step.yml",
        "spec: {inputs: {target: {type: string}}, outputs: {file: {type: string}}}\n---\n\
         exec: {command: [sh, -c, 'echo building $0; echo \"{\\\"name\\\": \\\"file\\\", \\\"value\\\": \\\"$0.tar\\\"}\" >$1', \
         '${{inputs.target}}', '${{output_file}}']}\n",
    );
    project.write(
        "all/step.yml",
        "spec: {inputs: {targets: {type: array}}, outputs: {files: {type: array}}}\n---\nrun:\n  \
         - {name: build, step: ../build, inputs: {target: '${{matrix.target}}'}, \
            muster: {parallel: true, matrix: {target: '${{inputs.targets}}'}}}\n  \
         - {name: publish, script: exit 1, muster: {if: '${{vars.PUBLISH || false}}'}}\n  \
         - {name: flaky, script: 'test -e tried || {{ touch tried; exit 1; }}', muster: {retry: {max: 1, delay: 1ms}}}\n\
         outputs: {files: '${{steps.build.outputs.file}}'}\n"
            .replace("{{ touch tried; exit 1; }}", "{ touch tried; exit 1; }")
            .as_str(),
    );
    project.write("all/step_test.yml", WITH_OWN_KEYS);
    project.step(&["test", "all"]).check(0, &["test result: ok. 1 passed; 0 failed"]);
}

#[test]
fn passing_tests_are_reported_in_the_format_of_cargo() {
    let project = Project::new();
    project.write("greet/step_test.yml", PASSING);
    project.write("release/step_test.yml", WITH_FAKES);
    let result = project.step(&["test", "--jobs", "1"]);
    let result = result.check(0, &["running 4 tests\n", "test result: ok. 4 passed; 0 failed; finished in "]);
    for name in ["greet/step_test.yml: greets by name", "release/step_test.yml: stops if publishing fails"] {
        assert!(result.stdout.contains(&format!("test {name} ... ok\n")), "{result:?}");
    }
    assert!(!project.path("greet/note.txt").exists());
    assert_eq!(std::fs::read_dir(project.tmp()).unwrap().count(), 0, "temporary files must be removed");
    project.step(&["test", "--filter", "publish"]).check(0, &["2 passed"]);
    let names = ["no test matches --filter \"publsh\"", "\n  greet/step_test.yml: greets by name\n"];
    project.step(&["test", "--filter", "publsh"]).check(2, &names);
}

#[test]
fn differences_name_the_line_of_the_expectation() {
    let project = Project::new();
    let test = r"tests:
  - name: wrong <everything>
    inputs: {name: you}
    expect:
      exit_code: 4
      error: nothing
      outputs:
        text: me
        more: 1
      exports: {A: b}
      log: [absent]
      log_excludes: [Hello]
      files:
        a.txt: {content: x}
      steps:
        - step: inner
  - name: unexpected success
    expect: {status: failure}
";
    project.write("greet/step_test.yml", test);
    let result = project.step(&["test", "greet", "--junit", "report.xml"]).check(
        1,
        &[
            "test greet/step_test.yml: wrong <everything> ... FAILED",
            "greet/step_test.yml:5: the exit code is 0, expected 4",
            "greet/step_test.yml:6: the error \"\" does not match \"nothing\"",
            "greet/step_test.yml:8: output \"text\" is \"you\", expected \"me\"",
            "greet/step_test.yml:9: there is no output \"more\"",
            "greet/step_test.yml:10: there is no exported variable \"A\"",
            "greet/step_test.yml:11: the log does not match \"absent\"",
            "greet/step_test.yml:12: the log matches \"Hello\", which is excluded",
            "greet/step_test.yml:14: the file \"a.txt\" cannot be read",
            "greet/step_test.yml:16: step \"inner\" was not called",
            "greet/step_test.yml:17: the step succeeded, but a failure is expected",
            "test result: FAILED. 0 passed; 2 failed",
        ],
    );
    assert!(result.stdout.contains("    Hello you 1 \n"), "the log must be shown: {result:?}");
    let report = project.read("report.xml");
    for text in [
        r#"<testsuite name="greet/step_test.yml" tests="2" failures="2" skipped="0">"#,
        "<testcase name=\"wrong &lt;everything&gt;\" classname=\"greet/step_test.yml\" time=\"",
        "<failure message=\"the exit code is 0, expected 4\">",
        "Hello you 1",
    ] {
        assert!(report.contains(text), "{text} is missing in {report}");
    }
}

#[test]
fn invalid_test_files_are_rejected_with_their_line() {
    let project = Project::new();
    for (text, message) in [
        ("tests:\n  - name: a\n    inptus: {}\n", "t.yml:3: "),
        ("tests:\n  - name: a\n    expect:\n      log: ['(']\n", "t.yml:4: \"(\" is not a valid pattern"),
        ("tests:\n  - name: a\n  - name: a\n", "t.yml:3: the name \"a\" is used twice, also on line 2"),
        ("tests:\n  - name: [\n", "t.yml:"),
        ("tests:\n  - inputs: {}\n", "t.yml:2: "),
    ] {
        project.write("t.yml", text);
        project.step(&["test", "t.yml"]).check(2, &[message]);
    }
    project.step(&["test", "none.yml"]).check(2, &["failed to read none.yml"]);
    project.step(&["test"]).check(2, &["found no tests"]);
    project.write("t.yml", "tests:\n  - name: a\n    step: greet\n    files: {../x: ''}\n");
    project.step(&["test", "t.yml"]).check(1, &["failed to create the file", "use a relative path"]);
}

#[test]
fn hanging_step_fails_at_the_timeout_of_its_test() {
    let project = Project::new();
    project.write("hang/step.yml", "spec: {}\n---\nexec: {command: [sleep, '1000']}\n");
    project
        .write("hang/step_test.yml", "tests:\n  - {name: hangs, timeout_s: 1}\n  - {name: hangs too, timeout_s: 1}\n");
    project.step(&["test", "--jobs", "2"]).check(1, &["hang/step_test.yml:2: the step failed: ", "2 failed"]);
}
