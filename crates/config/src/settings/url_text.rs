//! Serializes a URL as text.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use url::Url;

pub(super) fn serialize<S: Serializer>(url: &Url, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(url.as_str())
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Url, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
