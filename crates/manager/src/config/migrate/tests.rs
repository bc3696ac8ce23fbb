use super::*;
use crate::config::{Severity, Surroundings, settings};

const HEAD: &str = "concurrent = 10 # as many as we pay for\n\n[[runners]]\n  name = \"big\"\n  url = \"https://gitlab.example\"\n  \
                    token = \"glrt-abcdefghijklmnop\" # of the team\n  limit = 20\n  executor = \"docker+machine\" # old\n  \
                    [runners.docker]\n    image = \"alpine\"\n  [runners.machine]\n    IdleCount = 2\n    IdleTime = 1800\n    \
                    MaxBuilds = 100\n    MaxGrowthRate = 5\n    MachineName = \"auto-%s\"\n";
const PERIODS: &str = "    [[runners.machine.autoscaling]]\n      Periods = [\"* * 9-17 * * mon-fri *\"]\n      Timezone = \"UTC\"\n      \
                       IdleCount = 50\n      IdleTime = 3600\n";

fn with(options: &str) -> String {
    format!("{HEAD}{options}{PERIODS}")
}

fn migrated(text: &str, way: Way) -> Migration {
    let migration = migrate(text, &Facts::default(), way).unwrap();
    let loaded = load::parse(&migration.text, &Facts::default());
    let wrong: Vec<_> = loaded.problems.iter().filter(|problem| problem.severity == Severity::Fatal).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{}", migration.text);
    assert!(!migration.text.contains("[runners.machine"), "{}", migration.text);
    migration
}

/// Each part is in the text.
fn check_each(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

/// Without what stands at its default, which is not written, and with one spelling of times.
fn said(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Object(entries) => {
            let says = |value: &Value| {
                let is_zero = value.as_f64().is_some_and(|number| number.abs() < f64::EPSILON);
                !is_zero && *value != serde_json::json!([]) && *value != serde_json::json!("")
            };
            entries.retain(|_, value| says(value));
            entries.values_mut().for_each(said);
        }
        Value::Array(list) => list.iter_mut().for_each(said),
        Value::String(text) => *text = text.trim_end_matches(" 0ns").to_owned(),
        _ => {}
    }
}

#[test]
fn the_rest_of_the_file_stays_and_the_new_keys_mean_what_the_old_ones_meant() {
    let text = with("    MachineDriver = \"none\"\n    MachineOptions = [\"url=tcp://h\"]\n");
    let migration = migrated(&text, Way::Machines);
    assert!(
        migration.text.starts_with("concurrent = 10 # as many as we pay for\n\n[[runners]]\n"),
        "{}",
        migration.text
    );
    assert!(migration.text.contains("token = \"glrt-abcdefghijklmnop\" # of the team\n"));
    assert!(migration.text.contains("executor = \"docker-autoscaler\" # old\n"));
    assert!(
        migration.text.contains("# executor `docker-autoscaler` takes no jobs in this version"),
        "{}",
        migration.text
    );
    let scaler = |text: &str| {
        let config = load::parse(text, &Facts::default()).config.unwrap();
        (**settings(&config, &Surroundings::default()).runners[0].autoscaler.as_ref().unwrap()).clone()
    };
    let (mut old, mut new) = (scaler(&text), scaler(&migration.text));
    // What it was made of is written down.
    assert!(std::mem::take(&mut old.has_token_prefix) && !new.has_token_prefix);
    for settings in [&mut old, &mut new] {
        said(&mut settings.plugin_config);
        said(&mut settings.scaling);
        let scaling = settings.scaling.as_object_mut().unwrap();
        // One job at a time is what both mean; the plugin is compared by itself.
        scaling.retain(|key, _| !matches!(key.as_str(), "plugin" | "capacity_per_instance"));
    }
    assert!(old == new, "{old:?}\n{new:?}");
}

#[test]
fn amazonec2_becomes_an_auto_scaling_group() {
    let options = "    MachineDriver = \"amazonec2\"\n    MachineOptions = [\"amazonec2-region=eu-central-1\", \
                   \"amazonec2-access-key=AKIAVERYSECRET\", \"amazonec2-secret-key=s3cr3t\", \"amazonec2-instance-type=m7i.large\", \
                   \"amazonec2-ssh-user=admin\", \"amazonec2-private-address-only=true\", \"amazonec2-request-spot-instance=true\", \
                   \"engine-registry-mirror=https://m.example\", \"amazonec2-brand-new=hidden\"]\n";
    let migration = migrated(&with(options), Way::Group);
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
            "# amazonec2-access-key: not written here; it belongs into the file of credentials_file",
            "# engine-registry-mirror = https://m.example: registry-mirrors in /etc/docker/daemon.json of the image\n",
            "# amazonec2-brand-new: not known here",
            "# amazonec2-request-spot-instance = true: OnDemandPercentageAboveBaseCapacity 0",
        ],
    );
    for secret in ["AKIAVERYSECRET", "s3cr3t", "hidden"] {
        assert!(!migration.text.contains(secret) && !format!("{:?}", migration.entries).contains(secret));
    }
}

#[test]
fn google_and_azure_become_their_groups_and_digitalocean_stays_with_machines() {
    let google = "    MachineDriver = \"google\"\n    MachineOptions = [\"google-project=ci\", \"google-zone=europe-west1-b\", \
                  \"google-machine-type=n2-standard-2\", \"google-use-internal-ip\"]\n";
    let text = migrated(&with(google), Way::Group).text;
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
    let text = migrated(&with(azure), Way::Group).text;
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
    let text = migrated(&with(ocean), Way::Group).text;
    check_each(
        &text,
        &["plugin = \"fleeting-plugin-docker-machine\"", "prefix = \"runner-abcdefghi-\"", "size of the droplet"],
    );
    assert!(text.contains("digitalocean-access-token: stands below as it did") && text.contains("t0ken"), "{text}");
}

#[test]
fn nothing_goes_without_a_note() {
    let text = with("    MachineDriver = \"google\"\n    MachineOptions = [\"google-project=ci\", \"=x\", \"\"]\n    MaxRemovalAttempts = 3\n")
        .replace("IdleCount = 2\n", "IdleCount = -4\n    IdleScaleFactor = 1.5\n")
        .replace("MaxBuilds = 100", "MaxBuilds = -1")
        .replace("auto-%s", "auto-scale-%s.My.domain.com")
        + "    [[runners.machine.autoscaling]]\n      IdleCount = 7\n";
    let migration = migrated(&text, Way::Group);
    let notes = migration.entries[0].1.join("\n");
    for note in [
        "MaxGrowthRate = 5 is gone: a group gets its instances all at once; [runners.autoscaler.scale_throttle]",
        "MaxRemovalAttempts = 3 is gone: a removal is repeated until the provider confirms it",
        "IdleCount = -4 is less than 0, and taken as 0",
        "MaxBuilds = -1 is less than 0, and taken as 0",
        "IdleScaleFactor = 1.5 has no effect without IdleCount, and is gone",
        "entry 2 of autoscaling: without Periods it never applied, and is gone",
        "of which `auto-scale-my-domain-com` is left",
        "2 of the options of machines have no name before `=`: left out",
    ] {
        assert!(notes.contains(note) && migration.text.contains(note), "{note:?} is missing in\n{notes}");
    }
    assert!(migration.text.contains("name = \"auto-scale-my-domain-com\"\n"), "{}", migration.text);
    let machines = migrated(&with("    MachineDriver = \"none\"\n"), Way::Machines);
    assert!(!machines.entries[0].1.join("\n").contains("MaxGrowthRate"), "the plugin has it: {:?}", machines.entries);
}

#[test]
fn beside_an_autoscaler_the_machines_go_and_all_that_they_had_is_said() {
    let text = with(
        "    MachineDriver = \"amazonec2\"\n    MachineOptions = [\"amazonec2-instance-type=m7i.large\", \"amazonec2-secret-key=s3cr3t\"]\n",
    ) + "  [runners.autoscaler]\n    plugin = \"aws\"\n";
    let migration = migrated(&text, Way::Group);
    assert!(migration.text.contains("executor = \"docker-autoscaler\" # old\n"), "{}", migration.text);
    assert!(migration.text.contains("[runners.autoscaler]\n    plugin = \"aws\"\n"), "{}", migration.text);
    let notes = migration.entries[0].1.join("\n");
    check_each(
        &notes,
        &[
            "executor `docker-autoscaler` takes no jobs in this version",
            "[runners.autoscaler] is there already, and was left as it is",
            "IdleCount = 2: gone",
            "MachineDriver = \"amazonec2\": gone",
            "amazonec2-instance-type = m7i.large: InstanceType of the launch template",
            "amazonec2-secret-key: not written here",
            "has no policy: nothing is kept idle",
        ],
    );
    assert!(!notes.contains("s3cr3t"));
}

#[test]
fn an_executor_without_machines_gets_none() {
    let text = with("    MachineDriver = \"google\"\n").replace("\"docker+machine\"", "\"shell\"");
    let migration = migrated(&text, Way::Group);
    assert!(
        !migration.text.contains("autoscaler") && migration.text.contains("executor = \"shell\""),
        "{}",
        migration.text
    );
    assert_eq!(
        migration.entries[0].1,
        ["executor `shell` has no machines: [runners.machine] had no effect, and is gone"]
    );
}

#[test]
fn what_the_drain_did_is_said_of_each_entry() {
    let text = format!("[machine.shutdown_drain]\nenabled = true\n\n{}", with("    MachineDriver = \"none\"\n"));
    let migration = migrated(&text, Way::Machines);
    assert!(migration.text.contains("delete_instances_on_shutdown = true"), "{}", migration.text);
    assert!(!migration.text.contains("shutdown_drain"), "{}", migration.text);
}

#[test]
fn what_cannot_be_migrated_is_told() {
    let wrong = |text: &str| migrate(text, &Facts::default(), Way::Group).unwrap_err();
    assert!(matches!(wrong("concurrent = 1\n"), MigrateError::Nothing));
    assert!(matches!(wrong("concurrent = \n"), MigrateError::Invalid(_)));
    let inline = "[[runners]]\nname = \"a\"\nexecutor = \"docker+machine\"\nmachine = { MachineName = \"m-%s\", MachineDriver = \"none\" }\n";
    assert!(matches!(wrong(inline), MigrateError::Inline(name) if name == "a"));
}
