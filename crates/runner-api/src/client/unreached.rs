//! Why a server was not reached, in words for people: which one, what happened, and what it mostly means.

use url::Url;

/// The address, and what happened: in our words where the cause has a well-known reason, else in the innermost ones.
pub(super) fn words(error: &reqwest::Error) -> String {
    let place = error.url().map(address).unwrap_or_default();
    let cause = if error.is_timeout() { "no answer in time".to_owned() } else { innermost(error) };
    format!("{place}: {}", known(&cause).unwrap_or(&cause))
}

/// Where the server is: what follows in a URL may be a secret, such as a storage's signed path.
fn address(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string()
}

/// What causes mean whose own text shows the insides of a library.
fn known(cause: &str) -> Option<&'static str> {
    const KNOWN: [(&str, &str); 9] = [
        ("InvalidContentType", "the server does not speak TLS there: is it an http:// URL?"),
        (
            "connection closed before message completed",
            "the server closed the connection without an answer: is it an https:// URL?",
        ),
        ("no records found for Query", "no such host: is the name right?"),
        ("dns error", "no such host: is the name right?"),
        (
            "CaUsedAsEndEntity",
            "the server's own certificate is one of an authority (CA:TRUE), and it is not the one that tls-ca-file names",
        ),
        ("UnknownIssuer", "the authority of its certificate is not known: name it by tls-ca-file"),
        ("NotValidForName", "its certificate is for another name"),
        ("certificate expired", "its certificate has expired"),
        ("certificate not valid yet", "its certificate is not valid yet: is the clock right?"),
    ];
    KNOWN.iter().find(|(part, _)| cause.contains(part)).map(|(_, words)| *words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_insides_of_libraries_are_told_in_words() {
        let name = "proto error: no records found for Query { name: Name(\"nosuch.invalid.\"), query_type: A, query_class: IN }";
        assert_eq!(known(name), Some("no such host: is the name right?"));
        assert_eq!(known("Connection refused (os error 111)"), None, "it is clear as it is");
    }
}
