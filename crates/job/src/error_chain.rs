//! Errors as text.

/// Returns the messages of an error and of its causes, joined by `: `.
///
/// By convention, an error does not repeat its cause in its own message. So the message alone can lack the essential part.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Layer {
        message: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn error_chain_joins_all_causes() {
        let cause = Layer { message: "no such file", source: None };
        assert_eq!(error_chain(&cause), "no such file");
        let middle = Layer { message: "failed to read x", source: Some(Box::new(cause)) };
        let error = Layer { message: "failed to start", source: Some(Box::new(middle)) };
        assert_eq!(error_chain(&error), "failed to start: failed to read x: no such file");
    }
}
