//! Errors as text.

/// Returns the error's message followed by the messages of its sources.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let error_chain = std::iter::successors(Some(error), |error| error.source());
    error_chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
