//! Errors as text.

/// The error with its causes, which errors keep out of their own text.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
