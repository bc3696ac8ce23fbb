//! Makes addresses unreachable in the network of a container (`blocked_addresses` of `[runners.docker]`).
//!
//! ```text
//! agent beside the engine                     container
//!   create, start ------------------------->  `gate` is the first process, and waits
//!   start of `block` in the same network ->   routes and neighbor entries are added
//!                                             `gate` finds the routes, and becomes the entrypoint of the image
//! ```
//!
//! A route of the type `unreachable` covers ordinary connections. A socket that is bound to an interface skips such a route, and looks for the
//! address on the link, so each interface also gets a permanent neighbor entry that leads nowhere. Only a process with the capability
//! `NET_ADMIN` can remove them, and only one with `NET_RAW` can send packets past them. The creator of the container gives it neither.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

/// Maximum time until the addresses are blocked.
const GATE_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay between two reads of the routes. The kernel reports changes only to processes with a netlink socket.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Exit code of a shell whose command is not found.
const NOT_FOUND: u8 = 127;
/// Flag of a route that rejects packets, in `/proc/net/route`.
const RTF_REJECT: u32 = 0x200;
/// Hardware address that no interface has: it is administered locally.
const NOWHERE: [u8; 6] = [0x02, 0, 0, 0, 0, 0];

/// Arguments of `muster agent block`.
#[derive(Debug, clap::Args)]
pub(crate) struct BlockArgs {
    /// Addresses to block.
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<Ipv4Addr>,
}

/// Arguments of `muster agent gate`.
#[derive(Debug, clap::Args)]
pub(crate) struct GateArgs {
    /// Address that must be blocked. Can be repeated.
    #[arg(long, required = true, value_name = "ADDRESS")]
    address: Vec<Ipv4Addr>,
    /// Command to run after that.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs `muster agent block`.
pub(super) fn block(args: &BlockArgs) -> ExitCode {
    match block_all(&args.addresses) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error.to_string(), ExitCode::FAILURE),
    }
}

/// Runs `muster agent gate`. Returns only if the command cannot be run.
pub(super) fn gate(args: &GateArgs) -> ExitCode {
    let deadline = Instant::now() + GATE_TIMEOUT;
    loop {
        match std::fs::read_to_string("/proc/net/route") {
            Ok(routes) if args.address.iter().all(|address| is_unreachable(&routes, *address)) => break,
            Ok(_) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Ok(_) => return report("the addresses were not blocked in time", ExitCode::FAILURE),
            Err(error) => {
                return report(&format!("failed to read the routes of the container: {error}"), ExitCode::FAILURE);
            }
        }
    }
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::FAILURE };
    let error = Command::new(program).args(arguments).exec();
    report(&format!("failed to run {}: {error}", program.to_string_lossy()), ExitCode::from(NOT_FOUND))
}

/// Prints a message, which the agent that created the container shows in the log of the job.
fn report(message: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(io::stderr(), "muster-agent: {message}");
    code
}

/// Returns whether a route rejects packets to the address. `routes` is the content of `/proc/net/route`.
fn is_unreachable(routes: &str, address: Ipv4Addr) -> bool {
    let wanted = format!("{:08X}", u32::from_ne_bytes(address.octets()));
    routes.lines().any(|route| {
        let fields: Vec<&str> = route.split_whitespace().collect();
        let [_, destination, _, flags, _, _, _, mask, ..] = fields.as_slice() else { return false };
        let rejects = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & RTF_REJECT != 0);
        *destination == wanted && *mask == "FFFFFFFF" && rejects
    })
}

fn block_all(addresses: &[Ipv4Addr]) -> io::Result<()> {
    // The default protocol is that of routes.
    let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    for address in addresses {
        // The route is the last one, because the gate waits for it.
        for interface in interfaces(&kernel)? {
            request(&kernel, &neighbor(*address, interface))?;
        }
        request(&kernel, &route(*address))?;
    }
    Ok(())
}

/// Returns the indexes of the interfaces of this network, except the loopback interface, which has no neighbors.
fn interfaces(kernel: &OwnedFd) -> io::Result<Vec<u32>> {
    let names = std::fs::read_to_string("/proc/net/dev")?;
    let names = names.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).filter(|name| *name != "lo");
    names.map(|name| Ok(name_to_index(kernel, name)?)).collect()
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

/// Returns the request for a route that makes the address unreachable (rtnetlink(7)).
fn route(address: Ipv4Addr) -> Vec<u8> {
    const RTM_NEWROUTE: u16 = 24;
    const AF_INET: u8 = 2;
    const RT_TABLE_MAIN: u8 = 254;
    const RTPROT_STATIC: u8 = 4;
    const RTN_UNREACHABLE: u8 = 7;
    const RTA_DST: u16 = 1;
    // Family, prefix of the destination and of the source, type of service, table, protocol, scope, type, flags.
    let mut body = vec![AF_INET, 32, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, RTN_UNREACHABLE, 0, 0, 0, 0];
    attribute(&mut body, RTA_DST, &address.octets());
    message(RTM_NEWROUTE, &body)
}

/// Returns the request for a permanent neighbor entry that leads nowhere.
fn neighbor(address: Ipv4Addr, interface: u32) -> Vec<u8> {
    const RTM_NEWNEIGH: u16 = 28;
    const AF_INET: u8 = 2;
    const NUD_PERMANENT: u16 = 0x80;
    const NDA_DST: u16 = 1;
    const NDA_LLADDR: u16 = 2;
    // Family and padding, interface, state, flags, type.
    let mut body = vec![AF_INET, 0, 0, 0];
    body.extend(interface.to_ne_bytes());
    body.extend(NUD_PERMANENT.to_ne_bytes());
    body.extend([0, 0]);
    attribute(&mut body, NDA_DST, &address.octets());
    attribute(&mut body, NDA_LLADDR, &NOWHERE);
    message(RTM_NEWNEIGH, &body)
}

/// Appends an attribute, padded to 4 bytes.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Returns a message that creates something or replaces it, and is acknowledged (netlink(7)).
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
    fn only_a_route_that_rejects_the_whole_address_counts() {
        let routes = |flags: &str, mask: &str| {
            format!(
                "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                 eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n*\tFEA9FEA9\t00000000\t{flags}\t0\t0\t0\t{mask}\t0\t0\t0\n"
            )
        };
        let address = Ipv4Addr::new(169, 254, 169, 254);
        assert!(is_unreachable(&routes("0205", "FFFFFFFF"), address));
        assert!(!is_unreachable(&routes("0205", "FFFFFFFF"), Ipv4Addr::new(169, 254, 169, 253)));
        assert!(!is_unreachable(&routes("0005", "FFFFFFFF"), address));
        assert!(!is_unreachable(&routes("0205", "0000FFFF"), address));
        assert!(!is_unreachable("", address));
    }
}
