//! The variables that a bridge forwards to the pipeline that it starts (docs/spec/pipeline-yaml.md, section 5.9).

use muster_job::{PipelineId, Variable};
use muster_pipeline::context::Context;
use muster_pipeline::expand::{self, ByteBudget, Unknown};
use muster_pipeline::layers;
use muster_pipeline::model::{Bridge, Job};

use super::{from_dotenv, rule_variables};

/// Returns the pipeline variables of the pipeline that `bridge` starts.
///
/// These are the bridge's YAML variables and the pipeline variables of its own pipeline, depending on `trigger:forward`. `dotenv` holds
/// the variables that the bridge gets from its needs. They are forwarded with the pipeline variables.
///
/// References in YAML and pipeline variables are expanded here, except in raw variables. Unknown references become
/// empty, and so do all references after values of [`expand::MAX_TOTAL_BYTES`] in total have been inserted. A value can
/// refer to the ID of the bridge's pipeline (`pipeline`), but not to variables that only a job on a runner has.
#[must_use]
pub fn forwarded(
    context: &Context,
    job: &Job,
    bridge: &Bridge,
    pipeline: PipelineId,
    dotenv: &[(String, String)],
) -> Vec<Variable> {
    let dotenv: Vec<Variable> = dotenv.iter().map(|(key, value)| from_dotenv(key, value)).collect();
    let pipeline_id = vec![Variable::public("CI_PIPELINE_ID", pipeline.to_string())];
    let mut known = layers::merge([pipeline_id, rule_variables(context, job), dotenv.clone()]);
    expand::expand_all(&mut known);
    let budget = ByteBudget::new(expand::MAX_TOTAL_BYTES);
    // References to file and raw variables are kept. The new pipeline expands them.
    let lookup = |name: &str| {
        let variable = known.iter().rfind(|variable| variable.key == name)?;
        if variable.file || variable.raw {
            return Some(format!("${{{name}}}"));
        }
        budget.spend(variable.value.len()).then(|| variable.value.clone())
    };
    let resolve = |variable: &Variable| {
        if variable.raw {
            return variable.clone();
        }
        Variable { value: expand::expand_text(&variable.value, &lookup, Unknown::Empty), ..variable.clone() }
    };
    let yaml = if bridge.forward_yaml_variables { job.variables.iter().map(resolve).collect() } else { Vec::new() };
    let (dotenv, pipeline_variables) = if bridge.forward_pipeline_variables {
        (dotenv, context.pipeline_variables.iter().map(resolve).collect())
    } else {
        (Vec::new(), Vec::new())
    };
    layers::merge([yaml, dotenv, pipeline_variables])
}
