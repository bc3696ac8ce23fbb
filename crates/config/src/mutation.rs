//! Mutated configurations: each is valid, or a problem has a location. No output contains a secret.

use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::edit::ConfigFile;
use super::*;

/// Number of samples. Each is mutated up to three times.
const RUNS: u64 = 300;

/// Text that is in every token, and nowhere else.
const SECRET_MARKER: &str = "ToKeNmArK";

const SAMPLE: &str = r#"
concurrent = 10
check_interval = 3
log_level = "info"
connection_max_age = "15m"
shutdown_timeout = 30
listen_address = "127.0.0.1:9252"
[labels]
site = "north"
[session_server]
  listen_address = "0.0.0.0:8093"
  advertise_address = "runner.example:8093"
[[runners]]
  name = "one"
  url = "https://gitlab.example/"
  token = "TOKEN"
  executor = "docker"
  limit = 4
  unhealthy_interval = "60m"
  environment = ["A=TOKEN", "B=c"]
  pre_build_script = """
echo one
echo two
"""
  [runners.feature_flags]
    FF_TIMESTAMPS = true
  [runners.cache]
    Type = "s3"
    [runners.cache.s3]
      BucketName = "b"
      AccessKey = "TOKEN"
      SecretKey = "TOKEN"
  [runners.docker]
    image = "alpine"
    pull_policy = ["always", "if-not-present"]
    volumes = ["/cache"]
    [[runners.docker.services]]
      name = "redis"
    [runners.docker.tmpfs]
      "/tmp" = "rw"
[[runners]]
  name = "zwei ü"
  url = "$URL"
  token = '''TOKEN'''
  token_expires_at = 2027-01-01T00:00:00Z
  executor = "instance"
  [runners.autoscaler]
    plugin = "aws"
    capacity_per_instance = 2
    plugin_config = { name = "g", secret = "TOKEN" }
    [runners.autoscaler.connector_config]
      password = "TOKEN"
    [[runners.autoscaler.policy]]
      periods = ["* 8-18 * * mon-fri"]
      timezone = "Europe/Berlin"
      idle_count = 5
      idle_time = "20m"
[[runners]]
  name = "three"
  token = "TOKEN"
  executor = "kubernetes"
  [runners.kubernetes]
    namespace = "ci"
    bearer_token = "TOKEN"
    [runners.kubernetes.node_selector]
      arch = "amd64"
    [[runners.kubernetes.volumes.empty_dir]]
      name = "build"
      mount_path = "/builds"
    [runners.kubernetes.affinity.node_affinity]
      [[runners.kubernetes.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution]]
        weight = 100
"#;

/// Returns `MUSTER_TEST_SEED`, or a random seed.
fn first_seed() -> u64 {
    let given = std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| rand::random::<u32>().into());
    println!("MUSTER_TEST_SEED={seed}");
    seed
}

fn token(random: &mut StdRng) -> String {
    let length = match random.random_range(0..100) {
        0..10 => 0,
        10..80 => random.random_range(1..100),
        80..98 => random.random_range(100..2_000),
        _ => random.random_range(2_000..200_000),
    };
    let letters = [
        'a', '9', '-', '_', '$', '{', ' ', '=', '#', '[', ']', ',', '.', 'ü', '漢', '🎉', '\u{7f}', '\t', '\'', '"',
        '\\', '\n',
    ];
    let mut text: String = (0..length).map(|_| letters[random.random_range(0..letters.len())]).collect();
    let at = text.char_indices().nth(length / 2).map_or(0, |(at, _)| at);
    text.insert_str(at, SECRET_MARKER);
    // Messages show a reference `$NAME`, which the token must not look like.
    if random.random() || text.starts_with('$') { format!("glrt-{text}") } else { text }
}

/// Returns the sample with random tokens. They are escaped, so that it is valid TOML, or inserted as they are.
fn sample(random: &mut StdRng) -> String {
    let escape = random.random_bool(0.7);
    SAMPLE
        .split("TOKEN")
        .map(str::to_owned)
        .reduce(|text, rest| {
            let token = token(random);
            let token = if escape {
                token.escape_default().to_string().replace("\\'", "'").replace("\\u{", "{")
            } else {
                token
            };
            text + &token + &rest
        })
        .unwrap_or_default()
}

fn mutate(text: &str, random: &mut StdRng) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let line = random.random_range(0..lines.len());
    let replace_line = |at: usize, new: Vec<String>| {
        let mut lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        lines.splice(at..=at, new);
        lines.join("\n")
    };
    match random.random_range(0..9) {
        0 => {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..7);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        1 => replace_line(line, Vec::new()),
        2 => replace_line(line, vec![lines[line].to_owned(), lines[random.random_range(0..lines.len())].to_owned()]),
        3 => {
            let values = [
                "true",
                "3",
                "-1.5",
                "\"x\"",
                "[]",
                "{}",
                "[[1]]",
                "{ a = { b = 1 } }",
                "1979-05-27",
                "inf",
                "99999999999999999999",
                "",
            ];
            let value = values[random.random_range(0..values.len())];
            let changed =
                lines[line].split_once('=').map_or(lines[line].to_owned(), |(key, _)| format!("{key}= {value}"));
            replace_line(line, vec![changed])
        }
        4 => text[..text.floor_char_boundary(random.random_range(0..text.len()))].to_owned(),
        5 => replace_line(
            line,
            vec![lines[line].to_owned(), format!("{} = 1", "k".repeat(random.random_range(1..20_000)))],
        ),
        6 => {
            let depth = random.random_range(1..2_000);
            replace_line(
                line,
                vec![lines[line].to_owned(), format!("deep = {}{}", "[".repeat(depth), "]".repeat(depth))],
            )
        }
        7 => replace_line(line, vec![format!("[{}]", vec!["runners"; random.random_range(1..50)].join("."))]),
        _ => replace_line(line, vec![lines[line].to_uppercase(), "\u{feff}\u{0}🎉 = \"\u{202e}\"".to_owned()]),
    }
}

fn rendered(loaded: &Loaded, facts: &HostFacts) -> String {
    let mut rendered: String = loaded.problems.iter().map(|problem| problem.render(Path::new("c.toml"))).collect();
    rendered.push_str(&format!("{loaded:?}\n"));
    if let Some(config) = &loaded.config {
        for value in effective(config, facts) {
            rendered.push_str(&format!("{} = {} {}\n", value.key, value.value, value.origin));
        }
    }
    rendered
}

fn check(text: &str, facts: &HostFacts, seed: u64) {
    let loaded = parse(text, facts);
    let lines = text.lines().count().max(1) + 1;
    assert!(
        loaded.config.is_some() || loaded.problems.iter().any(|problem| problem.severity == Severity::Fatal),
        "seed {seed}"
    );
    for problem in &loaded.problems {
        if let Some(location) = &problem.location {
            assert!((1..=lines).contains(&location.line) && location.column >= 1, "seed {seed}: {problem:?}");
        }
        let fatal_without_location = problem.severity == Severity::Fatal && problem.location.is_none();
        assert!(!fatal_without_location, "seed {seed}: {problem:?}");
    }
    let rendered = rendered(&loaded, facts);
    if let Some(at) = rendered.find(SECRET_MARKER) {
        panic!(
            "seed {seed}: a token is shown: {}",
            &rendered[rendered.floor_char_boundary(at.saturating_sub(300))..rendered.ceil_char_boundary(at + 20)]
        );
    }
}

#[test]
fn mutated_files_give_configuration_or_problems_with_locations() {
    let facts = HostFacts { exists: true, ..HostFacts::default() };
    let first = first_seed();
    for seed in first..first + RUNS {
        let mut random = StdRng::seed_from_u64(seed);
        let mut text = sample(&mut random);
        check(&text, &facts, seed);
        for _ in 0..random.random_range(1..4) {
            text = mutate(&text, &mut random);
            if text.is_empty() {
                break;
            }
            check(&text, &facts, seed);
        }
    }
}

#[test]
fn saved_tokens_are_unchanged() {
    let first = first_seed();
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    std::fs::write(&path, "[[runners]]\nname = \"one\" # kept\n").unwrap();
    for seed in first..first + 50 {
        let token = token(&mut StdRng::seed_from_u64(seed)).replace('$', "");
        let new = edit::NewToken {
            token: muster_job::Secret::new(token.clone()),
            id: None,
            obtained_at: None,
            expires_at: None,
        };
        let mut file = ConfigFile::open(&path).unwrap();
        file.set_token(0, &new).unwrap();
        file.save().unwrap();
        let loaded = load(&path, &HostFacts::default());
        let config = loaded.config.unwrap_or_else(|| panic!("seed {seed}: {:?}", loaded.problems));
        assert_eq!(config.runners[0].token.expose(), token, "seed {seed}");
        assert!(std::fs::read_to_string(&path).unwrap().contains("name = \"one\" # kept\n"), "seed {seed}");
    }
}

#[test]
fn fuzz_config_toml() {
    let facts = HostFacts { exists: true, ..HostFacts::default() };
    let samples: [&[u8]; 3] = [
        SAMPLE.as_bytes(),
        b"concurrent = 1\n[[runners]]\nexecutor = \"ssh\"\n[runners.ssh]\nport = \"22\"\n[runners.machine]\nIdleCount = 3\n",
        b"[[runners]]\n[runners.custom]\nconfig_args = [\"a\"]\n[runners.cache]\nType = \"gcs\"\n[runners.cache.gcs]\n",
    ];
    let words = [
        "[[runners]]\n",
        "[runners.",
        "]\n",
        "= ",
        "\"",
        "'''",
        "\"\"\"",
        "[",
        "{ a = ",
        "true",
        "\"15m\"",
        "1979-05-27",
        "inf",
        "\\u0041",
        "\u{feff}",
        "#",
        "docker",
        "kubernetes",
        "autoscaler",
        "policy",
        "cache",
        "$HOME",
        "0x1f",
        "1_000",
    ];
    muster_fuzz::fuzz("config.toml", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
        let loaded = parse(&String::from_utf8_lossy(input), &facts);
        let _ = rendered(&loaded, &facts);
    });
}
