//! What the environment says about traces: OpenTelemetry's usual variables.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use super::context::TraceId;

/// One export, unless the environment says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Where spans go below an endpoint for all signals.
const PATH: &str = "v1/traces";
/// The service that spans are of, unless the environment says otherwise; GitLab Runner's name.
const SERVICE: &str = "runner";

/// Where spans are sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The full URL.
    pub(super) url: Url,
    /// Header lines to send along; may hold credentials, and are never logged.
    pub(super) headers: Vec<(String, String)>,
}

impl Destination {
    /// An endpoint that came with a job: its path is taken as it is, unless there is none.
    #[must_use]
    pub fn of_job(text: &str) -> Option<Self> {
        let mut url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        if url.path() == "/" {
            url.set_path(PATH);
        }
        Some(Self { url, headers: Vec::new() })
    }
}

/// Which traces are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Sampler {
    All,
    None,
    /// This part of all, chosen by the trace's id.
    Ratio(f64),
}

impl Sampler {
    fn takes(self, trace: TraceId) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ratio(ratio) => {
                let [.., a, b, c, d, e, f, g, h] = trace.0;
                // The lower 63 bits, as other libraries do, so that all decide alike.
                let number = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
                (number as f64) < ratio * (1_u64 << 63) as f64
            }
        }
    }
}

/// The settings of one process.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanSettings {
    /// Where every job's spans go; none is nowhere.
    pub(super) destination: Option<Destination>,
    /// Nothing is sent, also not what a job asks for.
    pub(super) disabled: bool,
    pub(super) timeout: Duration,
    /// Name and value, the service's first.
    pub(super) resource: Vec<(String, String)>,
    sampler: Sampler,
    /// A trace that someone else began is recorded.
    parent_based: bool,
}

impl Default for SpanSettings {
    /// Nothing is sent but what a job asks for.
    fn default() -> Self {
        Self::read(|_| None).0
    }
}

impl SpanSettings {
    /// Reads the variables that `get` knows; beside the settings, what is wrong and was left out, for the log.
    #[must_use]
    pub fn read(get: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        // What is said for traces stands before what is said for all signals.
        let of_traces = |name: &str| {
            get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}")).or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let timeout = match of_traces("TIMEOUT").map(|text| text.parse().map_err(|_| text)) {
            None => TIMEOUT,
            Some(Ok(milliseconds)) => Duration::from_millis(milliseconds),
            Some(Err(text)) => {
                problems.push(format!("OTEL_EXPORTER_OTLP_TIMEOUT is `{text}`, not a number of milliseconds"));
                TIMEOUT
            }
        };
        let (sampler, parent_based) = sampler(&get, &mut problems);
        let settings = Self {
            destination: destination(&get, of_traces("HEADERS"), of_traces("PROTOCOL"), &mut problems),
            disabled: get("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")),
            timeout,
            resource: resource(&get, &mut problems),
            sampler,
            parent_based,
        };
        (settings, problems)
    }

    /// Whether a trace is recorded that this process begins, or, with a parent, that someone else began.
    #[must_use]
    pub(super) fn samples(&self, trace: TraceId, has_parent: bool) -> bool {
        (has_parent && self.parent_based) || self.sampler.takes(trace)
    }
}

fn destination(
    get: &impl Fn(&str) -> Option<String>,
    headers: Option<String>,
    protocol: Option<String>,
    problems: &mut Vec<String>,
) -> Option<Destination> {
    match get("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => {}
        Some("none") => return None,
        Some(other) => {
            problems.push(format!("OTEL_TRACES_EXPORTER is `{other}`; only `otlp` and `none` are supported"));
            return None;
        }
    }
    let (name, text) = match get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
        Some(text) => ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", text),
        None => {
            let text = get("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{}/{PATH}", text.trim_end_matches('/')))
        }
    };
    if let Some(other) = protocol.filter(|protocol| protocol != "http/protobuf") {
        problems.push(format!("the OTLP protocol is `{other}`; only `http/protobuf` is supported (port 4318)"));
        return None;
    }
    let Some(url) = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https")) else {
        // The value may have credentials in it.
        problems.push(format!("{name} is not an http or https URL"));
        return None;
    };
    let headers = pairs("OTEL_EXPORTER_OTLP_HEADERS", headers.as_deref(), problems);
    Some(Destination { url, headers })
}

fn resource(get: &impl Fn(&str) -> Option<String>, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let said = pairs("OTEL_RESOURCE_ATTRIBUTES", get("OTEL_RESOURCE_ATTRIBUTES").as_deref(), problems);
    let (services, others): (Vec<_>, Vec<_>) = said.into_iter().partition(|(name, _)| name == "service.name");
    let named = get("OTEL_SERVICE_NAME").or_else(|| services.into_iter().next().map(|(_, name)| name));
    let mut resource = vec![("service.name".to_owned(), named.unwrap_or_else(|| SERVICE.to_owned()))];
    resource.extend(others);
    resource
}

fn sampler(get: &impl Fn(&str) -> Option<String>, problems: &mut Vec<String>) -> (Sampler, bool) {
    let text = get("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (name, parent_based) = text.strip_prefix("parentbased_").map_or((&*text, false), |name| (name, true));
    let sampler = match name {
        "always_on" => Sampler::All,
        "always_off" => Sampler::None,
        "traceidratio" => {
            let ratio = get("OTEL_TRACES_SAMPLER_ARG").map(|text| text.parse::<f64>());
            match ratio {
                None => Sampler::All,
                Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Sampler::Ratio(ratio),
                Some(_) => {
                    problems.push("OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1".to_owned());
                    Sampler::All
                }
            }
        }
        _ => {
            problems.push(format!("OTEL_TRACES_SAMPLER is `{text}`, which is not supported; all traces are recorded"));
            return (Sampler::All, true);
        }
    };
    (sampler, parent_based)
}

/// `name=value,name=value`, values percent-encoded.
fn pairs(variable: &str, text: Option<&str>, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let mut list = Vec::new();
    for entry in text.unwrap_or_default().split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let pair = entry.split_once('=').and_then(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            Some((name.trim().to_owned(), value.into_owned())).filter(|(name, _)| !name.is_empty())
        });
        match pair {
            Some(pair) => list.push(pair),
            // Not the entry itself: it may be a credential.
            None => problems.push(format!("an entry of {variable} is not name=value, and is left out")),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (SpanSettings, Vec<String>) {
        SpanSettings::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn url(variables: &[(&str, &str)]) -> Option<String> {
        read(variables).0.destination.map(|destination| destination.url.to_string())
    }

    #[test]
    fn nothing_is_configured_by_nothing() {
        let (settings, problems) = read(&[("OTEL_SERVICE_NAME", "ci")]);
        assert_eq!((settings.destination, problems), (None, Vec::new()));
    }

    #[test]
    fn an_endpoint_for_all_signals_gets_the_path_of_traces() {
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/")]).unwrap(), "http://c:4318/v1/traces");
        let own = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/x")];
        assert_eq!(url(&own).unwrap(), "https://t/x");
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_TRACES_EXPORTER", "none")]), None);
    }

    #[test]
    fn headers_timeout_and_resource_are_read() {
        let (settings, problems) = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, wrong ,a=b"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=one,host.name=h"),
            ("OTEL_SERVICE_NAME", "two"),
        ]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(settings.destination.unwrap().headers, [pair("authorization", "Bearer x"), pair("a", "b")]);
        assert_eq!(settings.timeout, Duration::from_millis(250));
        assert_eq!(settings.resource, [pair("service.name", "two"), pair("host.name", "h")]);
        assert_eq!(problems, ["an entry of OTEL_EXPORTER_OTLP_HEADERS is not name=value, and is left out"]);
    }

    #[test]
    fn what_is_not_supported_is_told_and_nothing_is_sent_elsewhere() {
        let grpc = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        let (settings, problems) = read(&grpc);
        assert_eq!(settings.destination, None);
        assert_eq!(problems, ["the OTLP protocol is `grpc`; only `http/protobuf` is supported (port 4318)"]);
        let (_, problems) = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"), ("OTEL_TRACES_SAMPLER", "xray")]);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn samplers_decide_by_trace_and_parent() {
        let low = TraceId::parse("00000000000000000000000000000001").unwrap();
        let high = TraceId::parse("ffffffffffffffffffffffffffffffff").unwrap();
        let of = |name: &str| read(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", "0.5")]).0;
        assert!(of("").samples(high, false) && !of("always_off").samples(low, true));
        assert!(of("parentbased_always_off").samples(low, true) && !of("parentbased_always_off").samples(low, false));
        assert!(of("traceidratio").samples(low, false) && !of("traceidratio").samples(high, true));
    }

    #[test]
    fn an_endpoint_of_a_job_is_http() {
        assert_eq!(Destination::of_job("https://o.example").unwrap().url.as_str(), "https://o.example/v1/traces");
        assert_eq!(Destination::of_job("http://o.example/otel/x").unwrap().url.as_str(), "http://o.example/otel/x");
        assert_eq!(Destination::of_job("grpc://o.example:4317"), None);
    }
}
