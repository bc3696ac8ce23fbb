//! Extracts ID and token from an invalid or incomplete payload, to report the job as failed.

use std::fmt;

use muster_job::JobId;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

pub(super) struct JobCredentials {
    pub(super) id: JobId,
    pub(super) token: String,
}

impl JobCredentials {
    pub(super) fn checked(id: JobId, token: &str) -> Result<Self, String> {
        if id.0 <= 0 {
            return Err("the member `id` is not a positive number".to_owned());
        }
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the member `token` is empty or contains invalid characters".to_owned());
        }
        Ok(Self { id, token: token.to_owned() })
    }
}

#[derive(Default)]
pub(super) struct PartialPayload {
    pub(super) id: Option<JobId>,
    pub(super) token: Option<String>,
    pub(super) job_info: Value,
    pub(super) features: Value,
}

impl PartialPayload {
    pub(super) fn read(part: &[u8]) -> Self {
        let mut partial = Self::default();
        // Members before the error are kept.
        let _ = serde_json::Deserializer::from_slice(part).deserialize_map(Members(&mut partial));
        partial
    }
}

struct Members<'a>(&'a mut PartialPayload);

impl<'de> Visitor<'de> for Members<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a job")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            match name.as_str() {
                "id" => self.0.id = Some(members.next_value()?),
                "token" => self.0.token = Some(members.next_value()?),
                "job_info" => self.0.job_info = members.next_value()?,
                "features" => self.0.features = members.next_value()?,
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}
