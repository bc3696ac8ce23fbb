//! Variables of a job: cases C154 to C163 and C193 of docs/spec/pipeline-yaml.md, section 8.
//!
//! C164, masking, is tested with the agent.

use muster_coordinator::dotenv::{self, DotenvError};
use muster_coordinator::variables::{self, RUNNER_OWNED};
use muster_job::{PipelineId, Variable};
use muster_pipeline::expand::{Unknown, expand_text};
use muster_pipeline::model::{Bridge, BridgeTarget, Strategy};
use muster_pipeline::{expression, layers, slug};
use proptest::prelude::*;

use crate::assignments::{JobFixture, environment, scoped};

#[test]
fn c154_variables_have_an_order_of_precedence() {
    let mut fixture = JobFixture::new().with_project_variable("X", "p");
    // The compiler keeps only the job variable if a global one has the same name.
    fixture.job.variables = vec![Variable::public("X", "j")];
    fixture.context.pipeline_variables = vec![Variable::public("X", "r")];
    assert_eq!(fixture.value("X").as_deref(), Some("r"));
    fixture.context.pipeline_variables.clear();
    assert_eq!(fixture.value("X").as_deref(), Some("p"));
    fixture.context.project_variables.clear();
    assert_eq!(fixture.value("X").as_deref(), Some("j"));
    fixture.job.variables = vec![Variable::public("X", "g")];
    assert_eq!(fixture.value("X").as_deref(), Some("g"));
}

#[test]
fn c155_last_variable_of_the_same_name_takes_precedence() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable::public("X", "j"), Variable::public("X", "m")];
    assert_eq!(fixture.value("X").as_deref(), Some("m"));
    fixture.job.variables.push(Variable::public("X", "r"));
    assert_eq!(fixture.value("X").as_deref(), Some("r"));
    assert_eq!(fixture.variables().iter().filter(|variable| variable.key == "X").count(), 1);
}

#[test]
fn c156_dotenv_variables_override_job_but_not_project_variables() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable::public("X", "j")];
    fixture.dotenv = vec![("X".to_owned(), "d".to_owned())];
    assert_eq!(fixture.value("X").as_deref(), Some("d"));
    let fixture = fixture.with_project_variable("X", "p");
    assert_eq!(fixture.value("X").as_deref(), Some("p"));
}

#[test]
fn c157_variables_are_expanded_by_the_coordinator() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![
        Variable::public("A", "1"),
        Variable::public("B", "$A-2"),
        Variable { raw: true, ..Variable::public("C", "$A") },
        Variable::public("D", "$$A"),
        Variable::public("E", "${U}x"),
        Variable::public("G", "<$C>"),
    ];
    // The runner later expands `$$A` to `$A`, and `${U}x` to `x`.
    for (name, expected) in [("B", "1-2"), ("C", "$A"), ("D", "$$A"), ("E", "${U}x"), ("G", "<$C>")] {
        assert_eq!(fixture.value(name).as_deref(), Some(expected), "{name}");
    }
    let variables = fixture.variables();
    assert!(variables.iter().any(|variable| variable.key == "C" && variable.raw));
}

#[test]
fn c158_circular_variables_are_not_expanded() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable::public("A", "$B"), Variable::public("B", "$A")];
    assert_eq!(fixture.value("A").as_deref(), Some("$B"));
    assert_eq!(fixture.value("B").as_deref(), Some("$A"));
}

#[test]
fn c159_content_of_file_variables_is_not_inserted() {
    let mut fixture = JobFixture::new();
    fixture.context.project_variables = vec![scoped(Variable { file: true, ..Variable::secret("F", "content") }, "*")];
    fixture.job.variables = vec![Variable::public("P", "$F")];
    // The runner expands the reference, because only the runner knows the path of the file.
    assert_eq!(fixture.value("P").as_deref(), Some("$F"));
    assert!(fixture.variables().iter().any(|variable| variable.key == "F" && variable.file));
}

#[test]
fn c160_protected_variables_are_for_protected_refs() {
    let mut fixture = JobFixture::new().with_project_variable("K", "v");
    fixture.context.project_variables[0].protected = true;
    let is_null_in_rules = |fixture: &JobFixture| {
        let seen = layers::rule_variables(&fixture.context, None, &[], None);
        let is_null = expression::parse("$K == null")
            .map(|expression| expression.evaluate(&|name| layers::value(&seen, name).map(str::to_owned)));
        matches!(is_null, Ok(Ok(true)))
    };
    assert_eq!(fixture.value("K"), None);
    assert!(is_null_in_rules(&fixture));
    fixture.context.ref_protected = true;
    assert_eq!(fixture.value("K").as_deref(), Some("v"));
    assert!(!is_null_in_rules(&fixture));
}

#[test]
fn c161_scoped_variables_are_for_their_environments() {
    let mut fixture = JobFixture::new();
    fixture.context.project_variables = vec![scoped(Variable::public("K", "v"), "review/*")];
    assert_eq!(fixture.value("K"), None);
    fixture.job.environment = Some(environment("review/x"));
    assert_eq!(fixture.value("K").as_deref(), Some("v"));
    fixture.job.environment = Some(environment("production"));
    assert_eq!(fixture.value("K"), None);
}

#[test]
fn c162_environment_has_an_expanded_name_and_a_slug() {
    let ref_slug = slug::slug("Feat/A_1");
    assert_eq!(ref_slug, "feat-a-1");
    let lookup = |name: &str| (name == "CI_COMMIT_REF_SLUG").then(|| ref_slug.clone());
    let name = expand_text("review/$CI_COMMIT_REF_SLUG", &lookup, Unknown::Keep);
    assert_eq!(name, "review/feat-a-1");

    let mut fixture = JobFixture::new();
    fixture.job.environment = Some(environment(&name));
    let slug = fixture.value("CI_ENVIRONMENT_SLUG").unwrap_or_default();
    assert!(slug.len() <= 24 && slug.starts_with("review-feat-a-1"), "{slug}");
}

#[test]
fn c163_invalid_reports_are_rejected() {
    let many: String = (0..21).map(|index| format!("V{index}=x\n")).collect();
    assert_eq!(dotenv::parse(many.as_bytes()), Err(DotenvError::TooMany));
    assert_eq!(dotenv::parse(&[b'x'; 6 * 1024]), Err(DotenvError::TooLarge(6 * 1024)));
    assert!(matches!(dotenv::parse(b"A=1\n# why\nB=2"), Err(DotenvError::Line { line: 2, .. })));
    let twenty: String = (0..20).map(|index| format!("V{index}=x\n")).collect();
    assert_eq!(dotenv::parse(twenty.as_bytes()).map(|variables| variables.len()), Ok(20));
}

#[test]
fn variables_of_a_manual_start_take_precedence() {
    let mut fixture = JobFixture::new().with_project_variable("X", "p");
    fixture.context.pipeline_variables = vec![Variable::public("X", "r")];
    fixture.manual = vec![Variable::public("X", "typed")];
    fixture.job.when = muster_pipeline::model::When::Manual;
    fixture.job.variables =
        vec![Variable::public("GITLAB_USER_LOGIN", "yaml"), Variable::public("CI_JOB_STAGE", "mine")];
    assert_eq!(fixture.value("X").as_deref(), Some("typed"));
    assert_eq!(fixture.value("CI_JOB_MANUAL").as_deref(), Some("true"));
    assert_eq!(fixture.value("GITLAB_USER_LOGIN").as_deref(), Some("ann"));
    assert_eq!(fixture.value("CI_JOB_STAGE").as_deref(), Some("mine"));
    assert_eq!(JobFixture::new().value("CI_JOB_MANUAL"), None);
}

#[test]
fn job_has_variables_for_ids_urls_and_names() {
    let mut fixture = JobFixture::new();
    fixture.job.name = "unit: [linux, 1]".to_owned();
    fixture.job.group_name = "unit".to_owned();
    fixture.job.node = Some((2, 4));
    let repository_url = "http://gitlab-ci-token:glcbt-secret-token@127.0.0.1:1234/grp/app.git";
    for (name, expected) in [
        ("CI_JOB_ID", "42"),
        ("CI_PIPELINE_ID", "5"),
        ("CI_PIPELINE_IID", "3"),
        ("CI_JOB_URL", "http://127.0.0.1:1234/grp/app/-/jobs/42"),
        ("CI_REPOSITORY_URL", repository_url),
        ("CI_JOB_STARTED_AT", "2026-11-21T10:00:00Z"),
        ("CI_JOB_NAME", "unit: [linux, 1]"),
        ("CI_JOB_NAME_SLUG", "unit---linux--1"),
        ("CI_JOB_GROUP_NAME", "unit"),
        ("CI_NODE_INDEX", "2"),
        ("CI_NODE_TOTAL", "4"),
        ("CI_RUNNER_ID", "1"),
        ("CI_RUNNER_TAGS", "[\"linux\", \"fast\"]"),
        ("CI_SERVER_FQDN", "127.0.0.1:1234"),
        ("CI_SERVER_PORT", "1234"),
        ("CI_API_V4_URL", "http://127.0.0.1:1234/api/v4"),
    ] {
        assert_eq!(fixture.value(name).as_deref(), Some(expected), "{name}");
    }
    let token = fixture.variables().into_iter().find(|variable| variable.key == "CI_JOB_TOKEN");
    assert!(token.is_some_and(|token| token.masked && !token.public));
}

#[test]
fn environment_url_is_expanded_with_job_variables() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable::public("HOST", "x.test")];
    fixture.job.environment = Some(muster_pipeline::model::Environment {
        url: Some("https://$HOST/$CI_ENVIRONMENT_SLUG/$UNKNOWN".to_owned()),
        deployment_tier: Some("testing".to_owned()),
        ..environment("qa")
    });
    assert_eq!(fixture.value("CI_ENVIRONMENT_URL").as_deref(), Some("https://x.test/qa/$UNKNOWN"));
    assert_eq!(fixture.value("CI_ENVIRONMENT_TIER").as_deref(), Some("testing"));
    assert_eq!(fixture.value("CI_ENVIRONMENT_ACTION").as_deref(), Some("start"));
}

#[test]
fn runner_owned_variables_are_sent_only_if_a_user_set_them() {
    let mut fixture = JobFixture::new();
    fixture.context.predefined.extend(RUNNER_OWNED.iter().map(|name| Variable::public(*name, "predefined")));
    assert!(fixture.variables().iter().all(|variable| !RUNNER_OWNED.contains(&variable.key.as_str())));
    fixture.job.variables = vec![Variable::public("CI_PROJECT_DIR", "mine")];
    assert_eq!(fixture.value("CI_PROJECT_DIR").as_deref(), Some("mine"));
}

#[test]
fn c193_bridge_forwards_variables() {
    let mut fixture = JobFixture::new();
    fixture.context.pipeline_variables = vec![Variable::public("R", "run")];
    fixture.job.variables = vec![
        Variable::public("V", "1"),
        Variable::public("W", "$V of $CI_PIPELINE_ID, $D, ${CI_JOB_ID}. $C"),
        Variable { raw: true, ..Variable::public("C", "$V") },
    ];
    let dotenv = [("D".to_owned(), "dot".to_owned())];
    let forwarded = |yaml: bool, pipeline: bool| {
        let bridge = Bridge {
            target: BridgeTarget::Child(Vec::new()),
            strategy: Strategy::None,
            forward_yaml_variables: yaml,
            forward_pipeline_variables: pipeline,
        };
        variables::forwarded(&fixture.context, &fixture.job, &bridge, PipelineId(5), &dotenv)
            .into_iter()
            .map(|variable| (variable.key, variable.value))
            .collect::<Vec<_>>()
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let yaml = [pair("V", "1"), pair("W", "1 of 5, dot, . ${C}"), pair("C", "$V")];
    assert_eq!(forwarded(true, false), yaml);
    assert_eq!(forwarded(false, false), []);
    assert_eq!(forwarded(false, true), [pair("D", "dot"), pair("R", "run")]);
}

/// References of many variables to a long one.
#[test]
fn expanded_variables_are_bounded() {
    let mut fixture = JobFixture::new();
    fixture.job.variables = vec![Variable::public("B", "x".repeat(1_000_000))];
    fixture.job.variables.extend((0..500).map(|number| Variable::public(format!("V{number}"), "$B")));
    let bridge = Bridge {
        target: BridgeTarget::Project { project: "g/down".to_owned(), branch: None, inputs: Vec::new() },
        strategy: Strategy::None,
        forward_yaml_variables: true,
        forward_pipeline_variables: false,
    };
    let forwarded = variables::forwarded(&fixture.context, &fixture.job, &bridge, PipelineId(5), &[]);
    for all in [fixture.variables(), forwarded] {
        let total: usize = all.iter().map(|variable| variable.value.len()).sum();
        assert!((50_000_000..70_000_000).contains(&total), "{total}");
    }
}

proptest! {
    #[test]
    fn dotenv_and_coverage_never_panic(
        report in prop::collection::vec(any::<u8>(), 0..200),
        line in "[A-Z=\"' #é\r\n]{0,40}",
        expression in "[a-z0-9\\\\d()+.*?%\\[]{0,10}",
        trace in "(section_start:1:x\r|\x1b\\[0K|2026-11-21T09:32:20.888012Z 01O\\+|[0-9.%a-z \r\n]){0,12}",
    ) {
        let _ = dotenv::parse(&report);
        if let Ok(variables) = dotenv::parse(line.as_bytes()) {
            prop_assert!(variables.iter().all(|(_, value)| !value.contains('\n')));
        }
        let _ = muster_coordinator::coverage::find(&expression, &trace);
    }
}
