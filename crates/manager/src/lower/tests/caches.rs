//! Caches in the object store of a runner.

use std::collections::BTreeSet;

use muster_agent_api::builtin::ChunkUpload;
use muster_config::settings::CacheSettings;
use muster_job::short_token;

use super::*;

const SHARED: CacheSettings = CacheSettings {
    store: None,
    path: String::new(),
    shared: true,
    max_archive_bytes: 0,
    chunks: false,
    collection: None,
};

/// Lowers a job with a signed URL for each object. Returns its objects and its plan.
fn cached(more: Value, settings: CacheSettings) -> (Vec<CacheUse>, Value) {
    let mut context = JobContext { runner: Arc::new(RunnerSettings { cache: settings, ..runner() }), ..context() };
    let payload = payload(more);
    let uses = cache_uses(&payload, &context).archives;
    let object = |usage: &CacheUse| {
        let url = |action: &str, signed: bool| {
            Secret::new(if signed { format!("https://store.example/{}?{action}", usage.object) } else { String::new() })
        };
        CacheObject {
            head: url("head", true),
            download: url("get", usage.download),
            upload: url("put", usage.upload),
            upload_headers: Vec::new(),
        }
    };
    context.cache_objects = uses.iter().map(|usage| (usage.key.clone(), object(usage))).collect();
    let plan = plan(&lower(&payload, &context).unwrap());
    (uses, plan)
}

fn caches(list: Value) -> Value {
    json!({ "cache": list })
}

fn names(uses: &[CacheUse]) -> Vec<&str> {
    uses.iter().map(|usage| usage.object.as_str()).collect()
}

/// Returns object and action of each URL that the step has, except for objects of hashed keys.
fn signed(plan: &Value, step: &str) -> BTreeSet<String> {
    let steps = plan["steps"].as_array().unwrap();
    let text = steps.iter().filter(|found| found["name"] == step).map(Value::to_string).collect::<String>();
    let urls = text.split("https://store.example/").skip(1).map(|url| url.split('"').next().unwrap().to_owned());
    urls.filter(|url| url.len() < 30).collect()
}

#[test]
fn object_names_are_those_of_gitlab_runner() {
    let name = |settings| {
        let cache = caches(json!([{ "key": "deps-main-protected", "paths": ["a"] }]));
        cached(cache, settings).0[0].object.clone()
    };
    let token = short_token(runner().token.expose());
    assert_eq!(name(CacheSettings::default()), format!("runner/{token}/project/5/deps-main-protected"));
    assert_eq!(name(SHARED), "project/5/deps-main-protected");
    let path = CacheSettings { path: "/caches/ci/".to_owned(), ..SHARED };
    assert_eq!(name(path), "caches/ci/project/5/deps-main-protected");
}

#[test]
fn object_names_of_hashed_keys_have_a_segment_with_the_first_digits() {
    let mut more = caches(json!([{ "key": "k", "paths": ["a"], "fallback_keys": ["f"] }]));
    // The SHA-256 of `k`.
    let hash = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a";
    let hashed = format!("project/5/82/{hash}");
    let (uses, _) = cached(more.clone(), SHARED);
    assert_eq!(
        names(&uses),
        ["project/5/k", &hashed, "project/5/f"],
        "the object of the alternate key must be included"
    );
    more["variables"] = json!([{ "key": "FF_HASH_CACHE_KEYS", "value": "true" }]);
    let (uses, _) = cached(more, SHARED);
    assert_eq!(names(&uses)[..2], [hashed.as_str(), "project/5/k"]);
}

#[test]
fn each_step_gets_only_the_urls_that_it_needs() {
    let urls = |list: Value| {
        let (_, plan) = cached(caches(list), SHARED);
        let list = |step: &str| signed(&plan, step).into_iter().collect::<Vec<_>>();
        (list("restore_cache"), list("archive_cache"))
    };
    let (restore, save) = urls(json!([{ "key": "k", "paths": ["a"], "fallback_keys": ["f"] }]));
    assert_eq!(restore, ["project/5/f?get", "project/5/f?head", "project/5/k?get", "project/5/k?head"]);
    assert_eq!(save, ["project/5/k?head", "project/5/k?put"]);
    let (restore, save) = urls(json!([{ "key": "k", "paths": ["a"], "policy": "pull" }]));
    assert_eq!(
        (restore.as_slice(), save.len()),
        (&["project/5/k?get".to_owned(), "project/5/k?head".to_owned()][..], 0)
    );
    let (restore, save) = urls(json!([{ "key": "k", "paths": ["a"], "policy": "push" }]));
    assert_eq!(save, ["project/5/k?head", "project/5/k?put"]);
    assert!(restore.iter().all(|url| url.ends_with("?head")), "{restore:?}");
}

#[test]
fn key_cannot_leave_the_objects_of_the_project() {
    let (uses, _) = cached(caches(json!([{ "key": "../6/k", "paths": ["a"] }])), SHARED);
    assert_eq!(names(&uses)[0], "project/5/6/k");
    assert!(names(&uses).iter().all(|name| name.starts_with("project/5/")), "{uses:?}");
}

#[test]
fn payload_that_cannot_be_lowered_uses_no_objects() {
    let (more, context) = (caches(json!([{ "key": "k", "paths": ["a"], "policy": "sometimes" }])), context());
    assert_eq!(cache_uses(&payload(more.clone()), &context), CacheUses::default());
    assert!(lower(&payload(more), &context).is_err());
}

/// `protected` is the protection of the job's ref.
fn chunked(list: Value, protected: Option<bool>, more: &[(&str, &str)]) -> (Vec<ChunkUse>, Value) {
    let mut extra = variables(more);
    extra["cache"] = list;
    let mut payload = payload(extra);
    payload.git_info.protected = protected;
    let settings = CacheSettings { chunks: true, ..SHARED };
    let mut context = JobContext { runner: Arc::new(RunnerSettings { cache: settings, ..runner() }), ..context() };
    let uses = cache_uses(&payload, &context).chunks;
    let secret = |text: &str| Secret::new(format!("https://store.example/{text}"));
    let store = |usage: &ChunkUse| ChunkStore {
        references: [(usage.key.clone(), "{}".to_owned())].into(),
        downloads: ["1-index", "1-0"].map(|name| (name.to_owned(), secret(name))).into(),
        marked: vec!["0-0".to_owned()],
        upload: Some(ChunkUpload { id: "2".to_owned(), index: secret("put"), ..ChunkUpload::default() }),
    };
    context.cache_chunks = uses.iter().map(|usage| (usage.key.clone(), store(usage))).collect();
    let plan = plan(&lower(&payload, &context).unwrap());
    (uses, plan)
}

#[test]
fn protection_level_of_chunks_follows_the_key_and_the_ref() {
    for (key, protected, level) in [
        ("deps-protected", Some(true), "protected"),
        ("deps-protected", None, "protected"),
        // A job of an unprotected ref cannot choose a protected key.
        ("deps-protected", Some(false), "unprotected"),
        ("deps-protected.", Some(false), "unprotected"),
        ("deps-non_protected", Some(true), "unprotected"),
        ("deps", Some(true), "unprotected"),
    ] {
        let (uses, plan) = chunked(json!([{ "key": key, "paths": ["a"] }]), protected, &[]);
        assert_eq!(uses[0].prefix, format!("chunks/5/{level}"), "{key} {protected:?}");
        assert!(plan.to_string().contains(&format!("\"level\":\"{level}\"")), "{key} {protected:?}");
    }
    // Fallback keys of the other protection level are not tried.
    let fallbacks = json!(["old-protected", "old-non_protected", "old"]);
    let (uses, _) =
        chunked(json!([{ "key": "k-protected", "paths": ["a"], "fallback_keys": fallbacks }]), Some(true), &[]);
    assert_eq!(uses[0].fallback_keys, ["old-protected"]);
    let (uses, _) = chunked(json!([{ "key": "k", "paths": ["a"], "fallback_keys": fallbacks }]), Some(true), &[]);
    assert_eq!(uses[0].fallback_keys, ["old-non_protected", "old"]);
}

#[test]
fn key_cannot_choose_the_protection_level_of_chunks() {
    let (uses, _) = chunked(json!([{ "key": "../chunks/5/protected/objects/x", "paths": ["a"] }]), Some(false), &[]);
    assert_eq!(
        (uses[0].key.as_str(), uses[0].prefix.as_str()),
        ("chunks/5/protected/objects/x", "chunks/5/unprotected")
    );
    let (archives, _) = cached(caches(json!([{ "key": "../chunks/5/protected/objects/x", "paths": ["a"] }])), SHARED);
    assert!(names(&archives).iter().all(|name| name.starts_with("project/5/")), "{archives:?}");
}

#[test]
fn job_can_choose_archives_or_chunks() {
    let list = || json!([{ "key": "k", "paths": ["a"] }]);
    let (uses, _) = chunked(list(), None, &[("CACHE_COMPRESSION_FORMAT", "zip")]);
    assert_eq!(uses, []);
    let mut extra = variables(&[("CACHE_COMPRESSION_FORMAT", "Chunks")]);
    extra["cache"] = list();
    let context = JobContext { runner: Arc::new(RunnerSettings { cache: SHARED, ..runner() }), ..context() };
    let uses = cache_uses(&payload(extra), &context);
    assert_eq!((uses.chunks.len(), uses.archives.len()), (1, 0));
}

#[test]
fn each_step_gets_only_the_chunks_that_it_needs() {
    let (_, plan) = chunked(json!([{ "key": "k", "paths": ["a"] }]), None, &[]);
    let step = |name: &str| {
        let steps = plan["steps"].as_array().unwrap();
        steps.iter().find(|step| step["name"] == name).unwrap().to_string()
    };
    let (restore, save) = (step("restore_cache"), step("archive_cache"));
    assert!(restore.contains("1-index") && restore.contains("1-0") && !restore.contains("/put"), "{restore}");
    assert!(
        save.contains("1-index") && !save.contains("1-0") && save.contains("/put") && save.contains("0-0"),
        "{save}"
    );
}
