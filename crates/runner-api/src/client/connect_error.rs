//! Readable messages for connection errors.

use url::Url;

/// Returns the address and the cause: the explanation of a known cause, or else the message of the root cause.
pub(super) fn describe(error: &reqwest::Error) -> String {
    let server = error.url().map(address).unwrap_or_default();
    let cause = if error.is_timeout() { "timeout".to_owned() } else { root_cause(error) };
    format!("{server}: {}", explanation_of(&cause).unwrap_or(&cause))
}

/// Returns scheme, host and port. Other parts of a URL may be secret.
fn address(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut root_cause = error;
    while let Some(cause) = root_cause.source() {
        root_cause = cause;
    }
    root_cause.to_string()
}

fn explanation_of(cause: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 9] = [
        ("InvalidContentType", "the server does not use TLS: should the URL start with http://?"),
        (
            "connection closed before message completed",
            "the server closed the connection without a response: should the URL start with https://?",
        ),
        ("no records found for Query", "host not found: is the name correct?"),
        ("dns error", "host not found: is the name correct?"),
        (
            "CaUsedAsEndEntity",
            "the certificate of the server is a CA certificate (CA:TRUE) and differs from the one in tls-ca-file",
        ),
        ("UnknownIssuer", "the authority of its certificate is unknown: set tls-ca-file"),
        ("NotValidForName", "its certificate is for another name"),
        ("certificate expired", "its certificate has expired"),
        ("certificate not valid yet", "its certificate is not valid yet: is the clock correct?"),
    ];
    KNOWN.iter().find(|(part, _)| cause.contains(part)).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_errors_have_readable_messages() {
        let name = "proto error: no records found for Query { name: Name(\"nosuch.invalid.\"), query_type: A, query_class: IN }";
        assert_eq!(explanation_of(name), Some("host not found: is the name correct?"));
        assert_eq!(explanation_of("Connection refused (os error 111)"), None, "the message is already readable");
    }
}
