//! Errors as text.

/// Returns the error's message followed by the messages of its sources, which an error does not repeat in its own message.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
