//! Types of Muster's optional extension of the protocol: prices, stock, interruption notices, resource usage, host keys
//! and job hooks.

use std::time::Duration;

use crate::model::{Features, InstanceId};
use crate::protocol::extension as wire;

/// One kind of machine in one zone under one contract.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Name of the offer, unique in the group.
    pub name: String,
    /// Zone of the provider.
    pub zone: String,
    /// Whether the provider may take the machine back.
    pub interruptible: bool,
    /// Number of further machines that are available now.
    /// `None` means unknown. 0 is not a stockout: this group may already have all machines of the offer.
    pub available: Option<u32>,
    /// Price of the machine. `None` means unknown.
    pub price: Option<Price>,
    /// Number of CPUs. 0 means unknown.
    pub cpus: u32,
    /// Memory in bytes. 0 means unknown.
    pub memory_bytes: u64,
}

/// Price of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Millionths of the currency per hour.
    pub micros_per_hour: u64,
    /// Currency code of ISO 4217, such as `EUR`.
    pub currency: String,
    /// Minimum time that is billed.
    pub minimum: Duration,
}

/// A notice that the provider sends without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The provider takes an instance back.
    Interruption {
        /// The instance.
        instance: InstanceId,
        /// Unix time in seconds of the interruption. `None` means unknown.
        at: Option<i64>,
        /// Reason as stated by the provider.
        reason: String,
    },
    /// An offer went out of stock, or is available again.
    StockChange {
        /// Name of the offer.
        offer: String,
        /// Whether the offer is available.
        available: bool,
    },
}

/// Current resource usage of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceUsage {
    /// The instance.
    pub instance: InstanceId,
    /// CPU time in seconds since the instance started.
    pub cpu_seconds: f64,
    /// Used memory in bytes.
    pub memory_bytes: u64,
    /// Memory limit in bytes. `None` means unknown or no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes.
    pub processes: u32,
}

impl From<Features> for wire::GetFeaturesResponse {
    fn from(features: Features) -> Self {
        let Features { offers, notices, resource_usage, host_keys, hooks } = features;
        Self { offers, notices, resource_usage, host_keys, hooks }
    }
}

impl From<wire::GetFeaturesResponse> for Features {
    fn from(wire: wire::GetFeaturesResponse) -> Self {
        let wire::GetFeaturesResponse { offers, notices, resource_usage, host_keys, hooks } = wire;
        Self { offers, notices, resource_usage, host_keys, hooks }
    }
}

impl From<Offer> for wire::Offer {
    fn from(offer: Offer) -> Self {
        let price = |price: Price| wire::Price {
            micros_per_hour: price.micros_per_hour,
            currency: price.currency,
            minimum_seconds: price.minimum.as_secs(),
        };
        Self {
            name: offer.name,
            zone: offer.zone,
            interruptible: offer.interruptible,
            available: offer.available,
            price: offer.price.map(price),
            cpus: offer.cpus,
            memory_bytes: offer.memory_bytes,
        }
    }
}

impl From<wire::Offer> for Offer {
    fn from(wire: wire::Offer) -> Self {
        let price = |price: wire::Price| Price {
            micros_per_hour: price.micros_per_hour,
            currency: price.currency,
            minimum: Duration::from_secs(price.minimum_seconds),
        };
        Self {
            name: wire.name,
            zone: wire.zone,
            interruptible: wire.interruptible,
            available: wire.available,
            price: wire.price.map(price),
            cpus: wire.cpus,
            memory_bytes: wire.memory_bytes,
        }
    }
}

impl From<Notice> for wire::Notice {
    fn from(notice: Notice) -> Self {
        let kind = match notice {
            Notice::Interruption { instance, at, reason } => wire::notice::Kind::Interruption(wire::Interruption {
                instance: instance.as_str().to_owned(),
                at: at.unwrap_or(0),
                reason,
            }),
            Notice::StockChange { offer, available } => {
                wire::notice::Kind::StockChange(wire::StockChange { offer, available })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl Notice {
    /// Returns `None` for a kind of notice that this version does not know.
    #[cfg(unix)]
    pub(crate) fn from_wire(wire: wire::Notice) -> Option<Self> {
        Some(match wire.kind? {
            wire::notice::Kind::Interruption(wire) => Self::Interruption {
                instance: InstanceId::new(wire.instance),
                at: Some(wire.at).filter(|at| *at > 0),
                reason: wire.reason,
            },
            wire::notice::Kind::StockChange(wire) => Self::StockChange { offer: wire.offer, available: wire.available },
        })
    }
}

impl From<ResourceUsage> for wire::ResourceUsage {
    fn from(usage: ResourceUsage) -> Self {
        Self {
            instance: usage.instance.as_str().to_owned(),
            cpu_seconds: usage.cpu_seconds,
            memory_bytes: usage.memory_bytes,
            memory_limit_bytes: usage.memory_limit_bytes,
            processes: usage.processes,
        }
    }
}

impl From<wire::ResourceUsage> for ResourceUsage {
    fn from(wire: wire::ResourceUsage) -> Self {
        Self {
            instance: InstanceId::new(wire.instance),
            cpu_seconds: wire.cpu_seconds,
            memory_bytes: wire.memory_bytes,
            memory_limit_bytes: wire.memory_limit_bytes,
            processes: wire.processes,
        }
    }
}
