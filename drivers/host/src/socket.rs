//! UDP sockets for poll loops: bound, sized, and with every loss visible.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
};

use berth_port::{DeviceCounters, Tables, families::RX_DROPPED};
use socket2::{Domain, Protocol, Socket, Type};

/// Longest UDP payload over IPv4 and over IPv6, in bytes: 65,535 minus the headers that the length covers.
const MAX_DATAGRAM: [usize; 2] = [65_507, 65_527];

/// Settings of a UDP port's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpConfig {
    /// Address to bind. Port 0 lets the kernel choose. An unspecified address serves every local address of its family
    /// (an IPv6 socket never receives IPv4), and answers from the address that a frame was sent to.
    pub bind: SocketAddr,
    /// Longest frame in bytes, at most 65,507 over IPv4 and 65,527 over IPv6.
    pub max_frame: usize,
    /// Whether several queues bind the same address (`SO_REUSEPORT`); the kernel spreads flows over them.
    pub reuse_port: bool,
    /// Size of the kernel's receive buffer in bytes, as the kernel accounts for them (about twice the payload). `None`
    /// for its default.
    pub rcvbuf: Option<usize>,
    /// Size of the kernel's send buffer, in the same way.
    pub sndbuf: Option<usize>,
}

impl UdpConfig {
    /// Binds `bind` with what most ports need: frames of 2048 bytes, one queue, the kernel's default buffers.
    pub fn new(bind: SocketAddr) -> Self {
        Self { bind, max_frame: 2048, reuse_port: false, rcvbuf: None, sndbuf: None }
    }
}

/// Why a UDP socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another socket has this address.
    #[error("{0} is in use: stop the program that holds it (`ss -ulpn` shows it), or bind another port or port 0")]
    InUse(SocketAddr),
    /// The port is below `net.ipv4.ip_unprivileged_port_start`.
    #[error("no permission to bind {0}: bind a port from 1024 on, or grant CAP_NET_BIND_SERVICE")]
    NotPermitted(SocketAddr),
    /// No interface has this address.
    #[error("{0} is not an address of this host: `ip address` lists those that are; an unspecified address binds all")]
    NotLocal(SocketAddr),
    /// UDP cannot carry frames of this length.
    #[error("max_frame = {asked}: a UDP frame is 1 to {longest} bytes long")]
    MaxFrame {
        /// Frame length asked for, in bytes.
        asked: usize,
        /// Longest frame of the address family, in bytes.
        longest: usize,
    },
    /// The kernel limits the buffer to less than asked for.
    #[error(
        "{option} = {asked}: the kernel grants {granted}; raise the sysctl net.core.{limit}, or grant CAP_NET_ADMIN"
    )]
    Buffer {
        /// `rcvbuf` or `sndbuf`.
        option: &'static str,
        /// Bytes asked for.
        asked: usize,
        /// Bytes granted.
        granted: usize,
        /// Name of the sysctl that limits it.
        limit: &'static str,
    },
    /// Another failure.
    #[error("{what} for {addr}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The address to bind.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// A bound, non-blocking UDP socket that reports ICMP errors and local drops instead of hiding them.
#[derive(Debug)]
pub struct UdpSocket {
    socket: Socket,
    addr: SocketAddr,
}

/// Reads the kernel's counters of a socket through a descriptor of its own.
#[derive(Debug)]
pub struct SocketCounters {
    socket: Socket,
    overrun: u64,
}

impl UdpSocket {
    /// Opens a socket, sets its buffers and binds it.
    pub fn bind(config: &UdpConfig) -> Result<Self, BindError> {
        let addr = config.bind;
        let (asked, longest) = (config.max_frame, MAX_DATAGRAM[usize::from(addr.is_ipv6())]);
        if asked == 0 || asked > longest {
            return Err(BindError::MaxFrame { asked, longest });
        }
        let io = |what| move |source| BindError::Io { what, addr, source };
        let socket = Socket::new(Domain::for_address(addr), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))
            .map_err(io("opening a UDP socket"))?;
        socket.set_reuse_port(config.reuse_port).map_err(io("setting SO_REUSEPORT"))?;
        set_buffer(&socket, addr, &RCVBUF, config.rcvbuf)?;
        set_buffer(&socket, addr, &SNDBUF, config.sndbuf)?;
        let (level, report_errors, packet_info) = match addr {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR, libc::IP_PKTINFO),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, libc::IPV6_RECVPKTINFO),
        };
        if addr.is_ipv6() {
            socket.set_only_v6(true).map_err(io("setting IPV6_V6ONLY"))?;
        }
        let fd = socket.as_raw_fd();
        enable(fd, level, report_errors).map_err(io("switching error reports on"))?;
        if addr.ip().is_unspecified() {
            enable(fd, level, packet_info).map_err(io("switching packet information on"))?;
        }
        socket.bind(&addr.into()).map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => BindError::InUse(addr),
            ErrorKind::PermissionDenied => BindError::NotPermitted(addr),
            ErrorKind::AddrNotAvailable => BindError::NotLocal(addr),
            _ => BindError::Io { what: "binding", addr, source },
        })?;
        let bound = socket.local_addr().map_err(io("reading the bound address"))?;
        let addr = bound.as_socket().expect("a UDP socket is bound to an IP address");
        Ok(Self { socket, addr })
    }

    /// The bound address, with the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether frames carry packet information (`IP_PKTINFO`, `IPV6_PKTINFO`), because every local address is served.
    pub fn has_packet_info(&self) -> bool {
        self.addr.ip().is_unspecified()
    }

    /// The kernel's counters of this socket; `None` if the process may open no more descriptors.
    pub fn counters(&self) -> Option<SocketCounters> {
        Some(SocketCounters { socket: self.socket.try_clone().ok()?, overrun: 0 })
    }

    /// Takes up to `limit` entries off the socket's error queue, and returns their number. Each is an ICMP error about
    /// a frame that was sent, or a local failure to send one.
    pub fn take_errors(&self, limit: usize) -> usize {
        let take = || {
            // SAFETY: an all-zero header asks for no data, so nothing but the header is written.
            unsafe {
                let mut header: libc::msghdr = std::mem::zeroed();
                libc::recvmsg(self.as_raw_fd(), &raw mut header, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
            }
        };
        (0..limit).take_while(|_| take() >= 0).count()
    }
}

berth_port::counters! {
    /// Counters that the kernel keeps for a socket.
    struct Kernel {
        rx_overrun: RX_DROPPED { reason: "socket_full" },
    }
}

/// Declarations of the counters of every socket.
pub const COUNTERS: Tables = &[Kernel::TABLE];

impl DeviceCounters for SocketCounters {
    /// `rx_overrun`: datagrams that the kernel has dropped since the socket was opened, because the buffer was full or
    /// a checksum wrong. Takes one system call. Exact if called at least once per 2^32 drops.
    fn read(&mut self, visit: &mut dyn FnMut(&'static str, u64)) {
        /// Index of the drop count in the answer to `SO_MEMINFO` (`SK_MEMINFO_DROPS`, `linux/sock_diag.h`).
        const DROPS: usize = 8;
        let mut info = [0u32; DROPS + 1];
        let mut len = size_of_val(&info) as libc::socklen_t;
        // SAFETY: `info` is `len` bytes long, and the kernel writes no more.
        let rc = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if rc == 0 {
            self.overrun += u64::from(info[DROPS].wrapping_sub(self.overrun as u32));
        }
        Kernel { rx_overrun: self.overrun }.report(visit);
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

struct BufferOption {
    name: &'static str,
    limit: &'static str,
    force: i32,
    set: fn(&Socket, usize) -> io::Result<()>,
    get: fn(&Socket) -> io::Result<usize>,
}

const RCVBUF: BufferOption = BufferOption {
    name: "rcvbuf",
    limit: "rmem_max",
    force: libc::SO_RCVBUFFORCE,
    set: Socket::set_recv_buffer_size,
    get: Socket::recv_buffer_size,
};

const SNDBUF: BufferOption = BufferOption {
    name: "sndbuf",
    limit: "wmem_max",
    force: libc::SO_SNDBUFFORCE,
    set: Socket::set_send_buffer_size,
    get: Socket::send_buffer_size,
};

/// Sets the size of a socket buffer: beyond the system's limit if this process may, otherwise within it.
fn set_buffer(socket: &Socket, addr: SocketAddr, option: &BufferOption, asked: Option<usize>) -> Result<(), BindError> {
    let Some(asked) = asked else { return Ok(()) };
    let io = |source| BindError::Io { what: "sizing a socket buffer", addr, source };
    // The kernel doubles the value, for its own bookkeeping, and reports the double.
    let half = asked.div_ceil(2);
    if set_int(socket.as_raw_fd(), libc::SOL_SOCKET, option.force, i32::try_from(half).unwrap_or(i32::MAX)).is_err() {
        (option.set)(socket, half).map_err(io)?;
    }
    let granted = (option.get)(socket).map_err(io)?;
    if granted < asked {
        return Err(BindError::Buffer { option: option.name, asked, granted, limit: option.limit });
    }
    Ok(())
}

fn enable(fd: RawFd, level: i32, option: i32) -> io::Result<()> {
    set_int(fd, level, option, 1)
}

fn set_int(fd: RawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the option's value is the integer `value`, of the length given.
    let rc = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of_val(&value) as u32) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
