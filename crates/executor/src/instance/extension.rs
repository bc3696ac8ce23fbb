//! Forwards to the scaler the prices, stock and interruption notices of plugins that support Muster's protocol
//! extension.
//!
//! An offer is a type of machine that a plugin can create, with its price and its stock.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use muster_fleeting::extension::{Notice, Offer};
use muster_fleeting::model::{Features, InstanceId};
use muster_job::error_chain;
use muster_taskscaler::driver::Scaler;
use muster_taskscaler::types::GroupId;

use super::plugin_group::PluginGroup;

/// Interval for polling offers. The extension has no event for price changes.
const OFFERS_POLL_INTERVAL: Duration = Duration::from_secs(300);
/// Initial and maximum delay before offers and notices are requested again.
const RECONNECT_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const MICROS_PER_UNIT: f64 = 1_000_000.0;

/// Forwards all reports of the plugin to the scaler. Cancel-safe.
///
/// Returns when the plugin is dropped.
pub(super) async fn follow(plugin: Weak<PluginGroup>, scaler: Scaler, group: GroupId, runner: &str) {
    let features = || Some(plugin.upgrade()?.group().features());
    let report = |report| match report {
        Report::Interruption { instance, reason } => scaler.retire_instance(group, instance, reason),
        Report::Price(price) => scaler.set_price(group, price),
        Report::Stock(available) => scaler.set_stock(group, available),
    };
    repeat(features, |features| follow_once(&plugin, features.notices, group, runner, report), runner).await;
}

/// Calls `follow` whenever the plugin supports offers or notices, until `features` returns `None`.
async fn repeat<F: Future<Output = Result<(), String>>>(
    features: impl Fn() -> Option<Features>,
    follow: impl Fn(Features) -> F,
    runner: &str,
) {
    let mut wait = RECONNECT_BACKOFF.0;
    while let Some(features) = features() {
        if !features.offers && !features.notices {
            // The plugin may have failed to return its features, or a later version of it may support them.
            tokio::time::sleep(RECONNECT_BACKOFF.1).await;
            continue;
        }
        let began = tokio::time::Instant::now();
        if let Err(error) = follow(features).await {
            tracing::debug!(runner, error, "failed to receive offers or notices of the plugin, retrying");
        }
        if began.elapsed() > RECONNECT_BACKOFF.1 {
            wait = RECONNECT_BACKOFF.0;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RECONNECT_BACKOFF.1);
    }
}

/// A change that the scaler receives.
#[derive(Debug, PartialEq)]
enum Report {
    /// The provider will delete an instance.
    Interruption { instance: InstanceId, reason: String },
    /// Price of an instance per hour.
    Price(f64),
    /// Whether any offer is available.
    Stock(bool),
}

/// Forwards reports until the plugin's process ends or a call fails.
async fn follow_once(
    plugin: &Weak<PluginGroup>,
    has_notices: bool,
    group: GroupId,
    runner: &str,
    report: impl FnMut(Report),
) -> Result<(), String> {
    if !has_notices {
        return forward(None::<stream::Pending<Notice>>, || offers(plugin), group, runner, report).await;
    }
    // Subscribing first ensures that no change is missed while the offers are requested.
    let plugin_group = plugin.upgrade().ok_or_else(plugin_ended)?;
    let notices = plugin_group.group().notices().await.map_err(|error| error_chain(&error))?;
    drop(plugin_group);
    forward(Some(notices), || offers(plugin), group, runner, report).await
}

fn plugin_ended() -> String {
    "the plugin has ended".to_owned()
}

/// Polls `offers`, and receives `notices` if there are any.
async fn forward<F: Future<Output = Option<Result<Vec<Offer>, String>>>>(
    notices: Option<impl Stream<Item = Notice> + Send + Unpin>,
    offers: impl Fn() -> F,
    group: GroupId,
    runner: &str,
    mut report: impl FnMut(Report),
) -> Result<(), String> {
    let has_notices = notices.is_some();
    let mut notices = match notices {
        Some(notices) => notices.left_stream(),
        None => stream::pending().right_stream(),
    };
    let mut offer_table = OfferTable::default();
    loop {
        let poll_interval = match offers().await.ok_or_else(plugin_ended)? {
            Ok(offers) => {
                offer_table.set_offers(offers);
                OFFERS_POLL_INTERVAL
            }
            // Notices are not repeated, so another table would not have the offers that are out of stock.
            Err(error) if has_notices && !offer_table.offers.is_empty() => {
                tracing::debug!(runner, error, "failed to list the offers of the plugin, retrying");
                RECONNECT_BACKOFF.1
            }
            Err(error) => return Err(error),
        };
        offer_table.publish(group, runner, &mut report);
        let next_poll = tokio::time::sleep(poll_interval);
        tokio::pin!(next_poll);
        loop {
            tokio::select! {
                notice = notices.next() => match notice {
                    Some(Notice::Interruption { instance, at, reason }) => {
                        tracing::warn!(%instance, runner, at, reason, "interruption notice received; the instance gets no more jobs");
                        let reason = format!("the provider will interrupt it: {reason}");
                        report(Report::Interruption { instance, reason });
                    }
                    Some(Notice::StockChange { offer, available }) => {
                        offer_table.apply_notice(&offer, available);
                        offer_table.publish(group, runner, &mut report);
                    }
                    None => return Err(plugin_ended()),
                },
                () = &mut next_poll => break,
            }
        }
    }
}

/// Returns the offers of the plugin. Empty if the plugin does not support offers. `None` means that the plugin was
/// dropped.
async fn offers(plugin: &Weak<PluginGroup>) -> Option<Result<Vec<Offer>, String>> {
    let plugin = plugin.upgrade()?;
    let plugin_group = plugin.group();
    if !plugin_group.features().offers {
        return Some(Ok(Vec::new()));
    }
    Some(plugin_group.offers().await.map_err(|error| error_chain(&error)))
}

#[derive(Debug, Default)]
struct OfferTable {
    /// Availability and price per hour of each offer.
    offers: BTreeMap<String, (bool, Option<f64>)>,
    /// Price and availability that the scaler received last.
    published: Option<(Option<f64>, bool)>,
}

impl OfferTable {
    fn set_offers(&mut self, offers: Vec<Offer>) {
        if offers.is_empty() {
            return;
        }
        let price = |offer: &Offer| offer.price.as_ref().map(|price| price.micros_per_hour as f64 / MICROS_PER_UNIT);
        let before = std::mem::take(&mut self.offers);
        self.offers = offers
            .iter()
            .map(|offer| {
                // An offer can report 0 because this group uses all its machines. Only a notice means that the offer is
                // out of stock.
                let was_available = before.get(&offer.name).is_none_or(|(available, _)| *available);
                let available = was_available || offer.available.is_some_and(|count| count > 0);
                (offer.name.clone(), (available, price(offer)))
            })
            .collect();
    }

    fn apply_notice(&mut self, offer: &str, available: bool) {
        self.offers.entry(offer.to_owned()).or_insert((available, None)).0 = available;
    }

    /// Returns the price to budget with, and whether any offer is available.
    ///
    /// The price is the highest of the available offers, or of all offers if none is available, because the plugin does
    /// not report which offer the next instance uses. A group without offers is available.
    fn current(&self) -> (Option<f64>, bool) {
        let available = self.offers.is_empty() || self.offers.values().any(|(available, _)| *available);
        let prices = self.offers.values().filter(|(offered, _)| *offered || !available).filter_map(|(_, price)| *price);
        (prices.max_by(f64::total_cmp), available)
    }

    fn publish(&mut self, group: GroupId, runner: &str, report: &mut impl FnMut(Report)) {
        let current = self.current();
        if self.published.replace(current) == Some(current) {
            return;
        }
        if let (Some(price), _) = current {
            report(Report::Price(price));
        }
        if !current.1 {
            tracing::warn!(
                runner,
                group = group.0 + 1,
                "all offers of the group are out of stock; no instances are requested meanwhile"
            );
        }
        report(Report::Stock(current.1));
    }
}

#[cfg(test)]
mod tests {
    use muster_fleeting::extension::Price;

    use super::*;

    fn offer(name: &str, available: Option<u32>, micros_per_hour: u64) -> Offer {
        let price = Price { micros_per_hour, currency: "EUR".to_owned(), minimum: Duration::ZERO };
        Offer { name: name.to_owned(), available, price: Some(price), ..Offer::default() }
    }

    #[test]
    fn group_is_out_of_stock_if_no_offer_is_available() {
        let mut offer_table = OfferTable::default();
        assert_eq!(offer_table.current(), (None, true), "without offers");
        let offers = || vec![offer("a", None, 300_000), offer("b", Some(0), 100_000), offer("c", Some(2), 200_000)];
        offer_table.set_offers(offers());
        assert_eq!(offer_table.current(), (Some(0.3), true), "the price must be the highest of all offers");
        offer_table.apply_notice("a", false);
        assert_eq!(offer_table.current(), (Some(0.2), true), "the price must be the highest of the available offers");
        offer_table.apply_notice("b", false);
        offer_table.apply_notice("c", false);
        assert_eq!(offer_table.current(), (Some(0.3), false));
        offer_table.set_offers(offers());
        assert_eq!(offer_table.current(), (Some(0.2), true), "polling must correct a missed notice");
    }

    #[tokio::test(start_paused = true)]
    async fn plugin_is_followed_when_it_is_restarted_with_notices() {
        let none = Features::default();
        let queried = std::cell::RefCell::new(vec![Features { notices: true, ..none }, none, none]);
        let followed = std::cell::Cell::new(0);
        let follow = |features: Features| {
            followed.set(followed.get() + usize::from(features.notices));
            std::future::ready(Ok(()))
        };
        repeat(|| queried.borrow_mut().pop(), follow, "short").await;
        assert_eq!(followed.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn stock_out_is_remembered_after_a_failed_poll() {
        let sold_out = Notice::StockChange { offer: "a".to_owned(), available: false };
        let notices = stream::once(std::future::ready(sold_out)).chain(stream::pending());
        let polls = std::cell::Cell::new(0);
        let offers = || {
            polls.set(polls.get() + 1);
            let fails = polls.get() == 2;
            let answer = if fails { Err("overloaded".to_owned()) } else { Ok(vec![offer("a", Some(0), 300_000)]) };
            std::future::ready(Some(answer))
        };
        let mut reports = Vec::new();
        let forwarded = forward(Some(notices), offers, GroupId(0), "short", |report| reports.push(report));
        let ended = tokio::time::timeout(OFFERS_POLL_INTERVAL * 3, forwarded).await;
        assert!(ended.is_err(), "a failed poll must not interrupt the notices: {ended:?}");
        assert!(polls.get() >= 3, "{} polls", polls.get());
        let price = || Report::Price(0.3);
        assert_eq!(reports, [price(), Report::Stock(true), price(), Report::Stock(false)]);
    }
}
