//! ID tokens: signed claims about a job, for other services (docs/spec/pipeline-yaml.md, section 1.2, `id_tokens`).
//!
//! Tokens are signed with ES256 and a key from the caller. Verifiers need [`Signer::public_key`].

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use muster_job::Variable;
use muster_pipeline::context::RefKind;
use muster_pipeline::layers;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::assignment::JobAssignment;

/// Seconds by which a token becomes valid before its creation, for verifiers with slow clocks.
const CLOCK_SKEW: i64 = 5;

/// Reason why a token could not be signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The key is invalid.
    #[error("invalid signing key, expected an ECDSA P-256 key in PKCS #8 format: {0}")]
    Key(String),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random,
}

/// Signs ID tokens.
pub struct Signer {
    pair: EcdsaKeyPair,
    key_id: String,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

impl Signer {
    /// Creates a new secret key for [`Signer::from_pkcs8`].
    ///
    /// # Errors
    /// [`SignError::Random`].
    pub fn new_key() -> Result<Vec<u8>, SignError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Ok(document.map_err(|_| SignError::Random)?.as_ref().to_vec())
    }

    /// Creates a signer with a key from [`Signer::new_key`].
    ///
    /// # Errors
    /// [`SignError::Key`].
    pub fn from_pkcs8(key: &[u8]) -> Result<Self, SignError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key, &SystemRandom::new())
            .map_err(|error| SignError::Key(error.to_string()))?;
        // The key ID is the thumbprint of RFC 7638: a digest of the key's members, ordered by name.
        let (x, y) = coordinates(&pair);
        let members = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        let key_id = URL_SAFE_NO_PAD.encode(Sha256::digest(members));
        Ok(Self { pair, key_id })
    }

    /// Returns the public key as a JSON Web Key.
    #[must_use]
    pub fn public_key(&self) -> Value {
        let (x, y) = coordinates(&self.pair);
        json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": self.key_id, "use": "sig", "alg": "ES256"})
    }

    /// Signs claims as a token.
    ///
    /// # Errors
    /// [`SignError::Random`].
    pub fn sign(&self, claims: &Claims) -> Result<String, SignError> {
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": self.key_id});
        let part = |value: &[u8]| URL_SAFE_NO_PAD.encode(value);
        let claims = Value::Object(claims.0.clone()).to_string();
        let text = format!("{}.{}", part(header.to_string().as_bytes()), part(claims.as_bytes()));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).map_err(|_| SignError::Random)?;
        Ok(format!("{text}.{}", part(signature.as_ref())))
    }
}

/// Returns both coordinates of the public point in Base64. The point has 65 bytes: a marker and two coordinates of 32 bytes.
fn coordinates(pair: &EcdsaKeyPair) -> (String, String) {
    let point = pair.public_key().as_ref();
    let coordinate = |from: usize| URL_SAFE_NO_PAD.encode(point.get(from..from + 32).unwrap_or_default());
    (coordinate(1), coordinate(33))
}

/// The claims of a token.
#[derive(Debug, Clone, PartialEq)]
pub struct Claims(Map<String, Value>);

impl Claims {
    /// Returns the claims about a job. A single audience is a string, several are a list. IDs are strings, as on GitLab.
    #[must_use]
    pub fn for_job(
        assignment: &JobAssignment<'_>,
        variables: &[Variable],
        audiences: &[String],
        lifetime: Duration,
    ) -> Self {
        let JobAssignment { job, context, project, git, .. } = assignment;
        let now = assignment.now.unix_timestamp();
        let is_tag = context.ref_kind == RefKind::Tag && !assignment.is_merge_request();
        let ref_type = if is_tag { "tag" } else { "branch" };
        let ref_name = &context.ref_name;
        let path = &project.path;
        let namespace = path.rsplit_once('/').map_or(path.as_str(), |(namespace, _)| namespace);
        let audience = match audiences {
            [one] => json!(one),
            several => json!(several),
        };
        let ref_path = match (is_tag, assignment.is_merge_request()) {
            (_, true) => ref_name.clone(),
            (true, _) => format!("refs/tags/{ref_name}"),
            (false, _) => format!("refs/heads/{ref_name}"),
        };
        let lifetime = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let mut claims = Map::new();
        let mut claim = |name: &str, value: Value| {
            claims.insert(name.to_owned(), value);
        };
        claim("iss", json!(assignment.server_url));
        claim("sub", json!(format!("project_path:{path}:ref_type:{ref_type}:ref:{ref_name}")));
        claim("aud", audience);
        claim("iat", json!(now));
        claim("nbf", json!(now.saturating_sub(CLOCK_SKEW)));
        claim("exp", json!(now.saturating_add(lifetime)));
        claim("jti", json!(uuid::Uuid::new_v4().to_string()));
        claim("namespace_id", json!(project.namespace_id.to_string()));
        claim("namespace_path", json!(namespace));
        claim("project_id", json!(project.id.to_string()));
        claim("project_path", json!(path));
        claim("pipeline_id", json!(assignment.pipeline_id.to_string()));
        claim("pipeline_source", json!(context.source.as_str()));
        claim("job_id", json!(assignment.job_id.to_string()));
        claim("ref", json!(ref_name));
        claim("ref_type", json!(ref_type));
        claim("ref_path", json!(ref_path));
        claim("ref_protected", json!(context.ref_protected.to_string()));
        claim("runner_environment", json!("self-hosted"));
        claim("sha", json!(git.sha));
        for (name, variable) in [
            ("user_id", "GITLAB_USER_ID"),
            ("user_login", "GITLAB_USER_LOGIN"),
            ("user_email", "GITLAB_USER_EMAIL"),
            ("runner_id", "CI_RUNNER_ID"),
            ("project_visibility", "CI_PROJECT_VISIBILITY"),
            ("deployment_tier", "CI_ENVIRONMENT_TIER"),
            ("environment_action", "CI_ENVIRONMENT_ACTION"),
        ] {
            if let Some(value) = layers::value(variables, variable) {
                claim(name, json!(value));
            }
        }
        if let Some(environment) = &job.environment {
            claim("environment", json!(environment.name));
        }
        Self(claims)
    }
}
