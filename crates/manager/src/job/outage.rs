//! Whether an instance is silent, or this manager's own network: where of several instances none answers, it is taken
//! for the network, and what runs there is waited for much longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long instances are kept that are all silent. After this they are as lost as a single one is.
const OUTAGE_MAX: Duration = Duration::from_secs(600);

/// Which instances with jobs answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answering(Arc<Mutex<HashMap<String, Jobs>>>);

/// The jobs of one instance.
#[derive(Debug, Default)]
struct Jobs {
    all: usize,
    /// Those whose connection stands.
    connected: usize,
}

impl Answering {
    /// One more job that is followed on an instance, by its name.
    pub(super) fn job_on(&self, instance: &str) -> Line {
        self.0.lock().entry(instance.to_owned()).or_default().all += 1;
        Line { of: self.clone(), instance: instance.to_owned(), connected: false, outage: Outage::None }
    }
}

/// Where an instance stands that has been silent for too long.
#[derive(Debug, Clone, Copy)]
enum Outage {
    /// It is not.
    None,
    /// So were all others then.
    Since(Instant),
    /// Others answer again: it has one more chance.
    Over,
}

/// What is known of one job's connection to its instance.
#[derive(Debug)]
pub(super) struct Line {
    of: Answering,
    instance: String,
    connected: bool,
    outage: Outage,
}

impl Line {
    /// The connection stands, or is broken.
    pub(super) fn set(&mut self, connected: bool) {
        let mut jobs = self.of.0.lock();
        match jobs.get_mut(&self.instance) {
            Some(jobs) if connected && !self.connected => jobs.connected += 1,
            Some(jobs) if !connected && self.connected => jobs.connected -= 1,
            _ => {}
        }
        self.connected = connected;
        if connected {
            self.outage = Outage::None;
        }
    }

    /// The instance was silent for too long: whether it is to be given more time.
    pub(super) fn has_more_time(&mut self) -> bool {
        let (mut others, mut answer) = (0, 0);
        for (instance, jobs) in self.of.0.lock().iter().filter(|(instance, _)| **instance != self.instance) {
            tracing::trace!(instance, ?jobs, "another instance");
            others += 1;
            answer += usize::from(jobs.connected > 0);
        }
        self.outage = match self.outage {
            Outage::None if others == 0 || answer > 0 => return false,
            Outage::None => {
                tracing::warn!(
                    instance = self.instance,
                    "no instance answers: that is taken for an outage of this manager's own network; their jobs are kept for up to {} s",
                    OUTAGE_MAX.as_secs()
                );
                Outage::Since(Instant::now())
            }
            Outage::Since(since) if since.elapsed() >= OUTAGE_MAX => return false,
            Outage::Since(_) if answer > 0 => Outage::Over,
            Outage::Since(since) => Outage::Since(since),
            Outage::Over => return false,
        };
        true
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.set(false);
        let mut jobs = self.of.0.lock();
        if let Some(on) = jobs.get_mut(&self.instance) {
            on.all -= 1;
            if on.all == 0 {
                jobs.remove(&self.instance);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_that_is_silent_alone_has_no_more_time() {
        let answering = Answering::default();
        let mut silent = [answering.job_on("i-1"), answering.job_on("i-1")];
        assert!(silent.iter_mut().all(|line| !line.has_more_time()), "its own other job says nothing of the network");
        let mut other = answering.job_on("i-2");
        other.set(true);
        assert!(silent.iter_mut().all(|line| !line.has_more_time()));
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_are_silent_they_are_waited_for_and_the_others_have_one_more_chance_once_one_answers() {
        let answering = Answering::default();
        let (mut one, mut two, mut three) = (answering.job_on("i-1"), answering.job_on("i-2"), answering.job_on("i-3"));
        for line in [&mut one, &mut two, &mut three] {
            line.set(true);
            line.set(false);
        }
        assert!(one.has_more_time() && two.has_more_time() && three.has_more_time());
        tokio::time::advance(OUTAGE_MAX / 2).await;
        assert!(one.has_more_time());
        two.set(true);
        assert!(one.has_more_time());
        assert!(!one.has_more_time(), "it is silent alone now");
        tokio::time::advance(OUTAGE_MAX / 2).await;
        drop(two);
        assert!(!three.has_more_time(), "no outage lasts for ever");
    }
}
