//! Runs the steps that start services and the like beside an environment, while another step creates the environment.

use async_trait::async_trait;
use muster_agent_api::result::{StepNode, StepStatus};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Engine, Job, JobCancellation, StepsResult};
use crate::builtin::{BesideSteps, Step};
use crate::failure::Failure;
use crate::stop::StopToken;

pub(super) struct Beside<'a, J> {
    engine: &'a Engine<J>,
    steps: &'a [Step<J>],
    stop: &'a StopToken,
    nodes: Mutex<Vec<StepNode>>,
}

impl<'a, J: Job> Beside<'a, J> {
    pub(super) fn new(engine: &'a Engine<J>, steps: &'a [Step<J>], stop: &'a StopToken) -> Self {
        Self { engine, steps, stop, nodes: Mutex::default() }
    }

    pub(super) fn forget_nodes(&self) {
        self.nodes.lock().clear();
    }

    pub(super) fn into_nodes(self) -> Vec<StepNode> {
        self.nodes.into_inner()
    }
}

#[async_trait]
impl<J: Job> BesideSteps for Beside<'_, J> {
    async fn run(&self) -> Result<(), Failure> {
        // A cancel of the job stops `self.stop`, so these steps need no separate cancel token.
        let cancellation = JobCancellation { cancel: CancellationToken::new(), stop: self.stop.clone() };
        let StepsResult { failure, nodes } = self.engine.run(self.steps, &cancellation).await;
        self.nodes.lock().extend(nodes);
        failure.map_or(Ok(()), Err)
    }
}

/// Merges the nodes of what ran beside the environment (`ended`) into the nodes of the steps that started it.
///
/// Nodes with the same name are matched in order. Nodes of failed steps are skipped, because these steps started
/// nothing.
pub(super) fn complete(nodes: &mut [StepNode], ended: Vec<StepNode>) {
    let mut open: Vec<&mut StepNode> = nodes.iter_mut().filter(|node| node.status == StepStatus::Success).collect();
    for end in ended {
        if let Some(index) = open.iter().position(|node| node.name == end.name) {
            let StepNode { status, duration_ms, exit_code, message, .. } = end;
            let node = open.remove(index);
            (node.status, node.exit_code, node.message) = (status, exit_code, message);
            node.duration_ms = node.duration_ms.max(duration_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{StartTime, StepEnd};
    use crate::process::Usage;

    fn node(name: &str, failure: Option<&Failure>) -> StepNode {
        StartTime::now().node(name, StepEnd::from(failure), Usage::default(), Vec::new())
    }

    #[test]
    fn nodes_with_the_same_name_are_completed_in_order() {
        let [no_image, exited] = ["no image", "it exited"].map(|message| Failure::System(message.to_owned()));
        let mut nodes = ["service db", "other", "service db"].map(|name| node(name, None)).to_vec();
        nodes.insert(0, node("service db", Some(&no_image)));
        complete(&mut nodes, vec![node("service db", None), node("service db", Some(&exited)), node("unknown", None)]);
        let statuses: Vec<_> = nodes.iter().map(|node| (node.status, node.message.as_str())).collect();
        let success = (StepStatus::Success, "");
        let failure = |message| (StepStatus::Failure, message);
        assert_eq!(statuses, [failure("no image"), success, success, failure("it exited")]);
    }
}
