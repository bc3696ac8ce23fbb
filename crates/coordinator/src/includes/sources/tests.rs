//! Tests of includes from real repositories.

use std::path::PathBuf;
use std::process::Command;

use muster_source::line;

use super::*;
use crate::includes::RemotePolicy;

struct Fixture {
    home: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let fixture = Self { home: tempfile::tempdir().unwrap() };
        fixture.repository("app", &[(".gitlab-ci.yml", "root"), ("ci/a.yml", "local"), ("templates/own.yml", "own")]);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn repository(&self, name: &str, files: &[(&str, &str)]) {
        std::fs::create_dir(self.path(name)).unwrap();
        self.git(name, &["init", "-q", "-b", "main"]);
        self.commit(name, files);
    }

    fn commit(&self, name: &str, files: &[(&str, &str)]) -> String {
        for (path, text) in files {
            let path = self.path(name).join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        self.git(name, &["add", "-A"]);
        self.git(name, &["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-q", "-m", "x"]);
        self.git(name, &["rev-parse", "HEAD"])
    }

    fn git(&self, name: &str, arguments: &[&str]) -> String {
        let output = Command::new("git").current_dir(self.path(name)).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        line(&output.stdout)
    }

    fn sources(&self, config: IncludeConfig, runtime: &tokio::runtime::Runtime) -> SnapshotSources {
        let snapshot = Snapshot::take(&self.path("app"), &self.path("store")).unwrap();
        SnapshotSources::new(Arc::new(snapshot), config, "group/app", "ci.example.org", runtime.handle().clone())
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn text(file: IncludedFile) -> String {
    String::from_utf8(file.bytes).unwrap()
}

fn local(path: &str) -> IncludeTarget {
    IncludeTarget::Local { origin: Origin::Root, path: path.to_owned() }
}

#[test]
fn local_files_come_from_the_snapshot() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    std::fs::write(fixture.path("app").join("ci/new.yml"), "not committed").unwrap();
    std::os::unix::fs::symlink("a.yml", fixture.path("app").join("ci/link.yml")).unwrap();
    let sources = fixture.sources(IncludeConfig::default(), &runtime);
    std::fs::write(fixture.path("app").join("ci/a.yml"), "changed after the snapshot").unwrap();

    assert_eq!(text(sources.read(&local("ci/a.yml")).unwrap()), "local");
    assert_eq!(text(sources.read(&local("ci/new.yml")).unwrap()), "not committed");
    for missing in ["nope.yml", "ci", "ci/link.yml", "../app/ci/a.yml", "ci/a.yml\nb"] {
        assert!(matches!(sources.read(&local(missing)), Err(SourceError::NotFound(_))), "{missing}");
    }
    assert!(sources.paths(&Origin::Root).unwrap().contains("ci/new.yml"));
    let ids = sources.object_ids(&["ci/a.yml".to_owned(), "nope".to_owned()], false);
    assert_eq!(ids, [fixture.git("app", &["rev-parse", "HEAD:ci/a.yml"])]);
    let commits = sources.object_ids(&["ci/a.yml".to_owned()], true);
    assert_eq!(commits, [fixture.git("app", &["rev-parse", "HEAD"])]);
}

#[test]
fn other_projects_come_from_configured_directories() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    fixture.repository("lib", &[("t.yml", "old"), ("deep/x.yml", "x")]);
    fixture.git("lib", &["tag", "v1"]);
    fixture.commit("lib", &[("t.yml", "new")]);
    let config = IncludeConfig {
        projects: BTreeMap::from([("group/lib".to_owned(), fixture.path("lib"))]),
        config_file: PathBuf::from("/home/me/ci.toml"),
        ..IncludeConfig::default()
    };
    let sources = fixture.sources(config, &runtime);
    let project = |project: &str, git_ref: Option<&str>, path: &str| IncludeTarget::Project {
        project: project.to_owned(),
        git_ref: git_ref.map(str::to_owned),
        path: path.to_owned(),
    };

    assert_eq!(text(sources.read(&project("group/lib", None, "t.yml")).unwrap()), "new");
    let old = sources.read(&project("group/lib", Some("v1"), "t.yml")).unwrap();
    let nested = IncludeTarget::Local { origin: old.origin.clone(), path: "deep/x.yml".to_owned() };
    assert_eq!(text(old), "old");
    assert_eq!(text(sources.read(&nested).unwrap()), "x");

    let error = sources.read(&project("group/other", None, "t.yml")).unwrap_err().to_string();
    assert!(error.contains("[projects]\n\"group/other\"") && error.contains("/home/me/ci.toml"), "{error}");
    for (git_ref, path) in [(Some("v9"), "t.yml"), (None, "nope.yml"), (Some("--all"), "t.yml")] {
        let result = sources.read(&project("group/lib", git_ref, path));
        assert!(matches!(result, Err(SourceError::NotFound(_))), "{git_ref:?} {path}");
    }
}

#[test]
fn components_are_found_by_version() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    fixture.repository("kit", &[("templates/build.yml", "1.0"), ("templates/test/template.yml", "t")]);
    fixture.git("kit", &["tag", "1.0.0"]);
    for (tag, body) in [("1.2.0", "1.2"), ("2.0.0-rc1", "rc"), ("v1.10.0", "1.10")] {
        fixture.commit("kit", &[("templates/build.yml", body)]);
        fixture.git("kit", &["tag", tag]);
    }
    let config = IncludeConfig {
        components: BTreeMap::from([("gitlab.example.org/group/kit".to_owned(), fixture.path("kit"))]),
        ..IncludeConfig::default()
    };
    std::fs::write(fixture.path("app").join("templates/own.yml"), "own, changed").unwrap();
    let sources = fixture.sources(config, &runtime);
    let read = |address: &str, version: &str| {
        sources.read(&IncludeTarget::Component { address: address.to_owned(), version: version.to_owned() })
    };
    let build = "gitlab.example.org/group/kit/build";
    for (version, expected) in [("1.0.0", "1.0"), ("~latest", "1.10"), ("1", "1.10"), ("1.2", "1.2"), ("main", "1.10")]
    {
        assert_eq!(text(read(build, version).unwrap()), expected, "{version}");
    }
    let file = read(build, "1.2").unwrap();
    let fields = file.component.unwrap();
    assert_eq!((fields.version.as_deref(), fields.reference.as_str()), (Some("1.2.0"), "1.2"));
    assert_eq!(text(read("gitlab.example.org/group/kit/test", "1.0.0").unwrap()), "t");
    for (address, version) in [(build, "3"), ("gitlab.example.org/group/kit/nope", "1.0.0")] {
        assert!(matches!(read(address, version), Err(SourceError::NotFound(_))), "{address} {version}");
    }
    assert!(matches!(read("elsewhere.org/a/b/c", "1"), Err(SourceError::Unreachable(_))));

    // At the pipeline's commit, the project's own component comes from the working tree, with its changes.
    let head = fixture.git("app", &["rev-parse", "HEAD"]);
    assert_eq!(text(read("ci.example.org/group/app/own", &head).unwrap()), "own, changed");
}

#[test]
fn templates_come_from_the_configured_directory() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    let directory = fixture.path("templates");
    std::fs::create_dir_all(directory.join("Jobs")).unwrap();
    std::fs::write(directory.join("Jobs/Build.gitlab-ci.yml"), "template").unwrap();
    let template = |name: &str| IncludeTarget::Template { name: name.to_owned() };
    let remote = IncludeTarget::Remote { url: "https://ci.invalid/x.yml".to_owned() };

    let sources = fixture.sources(IncludeConfig::default(), &runtime);
    let error = sources.read(&template("Jobs/Build.gitlab-ci.yml")).unwrap_err().to_string();
    assert!(error.contains("[templates]\ndirectory"), "{error}");

    let config =
        IncludeConfig { templates: Some(directory), remote: RemotePolicy::Offline, ..IncludeConfig::default() };
    let sources = fixture.sources(config, &runtime);
    assert_eq!(text(sources.read(&template("Jobs/Build.gitlab-ci.yml")).unwrap()), "template");
    assert!(matches!(sources.read(&template("../store/config")), Err(SourceError::NotFound(_))));
    let error = sources.read(&remote).unwrap_err().to_string();
    assert!(error.contains("switched off"), "{error}");
}

#[test]
fn files_that_cannot_be_read_are_not_reported_as_missing() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    let directory = fixture.path("files");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::symlink("loop.yml", directory.join("loop.yml")).unwrap();
    let url = "https://ci.invalid/loop.yml".to_owned();
    let config = IncludeConfig {
        templates: Some(directory.clone()),
        remotes: BTreeMap::from([(url.clone(), directory.join("loop.yml"))]),
        projects: BTreeMap::from([("group/lib".to_owned(), directory.clone())]),
        ..IncludeConfig::default()
    };
    let sources = fixture.sources(config, &runtime);
    for target in [
        IncludeTarget::Template { name: "loop.yml".to_owned() },
        IncludeTarget::Remote { url },
        IncludeTarget::Project { project: "group/lib".to_owned(), git_ref: None, path: "loop.yml".to_owned() },
    ] {
        let error = sources.read(&target).unwrap_err();
        let expected = format!("failed to read `{}`: ", directory.join("loop.yml").display());
        assert!(matches!(&error, SourceError::Unreadable(text) if text.starts_with(&expected)), "{target:?}: {error}");
    }
}

#[test]
fn name_that_no_file_can_have_is_not_found() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    let config = IncludeConfig { templates: Some(fixture.path("store")), ..IncludeConfig::default() };
    let sources = fixture.sources(config, &runtime);
    for name in ["x".repeat(300), "a/".repeat(4000) + "b", "a\0b".to_owned()] {
        let read = sources.read(&IncludeTarget::Template { name });
        assert!(matches!(read, Err(SourceError::NotFound(_))), "{read:?}");
    }
}

fn serve(runtime: &tokio::runtime::Runtime, routes: axum::Router) -> String {
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    runtime.spawn(async move { axum::serve(listener, routes).await });
    url
}

#[test]
fn remote_files_are_fetched_limited_and_cached() {
    let (fixture, runtime) = (Fixture::new(), runtime());
    let routes = axum::Router::new()
        .route("/ok.yml", axum::routing::get(|| async { "remote" }))
        .route("/large.yml", axum::routing::get(|| async { "x".repeat(3 << 20) }));
    let server_runtime = self::runtime();
    let url = serve(&server_runtime, routes);
    let config = IncludeConfig { cache: Some(fixture.path("cache")), ..IncludeConfig::default() };
    let sources = fixture.sources(config, &runtime);
    let read = |name: &str| sources.read(&IncludeTarget::Remote { url: format!("{url}/{name}") });
    assert_eq!(text(read("ok.yml").unwrap()), "remote");
    assert!(read("large.yml").unwrap_err().to_string().contains("larger than 2 MiB"));
    assert!(read("missing.yml").unwrap_err().to_string().contains("404"));
    // The server is down: the cached copy is used, and a file that was never fetched is an error.
    drop(server_runtime);
    assert_eq!(text(read("ok.yml").unwrap()), "remote");
    assert!(read("never.yml").is_err());
}
