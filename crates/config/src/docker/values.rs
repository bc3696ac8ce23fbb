//! Values of `[runners.docker]` with a special syntax.

use std::collections::BTreeMap;

use crate::settings::{Device, GpuRequest, Ulimit};

/// Number of billionths in 1: [`decimal`] returns billionths.
const NANOS: i128 = 1_000_000_000;

/// Parses a size such as `512m` or `1.5 GiB` to bytes. Units are powers of 1024.
pub(super) fn size(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let exponent = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        "p" | "pb" | "pib" => 5,
        _ => return None,
    };
    i64::try_from(decimal(number)?.checked_mul(1024_i128.pow(exponent))? / NANOS).ok()
}

/// Parses a number of CPUs, such as `1.5` or `1/2`, to billionths.
pub(super) fn cpus(text: &str) -> Option<i64> {
    let (number, divisor) = match text.trim().split_once('/') {
        Some((number, divisor)) => (decimal(number)?, decimal(divisor)?),
        None => (decimal(text.trim())?, NANOS),
    };
    i64::try_from(number.checked_mul(NANOS)?.checked_div(divisor)?).ok()
}

/// Parses a number with up to nine decimal places to billionths.
fn decimal(text: &str) -> Option<i128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let number = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i64>().ok().map(i128::from) };
    Some(number(whole)? * NANOS + number(&format!("{fraction:0<9}"))?)
}

/// Parses `host[:container[:permissions]]`.
pub(super) fn device(text: &str) -> Option<Device> {
    let mut parts = text.split(':');
    let on_host = parts.next().filter(|path| !path.is_empty())?;
    let in_container = parts.next().unwrap_or(on_host);
    let permissions = parts.next().unwrap_or("rwm");
    let valid = !in_container.is_empty() && !permissions.is_empty() && parts.next().is_none();
    (valid && permissions.chars().all(|letter| "rwm".contains(letter))).then(|| Device {
        on_host: on_host.to_owned(),
        in_container: in_container.to_owned(),
        permissions: permissions.to_owned(),
    })
}

/// Parses `soft[:hard]`. -1 means no limit.
pub(super) fn ulimit(name: &str, text: &str) -> Option<Ulimit> {
    let (soft, hard) = text.split_once(':').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<i64>().ok().filter(|number| *number >= -1);
    let (soft, hard) = (number(soft)?, number(hard)?);
    let fits = hard == -1 || (soft != -1 && soft <= hard);
    fits.then(|| Ulimit { name: name.to_owned(), soft, hard })
}

pub(super) fn is_mac_address(text: &str) -> bool {
    let has_six_bytes = |separator: char| {
        let bytes: Vec<&str> = text.split(separator).collect();
        bytes.len() == 6 && bytes.iter().all(|byte| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    has_six_bytes(':') || has_six_bytes('-')
}

/// Parses `all`, a number, or fields such as `"device=0,1",capabilities=utility`, like `docker run --gpus`.
pub(super) fn gpus(text: &str) -> Option<GpuRequest> {
    let mut request = GpuRequest::default();
    let mut has_count = false;
    let count = |text: &str| match text {
        "all" => Some(-1),
        number => number.parse::<u32>().ok().map(i64::from),
    };
    for field in fields(text)? {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        match field.split_once('=') {
            None => (request.count, has_count) = (count(&field)?, true),
            Some(("count", value)) => (request.count, has_count) = (count(value)?, true),
            Some(("driver", value)) => value.clone_into(&mut request.driver),
            Some(("device", value)) => request.device_ids = list(value),
            Some(("capabilities", value)) => request.capabilities = list(value),
            Some(("options", value)) => request.options = options(value)?,
            Some(_) => return None,
        }
    }
    if has_count && !request.device_ids.is_empty() {
        return None;
    }
    if !has_count && request.device_ids.is_empty() {
        request.count = 1;
    }
    if !request.capabilities.iter().any(|capability| capability == "gpu") {
        request.capabilities.push("gpu".to_owned());
    }
    Some(request)
}

fn options(text: &str) -> Option<BTreeMap<String, String>> {
    text.split(',')
        .map(|option| option.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect()
}

/// Splits a text at commas. A field in double quotes may contain commas.
fn fields(text: &str) -> Option<Vec<String>> {
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let (field, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => rest.split_at_checked(rest.find(',').unwrap_or(rest.len()))?,
        };
        fields.push(field.to_owned());
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None => return behind.is_empty().then_some(fields),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in [
            ("512m", Some(512 << 20)),
            ("1.5g", Some(3 << 29)),
            ("64 KiB", Some(64 << 10)),
            ("100", Some(100)),
            ("7B", Some(7)),
            ("0", Some(0)),
            ("", None),
            ("g", None),
            ("-5m", None),
            ("5x", None),
            ("1.2.3m", None),
            ("99999999999999999999p", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn cpus_are_decimal_numbers_or_fractions() {
        for (text, nanos) in [
            ("2", Some(2_000_000_000)),
            ("0.5", Some(500_000_000)),
            (".25", Some(250_000_000)),
            ("1/2", Some(500_000_000)),
            ("3/0", None),
            ("0.0000000001", None),
            ("two", None),
            ("", None),
        ] {
            assert_eq!(cpus(text), nanos, "{text}");
        }
    }

    #[test]
    fn path_in_the_container_and_permissions_of_a_device_are_optional() {
        let parts = |text| device(text).map(|device| [device.on_host, device.in_container, device.permissions]);
        let expected = |parts: [&str; 3]| Some(parts.map(str::to_owned));
        assert_eq!(parts("/dev/kvm"), expected(["/dev/kvm", "/dev/kvm", "rwm"]));
        assert_eq!(parts("/dev/a:/dev/b"), expected(["/dev/a", "/dev/b", "rwm"]));
        assert_eq!(parts("/dev/a:/dev/b:r"), expected(["/dev/a", "/dev/b", "r"]));
        for invalid in ["", ":/dev/b", "/dev/a:", "/dev/a:/dev/b:x", "/dev/a:/dev/b:r:w"] {
            assert_eq!(parts(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn ulimits_have_soft_and_hard_values() {
        let values = |text| ulimit("nofile", text).map(|limit| (limit.soft, limit.hard));
        assert_eq!(values("1024"), Some((1024, 1024)));
        assert_eq!(values("1024:2048"), Some((1024, 2048)));
        assert_eq!(values("1024:-1"), Some((1024, -1)));
        for invalid in ["", "many", "2048:1024", "-1:5", "-2"] {
            assert_eq!(values(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn gpus_have_the_syntax_of_docker() {
        let gpu = || vec!["gpu".to_owned()];
        let counted = |count| Some(GpuRequest { count, capabilities: gpu(), ..GpuRequest::default() });
        assert_eq!(gpus("all"), counted(-1));
        assert_eq!(gpus("2"), counted(2));
        assert_eq!(gpus("driver=nvidia").map(|request| request.count), Some(1));
        let request = gpus("\"device=0,GPU-1\",\"capabilities=compute,utility\"").unwrap();
        assert_eq!((request.count, request.device_ids), (0, vec!["0".to_owned(), "GPU-1".to_owned()]));
        assert_eq!(request.capabilities, ["compute", "utility", "gpu"]);
        for invalid in ["", "some", "count=-2", "color=red", "count=1,device=0", "\"device=0"] {
            assert_eq!(gpus(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn mac_addresses_have_six_bytes() {
        assert!(is_mac_address("92:d0:c6:0a:29:33") && is_mac_address("92-D0-C6-0A-29-33"));
        assert!(!is_mac_address("92:d0:c6:0a:29") && !is_mac_address("92:d0:c6:0a:29:3g") && !is_mac_address(""));
    }
}
