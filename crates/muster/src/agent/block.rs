//! Makes addresses unreachable in the network of a container (`blocked_addresses` of `[runners.docker]`).
//!
//! ```text
//! agent on the engine's machine               container
//!   create, start ------------------------->  `gate` is the first process, and waits
//!   start of `block` in the same network ->   routes and neighbor entries are added
//!                                             `gate` finds the routes, and becomes the entrypoint of the image
//! ```
//!
//! A route of the type `unreachable` stops ordinary connections. A socket that is bound to an interface skips this
//! route and looks for the address on the link, so each interface also gets a permanent neighbor entry that leads
//! nowhere. Such an IPv6 socket would use the default route, so each interface also gets an IPv6 route to the address
//! on its link.
//!
//! Removing these entries requires `NET_ADMIN`, and sending packets past them `NET_RAW`. A job's containers have
//! neither capability: `block` runs in a separate container.
//!
//! Without IPv6 in the container, IPv6 addresses are unreachable anyway. Its processes cannot turn IPv6 on: `/proc/sys`
//! is read-only.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

const GATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay between two reads of the routes. Only a netlink socket would report changes.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Exit code of a shell whose command is not found.
const NOT_FOUND: u8 = 127;
/// Exit code of a shell whose command exists and cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Flag of a route that rejects packets, in `/proc/net/route` and `/proc/net/ipv6_route`.
const RTF_REJECT: u32 = 0x200;
/// Routes of IPv6. The file does not exist if the kernel has no IPv6.
const IPV6_ROUTES: &str = "/proc/net/ipv6_route";
/// Metric of the IPv6 routes that reject packets. The kernel prefers the lowest metric, and all other routes have a
/// higher metric.
const FIRST_METRIC: u32 = 1;
/// Attribute with the metric of a route.
const RTA_PRIORITY: u16 = 6;
const NAME_SERVERS: &str = "/etc/resolv.conf";
/// Locally administered hardware address that no interface has.
const NOWHERE: [u8; 6] = [0x02, 0, 0, 0, 0, 0];

/// Arguments of `muster agent block`.
#[derive(Debug, clap::Args)]
pub(crate) struct BlockArgs {
    /// Addresses to block.
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
}

/// Arguments of `muster agent gate`.
#[derive(Debug, clap::Args)]
pub(crate) struct GateArgs {
    /// Address that must be blocked. Can be repeated.
    #[arg(long, required = true, value_name = "ADDRESS")]
    address: Vec<IpAddr>,
    /// Command to run once the addresses are blocked.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn block(args: &BlockArgs) -> ExitCode {
    match block_all(&args.addresses) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error.to_string(), ExitCode::FAILURE),
    }
}

/// Waits until the addresses are blocked, and then replaces this process by the command. Returns only after an error.
pub(super) fn gate(args: &GateArgs) -> ExitCode {
    let deadline = Instant::now() + GATE_TIMEOUT;
    loop {
        match are_unreachable(&args.address) {
            Ok(true) => break,
            Ok(false) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Ok(false) => {
                let seconds = GATE_TIMEOUT.as_secs();
                return report(&format!("the addresses were not blocked within {seconds} s"), ExitCode::FAILURE);
            }
            Err(error) => {
                return report(&format!("failed to read the routes of the container: {error}"), ExitCode::FAILURE);
            }
        }
    }
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::FAILURE };
    let error = Command::new(program).args(arguments).exec();
    report(&format!("failed to run {}: {error}", program.to_string_lossy()), ExitCode::from(exit_code(&error)))
}

fn exit_code(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// Prints a message to stderr, which the agent copies to the log of the job.
fn report(message: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(io::stderr(), "muster-agent: {message}");
    code
}

fn are_unreachable(addresses: &[IpAddr]) -> io::Result<bool> {
    let routes = std::fs::read_to_string("/proc/net/route")?;
    let ipv6_routes = ipv6_routes()?;
    Ok(addresses.iter().all(|address| match address {
        IpAddr::V4(address) => rejects_ipv4(&routes, *address),
        IpAddr::V6(address) => ipv6_routes.as_ref().is_none_or(|routes| rejects_ipv6(routes, *address)),
    }))
}

/// Returns `None` if the kernel has no IPv6.
fn ipv6_routes() -> io::Result<Option<String>> {
    match std::fs::read_to_string(IPV6_ROUTES) {
        Ok(routes) => Ok(Some(routes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a route rejects packets to the address.
/// `routes` is the content of `/proc/net/route`.
fn rejects_ipv4(routes: &str, address: Ipv4Addr) -> bool {
    let wanted = format!("{:08X}", u32::from_ne_bytes(address.octets()));
    routes.lines().any(|route| {
        let fields: Vec<&str> = route.split_whitespace().collect();
        let [_, destination, _, flags, _, _, _, mask, ..] = fields.as_slice() else { return false };
        *destination == wanted && *mask == "FFFFFFFF" && rejects(flags)
    })
}

/// Returns whether the first route to the address rejects packets.
/// `routes` is the content of `/proc/net/ipv6_route`.
fn rejects_ipv6(routes: &str, address: Ipv6Addr) -> bool {
    let (wanted, first) = (format!("{:032x}", u128::from(address)), format!("{FIRST_METRIC:08x}"));
    routes.lines().any(|route| {
        let fields: Vec<&str> = route.split_whitespace().collect();
        let [destination, length, _, _, _, metric, _, _, flags, ..] = fields.as_slice() else { return false };
        *destination == wanted && *length == "80" && *metric == first && rejects(flags)
    })
}

fn rejects(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_REJECT != 0)
}

fn block_all(addresses: &[IpAddr]) -> io::Result<()> {
    // In Google Cloud, the metadata service is also the name server. If it were blocked, every lookup would fail
    // without a hint at the reason.
    let name_servers = std::fs::read_to_string(NAME_SERVERS).unwrap_or_default();
    if let Some(server) = only_name_server(&name_servers, addresses) {
        return Err(io::Error::other(format!(
            "the blocked address {server} is the only name server of the container; set `dns` of [runners.docker] to other servers, or remove the \
             address from `blocked_addresses`"
        )));
    }
    // The default protocol of a netlink socket is the one for routes and neighbors.
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    let (interfaces, has_ipv6) = (interfaces(&kernel)?, ipv6_routes()?.is_some());
    for address in addresses {
        match address {
            IpAddr::V4(_) => {
                for (_, index) in &interfaces {
                    request(&kernel, &neighbor(*address, *index))?;
                }
            }
            IpAddr::V6(_) if has_ipv6 => {
                for (name, index) in &interfaces {
                    // An interface without IPv6 reaches no IPv6 address, and has neither routes nor neighbors of IPv6.
                    if has_ipv6_on(name)? {
                        request(&kernel, &neighbor(*address, *index))?;
                        request(&kernel, &route_on_link(*address, *index))?;
                    }
                }
            }
            IpAddr::V6(_) => continue,
        }
        // This route is the last entry, because the gate waits for it.
        request(&kernel, &unreachable_route(*address))?;
    }
    Ok(())
}

/// Returns the first name server in `text`, the content of `/etc/resolv.conf`, if all name servers are in `addresses`.
///
/// If the name server is a proxy of the engine, a comment lists the servers behind it. The proxy reaches a server that
/// is listed as `host(ADDRESS)` through the engine's network, in which no address is blocked.
fn only_name_server(text: &str, addresses: &[IpAddr]) -> Option<IpAddr> {
    let forwarded = text.lines().find_map(|line| line.strip_prefix("# ExtServers: [")?.split(']').next());
    let servers: Vec<&str> = match forwarded {
        Some(servers) => servers.split_whitespace().collect(),
        None => text.lines().filter_map(|line| line.strip_prefix("nameserver")?.split_whitespace().next()).collect(),
    };
    let blocked = |server: &&str| server.parse().ok().filter(|address| addresses.contains(address));
    let found: Vec<IpAddr> = servers.iter().map_while(blocked).collect();
    found.first().copied().filter(|_| found.len() == servers.len())
}

fn has_ipv6_on(interface: &str) -> io::Result<bool> {
    match std::fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")) {
        Ok(value) => Ok(value.trim() == "0"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the names and indexes of the interfaces, except the loopback interface, which has no neighbors.
fn interfaces(kernel: &OwnedFd) -> io::Result<Vec<(String, u32)>> {
    let names = std::fs::read_to_string("/proc/net/dev")?;
    let names = names.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).filter(|name| *name != "lo");
    names.map(|name| Ok((name.to_owned(), name_to_index(kernel, name)?))).collect()
}

/// Sends a request and reads the answer. An entry that exists already is not an error.
fn request(kernel: &OwnedFd, message: &[u8]) -> io::Result<()> {
    send(kernel, message, SendFlags::empty())?;
    let mut answer = [0; 1024];
    let (length, _) = recv(kernel, answer.as_mut_slice(), RecvFlags::empty())?;
    // The header has 16 bytes. The error code after it is negative, or 0 for an acknowledgment.
    let code =
        answer.get(16..20).filter(|_| length >= 20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) if Errno::from_raw_os_error(-code) == Errno::EXIST => Ok(()),
        Some(code) => Err(Errno::from_raw_os_error(-code).into()),
        None => Err(io::Error::other("the kernel's answer about a route is incomplete")),
    }
}

/// Returns the family of an address, its length in bits, and its bytes.
fn parts(address: IpAddr) -> (u8, u8, Vec<u8>) {
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    match address {
        IpAddr::V4(address) => (AF_INET, 32, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, 128, address.octets().to_vec()),
    }
}

fn unreachable_route(address: IpAddr) -> Vec<u8> {
    const RTN_UNREACHABLE: u8 = 7;
    const RT_SCOPE_UNIVERSE: u8 = 0;
    // An IPv4 route without this attribute has the metric 0, which no other route can precede.
    let metric = address.is_ipv6().then_some((RTA_PRIORITY, FIRST_METRIC));
    route(address, RTN_UNREACHABLE, RT_SCOPE_UNIVERSE, metric)
}

/// Returns the request for a route that leads to the address on the link of an interface.
fn route_on_link(address: IpAddr, interface: u32) -> Vec<u8> {
    const RTN_UNICAST: u8 = 1;
    const RTA_OIF: u16 = 4;
    const RT_SCOPE_LINK: u8 = 253;
    // Of two routes with the same metric, the second one would replace the first.
    let metric = (RTA_PRIORITY, FIRST_METRIC.saturating_add(interface));
    route(address, RTN_UNICAST, RT_SCOPE_LINK, [(RTA_OIF, interface), metric])
}

/// Returns the request for a route to the address, with additional attributes (rtnetlink(7)).
fn route(address: IpAddr, kind: u8, scope: u8, additional: impl IntoIterator<Item = (u16, u32)>) -> Vec<u8> {
    const RTM_NEWROUTE: u16 = 24;
    const RT_TABLE_MAIN: u8 = 254;
    const RTPROT_STATIC: u8 = 4;
    const RTA_DST: u16 = 1;
    let (family, bits, bytes) = parts(address);
    // Family, prefix of the destination and of the source, type of service, table, protocol, scope, type, flags.
    let mut body = vec![family, bits, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, kind, 0, 0, 0, 0];
    attribute(&mut body, RTA_DST, &bytes);
    for (name, value) in additional {
        attribute(&mut body, name, &value.to_ne_bytes());
    }
    message(RTM_NEWROUTE, &body)
}

/// Returns the request for a permanent neighbor entry that leads nowhere.
fn neighbor(address: IpAddr, interface: u32) -> Vec<u8> {
    const RTM_NEWNEIGH: u16 = 28;
    const NUD_PERMANENT: u16 = 0x80;
    const NDA_DST: u16 = 1;
    const NDA_LLADDR: u16 = 2;
    let (family, _, bytes) = parts(address);
    // Family and padding, interface, state, flags, type.
    let mut body = vec![family, 0, 0, 0];
    body.extend(interface.to_ne_bytes());
    body.extend(NUD_PERMANENT.to_ne_bytes());
    body.extend([0, 0]);
    attribute(&mut body, NDA_DST, &bytes);
    attribute(&mut body, NDA_LLADDR, &NOWHERE);
    message(RTM_NEWNEIGH, &body)
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Returns a message that creates or replaces an entry, and requests an acknowledgment (netlink(7)).
fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    const REQUEST_ACK_REPLACE_CREATE: u16 = 0x1 | 0x4 | 0x100 | 0x400;
    let length = u32::try_from(body.len() + 16).unwrap_or(u32::MAX);
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(REQUEST_ACK_REPLACE_CREATE.to_ne_bytes());
    // Sequence number and port, which a socket with one request at a time does not need.
    message.extend([0; 8]);
    message.extend(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_of_a_command_that_cannot_run_is_that_of_a_shell() {
        let run = |program: &str| exit_code(&Command::new(program).exec());
        assert_eq!((run("/nonexistent"), run("/")), (127, 126));
    }

    #[test]
    fn ipv4_address_is_blocked_only_by_a_reject_route_to_it() {
        let routes = |flags: &str, mask: &str| {
            format!(
                "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                 eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n*\tFEA9FEA9\t00000000\t{flags}\t0\t0\t0\t{mask}\t0\t0\t0\n"
            )
        };
        let address = Ipv4Addr::new(169, 254, 169, 254);
        assert!(rejects_ipv4(&routes("0205", "FFFFFFFF"), address));
        assert!(!rejects_ipv4(&routes("0205", "FFFFFFFF"), Ipv4Addr::new(169, 254, 169, 253)));
        assert!(!rejects_ipv4(&routes("0005", "FFFFFFFF"), address));
        assert!(!rejects_ipv4(&routes("0205", "0000FFFF"), address));
        assert!(!rejects_ipv4("", address));
    }

    #[test]
    fn name_server_is_reported_only_if_all_name_servers_are_blocked() {
        let addresses: Vec<IpAddr> =
            ["169.254.169.254", "fd20:ce::254"].map(|address| address.parse().unwrap()).to_vec();
        let found = |text: &str| only_name_server(text, &addresses).map(|address| address.to_string());
        assert_eq!(found("search c.example\nnameserver 169.254.169.254\n").as_deref(), Some("169.254.169.254"));
        assert_eq!(found("nameserver\tfd20:ce::254 \nnameserver 169.254.169.254\n").as_deref(), Some("fd20:ce::254"));
        assert_eq!(
            found("nameserver 127.0.0.11\n# ExtServers: [169.254.169.254]\n").as_deref(),
            Some("169.254.169.254")
        );
        for text in [
            "",
            "nameserver 10.0.0.2\n",
            "nameserver 169.254.169.254\nnameserver 10.0.0.2\n",
            "# nameserver 169.254.169.254\n",
            "nameserver 127.0.0.11\n# ExtServers: [host(169.254.169.254)]\n",
            "nameserver 127.0.0.11\n# ExtServers: [10.0.0.2 169.254.169.254]\n",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn ipv6_address_is_blocked_only_if_the_first_route_to_it_rejects() {
        let zeros = "0".repeat(32);
        let route = |destination: &str, length: &str, metric: &str, flags: &str| {
            format!("{destination} {length} {zeros} 00 {zeros} {metric} 00000001 00000000 {flags}       lo\n")
        };
        let (address, text) = ("fd00:ec2::254".parse().unwrap(), "fd000ec2000000000000000000000254");
        assert!(rejects_ipv6(&route(text, "80", "00000001", "00200200"), address));
        assert!(!rejects_ipv6(&route(text, "80", "00000400", "00200200"), address));
        assert!(!rejects_ipv6(&route(text, "80", "00000001", "00000001"), address));
        assert!(!rejects_ipv6(&route(text, "40", "00000001", "00200200"), address));
        assert!(!rejects_ipv6(&route(&zeros, "80", "00000001", "00200200"), address));
    }
}
