//! Examples of valid and invalid step files.

use super::*;

#[test]
fn parses_exec_and_run_definitions() {
    let exec = StepFile::parse(
        "spec:\n  inputs:\n    who: {type: string, default: you}\n  outputs:\n    out: {type: number}\n---\n\
         exec: {command: [echo, 1], work_dir: /}\nenv: {A: 2}\n",
    )
    .unwrap();
    let command = vec!["echo".to_owned(), "1".to_owned()];
    assert_eq!(exec.body, Body::Exec { command, work_dir: Some("/".to_owned()) });
    assert_eq!(exec.env["A"], "2");
    let run = StepFile::parse("{}\n---\nrun:\n  - {name: a, script: ls}\n  - {name: b, func: ./b}\n").unwrap();
    let Body::Run { entries, .. } = run.body else { panic!("expected a `run` definition") };
    assert_eq!(entries[0].call, Call::Script("ls".to_owned()));
    assert_eq!(entries[1].call, Call::Step("./b".to_owned()));
}

#[test]
fn invalid_step_file_is_rejected_with_reason() {
    for (text, part) in [
        ("run: []", "two documents"),
        ("exec: {}\n---\nrun: []", "field `exec` not found in the specification"),
        ("{}\n---\nrun: []", "at least one step"),
        ("{}\n---\nrun: [{name: a}]", "step 1: \"a\" needs exactly one of"),
        ("{}\n---\nrun: [{name: a, step: {git: {url: u}}}]", "\"a\": field rev in git: required"),
        ("{}\n---\nrun: [{name: a, script: x, step: ./y}]", "exactly one of"),
        ("{}\n---\n{exec: {command: [a]}, run: [{script: b}]}", "exactly one of `exec` and `run`"),
        ("{}\n---\nexec: {command: [[a]]}", "`exec.command` must be a list of at least one string"),
        ("spec: {inputs: {a: {type: text}}}\n---\nexec: {command: [a]}", "must be one of string"),
        ("spec: {inputs: {a: {type: number, default: x}}}\n---\nexec: {command: [a]}", "must match"),
    ] {
        let error = StepFile::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn fuzz_step_files() {
    let samples: [&[u8]; 3] = [
        b"spec:\n  inputs: {a: {type: array, default: [1, {k: v}], sensitive: true}}\n  outputs: delegate\n---\n\
          env: {A: 1.10}\nrun: [{name: a, step: {git: {url: u, rev: r}}, inputs: {d: 2024-01-02}}]\ndelegate: a\n",
        b"{}\n---\nexec: {command: [echo, '${{inputs.a}}'], work_dir: /}\n",
        b"---\nspec: &x\n---\nrun:\n- <<: {name: b}\n  script: |\n    text\noutputs: {o: ~}\n",
    ];
    let words =
        ["spec:", "run:", "exec:", "name:", "type: ", "\n---\n", "{", "[", "&x ", "*x", "<<: ", "0x", "'", "\"", "- "];
    muster_fuzz::fuzz("step files", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
        let _ = StepFile::parse(&String::from_utf8_lossy(input));
        if let Ok(list) = serde_json::from_slice(input) {
            let _ = parse_run_list(&list);
        }
    });
}
