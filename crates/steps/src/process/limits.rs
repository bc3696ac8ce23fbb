//! Operator's limits for the processes of the job's author, enforced by the kernel.
//!
//! ```text
//! CPU, memory   cgroup version 1: a cgroup for the job, inside the cgroup of the agent's process; version 2: the cgroup of the job.
//!               The cgroup of a rule is inside the cgroup of the rule for the calling step, so both limits apply
//! network       a network namespace for each process, with nothing but its own loopback interface
//! file size     RLIMIT_FSIZE
//! ```
//!
//! A process joins its cgroups and namespaces before it executes its program, so that no child can escape.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_job::StepLimits;

use super::cgroup::{AgentCgroup, Cgroup};
use super::spawn::{Namespaces, Restrictions, can_restrict};
use super::{Processes, procfs};

/// Period in which a CPU quota applies, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Name prefix of the version 2 cgroups of rules, to distinguish them from the cgroups of process sets, whose names
/// begin with a number.
const RULE_PREFIX: &str = "rule-";
/// Number in the name of the next cgroup of a rule.
static NEXT_RULE_CGROUP: AtomicU64 = AtomicU64::new(0);

tokio::task_local! {
    /// Positions of the rules that limit processes started now, outermost first. Has no value if no limits apply.
    static RULES: Vec<usize>;
}

/// Runs work whose processes have the limits of the job.
pub async fn run_limited<F: Future>(work: F) -> F::Output {
    RULES.scope(Vec::new(), work).await
}

/// Limit that the kernel does not permit on this machine.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No hierarchy of cgroups has the controller.
    #[error("no cgroups with the controller `{0}` are writable; mount them for the agent, or remove the limit")]
    NoController(&'static str),
    /// The cgroup cannot be created or changed.
    #[error("failed to write {}: {source}; run the agent as root or delegate a cgroup to it, or remove the limit", path.display())]
    Cgroup {
        /// File or directory in the cgroup file system.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A process without network access cannot be started.
    #[error(
        "failed to start a process without network: {0}; run the agent as root or permit user namespaces, or remove the limit"
    )]
    Network(#[source] io::Error),
}

#[derive(Debug, Default)]
pub(super) struct JobLimits {
    /// Limits of all processes of the author. `None` means no limits.
    all: Option<Arc<Limits>>,
    /// Limits of steps, by the positions of the rules for the step and the steps around it, outermost first.
    by_rules: HashMap<Vec<usize>, Arc<Limits>>,
    /// Sum of the kills that the cgroups of all limits had counted at the last call of
    /// [`Processes::has_new_oom_kills`].
    known_oom_kills: u64,
}

#[derive(Debug, Default)]
struct Limits {
    /// Outer limits, which also apply.
    outer: Option<Arc<Limits>>,
    /// Values of these limits, combined with the values of `outer`.
    values: StepLimits,
    /// Version 2 cgroup in which the processes start, inside the cgroup of `outer`. `None` means that the job has no
    /// such cgroup.
    unified: Option<Cgroup>,
    /// Version 1 cgroups that each process joins after the cgroups of `outer`.
    joined: Vec<AgentCgroup>,
    /// Cgroup with the CPU limit.
    cpu: Option<PathBuf>,
    /// Cgroup with the memory limit.
    memory: Option<PathBuf>,
    namespaces: Namespaces,
}

impl Limits {
    /// Prepares limits in addition to `outer`. `job` is the version 2 cgroup of the job.
    fn prepare(limits: &StepLimits, job: Option<&Cgroup>, outer: Option<Arc<Self>>) -> Result<Self, LimitError> {
        let limits_resources = limits.cpu_milli.is_some() || limits.memory_bytes.is_some();
        let parent = outer.as_ref().and_then(|outer| outer.unified.as_ref()).or(job);
        let unified = match (parent, &outer) {
            (Some(parent), Some(_)) if limits_resources => {
                let number = NEXT_RULE_CGROUP.fetch_add(1, Ordering::Relaxed);
                parent.create_child(&format!("{RULE_PREFIX}{number}"))
            }
            (parent, _) => parent.cloned(),
        };
        let mut prepared = Self {
            values: outer.as_ref().map_or_else(|| limits.clone(), |outer| limits.and(&outer.values)),
            cpu: outer.as_ref().and_then(|outer| outer.cpu.clone()),
            memory: outer.as_ref().and_then(|outer| outer.memory.clone()),
            namespaces: outer.as_ref().map_or(Namespaces::Shared, |outer| outer.namespaces),
            outer,
            unified,
            joined: Vec::new(),
        };
        let values = prepared.values.clone();
        if let Some(milli) = limits.cpu_milli.and(values.cpu_milli) {
            let quota = (u64::from(milli) * CPU_PERIOD_US / 1000).max(1000);
            let unified = [("cpu.max", format!("{quota} {CPU_PERIOD_US}"))];
            let version_1 = [("cpu.cfs_period_us", CPU_PERIOD_US.to_string()), ("cpu.cfs_quota_us", quota.to_string())];
            prepared.cpu = Some(prepared.apply("cpu", &unified, &version_1)?);
        }
        if let Some(bytes) = limits.memory_bytes.and(values.memory_bytes) {
            let (unified, version_1) =
                ([("memory.max", bytes.to_string())], [("memory.limit_in_bytes", bytes.to_string())]);
            let cgroup = prepared.apply("memory", &unified, &version_1)?;
            // These writes fail if the system does not count swap. Then swap is not limited.
            let _ = fs::write(cgroup.join("memory.swap.max"), "0");
            let _ = fs::write(cgroup.join("memory.memsw.limit_in_bytes"), bytes.to_string());
            prepared.memory = Some(cgroup);
        }
        if limits.no_network && prepared.namespaces == Namespaces::Shared {
            let possible = [Namespaces::Network, Namespaces::UserAndNetwork];
            let tried = possible.map(|namespaces| {
                can_restrict(&Restrictions { namespaces, ..Restrictions::default() }).map(|()| namespaces)
            });
            prepared.namespaces =
                tried.into_iter().reduce(Result::or).unwrap_or(Ok(Namespaces::Shared)).map_err(LimitError::Network)?;
        }
        Ok(prepared)
    }

    fn apply(
        &mut self,
        controller: &'static str,
        unified: &[(&str, String)],
        version_1: &[(&str, String)],
    ) -> Result<PathBuf, LimitError> {
        let write = |directory: &Path, values: &[(&str, String)]| {
            values.iter().try_for_each(|(name, value)| {
                let path = directory.join(name);
                fs::write(&path, value).map_err(|source| LimitError::Cgroup { path, source })
            })
        };
        let depth = successors(self.outer.as_ref(), |limits| limits.outer.as_ref()).count();
        if let Some(cgroup) = &self.unified
            && has_controller(cgroup, controller, depth)
        {
            write(cgroup.path(), unified)?;
            return Ok(cgroup.path().to_owned());
        }
        // A cgroup inside the outer cgroup has the limits of both.
        let outer = if controller == "cpu" { &self.cpu } else { &self.memory };
        let parent = match outer {
            Some(outer) => outer.clone(),
            None => version_1_parent(controller).ok_or(LimitError::NoController(controller))?,
        };
        let created = AgentCgroup::create(&parent);
        let cgroup = created.map_err(|source| LimitError::Cgroup { path: parent.clone(), source })?;
        let path = cgroup.path().to_owned();
        Cgroup::existing(&path).ok_or(LimitError::NoController(controller))?;
        self.joined.push(cgroup);
        write(&path, version_1)?;
        Ok(path)
    }

    /// Returns the restrictions that enforce the limits. A process joins the innermost cgroup last.
    fn restrictions(&self) -> io::Result<Restrictions> {
        let open = |cgroup: &AgentCgroup| File::options().write(true).open(cgroup.path().join("cgroup.procs"));
        let mut join = match &self.outer {
            Some(outer) => outer.restrictions()?.join,
            None => Vec::new(),
        };
        join.extend(self.joined.iter().map(open).collect::<io::Result<Vec<_>>>()?);
        Ok(Restrictions { join, namespaces: self.namespaces, file_bytes: self.values.file_bytes, open_files: None })
    }
}

/// Returns the number of processes that the kernel killed because of the memory limit of a cgroup.
fn oom_kill_count(cgroup: &Path) -> u64 {
    let files = ["memory.events", "memory.oom_control"].map(|name| fs::read_to_string(cgroup.join(name)));
    let text = files.into_iter().find_map(Result::ok).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

impl JobLimits {
    /// Prepares the limits of the last rule in `rules`, in addition to the limits of the other rules. Does nothing if
    /// they are prepared.
    fn prepare_rules(&mut self, rules: &[usize], limits: &StepLimits, job: Option<&Cgroup>) -> Result<(), LimitError> {
        if self.by_rules.contains_key(rules) {
            return Ok(());
        }
        let calling = rules.split_last().map_or(&[][..], |(_, calling)| calling);
        let outer = self.by_rules.get(calling).or(self.all.as_ref()).cloned();
        // The limits of a rule always have outer limits, which may be empty.
        let outer = outer.unwrap_or_default();
        self.by_rules.insert(rules.to_vec(), Arc::new(Limits::prepare(limits, job, Some(outer))?));
        Ok(())
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        self.joined.iter().for_each(|cgroup| cgroup.remove());
    }
}

impl Processes {
    /// Limits the processes that start later inside of [`run_limited`].
    ///
    /// # Errors
    /// [`LimitError`] if the kernel does not permit a limit. The job must then not start.
    pub fn set_limits(&self, limits: &StepLimits) -> Result<(), LimitError> {
        if !limits.is_empty() {
            self.limits.lock().all = Some(Arc::new(Limits::prepare(limits, self.cgroup.as_ref(), None)?));
        }
        Ok(())
    }

    /// Checks whether the kernel permits a rule's limits in addition to [`Processes::set_limits`].
    ///
    /// # Errors
    /// [`LimitError`]. The job must then not start.
    pub fn check_limits(&self, rule: usize, limits: &StepLimits) -> Result<(), LimitError> {
        self.limits.lock().prepare_rules(&[rule], limits, self.cgroup.as_ref())
    }

    /// Runs work with the limits of the rule at position `rule`, in addition to the current limits.
    ///
    /// # Errors
    /// [`LimitError`]. The work did not start.
    pub async fn run_limited_by_rule<F: Future>(
        &self,
        rule: usize,
        limits: &StepLimits,
        work: F,
    ) -> Result<F::Output, LimitError> {
        let mut rules = RULES.try_with(Clone::clone).unwrap_or_default();
        if !rules.contains(&rule) {
            rules.push(rule);
            self.limits.lock().prepare_rules(&rules, limits, self.cgroup.as_ref())?;
        }
        Ok(RULES.scope(rules, work).await)
    }

    /// Returns whether a process was killed because of a memory limit of the step policy since the previous call.
    #[must_use]
    pub fn has_new_oom_kills(&self) -> bool {
        let mut limits = self.limits.lock();
        let cgroups: BTreeSet<_> =
            limits.all.iter().chain(limits.by_rules.values()).filter_map(|limits| limits.memory.as_deref()).collect();
        let count: u64 = cgroups.into_iter().map(oom_kill_count).sum();
        count > std::mem::replace(&mut limits.known_oom_kills, count)
    }

    /// Returns whether the current limits deny network access to a process started now.
    #[must_use]
    pub fn have_no_network_now(&self) -> bool {
        self.current_limits().is_some_and(|limits| limits.values.no_network)
    }

    fn current_limits(&self) -> Option<Arc<Limits>> {
        let rules = RULES.try_with(Clone::clone).ok()?;
        let limits = self.limits.lock();
        limits.by_rules.get(&rules).or(limits.all.as_ref()).cloned()
    }

    /// Returns the version 2 cgroup and the restrictions for a process started now. `None` means that no version 2
    /// cgroup limits the process.
    pub(super) fn limits_now(&self) -> io::Result<(Option<Cgroup>, Restrictions)> {
        match self.current_limits() {
            Some(limits) => Ok((limits.unified.clone(), limits.restrictions()?)),
            None => Ok((None, Restrictions::default())),
        }
    }
}

/// Returns whether a version 2 cgroup has a controller. Tries to enable a missing controller. `depth` is the number of
/// limits around the cgroup.
fn has_controller(cgroup: &Cgroup, controller: &str, depth: usize) -> bool {
    let is_listed = || {
        let listed = fs::read_to_string(cgroup.path().join("cgroup.controllers")).unwrap_or_default();
        listed.split_whitespace().any(|listed| listed == controller)
    };
    if !is_listed() {
        // The kernel refuses if the parent contains processes or lacks the controller.
        let above = cgroup.path().ancestors().skip(1).take(2 + depth);
        for directory in above.collect::<Vec<_>>().into_iter().rev() {
            let _ = fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
        }
    }
    is_listed()
}

fn version_1_parent(controller: &str) -> Option<PathBuf> {
    let mountinfo = procfs::read("/proc/self/mountinfo").ok()?;
    let (root, mount) = mountinfo.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        let mut rest = rest.split(' ');
        let is_version_1 = rest.next() == Some("cgroup");
        let has_controller = rest.nth(1)?.split(',').any(|option| option == controller);
        let mut fields = fields.split(' ').skip(3);
        (is_version_1 && has_controller).then(|| Some((fields.next()?, fields.next()?))).flatten()
    })?;
    let own = procfs::read("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })?;
    // The mount may show only a part of the hierarchy, such as that of a container.
    let own = own.strip_prefix(root.trim_end_matches('/')).unwrap_or(own);
    let path = Path::new(mount).join(own.trim_start_matches('/'));
    Some(if path.is_dir() { path } else { PathBuf::from(mount) })
}
