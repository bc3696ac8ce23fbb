//! What the options of four docker-machine drivers are in the groups of their clouds (R025, R026).
//!
//! Sources: the drivers' own options (docker/machine, `drivers/*`), and the settings of GitLab's plugins `aws`, `googlecloud`
//! and `azure` (fleeting.md 5.3-5.5).

/// Where an option goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// This key of `plugin_config`.
    Plugin(&'static str),
    /// This key of `connector_config`.
    Connector(&'static str),
    /// The manager reaches machines by their internal address.
    Internal,
    /// A property of the group or of its template, by its name there.
    Group(&'static str),
    /// A credential, which is not written anywhere: where it goes.
    Secret(&'static str),
    /// Nothing takes its place: why.
    Gone(&'static str),
}

/// A driver, and what takes its place.
#[derive(Debug)]
pub(super) struct Driver {
    /// Its name in `MachineDriver`.
    pub(super) name: &'static str,
    /// `plugin`; none where the cloud has no group plugin.
    pub(super) plugin: Option<&'static str>,
    /// What its group is called.
    pub(super) group: &'static str,
    /// The user that the driver takes where no option says.
    pub(super) username: &'static str,
    /// Keys of `plugin_config` with what the driver takes where no option says.
    pub(super) defaults: &'static [(&'static str, &'static str)],
    /// How the group has to be made.
    pub(super) advice: &'static [&'static str],
    pub(super) options: &'static [(&'static str, To)],
}

/// What holds for every group.
pub(super) const IMAGE: &str = "docker-machine installed Docker Engine on each machine: the image of the group has to have it, and its user \
                                has to be in the group `docker`";

/// Options of docker-machine itself.
pub(super) const COMMON: [(&str, To); 9] = [
    ("engine-install-url", To::Gone("the image has the engine already")),
    ("engine-opt", To::Group("/etc/docker/daemon.json of the image")),
    ("engine-insecure-registry", To::Group("insecure-registries in /etc/docker/daemon.json of the image")),
    ("engine-registry-mirror", To::Group("registry-mirrors in /etc/docker/daemon.json of the image")),
    ("engine-label", To::Group("labels in /etc/docker/daemon.json of the image")),
    ("engine-storage-driver", To::Group("storage-driver in /etc/docker/daemon.json of the image")),
    ("engine-env", To::Group("the environment of the image's docker.service")),
    ("tls-san", To::Gone("Docker is reached through SSH, not TLS")),
    ("swarm", To::Gone("jobs need no swarm")),
];

/// The driver of this name.
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
            "a group of its own for each [[runners]] entry",
            "the manager's role needs autoscaling:DescribeAutoScalingGroups, autoscaling:SetDesiredCapacity, \
             autoscaling:TerminateInstanceInAutoScalingGroup, ec2:DescribeInstances, ec2-instance-connect:SendSSHPublicKey",
        ],
        options: &[
            ("amazonec2-access-key", To::Secret("the file of credentials_file or a role of the manager's instance")),
            ("amazonec2-secret-key", To::Secret("the file of credentials_file or a role of the manager's instance")),
            ("amazonec2-session-token", To::Secret("the file of credentials_file or a role of the manager's instance")),
            ("amazonec2-region", To::Plugin("region")),
            ("amazonec2-ssh-user", To::Connector("username")),
            ("amazonec2-ssh-keypath", To::Connector("key_path")),
            ("amazonec2-ssh-port", To::Connector("protocol_port")),
            ("amazonec2-private-address-only", To::Internal),
            ("amazonec2-use-private-address", To::Internal),
            ("amazonec2-ami", To::Group("ImageId of the launch template")),
            ("amazonec2-instance-type", To::Group("InstanceType of the launch template")),
            ("amazonec2-vpc-id", To::Group("the VPC of the group's subnets")),
            ("amazonec2-subnet-id", To::Group("VPCZoneIdentifier of the group")),
            ("amazonec2-zone", To::Group("the zone of the group's subnets")),
            ("amazonec2-security-group", To::Group("SecurityGroups of the launch template")),
            ("amazonec2-security-group-readonly", To::Gone("the plugin changes no security group")),
            ("amazonec2-open-port", To::Group("a rule of the security group")),
            ("amazonec2-tags", To::Group("Tags of the group, propagated at launch")),
            ("amazonec2-device-name", To::Group("BlockDeviceMappings.DeviceName of the launch template")),
            ("amazonec2-root-size", To::Group("BlockDeviceMappings.Ebs.VolumeSize of the launch template, in GiB")),
            ("amazonec2-volume-type", To::Group("BlockDeviceMappings.Ebs.VolumeType of the launch template")),
            ("amazonec2-iam-instance-profile", To::Group("IamInstanceProfile of the launch template")),
            ("amazonec2-keypair-name", To::Group("KeyName of the launch template")),
            (
                "amazonec2-request-spot-instance",
                To::Group("OnDemandPercentageAboveBaseCapacity 0 in the group's MixedInstancesPolicy"),
            ),
            ("amazonec2-spot-price", To::Group("SpotMaxPrice in the group's MixedInstancesPolicy")),
            ("amazonec2-block-duration-minutes", To::Gone("AWS sells no spot blocks any more")),
            ("amazonec2-monitoring", To::Group("Monitoring of the launch template")),
            ("amazonec2-use-ebs-optimized-instance", To::Group("EbsOptimized of the launch template")),
            ("amazonec2-userdata", To::Group("UserData of the launch template")),
            ("amazonec2-metadata-token", To::Group("MetadataOptions.HttpTokens of the launch template")),
            (
                "amazonec2-metadata-token-response-hop-limit",
                To::Group("MetadataOptions.HttpPutResponseHopLimit of the launch template"),
            ),
            ("amazonec2-retries", To::Gone("the plugin retries by itself")),
            ("amazonec2-endpoint", To::Gone("set endpoint_url in the AWS config file that config_file names")),
            ("amazonec2-insecure-transport", To::Gone("AWS is spoken to by TLS only")),
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
            ("google-project", To::Plugin("project")),
            ("google-zone", To::Plugin("zone")),
            ("google-username", To::Connector("username")),
            ("google-use-internal-ip", To::Internal),
            ("google-use-internal-ip-only", To::Internal),
            ("google-machine-type", To::Group("machineType of the instance template")),
            ("google-machine-image", To::Group("the boot disk's sourceImage in the instance template")),
            ("google-service-account", To::Group("serviceAccounts.email of the instance template")),
            ("google-scopes", To::Group("serviceAccounts.scopes of the instance template")),
            ("google-disk-size", To::Group("the boot disk's diskSizeGb in the instance template")),
            ("google-disk-type", To::Group("the boot disk's diskType in the instance template")),
            ("google-network", To::Group("networkInterfaces.network of the instance template")),
            ("google-subnetwork", To::Group("networkInterfaces.subnetwork of the instance template")),
            ("google-address", To::Gone("instances of a group share no address")),
            (
                "google-preemptible",
                To::Group("scheduling.preemptible (or provisioningModel SPOT) of the instance template"),
            ),
            ("google-tags", To::Group("tags of the instance template")),
            ("google-label", To::Group("labels of the instance template")),
            ("google-metadata", To::Group("metadata of the instance template")),
            ("google-metadata-from-file", To::Group("metadata of the instance template")),
            ("google-userdata", To::Group("metadata user-data of the instance template")),
            ("google-accelerator", To::Group("guestAccelerators of the instance template")),
            ("google-maintenance-policy", To::Group("scheduling.onHostMaintenance of the instance template")),
            ("google-min-cpu-platform", To::Group("minCpuPlatform of the instance template")),
            ("google-open-port", To::Group("a firewall rule of the network")),
            ("google-use-existing", To::Gone("the group owns its instances")),
            ("google-operation-backoff-initial-interval", To::Gone("the plugin retries by itself")),
            ("google-operation-backoff-randomization-factor", To::Gone("the plugin retries by itself")),
            ("google-operation-backoff-multipler", To::Gone("the plugin retries by itself")),
            ("google-operation-backoff-max-interval", To::Gone("the plugin retries by itself")),
            ("google-operation-backoff-max-elapsed-time", To::Gone("the plugin retries by itself")),
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
            "the plugin brings no key to the instances: write key_path or password into connector_config",
        ],
        options: &[
            ("azure-subscription-id", To::Plugin("subscription_id")),
            ("azure-resource-group", To::Plugin("resource_group_name")),
            ("azure-ssh-user", To::Connector("username")),
            ("azure-client-id", To::Secret("AZURE_CLIENT_ID in the manager's environment, or a managed identity")),
            (
                "azure-client-secret",
                To::Secret("AZURE_CLIENT_SECRET in the manager's environment, or a managed identity"),
            ),
            ("azure-tenant-id", To::Secret("AZURE_TENANT_ID in the manager's environment, or a managed identity")),
            ("azure-use-private-ip", To::Internal),
            ("azure-no-public-ip", To::Internal),
            ("azure-environment", To::Gone("the plugin takes the cloud of its credentials")),
            ("azure-location", To::Group("location of the scale set")),
            ("azure-size", To::Group("sku of the scale set")),
            ("azure-image", To::Group("imageReference of the scale set")),
            ("azure-vnet", To::Group("the network profile of the scale set")),
            ("azure-subnet", To::Group("the network profile of the scale set")),
            ("azure-subnet-prefix", To::Group("the address prefix of the subnet")),
            ("azure-availability-set", To::Gone("a scale set spreads its instances by itself")),
            ("azure-open-port", To::Group("a rule of the network security group")),
            ("azure-docker-port", To::Gone("Docker is reached through SSH")),
            ("azure-private-ip-address", To::Gone("instances of a scale set share no address")),
            ("azure-static-public-ip", To::Gone("instances of a scale set share no address")),
            ("azure-dns", To::Group("the public address configuration of the scale set")),
            ("azure-storage-type", To::Group("osDisk.managedDisk.storageAccountType of the scale set")),
            ("azure-managed-disks", To::Gone("disks of a scale set are managed ones")),
            ("azure-custom-data", To::Group("customData of the scale set")),
            ("azure-tags", To::Group("tags of the scale set")),
        ],
    },
    Driver {
        name: "digitalocean",
        plugin: None,
        group: "script of yours",
        username: "root",
        defaults: &[],
        advice: &[
            "DigitalOcean has no group for which there is a plugin: docker-machine goes on; or let the plugin `script` create and \
             delete droplets with these values (docs/how-to/write-a-plugin.md)",
        ],
        options: &[
            ("digitalocean-access-token", To::Secret("the environment of the script")),
            ("digitalocean-ssh-user", To::Connector("username")),
            ("digitalocean-ssh-key-path", To::Connector("key_path")),
            ("digitalocean-ssh-port", To::Connector("protocol_port")),
            ("digitalocean-ssh-key-fingerprint", To::Group("ssh_keys of the droplet")),
            ("digitalocean-image", To::Group("image of the droplet")),
            ("digitalocean-region", To::Group("region of the droplet")),
            ("digitalocean-size", To::Group("size of the droplet")),
            ("digitalocean-ipv6", To::Group("ipv6 of the droplet")),
            ("digitalocean-private-networking", To::Internal),
            ("digitalocean-backups", To::Group("backups of the droplet")),
            ("digitalocean-userdata", To::Group("user_data of the droplet")),
            ("digitalocean-monitoring", To::Group("monitoring of the droplet")),
            ("digitalocean-tags", To::Group("tags of the droplet")),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_its_drivers_and_stands_once() {
        for driver in &DRIVERS {
            let mut names: Vec<_> = driver.options.iter().map(|(name, _)| *name).collect();
            assert!(names.iter().all(|name| name.starts_with(&format!("{}-", driver.name))), "{names:?}");
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), driver.options.len(), "{}", driver.name);
        }
    }
}
