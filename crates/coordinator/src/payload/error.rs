//! Why a job cannot be handed to a manager at all.

use crate::jwt::SignError;

/// Why there is no payload. The text is for the job's page and its trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// A bridge has nothing for a runner.
    #[error("`{job}` starts another pipeline and is not for a runner")]
    Bridge {
        /// The job.
        job: String,
    },
    /// A secret of the job has no value here.
    #[error(
        "job `{job}` needs the secret `{secret}`, and no value is known for it: write `[[secrets]]`, `name = \"{secret}\"` \
         and `value = \"...\"` in the file muster/ci.toml of your configuration folder (~/.config by default)"
    )]
    MissingSecret {
        /// The job.
        job: String,
        /// The secret.
        secret: String,
    },
    /// An id token of the job cannot be signed.
    #[error("the id token `{token}` of job `{job}` cannot be made: {source}")]
    IdToken {
        /// The job.
        job: String,
        /// The token.
        token: String,
        /// Why.
        source: SignError,
    },
}
