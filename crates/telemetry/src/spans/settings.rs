//! Settings of traces, from OpenTelemetry's standard environment variables.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use url::Url;

use super::context::TraceId;

/// Default timeout of a request to a collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// OTLP's path for traces. It is appended to an endpoint that is configured for all signals (traces, metrics and logs).
const PATH: &str = "v1/traces";
/// Default service name, which is gitlab-runner's.
const SERVICE: &str = "runner";

/// Collector to which spans are sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Full URL.
    pub(super) url: Url,
    /// Headers of requests. They can contain credentials and are never logged.
    pub(super) headers: Vec<(String, String)>,
}

impl Destination {
    /// Parses an endpoint that the coordinator sent with a job. `None` means that it is not an http or https URL.
    ///
    /// The path of the URL is used unchanged. If the URL has no path, OTLP's path for traces is used.
    #[must_use]
    pub fn from_job(text: &str) -> Option<Self> {
        let mut url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        if url.path() == "/" {
            url.set_path(PATH);
        }
        Some(Self { url, headers: Vec::new() })
    }
}

/// Selects the traces that are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Sampler {
    All,
    None,
    /// A fraction of all traces, chosen by the trace ID.
    Ratio(f64),
}

impl Sampler {
    fn samples(self, trace: TraceId) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ratio(ratio) => {
                let [.., a, b, c, d, e, f, g, h] = trace.0;
                // The same 63 bits as in OpenTelemetry's libraries, so that all programs choose the same traces.
                let number = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
                (number as f64) < ratio * (1_u64 << 63) as f64
            }
        }
    }
}

/// Settings of traces for a process.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanSettings {
    /// Collector for the spans of all jobs. `None` means that only destinations that come with jobs are used.
    pub(super) destination: Option<Destination>,
    /// Whether no spans are sent, not even to destinations that come with jobs.
    pub(super) disabled: bool,
    pub(super) timeout: Duration,
    /// Names and values of the resource attributes, the service name first.
    pub(super) resource: Vec<(String, String)>,
    sampler: Sampler,
    /// Whether a trace with a parent is always recorded.
    parent_based: bool,
}

impl Default for SpanSettings {
    /// Returns the settings without any variables: spans are sent only to destinations that come with jobs.
    fn default() -> Self {
        Self::read(|_| None).0
    }
}

impl SpanSettings {
    /// Reads the settings from the variables that `get` returns.
    ///
    /// Also returns messages for the log about variables that are not valid and were ignored.
    #[must_use]
    pub fn read(get: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        // Returns the full name and the value. A variable for traces overrides the one for all signals.
        let trace_variable = |suffix: &str| {
            ["OTEL_EXPORTER_OTLP_TRACES", "OTEL_EXPORTER_OTLP"].into_iter().find_map(|prefix| {
                let name = format!("{prefix}_{suffix}");
                get(&name).map(|value| (name, value))
            })
        };
        let timeout = match trace_variable("TIMEOUT") {
            None => TIMEOUT,
            Some((name, text)) => text.parse().map_or_else(
                |_| {
                    problems.push(format!("{name} is `{text}`, not a number of milliseconds; using the default"));
                    TIMEOUT
                },
                Duration::from_millis,
            ),
        };
        let (sampler, parent_based) = sampler(&get, &mut problems);
        let settings = Self {
            destination: destination(&get, trace_variable("HEADERS"), trace_variable("PROTOCOL"), &mut problems),
            disabled: get("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")),
            timeout,
            resource: resource(&get, &mut problems),
            sampler,
            parent_based,
        };
        (settings, problems)
    }

    /// Returns true if a trace is recorded. A trace with a parent was started by another program.
    #[must_use]
    pub(super) fn samples(&self, trace: TraceId, has_parent: bool) -> bool {
        (has_parent && self.parent_based) || self.sampler.samples(trace)
    }
}

fn destination(
    get: &impl Fn(&str) -> Option<String>,
    headers: Option<(String, String)>,
    protocol: Option<(String, String)>,
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
    if let Some((name, other)) = protocol.filter(|(_, protocol)| protocol != "http/protobuf") {
        problems.push(format!("{name} is `{other}`; only `http/protobuf` is supported (port 4318)"));
        return None;
    }
    let Some(url) = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https")) else {
        // The message omits the value, which can contain credentials.
        problems.push(format!("{name} is not an http or https URL; spans are not exported"));
        return None;
    };
    let headers = headers.map(|(name, text)| pairs(&name, Some(&text), problems)).unwrap_or_default();
    Some(Destination { url, headers })
}

fn resource(get: &impl Fn(&str) -> Option<String>, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let attributes = pairs("OTEL_RESOURCE_ATTRIBUTES", get("OTEL_RESOURCE_ATTRIBUTES").as_deref(), problems);
    let (services, others): (Vec<_>, Vec<_>) = attributes.into_iter().partition(|(name, _)| name == "service.name");
    let service = get("OTEL_SERVICE_NAME").or_else(|| services.into_iter().next().map(|(_, name)| name));
    let mut resource = vec![("service.name".to_owned(), service.unwrap_or_else(|| SERVICE.to_owned()))];
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
                    problems
                        .push("OTEL_TRACES_SAMPLER_ARG is not a number from 0 to 1; recording all traces".to_owned());
                    Sampler::All
                }
            }
        }
        _ => {
            problems.push(format!("OTEL_TRACES_SAMPLER is `{text}`, which is not supported; recording all traces"));
            return (Sampler::All, true);
        }
    };
    (sampler, parent_based)
}

/// Parses `name=value,name=value` with percent-encoded values.
fn pairs(variable: &str, text: Option<&str>, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let mut list = Vec::new();
    for entry in text.unwrap_or_default().split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let pair = entry.split_once('=').and_then(|(name, value)| {
            let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
            Some((name.trim().to_owned(), value.into_owned())).filter(|(name, _)| !name.is_empty())
        });
        match pair {
            Some(pair) => list.push(pair),
            // The message omits the entry, which can be a credential.
            None => problems.push(format!("an entry of {variable} is not name=value; ignoring it")),
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
    fn no_variables_mean_no_destination() {
        let (settings, problems) = read(&[("OTEL_SERVICE_NAME", "ci")]);
        assert_eq!((settings.destination, problems), (None, Vec::new()));
    }

    #[test]
    fn endpoint_for_all_signals_gets_path_for_traces() {
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/")]).unwrap(), "http://c:4318/v1/traces");
        let both = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/x")];
        assert_eq!(url(&both).unwrap(), "https://t/x");
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_TRACES_EXPORTER", "none")]), None);
    }

    #[test]
    fn reads_headers_timeout_and_resource() {
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
        assert_eq!(problems, ["an entry of OTEL_EXPORTER_OTLP_HEADERS is not name=value; ignoring it"]);

        let (_, problems) = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "wrong"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ]);
        let timeout = "OTEL_EXPORTER_OTLP_TIMEOUT is `soon`, not a number of milliseconds; using the default";
        let headers = "an entry of OTEL_EXPORTER_OTLP_TRACES_HEADERS is not name=value; ignoring it";
        assert_eq!(problems, [timeout, headers]);
    }

    #[test]
    fn unsupported_settings_are_reported() {
        let grpc = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        let (settings, problems) = read(&grpc);
        assert_eq!(settings.destination, None);
        assert_eq!(problems, ["OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`; only `http/protobuf` is supported (port 4318)"]);
        let (_, problems) = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318"), ("OTEL_TRACES_SAMPLER", "xray")]);
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn samplers_use_trace_and_parent() {
        let low = TraceId::parse("00000000000000000000000000000001").unwrap();
        let high = TraceId::parse("ffffffffffffffffffffffffffffffff").unwrap();
        let settings = |name: &str| read(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", "0.5")]).0;
        assert!(settings("").samples(high, false) && !settings("always_off").samples(low, true));
        assert!(
            settings("parentbased_always_off").samples(low, true)
                && !settings("parentbased_always_off").samples(low, false)
        );
        assert!(settings("traceidratio").samples(low, false) && !settings("traceidratio").samples(high, true));
    }

    #[test]
    fn endpoint_of_job_must_be_http() {
        assert_eq!(Destination::from_job("https://o.example").unwrap().url.as_str(), "https://o.example/v1/traces");
        assert_eq!(Destination::from_job("http://o.example/otel/x").unwrap().url.as_str(), "http://o.example/otel/x");
        assert_eq!(Destination::from_job("grpc://o.example:4317"), None);
    }
}
