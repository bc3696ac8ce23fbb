//! Compatibility with gitlab-ci-local: its files, flags and defaults.

use super::Project;

#[test]
fn c244_variable_files_of_repository_and_home_have_scopes() {
    let project = Project::new(
        "print: {script: ['echo \"[$GLOBAL|$GROUP|$PROJECT|$OTHER|$NUMBER]\"', 'cat \"$CERT\" \"$FILE\"', 'echo \"[$SCOPED]\"']}\n\
         deploy: {environment: eu-production-1, script: ['echo \"<$SCOPED>\"']}\n",
    );
    project.git(&["remote", "add", "origin", "git@git.example.org:group/app.git"]);
    let home = project.home().join(".gitlab-ci-local");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(project.home().join("cert.pem"), "of-the-path\n").unwrap();
    std::fs::write(
        home.join("variables.yml"),
        "project:\n  git.example.org:group/app.git: {PROJECT: p, GLOBAL: beaten-by-project}\n  git.example.org/group/other.git: {OTHER: o}\n\
         group:\n  git.example.org/group/: {GROUP: g}\n\
         global:\n  GLOBAL: weak\n  CERT: ~/cert.pem\n  FILE: {type: file, values: {'*': of-the-value}}\n  \
         SCOPED: {values: {'*': everywhere, '*production*': only-there}}\n",
    )
    .unwrap();
    project.write(".gitlab-ci-local-variables.yml", "NUMBER: 010\n");
    let output = project.ci(&["--log", "all"]).code(0);
    output.prints("[beaten-by-project|g|p||010]").prints("of-the-path").prints("of-the-value").prints("[everywhere]");
    output.prints("<only-there>").warns("using variables from ");
    project.write(".gitlab-ci-local-variables.yml", "NUMBER=7\nPROJECT=stronger\n");
    project.ci(&["run", "print"]).code(0).prints("|stronger||7]");
    project.write(".gitlab-ci-local-variables.yml", "A: {values: [x]}\n");
    project.ci(&["list"]).code(2).warns("variable `A` has no `values` map");
}

#[test]
fn c245_flags_have_defaults_in_environment_and_option_files() {
    let project =
        Project::new("a: {script: ['echo \"[$X $Y]\"']}\nb: {rules: [{if: $CI_COMMIT_TAG}], script: ['true']}\n");
    let with = |name: &str, value: &str, arguments: &[&str]| {
        super::CommandOutput::from(project.command(arguments).env(name, value).output().unwrap())
    };
    with("MUSTER_CI_TAG", "v1", &["list"]).code(0).prints("b ");
    with("MUSTER_CI_ALL", "true", &["list"]).code(0).prints("b ");
    with("MUSTER_CI_OUTPUT", "csv", &["list"]).code(0).prints("name;stage");
    with("MUSTER_CI_VAR", "X=1\nY=2", &[]).code(0).prints("[1 2]");
    with("MUSTER_CI_VAR", "X=1", &["--var", "X=flag"]).code(0).prints("[flag ]");
    with("MUSTER_CI_EVENT", "nonsense", &["list"]).code(2).warns("nonsense");
    project.write(".gitlab-ci-local-env", "# options\nVARIABLE=X=file\nPRIVILEGED=true\n");
    project.ci(&[]).code(0).prints("[file ]");
    with("MUSTER_CI_VAR", "X=environment", &[]).code(0).prints("[environment ]");
}

const STAGES: &str = "
stages: [build, test, deploy]
compile: {stage: build, script: ['true']}
unit: {stage: test, script: ['true'], needs: [compile]}
lint: {stage: test, script: ['true'], needs: []}
approve: {stage: test, when: manual, script: ['true']}
check: {stage: test, when: manual, needs: [], parallel: 2, script: ['true']}
ship: {stage: deploy, script: ['true'], needs: [unit]}
";

#[test]
fn c246_jobs_are_selected_by_the_flags_stage_needs_and_manual() {
    let project = Project::new(STAGES);
    let started = |arguments: &[&str]| {
        let mut all = vec!["run"];
        all.extend_from_slice(arguments);
        all.extend_from_slice(&["--output", "json"]);
        let mut started = project.ci(&all).code(0).started();
        started.sort();
        started
    };
    assert_eq!(started(&["--stage", "test"]), ["lint", "unit"]);
    assert_eq!(started(&["--stage", "test", "--needs"]), ["compile", "lint", "unit"]);
    assert_eq!(started(&["ship", "--only-needs"]), ["compile", "unit"]);
    assert_eq!(started(&["--stage", "test", "--only-needs"]), ["compile"]);
    assert_eq!(started(&["--manual", "approve"]), ["approve", "compile", "lint", "ship", "unit"]);
    assert_eq!(started(&["lint", "--manual", "approve"]), ["approve", "lint"]);
    assert_eq!(started(&["ship", "--only-needs", "--manual", "check"]), ["check 1/2", "check 2/2", "compile", "unit"]);
    project.ci(&["run", "--stage", "tset"]).code(2).warns("did you mean `test`?");
    project.ci(&["run", "--manual", "lint"]).code(2).warns("the job is not manual");
    project.ci(&["run", "--needs"]).code(2).warns("require a job");
}

#[test]
fn c247_list_prints_csv() {
    let project = Project::new(
        "b: {script: ['true'], needs: [], allow_failure: {exit_codes: [42, 137]}, environment: prod}\n\
         'a;c': {script: ['true'], needs: [b]}\nnever: {script: ['true'], rules: [{when: never}]}\n",
    );
    let output = project.ci(&["list", "--output", "csv", "--all"]).code(0);
    assert_eq!(
        output.out,
        "name;stage;when;allowFailure;environment;needs\nb;test;on_success;[42,137];prod;[]\n\
         \"a;c\";test;on_success;false;;[b]\nnever;test;never;false;;\n"
    );
}

#[test]
fn c248_flag_unset_variable_removes_the_variable_everywhere() {
    let project = Project::new(
        "variables: {G: global, K: kept}\na:\n  variables: {J: job}\n  rules: [{if: $CI, variables: {R: rule}}]\n  \
         script: ['echo \"[$G$J$R$P$CI_COMMIT_BRANCH$K]\"']\nb: {rules: [{if: $CI_COMMIT_BRANCH}], script: ['true']}\n",
    );
    let unset = ["G", "J", "R", "P", "CI_COMMIT_BRANCH"].map(|name| ["--unset-variable", name]).concat();
    let mut arguments = vec!["--var", "P=p"];
    arguments.extend(unset);
    project.ci(&arguments).code(0).prints("[kept]");
    project.ci(&["list", "--unset-variable", "CI_COMMIT_BRANCH"]).code(0).lacks("b ");
}

#[test]
fn c249_inputs_reach_included_files_that_declare_them() {
    let project = Project::new("include: [{local: t.yml, inputs: {who: written}}]\n");
    let job = "---\ngreet: {script: ['echo \"[$[[ inputs.who ]] $[[ inputs.times ]]]\"']}\n";
    project.write("t.yml", &format!("spec: {{inputs: {{who: , times: {{type: number, default: 1}}}}}}\n{job}"));
    project.ci(&["--input", "times=3"]).code(0).prints("[written 3]");
    project.ci(&["--input", "who=flag"]).code(0).prints("[flag 1]");
    project.ci(&["list", "--input", "nope=1"]).code(2).warns("unknown input arguments: `nope`");
    // An input of the file itself is not passed to included files.
    project.write(
        ".gitlab-ci.yml",
        "spec: {inputs: {who: {default: root}}}\n---\ninclude: [{local: t.yml, inputs: {who: 'from $[[ inputs.who ]]'}}]\n",
    );
    project.ci(&["--input", "who=flag"]).code(0).prints("[from flag 1]");
}

#[test]
fn c250_artifacts_of_other_projects_are_skipped_with_a_note() {
    let project = Project::new(
        "a: {needs: [{project: group/lib, job: build, ref: main, artifacts: true}], script: ['echo ran']}\n",
    );
    let output = project.ci(&[]).code(0);
    output.prints("ran").warns("these jobs run without them: a (job build of group/lib)");
}
