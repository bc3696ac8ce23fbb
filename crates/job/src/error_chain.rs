//! Converts errors to text.

/// Returns the messages of an error and of its causes, joined by `: `.
///
/// A cause with which the text already ends is omitted.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| error.source()) {
        let message = cause.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
    }
    text
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
        let cause = Layer { message: "no such file", source: None };
        let repeated = Layer { message: "failed to read x: no such file", source: Some(Box::new(cause)) };
        assert_eq!(error_chain(&repeated), "failed to read x: no such file");
    }
}
