//! Why a server was not reached, in words for people: which one, what happened, and what it mostly means.

use url::Url;

/// The address, the innermost cause, and a hint where the cause has a well-known reason.
pub(super) fn words(error: &reqwest::Error) -> String {
    let place = error.url().map(address).unwrap_or_default();
    let cause = if error.is_timeout() { "no answer in time".to_owned() } else { innermost(error) };
    let hint = hint(&cause).map(|hint| format!(" ({hint})")).unwrap_or_default();
    format!("{place}: {cause}{hint}")
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

fn hint(cause: &str) -> Option<&'static str> {
    const HINTS: [(&str, &str); 7] = [
        ("InvalidContentType", "the server does not speak TLS there: is it an http:// URL?"),
        ("connection closed before message completed", "is it an https:// URL?"),
        ("no records found for Query", "no such host: is the name right?"),
        ("dns error", "no such host: is the name right?"),
        (
            "CaUsedAsEndEntity",
            "the server's own certificate is one of an authority (CA:TRUE): make it anew with \
          -addext basicConstraints=CA:FALSE",
        ),
        ("UnknownIssuer", "the authority of its certificate is not known: name it by tls-ca-file"),
        ("NotValidForName", "its certificate is for another name"),
    ];
    HINTS.iter().find(|(part, _)| cause.contains(part)).map(|(_, hint)| *hint)
}
