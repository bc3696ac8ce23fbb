//! Messages of WinRM: builds SOAP requests and parses responses, without I/O.
//!
//! Specifications: MS-WSMV (Windows remote shell over WS-Management), DSP0226.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use roxmltree::{Document, Node};

const SHELL: &str = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell";
const TRANSFER: &str = "http://schemas.xmlsoap.org/ws/2004/09/transfer";
/// Time after which a server responds that there is no output yet.
pub(super) const OPERATION_TIMEOUT_S: u64 = 60;
/// WSManFault code for a response that was not ready in time. The request must be repeated.
const OPERATION_TIMED_OUT: &str = "2150858793";
const MAX_ENVELOPE_BYTES: usize = 5 * 1024 * 1024;

#[derive(Debug, Clone, Copy)]
pub(super) enum Request<'a> {
    CreateShell,
    DeleteShell { shell: &'a str },
    Command { shell: &'a str, line: &'a str },
    Send { shell: &'a str, command: &'a str, input: &'a [u8], end: bool },
    Receive { shell: &'a str, command: &'a str },
    Terminate { shell: &'a str, command: &'a str },
}

impl Request<'_> {
    fn action(&self) -> String {
        match self {
            Self::CreateShell => format!("{TRANSFER}/Create"),
            Self::DeleteShell { .. } => format!("{TRANSFER}/Delete"),
            Self::Command { .. } => format!("{SHELL}/Command"),
            Self::Send { .. } => format!("{SHELL}/Send"),
            Self::Receive { .. } => format!("{SHELL}/Receive"),
            Self::Terminate { .. } => format!("{SHELL}/Signal"),
        }
    }

    fn shell(&self) -> Option<&str> {
        match self {
            Self::CreateShell => None,
            Self::DeleteShell { shell }
            | Self::Command { shell, .. }
            | Self::Send { shell, .. }
            | Self::Receive { shell, .. }
            | Self::Terminate { shell, .. } => Some(shell),
        }
    }

    /// Returns the options in the header, and the body.
    fn parts(&self) -> (&'static str, String) {
        match self {
            // Code page 65001 is UTF-8.
            Self::CreateShell => (
                "<w:OptionSet><w:Option Name=\"WINRS_NOPROFILE\">FALSE</w:Option>\
                 <w:Option Name=\"WINRS_CODEPAGE\">65001</w:Option></w:OptionSet>",
                "<r:Shell><r:InputStreams>stdin</r:InputStreams><r:OutputStreams>stdout stderr</r:OutputStreams></r:Shell>"
                    .to_owned(),
            ),
            Self::DeleteShell { .. } => ("", String::new()),
            Self::Command { line, .. } => (
                "<w:OptionSet><w:Option Name=\"WINRS_CONSOLEMODE_STDIN\">FALSE</w:Option>\
                 <w:Option Name=\"WINRS_SKIP_CMD_SHELL\">FALSE</w:Option></w:OptionSet>",
                format!("<r:CommandLine><r:Command>{}</r:Command></r:CommandLine>", escape(line)),
            ),
            Self::Send { command, input, end, .. } => {
                let end = if *end { " End=\"true\"" } else { "" };
                let (command, input) = (escape(command), STANDARD.encode(input));
                ("", format!("<r:Send><r:Stream Name=\"stdin\" CommandId=\"{command}\"{end}>{input}</r:Stream></r:Send>"))
            }
            Self::Receive { command, .. } => (
                "",
                format!(
                    "<r:Receive><r:DesiredStream CommandId=\"{}\">stdout stderr</r:DesiredStream></r:Receive>",
                    escape(command)
                ),
            ),
            Self::Terminate { command, .. } => (
                "",
                format!("<r:Signal CommandId=\"{}\"><r:Code>{SHELL}/signal/terminate</r:Code></r:Signal>", escape(command)),
            ),
        }
    }

    pub(super) fn envelope(&self, endpoint: &str, id: u128) -> String {
        let (options, body) = self.parts();
        let selector = self.shell().map_or_else(String::new, |shell| {
            format!("<w:SelectorSet><w:Selector Name=\"ShellId\">{}</w:Selector></w:SelectorSet>", escape(shell))
        });
        let id = uuid(id);
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><s:Envelope xmlns:s=\"http://www.w3.org/2003/05/soap-envelope\" \
             xmlns:a=\"http://schemas.xmlsoap.org/ws/2004/08/addressing\" \
             xmlns:w=\"http://schemas.dmtf.org/wbem/wsman/1/wsman.xsd\" \
             xmlns:p=\"http://schemas.microsoft.com/wbem/wsman/1/wsman.xsd\" xmlns:r=\"{SHELL}\"><s:Header><a:To>{}</a:To>\
             <a:ReplyTo><a:Address s:mustUnderstand=\"true\">http://schemas.xmlsoap.org/ws/2004/08/addressing/role/anonymous\
             </a:Address></a:ReplyTo><a:MessageID>uuid:{id}</a:MessageID>\
             <w:MaxEnvelopeSize s:mustUnderstand=\"true\">{MAX_ENVELOPE_BYTES}</w:MaxEnvelopeSize>\
             <w:Locale xml:lang=\"en-US\" s:mustUnderstand=\"false\"/><p:DataLocale xml:lang=\"en-US\" s:mustUnderstand=\"false\"/>\
             <w:OperationTimeout>PT{OPERATION_TIMEOUT_S}S</w:OperationTimeout>\
             <w:ResourceURI s:mustUnderstand=\"true\">{SHELL}/cmd</w:ResourceURI>\
             <a:Action s:mustUnderstand=\"true\">{}</a:Action>{selector}{options}</s:Header><s:Body>{body}</s:Body></s:Envelope>",
            escape(endpoint),
            self.action(),
        )
    }
}

fn uuid(id: u128) -> String {
    let hex = format!("{id:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, letter| {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // An XML parser would normalize line ends, or convert them to spaces.
            '\n' => escaped.push_str("&#10;"),
            '\r' => escaped.push_str("&#13;"),
            letter => escaped.push(letter),
        }
        escaped
    })
}

/// Reason why a response has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The command had no output within the operation timeout. The request must be repeated.
    NoOutputYet,
    Message(String),
    /// The response is not SOAP, or does not match the request.
    InvalidResponse(String),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Pieces of the output in the server's order. True means stderr, false stdout.
    pub(super) pieces: Vec<(bool, Vec<u8>)>,
    pub(super) is_done: bool,
    pub(super) exit: Option<i64>,
}

fn find<'a>(document: &'a Document<'a>, name: &str) -> Option<Node<'a, 'a>> {
    document.descendants().find(|node| node.tag_name().name() == name)
}

fn parse(text: &str) -> Result<Document<'_>, Fault> {
    let document = Document::parse(text).map_err(|error| Fault::InvalidResponse(format!("invalid XML: {error}")))?;
    if find(&document, "Fault").is_none() {
        return Ok(document);
    }
    let code = find(&document, "WSManFault").and_then(|fault| fault.attribute("Code"));
    if code == Some(OPERATION_TIMED_OUT) {
        return Err(Fault::NoOutputYet);
    }
    // `Message` comes from the provider, and is more specific than `Text`.
    let message = ["Message", "Text"].iter().find_map(|name| {
        let pieces = find(&document, name)?.descendants().filter(|node| node.is_text());
        let text: String = pieces.filter_map(|node| node.text()).collect();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then_some(text)
    });
    Err(Fault::Message(message.unwrap_or_else(|| format!("WSMan fault {}", code.unwrap_or("without a code")))))
}

pub(super) fn check(text: &str) -> Result<(), Fault> {
    parse(text).map(drop)
}

pub(super) fn shell_id(text: &str) -> Result<String, Fault> {
    let document = parse(text)?;
    let selector = document.descendants().find(|node| node.attribute("Name") == Some("ShellId"));
    let id = find(&document, "ShellId").or(selector).and_then(|node| node.text());
    id.map(|id| id.trim().to_owned()).ok_or_else(|| Fault::InvalidResponse("missing ShellId".to_owned()))
}

pub(super) fn command_id(text: &str) -> Result<String, Fault> {
    let document = parse(text)?;
    let id = find(&document, "CommandId").and_then(|node| node.text());
    id.map(|id| id.trim().to_owned()).ok_or_else(|| Fault::InvalidResponse("missing CommandId".to_owned()))
}

pub(super) fn parse_received(text: &str) -> Result<Received, Fault> {
    let document = parse(text)?;
    let mut received = Received::default();
    for node in document.descendants() {
        match node.tag_name().name() {
            "Stream" => {
                let encoded: String = node.text().unwrap_or_default().split_whitespace().collect();
                let bytes = STANDARD
                    .decode(encoded)
                    .map_err(|error| Fault::InvalidResponse(format!("invalid stream: {error}")))?;
                if !bytes.is_empty() {
                    received.pieces.push((node.attribute("Name") == Some("stderr"), bytes));
                }
            }
            "CommandState" => {
                received.is_done = node.attribute("State").is_some_and(|state| state.ends_with("/Done"));
                let exit = node.children().find(|child| child.tag_name().name() == "ExitCode");
                received.exit = exit.and_then(|node| node.text()).and_then(|text| text.trim().parse().ok());
            }
            _ => {}
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_escaped() {
        let line = "echo \"a & b\" <in >out\r\nnext";
        let text = Request::Command { shell: "S-1", line }.envelope("http://vm:5985/wsman", 7);
        let document = Document::parse(&text).unwrap();
        assert_eq!(find(&document, "Command").unwrap().text(), Some(line));
        assert_eq!(find(&document, "Selector").unwrap().text(), Some("S-1"));
        assert_eq!(find(&document, "MessageID").unwrap().text(), Some("uuid:00000000-0000-0000-0000-000000000007"));
        assert!(find(&document, "Action").unwrap().text().unwrap().ends_with("/windows/shell/Command"));
    }

    #[test]
    fn response_contains_output_and_exit_status() {
        let text = "<e><Stream Name=\"stdout\">YQ==</Stream><Stream Name=\"stderr\">Yg==</Stream><Stream Name=\"stdout\"/>\
                    <CommandState State=\"x/CommandState/Done\"><ExitCode>-1073741510</ExitCode></CommandState></e>";
        let expected = Received {
            pieces: vec![(false, b"a".to_vec()), (true, b"b".to_vec())],
            is_done: true,
            exit: Some(-1_073_741_510),
        };
        assert_eq!(parse_received(text), Ok(expected));
        assert!(matches!(parse_received("<e><Stream>!</Stream></e>"), Err(Fault::InvalidResponse(_))));
        assert!(matches!(shell_id("no xml"), Err(Fault::InvalidResponse(_))));
    }

    #[test]
    fn fault_has_the_message_of_the_server() {
        let fault = |inner: &str| check(&format!("<e><Fault>{inner}</Fault></e>")).unwrap_err();
        assert_eq!(fault("<WSManFault Code=\"2150858793\"/>"), Fault::NoOutputYet);
        let body = "<Reason><Text>general</Text></Reason><WSManFault Code=\"5\"><Message>Access\n is denied.</Message></WSManFault>";
        assert_eq!(fault(body), Fault::Message("Access is denied.".to_owned()));
        assert_eq!(fault("<Reason><Text>general</Text></Reason>"), Fault::Message("general".to_owned()));
        assert_eq!(fault(""), Fault::Message("WSMan fault without a code".to_owned()));
    }

    #[test]
    fn fuzz_winrm_responses() {
        let samples: [&[u8]; 4] = [
            b"<e><Stream Name=\"stdout\">YQ==</Stream><CommandState State=\"x/CommandState/Done\"><ExitCode>-1073741510</ExitCode></CommandState></e>",
            b"<e><Selector Name=\"ShellId\">S-1</Selector><CommandId>c-1</CommandId></e>",
            b"<s:Envelope xmlns:s=\"u\"><s:Body><s:Fault><s:Reason><s:Text>general</s:Text></s:Reason></s:Fault></s:Body></s:Envelope>",
            b"<!DOCTYPE e [<!ENTITY a \"b\"><!ENTITY c \"&a;&a;\">]><e><WSManFault Code=\"5\"><Message>&c;</Message></WSManFault></e>",
        ];
        let words = [
            "<e>",
            "</e>",
            "<Stream Name=\"stdout\">",
            "&a;",
            "&#0;",
            "<![CDATA[",
            "<!--",
            "<!ENTITY ",
            "xmlns=\"",
            "ExitCode",
            "==",
        ];
        muster_fuzz::fuzz("WinRM responses", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
            let text = String::from_utf8_lossy(input);
            let _ = (check(&text), shell_id(&text), command_id(&text), parse_received(&text));
        });
    }
}
