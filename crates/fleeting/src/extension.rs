//! What a plugin may offer beside the protocol's own calls: prices, stock, interruption notices, resource use, host keys,
//! hooks. All of it is optional; a plugin without it is a plugin like any other (design: "additions are optional gRPC
//! services that the other side may lack").

use std::time::Duration;

use crate::model::{Features, InstanceId};
use crate::protocol::extension as wire;

/// One kind of machine, in one place, under one contract.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Its name: unique in the group.
    pub name: String,
    /// Where.
    pub zone: String,
    /// The provider may take it back.
    pub interruptible: bool,
    /// How many more can be had now; `None`: not known. 0 is no stock-out: the group may have them all.
    pub available: Option<u32>,
    /// What it costs; `None`: not known.
    pub price: Option<Price>,
    /// Processors; 0: not known.
    pub cpus: u32,
    /// Memory; 0: not known.
    pub memory_bytes: u64,
}

/// A price.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Millionths of the currency for an hour.
    pub micros_per_hour: u64,
    /// ISO 4217: `EUR`.
    pub currency: String,
    /// The shortest time that is paid.
    pub minimum: Duration,
}

/// What the provider tells by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// It takes an instance back.
    Interruption {
        /// Which.
        instance: InstanceId,
        /// Seconds since 1970, where it is known.
        at: Option<i64>,
        /// Its words.
        reason: String,
    },
    /// An offer went out of stock, or came back.
    Stock {
        /// The offer's name.
        offer: String,
        /// Whether it can be had.
        available: bool,
    },
}

/// What an instance uses.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// The instance.
    pub instance: InstanceId,
    /// Seconds of processors since its start.
    pub cpu_seconds: f64,
    /// Memory now.
    pub memory_bytes: u64,
    /// The most memory that it may use.
    pub memory_limit_bytes: Option<u64>,
    /// Processes now.
    pub processes: u32,
}

impl From<Features> for wire::DescribeResponse {
    fn from(features: Features) -> Self {
        let Features { offers, notices, resources, host_keys, hooks } = features;
        Self { offers, notices, resources, host_keys, hooks }
    }
}

impl From<wire::DescribeResponse> for Features {
    fn from(wire: wire::DescribeResponse) -> Self {
        let wire::DescribeResponse { offers, notices, resources, host_keys, hooks } = wire;
        Self { offers, notices, resources, host_keys, hooks }
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
            Notice::Stock { offer, available } => wire::notice::Kind::Stock(wire::Stock { offer, available }),
        };
        Self { kind: Some(kind) }
    }
}

impl Notice {
    /// `None`: a kind that a newer plugin knows.
    #[cfg(unix)]
    pub(crate) fn from_wire(wire: wire::Notice) -> Option<Self> {
        Some(match wire.kind? {
            wire::notice::Kind::Interruption(wire) => Self::Interruption {
                instance: InstanceId::new(wire.instance),
                at: Some(wire.at).filter(|at| *at > 0),
                reason: wire.reason,
            },
            wire::notice::Kind::Stock(wire) => Self::Stock { offer: wire.offer, available: wire.available },
        })
    }
}

impl From<Resources> for wire::Resources {
    fn from(resources: Resources) -> Self {
        Self {
            instance: resources.instance.as_str().to_owned(),
            cpu_seconds: resources.cpu_seconds,
            memory_bytes: resources.memory_bytes,
            memory_limit_bytes: resources.memory_limit_bytes,
            processes: resources.processes,
        }
    }
}

impl From<wire::Resources> for Resources {
    fn from(wire: wire::Resources) -> Self {
        Self {
            instance: InstanceId::new(wire.instance),
            cpu_seconds: wire.cpu_seconds,
            memory_bytes: wire.memory_bytes,
            memory_limit_bytes: wire.memory_limit_bytes,
            processes: wire.processes,
        }
    }
}
