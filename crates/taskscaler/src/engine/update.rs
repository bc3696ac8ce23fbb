//! When instances are listed.

use std::time::Duration;

use super::Engine;
use super::group::{Group, Plugin};
use crate::decision::Hold;
use crate::event::Action;
use crate::time::{Now, Time};
use crate::words::GroupId;

/// The shortest pause between two lists, whatever is expected.
const SHORTEST: Duration = Duration::from_millis(50);
/// While an instance boots, a job waits at most this part of its boot time longer than it must.
const PART_OF_BOOT: u32 = 50;
/// Listing takes at most this part of the time, as long as the pause for it is no longer than the usual period: a list that
/// hangs for minutes says nothing about the next one, and what nobody lists is not seen.
const PART_OF_TIME: u32 = 10;
/// Who was refused a slot is thought to want one for so long; while somebody waits for one, each event says so again.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// A list that takes longer than this does not keep another from being made.
const STALLED: Duration = Duration::from_secs(30);
/// Lists under way at most.
const UNDER_WAY_MAX: usize = 3;

impl Engine {
    /// Lists the groups for which it is time.
    pub(super) fn list(&mut self, now: Now) {
        for id in (0..self.groups.len()).map(GroupId) {
            if self.next_update(id).is_none_or(|next| next > now.at) {
                continue;
            }
            let call = self.number();
            if let Some(group) = self.group_mut(id) {
                if group.updates.under_way.len() >= UNDER_WAY_MAX {
                    group.updates.under_way.pop_front();
                }
                group.updates.under_way.push_back((call, now.at));
                group.updates.last = Some(now.at);
                group.updates.urgent = None;
                self.actions.push(Action::Update { group: id, call });
            }
        }
    }

    /// When a group is listed next; none: not until something happens.
    fn next_update(&self, id: GroupId) -> Option<Time> {
        let group = self.group(id)?;
        if matches!(group.plugin, Plugin::Down { .. }) {
            return None;
        }
        let updates = &group.updates;
        let Some(last) = updates.last else { return Some(Time::ZERO) };
        let stalled = updates.under_way.back().map(|(_, started)| *started + STALLED);
        let least = last + SHORTEST.max((updates.cost * PART_OF_TIME).min(self.config.update_interval));
        let wanted = if updates.backoff.failures > 0 {
            updates.backoff.until
        } else {
            let period = last + self.period(id, group, last);
            updates.urgent.map_or(period, |urgent| urgent.min(period))
        };
        Some(wanted.max(least).max(stalled.unwrap_or(Time::ZERO)))
    }

    /// From one list to the next.
    fn period(&self, id: GroupId, group: &Group, last: Time) -> Duration {
        let expecting = self.config.update_interval_when_expecting;
        let arrivals = joined(group.asked(), self.pool.arriving(id)).map(|span| (span, group.boot.fast));
        let removals = self.pool.removing(id).map(|span| (span, group.deletion.fast));
        let wants_job = self.refused.is_some_and(|refused| last.since(refused) < REFUSED_FOR);
        let is_awaited = !self.queue.is_empty() || !self.wakers.is_empty() || wants_job;
        let periods = [arrivals, removals].into_iter().flatten().map(|(span, typical)| match is_awaited {
            true => until_news(last, span, typical).clamp(SHORTEST, expecting),
            false => expecting,
        });
        periods.min().unwrap_or(self.config.update_interval)
    }

    /// When time alone changes something in a group.
    pub(super) fn group_wakes(&self, now: Now, id: GroupId) -> Vec<Time> {
        let Some(group) = self.group(id) else { return Vec::new() };
        let expiry = group.next_expiry().filter(|expiry| *expiry > now.at);
        let mut wakes: Vec<Time> = self.next_update(id).into_iter().chain(expiry).collect();
        for (_, hold) in self.held.iter().filter(|(held, _)| *held == id) {
            match hold {
                Hold::BackOff { .. } => {
                    let untils = [&group.creation, &group.readiness].map(|backoff| backoff.until);
                    wakes.extend(untils.into_iter().filter(|until| *until > now.at));
                }
                Hold::Short => wakes.push(group.short_until),
                Hold::Throttled => {
                    let bucket = group.bucket.as_ref().map_or(now.at, |bucket| bucket.next(now.at));
                    wakes.push(bucket.max(group.calls.next(now.at)));
                }
                _ => {}
            }
        }
        wakes
    }
}

/// When the first and the last of either began.
fn joined(one: Option<(Time, Time)>, other: Option<(Time, Time)>) -> Option<(Time, Time)> {
    let (one, other) = (one.or(other)?, other.or(one)?);
    Some((one.0.min(other.0), one.1.max(other.1)))
}

/// From the last list to where news of changes may be expected that began within this span and typically take this long.
fn until_news(last: Time, (oldest, youngest): (Time, Time), typical: Option<Duration>) -> Duration {
    match typical {
        // Nothing is done before this: the next list can wait for it.
        Some(typical) if last.since(oldest) < typical * 9 / 10 => (oldest + typical * 9 / 10).since(last),
        Some(typical) => typical.max(last.since(youngest)) / PART_OF_BOOT,
        None => last.since(youngest) / PART_OF_BOOT * 5,
    }
}
