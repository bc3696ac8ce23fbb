//! When instances are listed.

use std::time::Duration;

use super::Engine;
use super::group::{GroupState, Plugin};
use crate::decision::ScaleUpBlock;
use crate::event::Action;
use crate::time::{Now, Time};
use crate::types::GroupId;

/// The shortest pause between two lists, whatever is expected.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(50);
/// While an instance boots, a job waits at most this part of its boot time longer than it must.
const BOOT_TIME_FRACTION: u32 = 50;
/// Listing takes at most this part of the time, as long as the pause for it is no longer than the usual period: a list that
/// hangs for minutes says nothing about the next one, and what nobody lists is not seen.
const LIST_TIME_FRACTION: u32 = 10;
/// Who was refused a slot is thought to want one for so long; while somebody waits for one, each event says so again.
const RECENT_REFUSAL: Duration = Duration::from_secs(1);
/// A list that takes longer than this does not keep another from being made.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Lists under way at most.
const MAX_LISTS_IN_FLIGHT: usize = 3;

impl Engine {
    /// Lists the groups for which it is time.
    pub(super) fn list(&mut self, now: Now) {
        for id in (0..self.groups.len()).map(GroupId) {
            if self.next_list(id).is_none_or(|next| next > now.at) {
                continue;
            }
            let call = self.number();
            if let Some(group) = self.group_mut(id) {
                if group.list_schedule.under_way.len() >= MAX_LISTS_IN_FLIGHT {
                    group.list_schedule.under_way.pop_front();
                }
                group.list_schedule.under_way.push_back((call, now.at));
                group.list_schedule.last = Some(now.at);
                group.list_schedule.urgent = None;
                self.actions.push(Action::List { group: id, call });
            }
        }
    }

    /// When a group is listed next; none: not until something happens.
    fn next_list(&self, id: GroupId) -> Option<Time> {
        let group = self.group(id)?;
        if matches!(group.plugin, Plugin::Down { .. }) {
            return None;
        }
        let updates = &group.list_schedule;
        let Some(last) = updates.last else { return Some(Time::ZERO) };
        let stalled = updates.under_way.back().map(|(_, started)| *started + LIST_TIMEOUT);
        let least = last + MIN_LIST_INTERVAL.max((updates.cost * LIST_TIME_FRACTION).min(self.config.update_interval));
        let wanted = if updates.backoff.failures > 0 {
            updates.backoff.until
        } else {
            let period = last + self.period(id, group, last);
            updates.urgent.map_or(period, |urgent| urgent.min(period))
        };
        Some(wanted.max(least).max(stalled.unwrap_or(Time::ZERO)))
    }

    /// From one list to the next.
    fn period(&self, id: GroupId, group: &GroupState, last: Time) -> Duration {
        let expecting = self.config.update_interval_when_expecting;
        let arrivals = union(group.pending_request_times(), self.pool.arriving(id)).map(|span| (span, group.boot.fast));
        let removals = self.pool.removing(id).map(|span| (span, group.deletion.fast));
        let wants_job = self.last_refusal.is_some_and(|refused| last.since(refused) < RECENT_REFUSAL);
        let is_awaited = !self.queue.is_empty() || !self.resume_waiters.is_empty() || wants_job;
        let periods = [arrivals, removals].into_iter().flatten().map(|(span, typical)| match is_awaited {
            true => expected_news_in(last, span, typical).clamp(MIN_LIST_INTERVAL, expecting),
            false => expecting,
        });
        periods.min().unwrap_or(self.config.update_interval)
    }

    /// When time alone changes something in a group.
    pub(super) fn group_wakes(&self, now: Now, id: GroupId) -> Vec<Time> {
        let Some(group) = self.group(id) else { return Vec::new() };
        let expiry = group.next_expiry().filter(|expiry| *expiry > now.at);
        let mut wakes: Vec<Time> = self.next_list(id).into_iter().chain(expiry).collect();
        for (_, hold) in self.blocked_groups.iter().filter(|(held, _)| *held == id) {
            match hold {
                ScaleUpBlock::BackOff { .. } => {
                    let untils = [&group.creation, &group.readiness].map(|backoff| backoff.until);
                    wakes.extend(untils.into_iter().filter(|until| *until > now.at));
                }
                ScaleUpBlock::PartialGrant => wakes.push(group.partial_until),
                ScaleUpBlock::Throttled => {
                    let bucket = group.creation_bucket.as_ref().map_or(now.at, |bucket| bucket.next_token_at(now.at));
                    wakes.push(bucket.max(group.calls.next_token_at(now.at)));
                }
                _ => {}
            }
        }
        wakes
    }
}

/// When the first and the last of either began.
fn union(one: Option<(Time, Time)>, other: Option<(Time, Time)>) -> Option<(Time, Time)> {
    let (one, other) = (one.or(other)?, other.or(one)?);
    Some((one.0.min(other.0), one.1.max(other.1)))
}

/// From the last list to where news of changes may be expected that began within this span and typically take this long.
fn expected_news_in(last: Time, (oldest, youngest): (Time, Time), typical: Option<Duration>) -> Duration {
    match typical {
        // Nothing is done before this: the next list can wait for it.
        Some(typical) if last.since(oldest) < typical * 9 / 10 => (oldest + typical * 9 / 10).since(last),
        Some(typical) => typical.max(last.since(youngest)) / BOOT_TIME_FRACTION,
        None => last.since(youngest) / BOOT_TIME_FRACTION * 5,
    }
}
