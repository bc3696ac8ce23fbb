use super::*;
use crate::{SettingsContext, Severity, settings};

const HEAD: &str = "concurrent = 10 # as many as we pay for\n\n[[runners]]\n  name = \"big\"\n  url = \"https://gitlab.example\"\n  \
                    token = \"glrt-abcdefghijklmnop\" # of the team\n  limit = 20\n  executor = \"docker+machine\" # old\n  \
                    [runners.docker]\n    image = \"alpine\"\n  [runners.machine]\n    IdleCount = 2\n    IdleTime = 1800\n    \
                    MaxBuilds = 100\n    MaxGrowthRate = 5\n    MachineName = \"auto-%s\"\n";
const PERIODS: &str = "    [[runners.machine.autoscaling]]\n      Periods = [\"* * 9-17 * * mon-fri *\"]\n      Timezone = \"UTC\"\n      \
                       IdleCount = 50\n      IdleTime = 3600\n";

fn config_with(options: &str) -> String {
    format!("{HEAD}{options}{PERIODS}")
}

fn migrated(text: &str, target: MigrationTarget) -> Migration {
    let migration = migrate(text, &HostFacts::default(), target).unwrap();
    let loaded = load::parse(&migration.text, &HostFacts::default());
    let wrong: Vec<_> = loaded.problems.iter().filter(|problem| problem.severity == Severity::Fatal).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{}", migration.text);
    assert!(!migration.text.contains("[runners.machine"), "{}", migration.text);
    migration
}

fn check_each(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

/// Removes defaults, because the migration does not write them.
fn remove_defaults(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Object(entries) => {
            let is_set = |value: &Value| {
                let is_zero = value.as_f64().is_some_and(|number| number.abs() < f64::EPSILON);
                !is_zero && *value != serde_json::json!([]) && *value != serde_json::json!("")
            };
            entries.retain(|_, value| is_set(value));
            entries.values_mut().for_each(remove_defaults);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_defaults),
        _ => {}
    }
}

#[test]
fn migration_keeps_meaning_and_rest_of_file() {
    let text = config_with("    MachineDriver = \"none\"\n    MachineOptions = [\"url=tcp://h\"]\n");
    let migration = migrated(&text, MigrationTarget::Machines);
    assert!(
        migration.text.starts_with("concurrent = 10 # as many as we pay for\n\n[[runners]]\n"),
        "{}",
        migration.text
    );
    assert!(migration.text.contains("token = \"glrt-abcdefghijklmnop\" # of the team\n"));
    assert!(migration.text.contains("executor = \"docker-autoscaler\" # old\n"));
    assert!(
        migration.text.contains("# executor `docker-autoscaler` runs jobs in containers on the instance"),
        "{}",
        migration.text
    );
    let scaler = |text: &str| {
        let config = load::parse(text, &HostFacts::default()).config.unwrap();
        (**settings(&config, &SettingsContext::default()).runners[0].autoscaler.as_ref().unwrap()).clone()
    };
    let (mut old, mut new) = (scaler(&text), scaler(&migration.text));
    // The migration writes the prefix to the file, so it no longer comes from the token.
    assert!(std::mem::take(&mut old.has_token_prefix) && !new.has_token_prefix);
    for settings in [&mut old, &mut new] {
        remove_defaults(&mut settings.plugin_config);
    }
    assert!(old == new, "{old:?}\n{new:?}");
}

#[test]
fn amazonec2_becomes_an_auto_scaling_group() {
    let options = "    MachineDriver = \"amazonec2\"\n    MachineOptions = [\"amazonec2-region=eu-central-1\", \
                   \"amazonec2-access-key=AKIAVERYSECRET\", \"amazonec2-secret-key=s3cr3t\", \"amazonec2-instance-type=m7i.large\", \
                   \"amazonec2-ssh-user=admin\", \"amazonec2-private-address-only=true\", \"amazonec2-request-spot-instance=true\", \
                   \"engine-registry-mirror=https://m.example\", \"amazonec2-brand-new=hidden\"]\n";
    let migration = migrated(&config_with(options), MigrationTarget::Group);
    check_each(
        &migration.text,
        &[
            "  [runners.autoscaler]\n    plugin = \"aws:latest\"\n    capacity_per_instance = 1\n    max_use_count = 100\n    max_instances = 20\n",
            "name = \"auto\"",
            "region = \"eu-central-1\"",
            "username = \"admin\"",
            "use_external_addr = false",
            "periods = [\"* 9-17 * * mon-fri\"]",
            "idle_time = \"3600s\"",
            "# amazonec2-instance-type = m7i.large: InstanceType of the launch template\n",
            "# amazonec2-access-key: not written to this file; put it into the file of credentials_file",
            "# engine-registry-mirror = https://m.example: registry-mirrors in /etc/docker/daemon.json of the image\n",
            "# amazonec2-brand-new: unknown option",
            "# amazonec2-request-spot-instance = true: OnDemandPercentageAboveBaseCapacity 0",
        ],
    );
    for secret in ["AKIAVERYSECRET", "s3cr3t", "hidden"] {
        assert!(!migration.text.contains(secret) && !format!("{:?}", migration.entries).contains(secret));
    }
}

#[test]
fn google_and_azure_migrate_but_digitalocean_keeps_machines() {
    let google = "    MachineDriver = \"google\"\n    MachineOptions = [\"google-project=ci\", \"google-zone=europe-west1-b\", \
                  \"google-machine-type=n2-standard-2\", \"google-use-internal-ip\"]\n";
    let text = migrated(&config_with(google), MigrationTarget::Group).text;
    check_each(
        &text,
        &[
            "plugin = \"googlecloud:latest\"",
            "project = \"ci\"",
            "zone = \"europe-west1-b\"",
            "use_external_addr = false",
        ],
    );
    let azure = "    MachineDriver = \"azure\"\n    MachineOptions = [\"azure-subscription-id=11-22\", \"azure-resource-group=ci\", \
                 \"azure-client-secret=s3cr3t\", \"azure-size=Standard_D4s_v5\"]\n";
    let text = migrated(&config_with(azure), MigrationTarget::Group).text;
    check_each(
        &text,
        &[
            "subscription_id = \"11-22\"",
            "resource_group_name = \"ci\"",
            "sku of the scale set",
            "use_external_addr = true",
        ],
    );
    assert!(!text.contains("s3cr3t"));
    let ocean = "    MachineDriver = \"digitalocean\"\n    MachineOptions = [\"digitalocean-size=s-2vcpu-4gb\", \
                 \"digitalocean-access-token=t0ken\"]\n";
    let text = migrated(&config_with(ocean), MigrationTarget::Group).text;
    check_each(
        &text,
        &["plugin = \"fleeting-plugin-docker-machine\"", "prefix = \"runner-abcdefghi-\"", "size of the droplet"],
    );
    assert!(text.contains("digitalocean-access-token: kept in this file") && text.contains("t0ken"), "{text}");
}

#[test]
fn every_dropped_key_has_a_note() {
    let text = config_with("    MachineDriver = \"google\"\n    MachineOptions = [\"google-project=ci\", \"=x\", \"\"]\n    MaxRemovalAttempts = 3\n")
        .replace("IdleCount = 2\n", "IdleCount = -4\n    IdleScaleFactor = 1.5\n")
        .replace("MaxBuilds = 100", "MaxBuilds = -1")
        .replace("auto-%s", "auto-scale-%s.My.domain.com")
        + "    [[runners.machine.autoscaling]]\n      IdleCount = 7\n";
    let migration = migrated(&text, MigrationTarget::Group);
    let notes = migration.entries[0].1.join("\n");
    for note in [
        "MaxGrowthRate = 5 was dropped: a group gets its instances all at once; [runners.autoscaler.scale_throttle]",
        "MaxRemovalAttempts = 3 was dropped: a removal is repeated until the provider confirms it",
        "IdleCount = -4 is negative and is treated as 0",
        "MaxBuilds = -1 is negative and is treated as 0",
        "IdleScaleFactor = 1.5 has no effect without IdleCount and was removed",
        "entry 2 of autoscaling: without Periods it never applied, so it was removed",
        "became the group's name `auto-scale-my-domain-com`",
        "machine options without a name before `=` (2): omitted",
    ] {
        assert!(notes.contains(note) && migration.text.contains(note), "{note:?} is missing in\n{notes}");
    }
    assert!(migration.text.contains("name = \"auto-scale-my-domain-com\"\n"), "{}", migration.text);
    let machines = migrated(&config_with("    MachineDriver = \"none\"\n"), MigrationTarget::Machines);
    let notes = machines.entries[0].1.join("\n");
    assert!(!notes.contains("MaxGrowthRate"), "the plugin docker-machine must keep MaxGrowthRate: {notes}");
}

/// Migrates an entry with the driver `google`, in which `change.0` is replaced with `change.1`.
///
/// Returns the new text, which must contain each note, and the notes.
fn google(options: &str, change: (&str, &str)) -> (String, String) {
    let text = config_with(&format!("    MachineDriver = \"google\"\n    MachineOptions = [{options}]\n"));
    assert!(text.contains(change.0));
    let migration = migrated(&text.replacen(change.0, change.1, 1), MigrationTarget::Group);
    migration.entries[0].1.iter().for_each(|note| check_each(&migration.text, &[note]));
    (migration.text, migration.entries[0].1.join("\n"))
}

#[test]
fn too_large_count_is_clamped_with_note() {
    for (old, new, written) in [
        ("IdleTime = 1800", "IdleTime = 99999999999999", "idle_time = \"4294967295s\""),
        ("IdleCount = 2", "IdleCount = 4294967296", "idle_count = 4294967295"),
        ("MaxBuilds = 100", "MaxBuilds = 4294967296", "max_use_count = 4294967295"),
        ("limit = 20", "limit = 4294967296", "max_instances = 4294967295"),
    ] {
        let (text, notes) = google("\"google-project=ci\"", (old, new));
        let key = written.split(" =").next().unwrap();
        let problems = load::parse(&text, &HostFacts::default()).problems;
        assert!(
            !problems.iter().any(|problem| problem.code == "C088"),
            "the written value must be in range: {problems:?}"
        );
        check_each(&text, &[written]);
        check_each(&notes, &[&format!("{new} exceeds the maximum 4294967295, which was written; correct {key}")]);
    }
    let factor =
        |value: &str| google("", ("IdleCount = 2\n", &format!("IdleCount = 2\n    IdleScaleFactor = {value}\n")));
    for value in ["inf", "nan"] {
        let (text, notes) = factor(value);
        assert!(!text.contains("scale_factor ="), "{text}");
        check_each(&notes, &["is not a valid factor and was dropped; write scale_factor"]);
    }
    let (_, notes) = factor("1.5\n    IdleCountMin = 9");
    check_each(&notes, &["IdleCountMin = 9 exceeds the maximum IdleCount = 2: idle_count = 2 was written"]);
}

#[test]
fn option_without_value_is_dropped_with_note() {
    let unchanged = ("limit = 20", "limit = 20");
    for options in [r#""google-project", "google-zone=""#, r#""google-project=ci", "google-project=", "google-zone""#] {
        let (text, notes) = google(options, unchanged);
        for key in ["project", "zone"] {
            assert!(!text.contains(&format!("\n    {key} = ")), "{text}");
            let wanted = format!(
                "google-{key} has no value: {key} was left out; set {key} = \"...\" in [runners.autoscaler.plugin_config]"
            );
            check_each(&notes, &[&wanted]);
        }
    }
    let (text, notes) = google(r#""google-username=", "google-machine-type=", "google-preemptible""#, unchanged);
    assert!(!text.contains("\n    username = "), "{text}");
    check_each(
        &notes,
        &[
            "google-username has no value: username was left out; set username = \"...\" in [runners.autoscaler.connector_config]",
            "google-machine-type (without a value): machineType",
            "google-preemptible: scheduling.preemptible",
        ],
    );
    let (text, notes) = google(r#""google-use-internal-ip=maybe""#, unchanged);
    check_each(&text, &["use_external_addr = true"]);
    check_each(&notes, &["google-use-internal-ip = \"maybe\" is neither true nor false and was left out; to use"]);
    for (value, wanted) in [("=0", "true"), ("=F", "true"), ("=1", "false"), ("", "false")] {
        let (text, _) = google(&format!("\"google-use-internal-ip{value}\""), unchanged);
        check_each(&text, &[&format!("use_external_addr = {wanted}")]);
    }
    let port = "    MachineDriver = \"amazonec2\"\n    MachineOptions = [\"amazonec2-ssh-port=99999\"]\n";
    let migration = migrated(&config_with(port), MigrationTarget::Group);
    assert!(!migration.text.contains("\n    protocol_port"), "{}", migration.text);
    check_each(
        &migration.text,
        &["amazonec2-ssh-port = 99999 is not a valid port and was left out; set protocol_port in"],
    );
}

#[test]
fn option_names_stay_inside_comments() {
    let (text, notes) = google(r#""a\nconcurrent = 1 #=x""#, ("limit = 20", "limit = 20"));
    check_each(&notes, &["a\\nconcurrent "]);
    assert!(!text.contains("\nconcurrent = 1 "), "{text}");
    let period = "    MachineDriver = \"none\"\n[[runners.machine.autoscaling]]\nPeriods = [\"5 * * * * *\\n*\"]\n";
    let text = migrated(&config_with(period), MigrationTarget::Group).text;
    check_each(&text, &["period \"5 * * * * *\\n*\""]);
    text.parse::<toml_edit::DocumentMut>().unwrap_or_else(|error| panic!("{error}: {text}"));
}

#[test]
fn entry_without_driver_is_refused() {
    for driver in ["", "    MachineDriver = \"\"\n", "    MachineDriver = \" \"\n"] {
        for target in [MigrationTarget::Group, MigrationTarget::Machines] {
            let error = migrate(&config_with(driver), &HostFacts::default(), target).unwrap_err();
            assert!(error.to_string().starts_with("runner big: [runners.machine] has no MachineDriver"), "{error}");
            assert!(error.to_string().contains("set it, for example MachineDriver = \"amazonec2\""), "{error}");
        }
    }
    // Beside an autoscaler, the table of the machines is only removed, so it needs no driver.
    migrated(&(config_with("") + "  [runners.autoscaler]\n    plugin = \"aws\"\n"), MigrationTarget::Group);
}

#[test]
fn machine_table_beside_autoscaler_is_dropped_with_notes() {
    let text = config_with(
        "    MachineDriver = \"amazonec2\"\n    MachineOptions = [\"amazonec2-instance-type=m7i.large\", \"amazonec2-secret-key=s3cr3t\"]\n",
    ) + "  [runners.autoscaler]\n    plugin = \"aws\"\n";
    let migration = migrated(&text, MigrationTarget::Group);
    assert!(migration.text.contains("executor = \"docker-autoscaler\" # old\n"), "{}", migration.text);
    assert!(migration.text.contains("[runners.autoscaler]\n    plugin = \"aws\"\n"), "{}", migration.text);
    let notes = migration.entries[0].1.join("\n");
    check_each(
        &notes,
        &[
            "executor `docker-autoscaler` runs jobs in containers on the instance",
            "[runners.autoscaler] exists already and was not changed",
            "IdleCount = 2: dropped",
            "MachineDriver = \"amazonec2\": dropped",
            "amazonec2-instance-type = m7i.large: InstanceType of the launch template",
            "amazonec2-secret-key: not written to this file",
            "has no policy, so no instance is kept idle",
        ],
    );
    assert!(!notes.contains("s3cr3t"));
}

#[test]
fn executor_without_machines_gets_no_autoscaler() {
    let text = config_with("    MachineDriver = \"google\"\n").replace("\"docker+machine\"", "\"shell\"");
    let migration = migrated(&text, MigrationTarget::Group);
    assert!(
        !migration.text.contains("autoscaler") && migration.text.contains("executor = \"shell\""),
        "{}",
        migration.text
    );
    assert_eq!(
        migration.entries[0].1,
        ["executor `shell` has no machines: [runners.machine] had no effect and was removed"]
    );
}

#[test]
fn drain_settings_move_to_each_entry() {
    let text = format!("[machine.shutdown_drain]\nenabled = true\n\n{}", config_with("    MachineDriver = \"none\"\n"));
    let migration = migrated(&text, MigrationTarget::Machines);
    assert!(migration.text.contains("delete_instances_on_shutdown = true"), "{}", migration.text);
    assert!(!migration.text.contains("shutdown_drain"), "{}", migration.text);
}

#[test]
fn invalid_input_is_not_migrated() {
    let wrong = |text: &str| migrate(text, &HostFacts::default(), MigrationTarget::Group).unwrap_err();
    assert!(matches!(wrong("concurrent = 1\n"), MigrateError::Nothing));
    assert!(matches!(wrong("concurrent = \n"), MigrateError::Invalid(_)));
    let inline = "[[runners]]\nname = \"a\"\nexecutor = \"docker+machine\"\nmachine = { MachineName = \"m-%s\", MachineDriver = \"none\" }\n";
    assert!(matches!(wrong(inline), MigrateError::Inline(name) if name == "a"));
}
