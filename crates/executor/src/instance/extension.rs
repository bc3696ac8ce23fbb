//! Forwards prices, stock and interruption notices from plugins that implement Muster's protocol extension.
//!
//! Plugins without the extension work, too: the scaler then uses the configured price and gets no notices.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use futures::StreamExt as _;
use muster_fleeting::extension::{Notice, Offer};
use muster_job::error_chain;
use muster_taskscaler::driver::Scaler;
use muster_taskscaler::types::GroupId;

use super::plugin_group::PluginGroup;

/// Interval for polling offers. The extension has no event for price changes.
const OFFERS_EVERY: Duration = Duration::from_secs(300);
/// Initial and maximum delay before the connection for notices is opened again.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const MICROS: f64 = 1_000_000.0;

/// Forwards everything that the plugin reports to the scaler, until the plugin is dropped. Cancel-safe.
pub(super) async fn follow(plugin: Weak<PluginGroup>, scaler: Scaler, of: GroupId, runner: &str) {
    let mut wait = AGAIN.0;
    loop {
        let features = match plugin.upgrade() {
            Some(plugin) => plugin.group().features(),
            None => return,
        };
        if !features.offers && !features.notices {
            return;
        }
        let began = tokio::time::Instant::now();
        if let Err(error) = follow_once(&plugin, &scaler, of, runner, features.notices).await {
            tracing::debug!(runner, error, "the plugin's notices are not heard for now");
        }
        if began.elapsed() > AGAIN.1 {
            wait = AGAIN.0;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(AGAIN.1);
    }
}

/// Forwards reports until the plugin's process ends.
async fn follow_once(
    plugin: &Weak<PluginGroup>,
    scaler: &Scaler,
    of: GroupId,
    runner: &str,
    has_notices: bool,
) -> Result<(), String> {
    let gone = || "the plugin has ended".to_owned();
    // Subscribe to notices first, so that no change is missed while the offers are requested.
    let mut notices = if has_notices {
        let plugin = plugin.upgrade().ok_or_else(gone)?;
        let notices = plugin.group().notices().await.map_err(|error| error_chain(&error))?;
        notices.boxed()
    } else {
        futures::stream::pending().boxed()
    };
    let mut market = Market::default();
    loop {
        market.restock(offers(plugin).await.ok_or_else(gone)??);
        market.tell(scaler, of, runner);
        let look_again = tokio::time::sleep(OFFERS_EVERY);
        tokio::pin!(look_again);
        loop {
            tokio::select! {
                notice = notices.next() => match notice {
                    Some(Notice::Interruption { instance, at, reason }) => {
                        tracing::warn!(%instance, runner, at, reason, "the provider takes an instance back: it gets no more jobs");
                        scaler.retire_instance(of, instance, format!("the provider takes it back: {reason}"));
                    }
                    Some(Notice::StockChange { offer, available }) => {
                        market.heard(&offer, available);
                        market.tell(scaler, of, runner);
                    }
                    None => return Err(gone()),
                },
                () = &mut look_again => break,
            }
        }
    }
}

/// Returns the offers of the plugin, without any if it does not support them. `None` means that the plugin was dropped.
async fn offers(plugin: &Weak<PluginGroup>) -> Option<Result<Vec<Offer>, String>> {
    let plugin = plugin.upgrade()?;
    let group = plugin.group();
    if !group.features().offers {
        return Some(Ok(Vec::new()));
    }
    Some(group.offers().await.map_err(|error| error_chain(&error)))
}

/// Offers of a group, which can consist of several types of machines.
#[derive(Debug, Default)]
struct Market {
    /// Availability and price per hour of each offer, by name.
    offers: BTreeMap<String, (bool, Option<f64>)>,
    /// Price and availability that the scaler received last.
    told: Option<(Option<f64>, bool)>,
}

impl Market {
    fn restock(&mut self, offers: Vec<Offer>) {
        if offers.is_empty() {
            return;
        }
        let price = |offer: &Offer| offer.price.as_ref().map(|price| price.micros_per_hour as f64 / MICROS);
        let before = std::mem::take(&mut self.offers);
        self.offers = offers
            .iter()
            .map(|offer| {
                // No machine may be left because this group has them all. Only a notice means that the offer is out of stock.
                let heard = before.get(&offer.name).is_none_or(|(available, _)| *available);
                let available = heard || offer.available.is_some_and(|left| left > 0);
                (offer.name.clone(), (available, price(offer)))
            })
            .collect();
    }

    fn heard(&mut self, offer: &str, available: bool) {
        self.offers.entry(offer.to_owned()).or_insert((available, None)).0 = available;
    }

    /// Returns the price to budget with, and whether any offer is available.
    ///
    /// The price is the highest among the available offers, or among all offers if none is available: the plugin does not say which offer
    /// the next instance uses, and `max_cost_per_hour` must hold for any of them. Without offers the group counts as available.
    fn now(&self) -> (Option<f64>, bool) {
        let available = self.offers.is_empty() || self.offers.values().any(|(available, _)| *available);
        let prices = self.offers.values().filter(|(is, _)| *is || !available).filter_map(|(_, price)| *price);
        (prices.max_by(f64::total_cmp), available)
    }

    fn tell(&mut self, scaler: &Scaler, of: GroupId, runner: &str) {
        let now = self.now();
        if self.told.replace(now) == Some(now) {
            return;
        }
        if let (Some(price), _) = now {
            scaler.set_price(of, price);
        }
        if !now.1 {
            tracing::warn!(
                runner,
                group = of.0 + 1,
                "the plugin has nothing in stock: no instances are asked for until it has"
            );
        }
        scaler.set_stock(of, now.1);
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
    fn a_group_is_out_of_stock_when_nothing_of_it_can_be_had() {
        let mut market = Market::default();
        assert_eq!(market.now(), (None, true), "nobody says");
        let offers = || vec![offer("a", None, 300_000), offer("b", Some(0), 100_000), offer("c", Some(2), 200_000)];
        market.restock(offers());
        assert_eq!(market.now(), (Some(0.3), true), "none left, and not out of stock");
        market.heard("a", false);
        assert_eq!(market.now(), (Some(0.2), true), "the dearest that can be had");
        market.heard("b", false);
        market.heard("c", false);
        assert_eq!(market.now(), (Some(0.3), false));
        market.restock(offers());
        assert_eq!(market.now(), (Some(0.2), true), "a notice that was missed is made good");
    }
}
