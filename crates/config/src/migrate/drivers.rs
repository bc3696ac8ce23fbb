//! Translates the options of four docker-machine drivers to instance groups (R025, R026).
//!
//! Sources: docker/machine, `drivers/*`, and GitLab's plugins `aws`, `googlecloud` and `azure`.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionTarget {
    /// A key of `plugin_config`.
    Plugin(&'static str),
    /// A key of `connector_config`.
    Connector(&'static str),
    /// The option makes connections use the internal address.
    Internal,
    /// Property of the group or of its template.
    Group(&'static str),
    /// Credential that is not written to the configuration. The text describes where to put it.
    Secret(&'static str),
    /// Not translated, with the reason or a remedy.
    Dropped(&'static str),
}

#[derive(Debug)]
pub(super) struct Driver {
    /// Name in `MachineDriver`.
    pub(super) name: &'static str,
    /// Value of `plugin`. `None` if the cloud has no plugin for groups.
    pub(super) plugin: Option<&'static str>,
    /// The cloud's name for an instance group.
    pub(super) group: &'static str,
    /// Default user of the driver.
    pub(super) username: &'static str,
    /// Keys of `plugin_config` with the driver's defaults.
    pub(super) defaults: &'static [(&'static str, &'static str)],
    /// How to create the group.
    pub(super) advice: &'static [&'static str],
    pub(super) options: &'static [(&'static str, OptionTarget)],
}

pub(super) const IMAGE_ADVICE: &str = "docker-machine installed Docker Engine on each machine: the image of the group must contain it, and its user \
                                must be in the group `docker`";

/// Options that docker-machine has for every driver.
pub(super) const COMMON: [(&str, OptionTarget); 9] = [
    ("engine-install-url", OptionTarget::Dropped("the image already contains the engine")),
    ("engine-opt", OptionTarget::Group("/etc/docker/daemon.json of the image")),
    ("engine-insecure-registry", OptionTarget::Group("insecure-registries in /etc/docker/daemon.json of the image")),
    ("engine-registry-mirror", OptionTarget::Group("registry-mirrors in /etc/docker/daemon.json of the image")),
    ("engine-label", OptionTarget::Group("labels in /etc/docker/daemon.json of the image")),
    ("engine-storage-driver", OptionTarget::Group("storage-driver in /etc/docker/daemon.json of the image")),
    ("engine-env", OptionTarget::Group("the environment of the image's docker.service")),
    ("tls-san", OptionTarget::Dropped("Docker is reached through SSH, not TLS")),
    ("swarm", OptionTarget::Dropped("jobs need no swarm")),
];

pub(super) fn driver(name: &str) -> Option<&'static Driver> {
    DRIVERS.iter().find(|driver| driver.name == name)
}

static DRIVERS: [Driver; 4] = [
    Driver {
        name: "amazonec2",
        plugin: Some("aws:latest"),
        group: "Auto Scaling group",
        username: "ubuntu",
        defaults: &[("region", "us-east-1")],
        advice: &[
            "no scaling policy, minimum 0, maximum at least max_instances; scale-in protection on; AZRebalance suspended; capacity rebalance off",
            "a separate group for each [[runners]] entry",
            "the manager's role needs autoscaling:DescribeAutoScalingGroups, autoscaling:SetDesiredCapacity, \
             autoscaling:TerminateInstanceInAutoScalingGroup, ec2:DescribeInstances, ec2-instance-connect:SendSSHPublicKey",
        ],
        options: &[
            (
                "amazonec2-access-key",
                OptionTarget::Secret("the file of credentials_file or a role of the manager's instance"),
            ),
            (
                "amazonec2-secret-key",
                OptionTarget::Secret("the file of credentials_file or a role of the manager's instance"),
            ),
            (
                "amazonec2-session-token",
                OptionTarget::Secret("the file of credentials_file or a role of the manager's instance"),
            ),
            ("amazonec2-region", OptionTarget::Plugin("region")),
            ("amazonec2-ssh-user", OptionTarget::Connector("username")),
            ("amazonec2-ssh-keypath", OptionTarget::Connector("key_path")),
            ("amazonec2-ssh-port", OptionTarget::Connector("protocol_port")),
            ("amazonec2-private-address-only", OptionTarget::Internal),
            ("amazonec2-use-private-address", OptionTarget::Internal),
            ("amazonec2-ami", OptionTarget::Group("ImageId of the launch template")),
            ("amazonec2-instance-type", OptionTarget::Group("InstanceType of the launch template")),
            ("amazonec2-vpc-id", OptionTarget::Group("the VPC of the group's subnets")),
            ("amazonec2-subnet-id", OptionTarget::Group("VPCZoneIdentifier of the group")),
            ("amazonec2-zone", OptionTarget::Group("the zone of the group's subnets")),
            ("amazonec2-security-group", OptionTarget::Group("SecurityGroups of the launch template")),
            ("amazonec2-security-group-readonly", OptionTarget::Dropped("the plugin changes no security group")),
            ("amazonec2-open-port", OptionTarget::Group("a rule of the security group")),
            ("amazonec2-tags", OptionTarget::Group("Tags of the group, propagated at launch")),
            ("amazonec2-device-name", OptionTarget::Group("BlockDeviceMappings.DeviceName of the launch template")),
            (
                "amazonec2-root-size",
                OptionTarget::Group("BlockDeviceMappings.Ebs.VolumeSize of the launch template, in GiB"),
            ),
            ("amazonec2-volume-type", OptionTarget::Group("BlockDeviceMappings.Ebs.VolumeType of the launch template")),
            ("amazonec2-iam-instance-profile", OptionTarget::Group("IamInstanceProfile of the launch template")),
            ("amazonec2-keypair-name", OptionTarget::Group("KeyName of the launch template")),
            (
                "amazonec2-request-spot-instance",
                OptionTarget::Group("OnDemandPercentageAboveBaseCapacity 0 in the group's MixedInstancesPolicy"),
            ),
            ("amazonec2-spot-price", OptionTarget::Group("SpotMaxPrice in the group's MixedInstancesPolicy")),
            ("amazonec2-block-duration-minutes", OptionTarget::Dropped("AWS no longer sells spot blocks")),
            ("amazonec2-monitoring", OptionTarget::Group("Monitoring of the launch template")),
            ("amazonec2-use-ebs-optimized-instance", OptionTarget::Group("EbsOptimized of the launch template")),
            ("amazonec2-userdata", OptionTarget::Group("UserData of the launch template")),
            ("amazonec2-metadata-token", OptionTarget::Group("MetadataOptions.HttpTokens of the launch template")),
            (
                "amazonec2-metadata-token-response-hop-limit",
                OptionTarget::Group("MetadataOptions.HttpPutResponseHopLimit of the launch template"),
            ),
            ("amazonec2-retries", OptionTarget::Dropped("the plugin retries automatically")),
            (
                "amazonec2-endpoint",
                OptionTarget::Dropped("set endpoint_url in the AWS config file that config_file names"),
            ),
            ("amazonec2-insecure-transport", OptionTarget::Dropped("AWS is always reached through TLS")),
        ],
    },
    Driver {
        name: "google",
        plugin: Some("googlecloud:latest"),
        group: "managed instance group",
        username: "docker-user",
        defaults: &[("zone", "us-central1-a")],
        advice: &[
            "one zone, autoscaling mode \"do not autoscale\", enable-oslogin=false in the template's metadata",
            "the manager's account needs compute.instanceGroupManagers.get and .update, compute.instances.get and .setMetadata, \
             and iam.serviceAccountUser on the instances' account",
        ],
        options: &[
            ("google-project", OptionTarget::Plugin("project")),
            ("google-zone", OptionTarget::Plugin("zone")),
            ("google-username", OptionTarget::Connector("username")),
            ("google-use-internal-ip", OptionTarget::Internal),
            ("google-use-internal-ip-only", OptionTarget::Internal),
            ("google-machine-type", OptionTarget::Group("machineType of the instance template")),
            ("google-machine-image", OptionTarget::Group("the boot disk's sourceImage in the instance template")),
            ("google-service-account", OptionTarget::Group("serviceAccounts.email of the instance template")),
            ("google-scopes", OptionTarget::Group("serviceAccounts.scopes of the instance template")),
            ("google-disk-size", OptionTarget::Group("the boot disk's diskSizeGb in the instance template")),
            ("google-disk-type", OptionTarget::Group("the boot disk's diskType in the instance template")),
            ("google-network", OptionTarget::Group("networkInterfaces.network of the instance template")),
            ("google-subnetwork", OptionTarget::Group("networkInterfaces.subnetwork of the instance template")),
            ("google-address", OptionTarget::Dropped("instances of a group share no address")),
            (
                "google-preemptible",
                OptionTarget::Group("scheduling.preemptible (or provisioningModel SPOT) of the instance template"),
            ),
            ("google-tags", OptionTarget::Group("tags of the instance template")),
            ("google-label", OptionTarget::Group("labels of the instance template")),
            ("google-metadata", OptionTarget::Group("metadata of the instance template")),
            ("google-metadata-from-file", OptionTarget::Group("metadata of the instance template")),
            ("google-userdata", OptionTarget::Group("metadata user-data of the instance template")),
            ("google-accelerator", OptionTarget::Group("guestAccelerators of the instance template")),
            ("google-maintenance-policy", OptionTarget::Group("scheduling.onHostMaintenance of the instance template")),
            ("google-min-cpu-platform", OptionTarget::Group("minCpuPlatform of the instance template")),
            ("google-open-port", OptionTarget::Group("a firewall rule of the network")),
            ("google-use-existing", OptionTarget::Dropped("the group owns its instances")),
            ("google-operation-backoff-initial-interval", OptionTarget::Dropped("the plugin retries automatically")),
            (
                "google-operation-backoff-randomization-factor",
                OptionTarget::Dropped("the plugin retries automatically"),
            ),
            ("google-operation-backoff-multipler", OptionTarget::Dropped("the plugin retries automatically")),
            ("google-operation-backoff-max-interval", OptionTarget::Dropped("the plugin retries automatically")),
            ("google-operation-backoff-max-elapsed-time", OptionTarget::Dropped("the plugin retries automatically")),
        ],
    },
    Driver {
        name: "azure",
        plugin: Some("azure:latest"),
        group: "Virtual Machine Scale Set",
        username: "docker-user",
        defaults: &[("resource_group_name", "docker-machine")],
        advice: &[
            "orchestration mode Uniform, manual scaling, overprovision=false",
            "the plugin installs no key on the instances: set key_path or password in connector_config",
        ],
        options: &[
            ("azure-subscription-id", OptionTarget::Plugin("subscription_id")),
            ("azure-resource-group", OptionTarget::Plugin("resource_group_name")),
            ("azure-ssh-user", OptionTarget::Connector("username")),
            (
                "azure-client-id",
                OptionTarget::Secret("AZURE_CLIENT_ID in the manager's environment, or a managed identity"),
            ),
            (
                "azure-client-secret",
                OptionTarget::Secret("AZURE_CLIENT_SECRET in the manager's environment, or a managed identity"),
            ),
            (
                "azure-tenant-id",
                OptionTarget::Secret("AZURE_TENANT_ID in the manager's environment, or a managed identity"),
            ),
            ("azure-use-private-ip", OptionTarget::Internal),
            ("azure-no-public-ip", OptionTarget::Internal),
            ("azure-environment", OptionTarget::Dropped("the plugin uses the cloud of its credentials")),
            ("azure-location", OptionTarget::Group("location of the scale set")),
            ("azure-size", OptionTarget::Group("sku of the scale set")),
            ("azure-image", OptionTarget::Group("imageReference of the scale set")),
            ("azure-vnet", OptionTarget::Group("the network profile of the scale set")),
            ("azure-subnet", OptionTarget::Group("the network profile of the scale set")),
            ("azure-subnet-prefix", OptionTarget::Group("the address prefix of the subnet")),
            ("azure-availability-set", OptionTarget::Dropped("a scale set spreads its instances automatically")),
            ("azure-open-port", OptionTarget::Group("a rule of the network security group")),
            ("azure-docker-port", OptionTarget::Dropped("Docker is reached through SSH")),
            ("azure-private-ip-address", OptionTarget::Dropped("instances of a scale set share no address")),
            ("azure-static-public-ip", OptionTarget::Dropped("instances of a scale set share no address")),
            ("azure-dns", OptionTarget::Group("the public address configuration of the scale set")),
            ("azure-storage-type", OptionTarget::Group("osDisk.managedDisk.storageAccountType of the scale set")),
            ("azure-managed-disks", OptionTarget::Dropped("disks of a scale set are managed ones")),
            ("azure-custom-data", OptionTarget::Group("customData of the scale set")),
            ("azure-tags", OptionTarget::Group("tags of the scale set")),
        ],
    },
    Driver {
        name: "digitalocean",
        plugin: None,
        group: "script",
        username: "root",
        defaults: &[],
        advice: &[
            "no plugin supports groups of DigitalOcean: docker-machine is still used. Alternatively, the plugin `script` can create and \
             delete droplets with these values (docs/how-to/write-a-plugin.md)",
        ],
        options: &[
            ("digitalocean-access-token", OptionTarget::Secret("the environment of the script")),
            ("digitalocean-ssh-user", OptionTarget::Connector("username")),
            ("digitalocean-ssh-key-path", OptionTarget::Connector("key_path")),
            ("digitalocean-ssh-port", OptionTarget::Connector("protocol_port")),
            ("digitalocean-ssh-key-fingerprint", OptionTarget::Group("ssh_keys of the droplet")),
            ("digitalocean-image", OptionTarget::Group("image of the droplet")),
            ("digitalocean-region", OptionTarget::Group("region of the droplet")),
            ("digitalocean-size", OptionTarget::Group("size of the droplet")),
            ("digitalocean-ipv6", OptionTarget::Group("ipv6 of the droplet")),
            ("digitalocean-private-networking", OptionTarget::Internal),
            ("digitalocean-backups", OptionTarget::Group("backups of the droplet")),
            ("digitalocean-userdata", OptionTarget::Group("user_data of the droplet")),
            ("digitalocean-monitoring", OptionTarget::Group("monitoring of the droplet")),
            ("digitalocean-tags", OptionTarget::Group("tags of the droplet")),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_names_are_unique_and_start_with_the_driver() {
        for driver in &DRIVERS {
            let mut names: Vec<_> = driver.options.iter().map(|(name, _)| *name).collect();
            assert!(names.iter().all(|name| name.starts_with(&format!("{}-", driver.name))), "{names:?}");
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), driver.options.len(), "{}", driver.name);
        }
    }
}
