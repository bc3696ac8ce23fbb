//! Handles the unpublished parts of GitLab's current protocol (docs/spec/steps.md, section 0.3).
//!
//! - The service answers under both names in GitLab's sources, `proto.StepRunner` and `step.StepRunner`.
//! - Unknown fields of a `RunRequest` are logged with their numbers, types and sizes, and durations with their values.
//!   Field 7 is probably the timeout of the job, which the client also enforces.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full, Limited};
use prost::encoding::{WireType, decode_key, decode_varint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, Uri};
use tower::Service;

pub(crate) const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;
/// Start of the paths of calls to the service under its other name.
const OTHER_SERVICE: &str = "/step.StepRunner/";
const SERVICE: &str = "/proto.StepRunner/";
const RUN: &str = "/proto.StepRunner/Run";
const KNOWN_FIELDS: [u32; 5] = [1, 2, 3, 5, 6];
const MAX_UNKNOWN_FIELDS: usize = 16;
/// Size of a gRPC message's header: compression flag and length.
const MESSAGE_HEADER_BYTES: usize = 5;

#[derive(Debug, Clone)]
pub(crate) struct TolerateNewerPeers<S>(pub(crate) S);

impl<S> Service<Request<Body>> for TolerateNewerPeers<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(method) = request.uri().path().strip_prefix(OTHER_SERVICE)
            && let Ok(uri) = format!("{SERVICE}{method}").parse::<Uri>()
        {
            *request.uri_mut() = uri;
        }
        if request.uri().path() != RUN {
            return Box::pin(self.0.call(request));
        }
        // The call must go to the service that is ready, and the clone may not be ready.
        let clone = self.0.clone();
        let mut ready = std::mem::replace(&mut self.0, clone);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let message = match Limited::new(body, MAX_REQUEST_BYTES + MESSAGE_HEADER_BYTES).collect().await {
                Ok(message) => message.to_bytes(),
                Err(error) => {
                    let message =
                        format!("failed to read the request, or it is larger than {MAX_REQUEST_BYTES} bytes: {error}");
                    return Ok(Status::resource_exhausted(message).into_http());
                }
            };
            // The handler rejects compressed messages.
            let fields =
                message.get(MESSAGE_HEADER_BYTES..).filter(|_| message.first() == Some(&0)).unwrap_or_default();
            for field in unknown_fields(fields) {
                tracing::warn!(
                    number = field.number,
                    kind = ?field.kind,
                    bytes = field.bytes,
                    duration = ?field.duration,
                    "a request has a field that this agent does not know"
                );
            }
            ready.call(Request::from_parts(parts, Body::new(Full::new(message)))).await
        })
    }
}

/// The description of a field without its content, which may be secret. Only a duration is included.
#[derive(Debug, PartialEq, Eq)]
struct UnknownField {
    number: u32,
    kind: WireType,
    bytes: usize,
    /// Content of a `google.protobuf.Duration`.
    duration: Option<Duration>,
}

/// Returns the first unknown fields of a `RunRequest`, up to an invalid field. The handler rejects invalid requests.
fn unknown_fields(mut message: &[u8]) -> Vec<UnknownField> {
    let mut found = Vec::new();
    while found.len() < MAX_UNKNOWN_FIELDS
        && let Ok((number, kind)) = decode_key(&mut message)
    {
        let Some(content) = take_content(kind, &mut message) else { break };
        if !KNOWN_FIELDS.contains(&number) {
            let duration = if kind == WireType::LengthDelimited { duration(&content) } else { None };
            found.push(UnknownField { number, kind, bytes: content.len(), duration });
        }
    }
    found
}

/// Takes the content of a field from the message. `None` means an invalid message, or a group.
fn take_content(kind: WireType, message: &mut &[u8]) -> Option<Bytes> {
    let before = message.len();
    let length = match kind {
        WireType::Varint => {
            let mut rest = *message;
            decode_varint(&mut rest).ok()?;
            before - rest.len()
        }
        WireType::ThirtyTwoBit => 4,
        WireType::SixtyFourBit => 8,
        WireType::LengthDelimited => usize::try_from(decode_varint(message).ok()?).ok()?,
        // Groups are obsolete, and have no known length.
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    (length <= message.remaining()).then(|| message.copy_to_bytes(length))
}

fn duration(content: &Bytes) -> Option<Duration> {
    let duration = <prost_types::Duration as prost::Message>::decode(content.clone()).ok()?;
    Duration::try_from(duration).ok().filter(|duration| !duration.is_zero())
}

#[cfg(test)]
mod tests {
    use muster_agent_api::step_runner::RunRequest;
    use prost::Message;

    use super::*;

    #[test]
    fn unknown_fields_are_found_between_known_ones_and_a_duration_is_recognized() {
        let request = RunRequest { id: "1".to_owned(), steps: "{}".to_owned(), ..RunRequest::default() };
        let mut bytes = request.encode_to_vec();
        assert_eq!(unknown_fields(&bytes), []);
        // Field 7: a duration of 3600 s. Field 4: the number 300. Field 9: text.
        bytes.extend([0x3a, 3, 0x08, 0x90, 0x1c, 0x20, 0xac, 0x02, 0x4a, 2, b'h', b'i']);
        bytes.extend(RunRequest { work_dir: "/w".to_owned(), ..RunRequest::default() }.encode_to_vec());
        let field = |number, kind, bytes, seconds: Option<u64>| UnknownField {
            number,
            kind,
            bytes,
            duration: seconds.map(Duration::from_secs),
        };
        let expected = [
            field(7, WireType::LengthDelimited, 3, Some(3600)),
            field(4, WireType::Varint, 2, None),
            field(9, WireType::LengthDelimited, 2, None),
        ];
        assert_eq!(unknown_fields(&bytes), expected);
        assert_eq!(RunRequest::decode(&bytes[..]).unwrap().work_dir, "/w", "the known fields are read as usual");
        for broken in [&[0x3a, 200][..], &[0x3b], &[0xff; 12], &[]] {
            assert_eq!(unknown_fields(broken), []);
        }
    }
}
