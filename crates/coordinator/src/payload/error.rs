use crate::jwt::SignError;

/// Reason why a job has no payload. Its message becomes the message of the failed job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The job is a bridge, which does not run on a runner.
    #[error("`{job}` starts another pipeline and does not run on a runner")]
    Bridge {
        /// Name of the job.
        job: String,
    },
    /// A secret of the job has no value.
    #[error(
        "job `{job}` needs the secret `{secret}`, which has no value; write `[[secrets]]`, `name = \"{secret}\"` \
         and `value = \"...\"` in the file muster/ci.toml of your configuration directory (~/.config by default)"
    )]
    MissingSecret {
        /// Name of the job.
        job: String,
        /// Name of the secret.
        secret: String,
    },
    /// An ID token of the job cannot be signed.
    #[error("failed to create the ID token `{token}` of job `{job}`: {source}")]
    IdToken {
        /// Name of the job.
        job: String,
        /// Name of the token.
        token: String,
        /// Error of the signer.
        source: SignError,
    },
}
