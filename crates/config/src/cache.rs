//! Reads `[runners.cache]`.

use std::time::Duration;

use muster_job::Secret;

use super::tree::Table;
use crate::settings::{
    AzureSettings, CacheSettings, CacheStoreSettings, ChunkGcSettings, GcsCredentials, GcsSettings, S3AccessKey,
    S3Encryption, S3Settings,
};

/// Default of `ChunksGcGrace`.
const DEFAULT_GRACE: Duration = Duration::from_secs(24 * 60 * 60);
/// General address of Amazon S3. The bucket's region selects the server.
const AMAZON: &str = "s3.amazonaws.com";

/// Reads `[runners.cache]` of a runner. If the settings of the store are incomplete, the runner has no store, which the
/// check C060 reports.
pub(super) fn read(runner: &Table) -> CacheSettings {
    let Some(cache) = runner.table("cache") else { return CacheSettings::default() };
    let store = match cache.str("Type").unwrap_or_default() {
        "s3" => cache.table("s3").and_then(s3).map(CacheStoreSettings::S3),
        "gcs" => cache.table("gcs").and_then(gcs).map(CacheStoreSettings::Gcs),
        "azure" => cache.table("azure").and_then(azure).map(CacheStoreSettings::Azure),
        _ => None,
    };
    CacheSettings {
        store,
        path: cache.str("Path").unwrap_or_default().to_owned(),
        shared: cache.bool("Shared").unwrap_or_default(),
        max_archive_bytes: cache.int("MaxUploadedArchiveSize").and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
        chunks: cache.bool("Chunks").unwrap_or_default(),
        collection: cache.time("ChunksGcInterval").map(|interval| ChunkGcSettings {
            interval,
            grace: cache.time("ChunksGcGrace").unwrap_or(DEFAULT_GRACE),
            max_age: cache.time("ChunksMaxAge"),
        }),
    }
}

/// `None` means missing or empty.
fn text(table: &Table, key: &str) -> Option<String> {
    table.str(key).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn secret(table: &Table, key: &str) -> Option<Secret> {
    text(table, key).map(Secret::new)
}

fn s3(table: &Table) -> Option<S3Settings> {
    let key = secret(table, "AccessKey").zip(secret(table, "SecretKey"));
    let access_key = key.filter(|_| has_access_key(table)).map(|(id, secret_key)| S3AccessKey {
        id,
        secret: secret_key,
        session: secret(table, "SessionToken"),
    });
    Some(S3Settings {
        server: text(table, "ServerAddress").filter(|server| server != AMAZON),
        insecure: table.bool("Insecure").unwrap_or_default(),
        bucket: text(table, "BucketName")?,
        region: text(table, "BucketLocation"),
        access_key,
        encryption: encryption(table),
        dual_stack: table.bool("DualStack"),
        path_style: table.bool("PathStyle"),
        accelerate: table.bool("Accelerate").unwrap_or_default(),
        role: text(table, "RoleARN"),
        upload_role: text(table, "UploadRoleARN"),
    })
}

/// Returns whether the access key of `[runners.cache.s3]` is used.
///
/// As in gitlab-runner, a key without `ServerAddress` is used only if `AuthenticationType` requires it.
pub(super) fn has_access_key(s3: &Table) -> bool {
    match s3.str("AuthenticationType").map(str::to_ascii_lowercase).as_deref() {
        Some("access-key") => true,
        Some("iam") => false,
        _ => ["ServerAddress", "AccessKey", "SecretKey"].iter().all(|key| text(s3, key).is_some()),
    }
}

/// `None` means that the encryption is not set or is unknown. The check C060 reports an unknown encryption.
fn encryption(s3: &Table) -> Option<S3Encryption> {
    let key = || text(s3, "ServerSideEncryptionKeyID");
    match s3.str("ServerSideEncryption").unwrap_or_default().to_ascii_uppercase().as_str() {
        "S3" | "AES256" => Some(S3Encryption::S3),
        "KMS" | "AWS:KMS" => Some(S3Encryption::Kms(key())),
        "DSSE-KMS" | "AWS:KMS:DSSE" => Some(S3Encryption::DsseKms(key())),
        _ => None,
    }
}

fn gcs(table: &Table) -> Option<GcsSettings> {
    let credentials = match (text(table, "CredentialsFile"), text(table, "AccessID"), secret(table, "PrivateKey")) {
        (Some(file), ..) => GcsCredentials::File(file.into()),
        (None, Some(account), Some(private_key)) => GcsCredentials::Key { account, private_key },
        _ => GcsCredentials::Default,
    };
    Some(GcsSettings { bucket: text(table, "BucketName")?, credentials, domain: text(table, "UniverseDomain") })
}

fn azure(table: &Table) -> Option<AzureSettings> {
    Some(AzureSettings {
        account: text(table, "AccountName")?,
        key: secret(table, "AccountKey"),
        container: text(table, "ContainerName")?,
        domain: text(table, "StorageDomain"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::from_file::{SettingsContext, settings};

    fn cache(text: &str) -> CacheSettings {
        let runner = "[[runners]]\nname = \"a\"\nurl = \"https://g.example\"\ntoken = \"t\"\nexecutor = \"shell\"\n";
        let config = crate::parse(&format!("{runner}[runners.cache]\n{text}\n"), &crate::HostFacts::default());
        settings(&config.config.unwrap(), &SettingsContext::default()).runners[0].cache.clone()
    }

    fn s3(text: &str) -> S3Settings {
        match cache(&format!("Type = \"s3\"\n[runners.cache.s3]\nBucketName = \"b\"\n{text}")).store {
            Some(CacheStoreSettings::S3(settings)) => settings,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn runner_without_type_or_with_incomplete_store_has_local_caches() {
        for text in [
            "",
            "Path = \"p\"\n[runners.cache.s3]\nBucketName = \"b\"",
            "Type = \"s3\"",
            "Type = \"s3\"\n[runners.cache.s3]\nServerAddress = \"s\"",
            "Type = \"gcs\"\n[runners.cache.s3]\nBucketName = \"b\"",
            "Type = \"azure\"\n[runners.cache.azure]\nContainerName = \"c\"",
            "Type = \"s4\"",
        ] {
            assert_eq!(cache(text).store, None, "{text}");
        }
        assert!(cache("").is_default());
        let all =
            cache("Path = \"p\"\nShared = true\nMaxUploadedArchiveSize = 5\nChunks = true\nChunksGcInterval = \"12h\"");
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let chunk_gc = ChunkGcSettings { interval: hours(12), grace: hours(24), max_age: None };
        assert_eq!(all.collection, Some(chunk_gc));
        assert_eq!((all.path.as_str(), all.shared, all.max_archive_bytes, all.chunks), ("p", true, 5, true));
    }

    #[test]
    fn access_key_is_used_with_a_server_or_if_the_type_requires_it() {
        let keys = "AccessKey = \"k\"\nSecretKey = \"s\"\nSessionToken = \"t\"\n";
        let key = s3(&format!("{keys}ServerAddress = \"minio:9000\"")).access_key.unwrap();
        assert_eq!((key.id.expose(), key.secret.expose(), key.session.unwrap().expose()), ("k", "s", "t"));
        assert_eq!(s3(keys).access_key, None, "without a server, gitlab-runner uses the role of the machine");
        assert!(s3(&format!("{keys}AuthenticationType = \"Access-Key\"")).access_key.is_some());
        assert_eq!(s3(&format!("{keys}ServerAddress = \"minio:9000\"\nAuthenticationType = \"iam\"")).access_key, None);
        assert_eq!(s3("ServerAddress = \"minio:9000\"\nAccessKey = \"k\"").access_key, None);
        let amazon = s3(&format!("{keys}ServerAddress = \"s3.amazonaws.com\""));
        assert!(amazon.access_key.is_some() && amazon.server.is_none(), "{amazon:?}");
    }

    #[test]
    fn each_encryption_has_two_names_as_in_gitlab_runner() {
        let key = || Some("arn:key".to_owned());
        for (name, expected) in [
            ("S3", Some(S3Encryption::S3)),
            ("aes256", Some(S3Encryption::S3)),
            ("KMS", Some(S3Encryption::Kms(key()))),
            ("aws:kms", Some(S3Encryption::Kms(key()))),
            ("DSSE-KMS", Some(S3Encryption::DsseKms(key()))),
            ("aws:kms:dsse", Some(S3Encryption::DsseKms(key()))),
            ("rot13", None),
        ] {
            let text = format!("ServerSideEncryption = \"{name}\"\nServerSideEncryptionKeyID = \"arn:key\"");
            assert_eq!(s3(&text).encryption, expected, "{name}");
        }
    }

    #[test]
    fn credentials_file_of_gcs_wins_over_the_key() {
        let gcs = |text: &str| match cache(&format!("Type = \"gcs\"\n[runners.cache.gcs]\nBucketName = \"b\"\n{text}"))
            .store
        {
            Some(CacheStoreSettings::Gcs(settings)) => settings.credentials,
            other => panic!("{text}: {other:?}"),
        };
        let pair = "AccessID = \"a@b\"\nPrivateKey = \"key\"\n";
        assert_eq!(gcs(""), GcsCredentials::Default);
        assert_eq!(gcs("AccessID = \"a@b\""), GcsCredentials::Default);
        let key = GcsCredentials::Key { account: "a@b".to_owned(), private_key: Secret::new("key") };
        assert_eq!(gcs(pair), key);
        assert_eq!(gcs(&format!("{pair}CredentialsFile = \"/k.json\"")), GcsCredentials::File("/k.json".into()));
    }

    #[test]
    fn stored_settings_are_read_again_and_debug_output_hides_the_key() {
        let key =
            "ServerAddress = \"minio:9000\"\nAccessKey = \"k\"\nSecretKey = \"s\"\nServerSideEncryption = \"KMS\"";
        let settings = cache(&format!("Type = \"s3\"\nShared = true\n[runners.cache.s3]\nBucketName = \"b\"\n{key}"));
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<CacheSettings>(&text).unwrap(), settings);
        assert!(!format!("{settings:?}").contains("\"s\""), "{settings:?}");
    }
}
