//! The `id_tokens` and `secrets` keywords: masked variables of the job.

use std::time::Duration;

use muster_job::Variable;
use muster_pipeline::expand::{self, ByteBudget, Unknown};
use muster_pipeline::layers;
use muster_pipeline::model::ScriptWork;
use serde_json::Value;

use super::{PayloadError, PayloadInput};
use crate::jwt::Claims;

const TOKEN_SLACK: Duration = Duration::from_secs(5 * 60);

/// Returns the ID tokens of a job as variables. Variables in the audiences of the tokens are expanded, up to
/// [`expand::MAX_TOTAL_BYTES`] in total.
pub(super) fn id_tokens(input: &PayloadInput<'_>, work: &ScriptWork) -> Result<Vec<Variable>, PayloadError> {
    let budget = ByteBudget::new(expand::MAX_TOTAL_BYTES);
    let lookup = |name: &str| {
        let value = layers::value(input.variables, name)?;
        budget.spend(value.len()).then(|| value.to_owned())
    };
    work.id_tokens
        .iter()
        .map(|(name, audiences)| {
            let audiences: Vec<String> =
                audiences.iter().map(|audience| expand::expand_text(audience, &lookup, Unknown::Keep)).collect();
            let claims = Claims::for_job(
                &input.assignment,
                input.variables,
                &audiences,
                input.timeout.saturating_add(TOKEN_SLACK),
            );
            let token = input.signer.sign(&claims).map_err(|source| PayloadError::IdToken {
                job: input.assignment.job.name.clone(),
                token: name.clone(),
                source,
            })?;
            Ok(Variable::secret(name, token))
        })
        .collect()
}

/// Returns the secrets of a job as variables. They are file variables, except secrets with `file: false`.
pub(super) fn secret_variables(input: &PayloadInput<'_>, work: &ScriptWork) -> Result<Vec<Variable>, PayloadError> {
    work.secrets
        .iter()
        .map(|(name, entry)| {
            let value = input.secrets.get(name).ok_or_else(|| PayloadError::MissingSecret {
                job: input.assignment.job.name.clone(),
                secret: name.clone(),
            })?;
            let file = entry.get("file").and_then(Value::as_bool).unwrap_or(true);
            // The value is raw: `$` in a password is not a variable.
            Ok(Variable { file, raw: true, ..Variable::secret(name, value.expose()) })
        })
        .collect()
}
