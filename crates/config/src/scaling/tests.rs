use super::*;
use crate::parse_scaling;

fn config(text: &str) -> Config {
    parse_scaling(text).unwrap_or_else(|problems| panic!("{problems:?}")).named("main").unwrap()
}

#[test]
fn jobs_are_requested_ahead_unless_a_key_disables_it() {
    let ahead = |text: &str| config(text).policies.active_at(0).1.reserve_ahead;
    assert!(ahead("[[policy]]\nidle_count = 2"));
    assert!(!ahead("request_ahead = false\n[[policy]]\nidle_count = 2"));
    assert!(
        !ahead("[[policy]]\nidle_count = 2\npreemptive_mode = true"),
        "an explicit preemptive_mode must disable it"
    );
}

#[test]
fn policies_apply_in_their_periods() {
    let config = config(
        "capacity_per_instance = 4\n[[policy]]\nidle_count = 8\nidle_time = \"20m0s\"\n\
         [[policy]]\nperiods = [\"* 8-18 * * mon-fri\"]\ntimezone = \"Europe/Berlin\"\nplacement = \"spread\"\n",
    );
    // 2026-03-02T00:00:00Z. Twelve hours later, it is 13:00 in Berlin.
    let monday = 1_772_409_600;
    let (index, wanted) = config.policies.active_at(monday);
    assert_eq!((index, wanted.idle_count, wanted.idle_time.as_secs(), wanted.preemptive), (Some(0), 8, 1200, true));
    let (index, wanted) = config.policies.active_at(monday + 12 * 3600);
    assert_eq!((index, wanted.placement, wanted.idle_time), (Some(1), Placement::Spread, Duration::ZERO));
}

#[test]
fn zero_means_the_default_but_disables_heartbeats() {
    let default = Config::new(GroupConfig::new("main", 0));
    let config = config("update_interval = \"0s\"\nheartbeat_interval = \"0s\"\n[density]\nusage_margin = 0\n");
    assert_eq!((config.update_interval, config.density), (default.update_interval, default.density));
    assert_eq!(config.heartbeat_interval, None);
}

#[test]
fn single_group_is_named_after_runner() {
    let names = |text: &str| config(text).groups.into_iter().map(|group| group.name).collect::<Vec<_>>();
    assert_eq!(names("max_instances = 3"), ["main"]);
    assert_eq!(names("[[groups]]\nname = \"a\"\n[[groups]]\nname = \"b\""), ["a", "b"]);
}

#[test]
fn all_problems_are_reported_with_lines() {
    let text = r#"max_use_count = -1
update_interval = "soon"
capacity_per_instance = -2
unmanaged_instances = "claim"
boot_timeout = "-5m"
[[polcy]]
[[policy]]
periods = ["@daily"]
timezone = "Mars/Olympus"
[[policy]]
scale_factor = -1.0
[[groups]]
name = "a"
[[groups]]
name = "a"
[density]
slot_memory = "much"
"#;
    let problems = parse_scaling(text).unwrap_err();
    let output: Vec<String> = problems
        .iter()
        .map(|problem| format!("{}: {problem}", problem.location.as_ref().map_or(0, |location| location.line)))
        .collect();
    assert_eq!(
        output,
        [
            "1: error[C088]: `runners.autoscaler.max_use_count`: -1 is not between 0 and 4294967295",
            "2: error[C014]: `runners.autoscaler.update_interval` needs a duration such as \"90s\" or \"1h30m\", found text that is not a valid duration",
            "3: error[C088]: `runners.autoscaler.capacity_per_instance`: -2 is not between 0 and 4294967295",
            "4: error[C088]: `runners.autoscaler.unmanaged_instances`: `claim` is not a valid value; use ignore or adopt or delete",
            "5: error[C088]: `runners.autoscaler.boot_timeout` is negative",
            "6: error[C010]: unknown key `runners.autoscaler.polcy`",
            "8: error[C088]: `runners.autoscaler.policy[1].periods`: `@daily` is not a valid period: expected five fields (minute, ho…",
            "9: error[C088]: `runners.autoscaler.policy[1].timezone`: `Mars/Olympus` is not a valid time zone; use for example Europe/…",
            "11: error[C088]: `runners.autoscaler.policy[2].scale_factor`: -1 is not a valid number; use 0 or more",
            "15: error[C088]: `runners.autoscaler.groups[2].name`: `a` is the name of another group",
            "17: error[C088]: `runners.autoscaler.density.slot_memory`: `much` is not a valid amount of memory; write for example 2g",
        ]
    );
    let wrong = parse_scaling("max_instances = [").unwrap_err();
    assert!(wrong[0].message.starts_with("line 1 is not valid TOML"), "{wrong:?}");
}

#[test]
fn errors_about_keys_do_not_say_that_the_keys_are_ignored() {
    let text = "max_instances = 4\nMax_Instances = 5\nmetrics_server = 1\nlimit = 3\n[[policy]]\nmax_instances = 6\n";
    let output: Vec<String> = parse_scaling(text).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        output,
        [
            "error[C010]: `Max_Instances` is the same key as `max_instances`, which is also set",
            "error[C011]: `metrics_server` was removed in GitLab Runner 12.0",
            "error[C010]: unknown key `runners.autoscaler.limit`",
            "error[C018]: `max_instances` belongs to [runners.autoscaler] but was read in [[runners.autoscaler.policy]]",
        ]
    );
}

#[test]
fn invalid_value_prevents_scaler_start() {
    let loaded = crate::parse(
        "[[runners]]\nurl = \"https://one.example\"\ntoken = \"t\"\nexecutor = \"instance\"\n\
         [runners.autoscaler]\nmax_instances = 4\nmax_use_count = -1\n[[runners.autoscaler.policy]]\nidle_count = -1\n",
        &crate::HostFacts::default(),
    );
    let settings = crate::settings(&loaded.config.unwrap(), &crate::SettingsContext::default());
    let scaling = &settings.runners[0].autoscaler.as_ref().unwrap().scaling;
    let problems = [
        "max_use_count: -1 is not between 0 and 4294967295",
        "policy[1].idle_count: -1 is not between 0 and 4294967295",
    ];
    assert_eq!(scaling.named("a").unwrap_err(), problems);
    assert_eq!((scaling.config.max_uses, scaling.config.groups[0].max_instances), (None, 4));
}
