//! What a bridge hands to the pipeline that it starts (pipeline-yaml 5.9).

use muster_job::{PipelineId, Variable};
use muster_pipeline::context::Context;
use muster_pipeline::expand::{self, Unknown};
use muster_pipeline::layers;
use muster_pipeline::model::{Bridge, Job};

use super::{from_dotenv, rule_variables};

/// The pipeline variables of the pipeline that `bridge` starts: the bridge's YAML variables and the pipeline variables
/// of its own pipeline, as `trigger:forward` says.
///
/// References are resolved here, where their values are known; unknown ones become empty. A value may refer to the
/// pipeline's id, but not to anything that only a job on a runner has. `dotenv` is what the bridge gets from its needs;
/// it goes along with the pipeline variables.
#[must_use]
pub fn forwarded(
    context: &Context,
    job: &Job,
    bridge: &Bridge,
    pipeline: PipelineId,
    dotenv: &[(String, String)],
) -> Vec<Variable> {
    let dotenv: Vec<Variable> = dotenv.iter().map(|(key, value)| from_dotenv(key, value)).collect();
    let own = vec![Variable::public("CI_PIPELINE_ID", pipeline.to_string())];
    let mut known = layers::merge([own, rule_variables(context, job), dotenv.clone()]);
    expand::expand_all(&mut known);
    // The content of file and raw variables goes into no other; the started pipeline has them under the same name.
    let lookup = |name: &str| {
        let variable = known.iter().rfind(|variable| variable.key == name)?;
        Some(if variable.file || variable.raw { format!("${{{name}}}") } else { variable.value.clone() })
    };
    let resolve = |variable: &Variable| {
        if variable.raw {
            return variable.clone();
        }
        Variable { value: expand::expand_text(&variable.value, &lookup, Unknown::Empty), ..variable.clone() }
    };
    let yaml = if bridge.forward_yaml_variables { job.variables.iter().map(resolve).collect() } else { Vec::new() };
    let (dotenv, run) = if bridge.forward_pipeline_variables {
        (dotenv, context.pipeline_variables.iter().map(resolve).collect())
    } else {
        (Vec::new(), Vec::new())
    };
    layers::merge([yaml, dotenv, run])
}
