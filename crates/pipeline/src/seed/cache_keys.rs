//! Computes cache keys that depend on files (docs/spec/pipeline-yaml.md, section 6).

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use sha1::{Digest as _, Sha1};

use crate::conditions::clauses::Clauses;
use crate::config::cache::{CacheEntry, CacheKey};
use crate::model::Cache;

/// Replaces the digest in a key if none of its files exists.
const DIGEST_WITHOUT_FILES: &str = "default";

#[derive(Debug, Default)]
pub(crate) struct CacheKeys {
    /// Digests by the paths of their files. The flag is true if the digest is of commit IDs, and false if it is of blob
    /// IDs.
    digests: HashMap<(Vec<String>, bool), String>,
}

impl CacheKeys {
    pub(crate) fn caches(&mut self, entries: &[CacheEntry], clauses: &Clauses<'_>) -> Vec<Cache> {
        entries.iter().enumerate().map(|(index, entry)| self.cache(index, entry, clauses)).collect()
    }

    fn cache(&mut self, index: usize, entry: &CacheEntry, clauses: &Clauses<'_>) -> Cache {
        let key = match &entry.key {
            CacheKey::Text(text) => text.clone(),
            CacheKey::Files { files, by_commit, prefix } => {
                let digest = self.digest(files, *by_commit, clauses);
                let prefix = prefix.clone().unwrap_or_else(|| default_prefix(index, files));
                format!("{prefix}-{digest}")
            }
        };
        Cache {
            key,
            paths: entry.paths.clone(),
            untracked: entry.untracked,
            when: entry.when.clone(),
            policy: entry.policy.clone(),
            unprotect: entry.unprotect,
            fallback_keys: entry.fallback_keys.clone(),
        }
    }

    fn digest(&mut self, files: &[String], by_commit: bool, clauses: &Clauses<'_>) -> String {
        let key = (files.to_vec(), by_commit);
        if let Some(known) = self.digests.get(&key) {
            return known.clone();
        }
        let paths: BTreeSet<String> = files.iter().flat_map(|pattern| clauses.matching_paths(pattern)).collect();
        let paths: Vec<String> = paths.into_iter().collect();
        let ids: BTreeSet<String> = clauses.sources().object_ids(&paths, by_commit).into_iter().collect();
        let digest = if ids.is_empty() { DIGEST_WITHOUT_FILES.to_owned() } else { sha1_of(&ids) };
        self.digests.insert(key, digest.clone());
        digest
    }
}

fn sha1_of(ids: &BTreeSet<String>) -> String {
    let joined = ids.iter().map(String::as_str).collect::<Vec<_>>().join("-");
    Sha1::digest(joined).iter().fold(String::with_capacity(40), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the prefix of a key that sets no `prefix`, such as `0_Gemfile_package` for the first cache with
/// `[Gemfile.lock, package.json]`.
fn default_prefix(index: usize, files: &[String]) -> String {
    let names = files.iter().map(|file| {
        let base = file.rsplit('/').next().unwrap_or(file);
        base.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map_or(base, |(stem, _)| stem)
    });
    std::iter::once(index.to_string()).chain(names.map(str::to_owned)).collect::<Vec<_>>().join("_")
}
