//! Conformance cases C073-C101: `include`, `spec:inputs` and interpolation (docs/spec/pipeline-yaml.md, section 8.3).

use muster_job::Variable;
use muster_pipeline::context::ComponentFields;
use muster_pipeline::load::IncludeOutcome;
use serde_json::{Value, json};

use crate::case::describe;
use crate::harness::{TestProject, assert_rejected, errors, merged, project, warnings};

const A: &str = "a: {script: [x]}\n";

#[track_caller]
fn jobs(tree: &Value) -> Vec<&str> {
    let keys = tree.as_object().into_iter().flatten();
    let is_job = |(key, value): &(&String, &Value)| !key.starts_with('.') && value.get("script").is_some();
    keys.filter(is_job).map(|(key, _)| key.as_str()).collect()
}

#[track_caller]
fn compiled_jobs(project: &TestProject, text: &str) -> Vec<String> {
    let compiled = project.compile(text);
    let problems = describe(&compiled);
    let pipeline = compiled.pipeline.unwrap_or_else(|| panic!("no pipeline: {problems}"));
    pipeline.jobs.into_iter().map(|job| job.name).collect()
}

fn with_inputs(inputs: &str) -> String {
    format!("include: {{local: c.yml, inputs: {inputs}}}\n")
}

#[track_caller]
fn interpolated_tree(project: &TestProject, inputs: &str, body: &str) -> Value {
    merged(&project.load(format!("spec: {{inputs: {inputs}}}\n---\n{body}\n")))
}

#[test]
fn c073_main_file_wins_over_include() {
    let project = project().file("c.yml", format!("variables: {{A: inc, B: inc}}\n{A}"));
    let tree = merged(&project.load("include: c.yml\nvariables: {A: main}"));
    assert_eq!(tree["variables"], json!({"A": "main", "B": "inc"}));
    assert_eq!(compiled_jobs(&project, "include: c.yml\nvariables: {A: main}"), ["a"]);
}

#[test]
fn c074_later_include_wins() {
    let project = project().file("one.yml", "a: {script: [one]}").file("two.yml", "a: {script: [two]}");
    assert_eq!(merged(&project.load("include: [one.yml, two.yml]"))["a"]["script"], json!(["two"]));
}

#[test]
fn c075_included_file_wins_over_the_files_that_it_includes() {
    let project = project()
        .file("zero.yml", "default: {image: zero}")
        .file("one.yml", "include: zero.yml\ndefault: {image: one}");
    assert_eq!(merged(&project.load("include: one.yml"))["default"]["image"], "one");
}

#[test]
fn c076_lists_are_replaced() {
    let project = project().file("c.yml", "a: {script: [p, q]}");
    assert_eq!(merged(&project.load("include: c.yml\na: {script: [r]}"))["a"]["script"], json!(["r"]));
}

#[test]
fn c077_maps_are_merged() {
    let project = project().file("c.yml", "a: {script: [x], artifacts: {reports: {dotenv: e}}}");
    let tree = merged(&project.load("include: c.yml\na: {artifacts: {reports: {junit: j}}}"));
    assert_eq!(tree["a"]["artifacts"]["reports"], json!({"dotenv": "e", "junit": "j"}));
}

#[test]
fn c078_missing_file_or_wrong_extension_is_rejected() {
    let project = project().file("notes.txt", "hello").file("node.yml", A);
    let missing = project.load("include: nope.yml");
    assert_rejected(&missing.diagnostics, "local file `nope.yml` does not exist");
    assert_eq!(missing.diagnostics[0].help.as_deref(), Some("did you mean `node.yml`?"));
    assert_rejected(&project.load("include: notes.txt").diagnostics, "`notes.txt` does not have YAML extension");
}

#[test]
fn c079_include_has_exactly_one_accessor() {
    let load = |text: &str| project().load(text).diagnostics;
    assert_rejected(&load("include: {local: a.yml, remote: https://x/y.yml}"), "needs to match exactly one accessor");
    assert_rejected(&load("include: {inputs: {a: 1}}"), "needs to match exactly one accessor");
    assert_rejected(&load("include: {local: a.yml, ref: main}"), "`ref` can be used only with `project`");
    assert_rejected(&load("include: {project: a/b}"), "needs the key `file`");
    assert_rejected(&load("include: {locla: a.yml}"), "unknown keys: `locla`");
    assert_rejected(
        &load("include: {project: a/b, file: []}"),
        "`include:file` must be a path or a list of paths, not an empty list",
    );
    assert_rejected(&load("include: {local: ' '}"), "`include:local` must be text, not a blank string");
    assert_rejected(&load("include: {local: a.yml, inputs: 3}"), "a map of names and values, not a number");
    assert_rejected(&load("include: 7"), "`include` must be a path or a map, not a number");
    assert_rejected(&load("include: [!reference [a, b]]"), "`!reference` cannot be used in `include`");
}

#[test]
fn c080_at_most_150_includes_and_no_cycle() {
    let project = project().file("c.yml", A).file("a.yml", "include: b.yml").file("b.yml", "include: a.yml").file(
        "n.yml",
        "spec: {inputs: {n: {default: x}}}\n---\ninclude: {local: n.yml, inputs: {n: \"$[[ inputs.n ]]x\"}}",
    );
    let many = |count: usize| format!("include: [{}]", vec!["c.yml"; count].join(", "));
    assert_eq!(errors(&project.load(many(150)).diagnostics), [""; 0]);
    assert_rejected(&project.load(many(151)).diagnostics, "maximum of 150 nested includes are allowed");
    assert_rejected(&project.load("include: a.yml").diagnostics, "in a cycle: a.yml -> b.yml -> a.yml");
    assert_rejected(
        &project.load("include: .gitlab-ci.yml").diagnostics,
        "in a cycle: .gitlab-ci.yml -> .gitlab-ci.yml",
    );
    assert_rejected(&project.load("include: n.yml").diagnostics, "maximum of 150 nested includes are allowed");
}

#[test]
fn c081_rules_see_project_variables() {
    let project = project().file("c.yml", "b: {script: [y]}");
    let text = format!("include: [{{local: c.yml, rules: [{{if: '$EXTRA == \"1\"'}}]}}]\n{A}");
    let without = project.load(&text);
    assert_eq!(jobs(&merged(&without)), ["a"]);
    assert_eq!(without.includes[0].outcome, IncludeOutcome::ExcludedByRules);
    let with = project.clone().variable("EXTRA", "1").load(&text);
    assert_eq!(jobs(&merged(&with)), ["b", "a"]);
    assert!(matches!(with.includes[0].outcome, IncludeOutcome::Merged(_)));
    assert_eq!(compiled_jobs(&project, &text), ["a"]);
    assert_eq!(compiled_jobs(&project.clone().variable("EXTRA", "1"), &text), ["b", "a"]);
    assert_eq!(jobs(&merged(&project.pipeline_variable("EXTRA", "1").load(&text))), ["b", "a"]);
}

#[test]
fn c082_rules_do_not_see_yaml_variables() {
    let project = project().file("c.yml", "b: {script: [y]}");
    let text =
        format!("variables: {{EXTRA: '1'}}\ninclude: [{{local: c.yml, rules: [{{if: '$EXTRA == \"1\"'}}]}}]\n{A}");
    assert_eq!(jobs(&merged(&project.load(text))), ["a"]);
}

#[test]
fn c083_rules_with_exists_changes_and_when() {
    let project = project().file("c.yml", "b: {script: [y]}").git_ref("v1", &["docs/x.md"]);
    for (rule, included) in [
        ("{exists: [Dockerfile], when: never}", false),
        ("{exists: [Dockerfile]}", true),
        ("{exists: [nope, '**/b.rb']}", true),
        ("{exists: [src]}", false),
        ("{exists: {paths: [Dockerfile], project: grp/other}}", false),
        ("{changes: [src/*]}", true),
        ("{changes: [docs/*]}", false),
        ("{changes: {paths: [docs/*], compare_to: v1}}", true),
        ("{changes: {regexp: '^src/'}}", true),
        ("{exists: {regexp: 'b\\.rb$'}}", true),
        ("{if: $CI_COMMIT_BRANCH, changes: [docs/*]}", false),
        ("{if: $NOPE}, {when: always}", true),
    ] {
        let tree = merged(&project.load(format!("include: [{{local: c.yml, rules: [{rule}]}}]\n{A}")));
        assert_eq!(jobs(&tree).contains(&"b"), included, "{rule}");
    }
    for (rule, part) in [
        ("{if: '$A ='}", "invalid expression syntax"),
        ("{iff: $A}", "unknown keys: `iff`"),
        ("{when: manual}", "include:rules:rule:when config should be one of: always, never"),
        ("{}", "include:rules:rule can't be blank"),
        ("{changes: src/*}", "should be an array"),
        ("{exists: {paths: [a], rev: b}}", "unknown keys: `rev`"),
        ("{changes: {paths: [a], compare_to: nope}}", "is not a valid ref"),
    ] {
        assert_rejected(&project.load(format!("include: [{{local: c.yml, rules: [{rule}]}}]")).diagnostics, part);
    }
}

#[test]
fn c084_wildcards_in_include_match_paths() {
    let project = project().file("ci/a.yml", A).file("ci/sub/b.yml", "b: {script: [y]}");
    for (pattern, found) in [
        ("ci/*.yml", vec!["a"]),
        ("/ci/*.yml", vec!["a"]),
        ("ci/**.yml", vec!["a", "b"]),
        ("ci/**/*.yml", vec!["b"]),
        ("$CI_PROJECT_NAME/*.yml", vec![]),
    ] {
        let loaded = project.load(format!("include: {{local: '{pattern}'}}"));
        assert_eq!(jobs(&merged(&loaded)), found, "{pattern}");
        // Without a match, nothing is included, but there is a warning (docs/spec/pipeline-yaml.md, section 9, point 2).
        assert_eq!(warnings(&loaded.diagnostics).len(), usize::from(found.is_empty()), "{pattern}");
    }
}

#[test]
fn c085_integrity_of_a_remote_file_is_checked() {
    let project = project().external_file("https://x/y.yml", A);
    let text = |digest: &str| format!("include: {{remote: https://x/y.yml, integrity: 'sha256-{digest}'}}");
    let wrong_digest = "NXVHgQZi9zWgQe4jJ3y0GKBHK1u6NzX9F8X8zJgGmZ4=";
    let wrong = project.load(text(wrong_digest));
    assert_rejected(&wrong.diagnostics, "integrity check");
    let help = wrong.diagnostics[0].help.clone().expect("the diagnostic must have a help");
    let digest =
        help.split("sha256-").nth(1).and_then(|rest| rest.split('`').next()).expect("the help must contain the digest");
    assert_eq!(jobs(&merged(&project.load(text(digest)))), ["a"]);
    assert_eq!(jobs(&merged(&project.load("include: https://x/y.yml"))), ["a"]);
}

#[test]
fn c086_default_of_a_pipeline_input_is_used() {
    let body = "a:\n  stage: $[[ inputs.st ]]\n  script: [x]";
    assert_eq!(interpolated_tree(&project(), "{st: {default: build}}", body)["a"]["stage"], "build");
    let text = format!("spec: {{inputs: {{st: {{default: build}}}}}}\n---\n{body}\n");
    assert_eq!(
        project().compile(text).pipeline.map(|pipeline| pipeline.jobs[0].stage.clone()).as_deref(),
        Some("build")
    );
    let project = project().input("st", json!("deploy"));
    assert_eq!(interpolated_tree(&project, "{st: {default: build}}", body)["a"]["stage"], "deploy");
}

#[test]
fn c087_missing_required_value_is_rejected() {
    let file = "spec: {inputs: {st: }}\n---\na: {script: [x]}";
    assert_rejected(&project().load(file).diagnostics, "`st` input: required value has not been provided");
    let included = project().file("c.yml", file).load("include: c.yml");
    assert_rejected(&included.diagnostics, "`c.yml`: `st` input: required value has not been provided");
    assert_eq!(included.diagnostics[0].related.len(), 1, "the declaration must be shown");
}

#[test]
fn c088_types_are_strict() {
    let file = "spec: {inputs: {n: {type: number}, b: {type: boolean, default: no}, s: {default: t}, l: {type: array, default: []}}}\n---\na: {script: ['$[[ inputs.n ]]']}";
    let project = project().file("c.yml", file);
    assert_eq!(merged(&project.load(with_inputs("{n: 7}")))["a"]["script"], json!([7]));
    for (inputs, part) in [
        ("{n: '7'}", "`n` input: provided value is not a number: it is text"),
        ("{n: 1, b: 'yes'}", "`b` input: provided value is not a boolean"),
        ("{n: 1, s: [t]}", "`s` input: provided value is not a string"),
        ("{n: 1, l: text}", "`l` input: provided value is not an array"),
    ] {
        assert_rejected(&project.load(with_inputs(inputs)).diagnostics, part);
    }
    assert_eq!(
        errors(&project.load(with_inputs("{n: 1, l: '[\"p\"]'}")).diagnostics),
        [""; 0],
        "a list may be given as JSON text"
    );
}

#[test]
fn c089_default_must_be_one_of_the_options() {
    let load = |input: &str| project().load(format!("spec: {{inputs: {{i: {input}}}}}\n---\n{A}")).diagnostics;
    assert_rejected(&load("{options: [x, y], default: z}"), "`i` input: default value is not one of the options: x, y");
    assert_rejected(
        &load("{type: boolean, options: [true], default: true}"),
        "`options` cannot be used with a boolean",
    );
    assert_rejected(&load("{type: number, default: x}"), "default value is not a number");
    assert_rejected(&load("{type: nmber, default: x}"), "unknown type `nmber`");
    assert_rejected(&load("{type: number, regex: x, default: 1}"), "`regex` can only be used with strings");
    assert_rejected(&load("{defualt: x, default: y}"), "unknown keys: `defualt`");
}

#[test]
fn c090_value_must_match_the_pattern() {
    let project =
        project().file("c.yml", "spec: {inputs: {v: {regex: '^v\\d+$'}}}\n---\na: {script: ['$[[ inputs.v ]]']}");
    assert_eq!(merged(&project.load(with_inputs("{v: v12}")))["a"]["script"], json!(["v12"]));
    assert_rejected(&project.load(with_inputs("{v: '12'}")).diagnostics, "does not match the required pattern");
}

#[test]
fn c091_a_list_keeps_its_type() {
    let inputs = "{l: {type: array, default: [p, q]}}";
    let tree = interpolated_tree(
        &project(),
        inputs,
        "a:\n  script: $[[ inputs.l ]]\nb:\n  script: [\"echo $[[ inputs.l ]]\"]",
    );
    assert_eq!(tree["a"]["script"], json!(["p", "q"]));
    assert_eq!(tree["b"]["script"], json!(["echo [\"p\", \"q\"]"]));
    let rules = "{l: {type: array, default: [{if: $A, when: manual}, [1, {x: ~}]]}}";
    let tree = interpolated_tree(&project(), rules, "a:\n  rules: $[[inputs.l]]");
    assert_eq!(tree["a"]["rules"], json!([{"if": "$A", "when": "manual"}, [1, {"x": null}]]));
}

#[test]
fn c092_a_boolean_keeps_its_type() {
    let body = "a:\n  allow_failure: $[[ inputs.b ]]\n  script: [\"is $[[ inputs.b ]]\"]";
    let tree = interpolated_tree(&project(), "{b: {type: boolean, default: true}}", body);
    assert_eq!(tree["a"], json!({"allow_failure": true, "script": ["is true"]}));
}

#[test]
fn c093_blocks_in_keys_are_replaced() {
    let tree = interpolated_tree(&project(), "{n: {default: foo}}", "\"$[[ inputs.n ]]-job\": {script: [x]}");
    assert_eq!(jobs(&tree), ["foo-job"]);
    let text = "spec: {inputs: {n: {default: foo}}}\n---\n\"$[[ inputs.n ]]-job\": {script: [x]}";
    assert_eq!(compiled_jobs(&project(), text), ["foo-job"]);
}

#[test]
fn c094_truncate_returns_part_of_a_value() {
    let script = |block: &str, value: &str| {
        let inputs = format!("{{v: {{default: '{value}'}}}}");
        interpolated_tree(&project(), &inputs, &format!("a: {{script: ['{block}']}}"))["a"]["script"][0].clone()
    };
    assert_eq!(script("$[[ inputs.v | truncate(3,5) ]]", "0123456789"), "34567");
    assert_eq!(script("$[[inputs.v|truncate( 8 , 5 )]]", "0123456789"), "89");
    assert_eq!(script("$[[ inputs.v | truncate(20,5) ]]", "0123456789"), "");
    assert_eq!(script("$[[ inputs.v | truncate(1,2) ]]", "äöü"), "öü");
    assert_eq!(script("$[[ inputs.v | posix_escape ]]", "a b;$(c)"), "a\\ b\\;\\$\\(c\\)");
}

#[test]
fn c095_expand_vars_expands_once() {
    let project =
        project().scoped(Variable::secret("TOKEN", "hunter22"), false, "*").variable("NEST", "$CI_PROJECT_NAME");
    let inputs = "{v: {default: t $CI_PROJECT_NAME}, n: {default: '$NEST ${NOPE}'}}";
    let script = |block: &str| {
        interpolated_tree(&project, inputs, &format!("a: {{script: ['{block}']}}"))["a"]["script"][0].clone()
    };
    assert_eq!(script("$[[ inputs.v | expand_vars ]]"), "t app");
    assert_eq!(script("$[[ inputs.v | expand_vars | truncate(2,3) ]]"), "app");
    assert_eq!(
        script("$[[ inputs.n | expand_vars ]]"),
        "$CI_PROJECT_NAME ${NOPE}",
        "values must be expanded once, and unknown references must not be replaced"
    );
    let masked = "spec: {inputs: {v: {default: $TOKEN}}}\n---\na: {script: ['$[[ inputs.v | expand_vars ]]']}";
    assert_rejected(&project.load(masked).diagnostics, "cannot use the masked variable `TOKEN`");
}

#[test]
fn c096_too_many_or_unknown_functions_are_rejected() {
    let load = |block: &str| {
        project()
            .load(format!("spec: {{inputs: {{v: {{default: x}}}}}}\n---\na: {{script: ['$[[ inputs.v {block} ]]']}}"))
    };
    let four = "| truncate(0,9) | truncate(0,9) | truncate(0,9) | truncate(0,9)";
    assert_rejected(&load(four).diagnostics, "too many functions in interpolation block");
    assert_rejected(&load("| upper").diagnostics, "unknown function `upper`");
    assert_rejected(&load("| truncate(a,b)").diagnostics, "`truncate` takes two integers");
    assert_rejected(&load("| posix_escape | expand_vars").diagnostics, "`posix_escape` must follow `expand_vars`");
    let span = load("| upper").diagnostics[0].span.expect("the diagnostic must have a position");
    assert_eq!((span.line, span.column, span.end - span.start), (3, 15, 23), "only the block must be underlined");
}

#[test]
fn c097_unknown_input_is_rejected() {
    let project =
        project().file("c.yml", format!("spec: {{inputs: {{p: {{default: x}}}}}}\n---\n{A}")).file("d.yml", A);
    assert_rejected(&project.load(with_inputs("{q: 1}")).diagnostics, "`c.yml`: unknown input arguments: `q`");
    let no_header = project.load("include: {local: d.yml, inputs: {q: 1}}");
    assert_rejected(&no_header.diagnostics, "`d.yml`: unknown input arguments: `q`");
    let root = project.clone().input("q", json!(1)).load(A);
    assert_rejected(&root.diagnostics, "`.gitlab-ci.yml`: unknown input arguments: `q`");
}

#[test]
fn c098_undeclared_input_in_a_block_is_rejected() {
    let load = |block: &str| {
        project().load(format!("spec: {{inputs: {{v: {{default: x}}}}}}\n---\na: {{script: ['$[[ {block} ]]']}}"))
    };
    assert_rejected(&load("inputs.zz").diagnostics, "unknown interpolation key: `inputs.zz`");
    assert_rejected(&load("nonsense").diagnostics, "unknown interpolation key: `nonsense`");
    assert_eq!(errors(&load("matrix.OS").diagnostics), [""; 0], "interpolation must ignore `matrix` blocks");
    // As on GitLab, blocks are not replaced without a header. Muster adds a warning, because this is rarely intended.
    let no_header = project().load("a: {script: ['$[[ inputs.zz ]]']}");
    assert_eq!(warnings(&no_header.diagnostics), ["the block is not replaced, because the file declares no inputs"]);
    assert_eq!(merged(&no_header)["a"]["script"], json!(["$[[ inputs.zz ]]"]));
}

#[test]
fn c099_rules_determine_options_and_default_of_an_input() {
    let file = "spec:\n  inputs:\n    size: {rules: [{if: \"$[[ inputs.env ]] == 'p'\", options: [big], default: big}, {options: [small], default: small}]}\n    env: {options: [d, p], default: d}\n---\na: {script: ['$[[ inputs.size ]]']}";
    let project = project().file("c.yml", file);
    let size = |inputs: &str| merged(&project.load(with_inputs(inputs)))["a"]["script"][0].clone();
    assert_eq!(size("{env: p}"), "big");
    assert_eq!(size("{}"), "small");
    assert_eq!(size("{env: p, size: big}"), "big");
    let wrong = project.load(with_inputs("{env: d, size: big}"));
    assert_rejected(&wrong.diagnostics, "`size` input: provided value is not one of the options: small");
    let circular = "spec: {inputs: {a: {rules: [{if: \"$[[ inputs.b ]] == 'x'\", default: y}]}, b: {rules: [{if: \"$[[ inputs.a ]] == 'x'\", default: y}]}}}\n---\nj: {script: [x]}";
    assert!(
        errors(&project.load(circular).diagnostics)
            .iter()
            .any(|error| error.contains("its rules depend on the input itself"))
    );
}

#[test]
fn c100_component_fields_are_only_for_components() {
    let file = "spec: {component: [name, version, sha, reference]}\n---\na: {script: ['$[[ component.name ]] $[[ component.sha ]] $[[ component.reference ]]'], retry: '$[[ component.version ]]'}";
    assert_rejected(
        &project().load("spec: {component: [name]}\n---\na: {script: ['$[[ component.name ]]']}").diagnostics,
        "can only be used in a component",
    );
    assert_rejected(
        &project().load("a: {script: ['$[[ component.name ]]']}").diagnostics,
        "can only be used in a component",
    );
    assert_rejected(
        &project().load("spec: {component: [name]}\n---\na: {script: ['$[[ component.sha ]]']}").diagnostics,
        "unknown interpolation key: `component.sha`",
    );
    let fields =
        ComponentFields { name: "lint".to_owned(), sha: "abc".to_owned(), version: None, reference: "main".to_owned() };
    let project = project().component("git.example.org/grp/tools/lint@main", fields, file);
    let tree = merged(&project.load("include: {component: $CI_SERVER_FQDN/grp/tools/lint@main}"));
    assert_eq!(tree["a"], json!({"script": ["lint abc main"], "retry": null}));
    assert_rejected(&project.load("include: {component: lint}").diagnostics, "is not a valid component address");
}

#[test]
fn c101_interpolation_comes_before_rules() {
    let body = "a: {script: [x], rules: [{if: \"$CI_COMMIT_BRANCH == $[[ inputs.b ]]\"}]}";
    let text = format!("spec: {{inputs: {{b: }}}}\n---\n{body}");
    let bare = project().input("b", json!("main")).compile(&text);
    assert_rejected(&bare.diagnostics, "jobs:a:rules:rule:if invalid expression syntax: unknown lexeme `main`");
    assert_eq!(compiled_jobs(&project().input("b", json!("$CI_DEFAULT_BRANCH")), &text), ["a"]);
    // Interpolation also comes before the rules of an include.
    let project = project().file("c.yml", "b: {script: [y]}");
    let load = |value: &str| {
        project.clone().input("b", json!(value)).load(format!(
            "spec: {{inputs: {{b: }}}}\n---\ninclude:\n  - local: c.yml\n    rules:\n      - if: $CI_COMMIT_BRANCH == $[[ inputs.b ]]\n{A}"
        ))
    };
    assert_rejected(&load("main").diagnostics, "invalid expression syntax");
    assert_eq!(jobs(&merged(&load("$CI_DEFAULT_BRANCH"))), ["b", "a"]);
}

#[test]
fn nested_local_includes_and_inputs_stay_in_their_project() {
    let project = project()
        .file("deep.yml", "wrong: {script: [x]}")
        .external_file(
            "grp/other@v1:top.yml",
            "spec: {inputs: {i: }}\n---\ninclude: ['deep.yml', 'more/*.yml']\na: {script: ['$[[ inputs.i ]]']}",
        )
        .external_file(
            "grp/other@v1:deep.yml",
            "spec: {inputs: {i: {default: own}}}\n---\nb: {script: ['$[[ inputs.i ]]']}",
        )
        .external_file("grp/other@v1:more/c.yml", "c: {script: [x]}");
    let tree = merged(&project.load("include: {project: grp/other, ref: v1, file: [top.yml], inputs: {i: given}}"));
    assert_eq!(tree, json!({"b": {"script": ["own"]}, "c": {"script": ["x"]}, "a": {"script": ["given"]}}));
    let unreachable = project.load("include: {project: grp/nope, file: /a.yml}");
    assert_rejected(&unreachable.diagnostics, "`grp/nope:a.yml` cannot be reached from here: map it");
    let remote = project.external_file("https://x/y.yml", "include: deep.yml").load("include: https://x/y.yml");
    assert_rejected(&remote.diagnostics, "`include:local` cannot be used in a remote file");
}

#[test]
fn masked_variable_in_a_path_is_hidden() {
    let secret = Variable::secret("TOKEN", "hunter22");
    let project =
        project().scoped(secret, false, "*").external_file("https://x/hunter22/y.yml", "a: {script: [x], colour: red}");
    let unreadable =
        "include: [$TOKEN.yml, $TOKEN.txt, 'https://x/$TOKEN/z.yml', 'a/$TOKEN/*.yml', {component: $TOKEN}]";
    let readable = "include: https://x/$TOKEN/y.yml";
    for (text, findings) in [(unreadable, 5), (readable, 1)] {
        let compiled = project.compile(text);
        assert_eq!(compiled.diagnostics.len(), findings);
        let rendered = muster_pipeline::render::render(&compiled.diagnostics, &compiled.sources, false);
        assert!(!rendered.contains("hunter22"), "{rendered}");
    }
    assert_eq!(project.load(readable).includes[0].description, "remote https://x/[MASKED]/y.yml");
}

#[test]
fn inputs_can_be_declared_in_another_file() {
    let project = project().file("inputs.yml", "inputs: {a: {default: x}}").file("more.yml", "jobs: {}");
    let text = |include: &str, inputs: &str| {
        format!("spec: {{include: [{include}], inputs: {{{inputs}}}}}\n---\nj: {{script: ['$[[ inputs.a ]]']}}")
    };
    assert_eq!(merged(&project.load(text("{local: inputs.yml}", "")))["j"]["script"], json!(["x"]));
    assert_rejected(
        &project.load(text("inputs.yml", "a: {default: y}")).diagnostics,
        "duplicate input keys found: `a`",
    );
    let other = project.load(text("more.yml", "a: {default: y}"));
    assert_rejected(&other.diagnostics, "`more.yml` can contain only `inputs`, not `jobs`");
}

#[test]
fn header_must_be_a_separate_document() {
    assert_rejected(
        &project().load("spec: {inputs: {}}\na: {script: [x]}").diagnostics,
        "`spec` must be in a separate header",
    );
    let second = project().load("spec: {inputs: {}}\n---\nspec: {}\na: {script: [x]}");
    assert_rejected(&second.diagnostics, "`spec` is only allowed in the header");
    let unknown = project().load("spec: {inputz: {}}\njobs: {}\n---\na: {script: [x]}");
    assert_eq!(errors(&unknown.diagnostics).len(), 2);
    let only_first = project().load("a: {script: [x]}\n---\nb: {script: [y]}");
    assert_eq!(jobs(&merged(&only_first)), ["a"]);
}
