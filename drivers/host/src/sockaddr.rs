//! Socket addresses and packet information in the layouts of the socket calls.

use std::{
    mem::{offset_of, zeroed},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
};

use libc::{cmsghdr, in_pktinfo, in6_pktinfo};

/// A socket address of either family, as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub union RawAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddr {
    /// Bytes that the kernel uses of an address of the same family as `addr`.
    pub fn len_for(addr: SocketAddr) -> usize {
        match addr {
            SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
            SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
        }
    }

    /// The address; if it has no family, `[::]:0`.
    #[inline]
    pub fn get(&self) -> SocketAddr {
        // SAFETY: both members are plain integers that start with the family. A value is made by `default` or `from`,
        // or by the kernel over one of these, so all of it is initialised.
        unsafe {
            if i32::from(self.v4.sin_family) == libc::AF_INET {
                let ip = Ipv4Addr::from(u32::from_be(self.v4.sin_addr.s_addr));
                SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into()
            } else {
                let v6 = &self.v6;
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), v6.sin6_flowinfo, v6.sin6_scope_id).into()
            }
        }
    }
}

impl Default for RawAddr {
    fn default() -> Self {
        // SAFETY: all members are integers, for which zero is a value.
        unsafe { zeroed() }
    }
}

impl From<SocketAddr> for RawAddr {
    fn from(addr: SocketAddr) -> Self {
        let mut raw = Self::default();
        match addr {
            SocketAddr::V4(addr) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
                    sin_zero: [0; 8],
                }
            }
            SocketAddr::V6(addr) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: addr.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                }
            }
        }
        raw
    }
}

/// Size of control data with one `IP_PKTINFO` or `IPV6_PKTINFO` message, in bytes; a multiple of 8.
pub const PACKET_INFO: usize = {
    // SAFETY: CMSG_SPACE only computes; it takes no pointer.
    unsafe { libc::CMSG_SPACE(size_of::<in6_pktinfo>() as u32) as usize }
};

/// Turns the packet information of a received frame around in place, so that the answer leaves from the address that
/// the frame was sent to. Returns the number of bytes of `control` to send with it. The route chooses the interface,
/// except for link-local addresses, which mean nothing without theirs.
///
/// `control` must be what the kernel wrote for a socket that enables packet information and nothing else.
#[inline]
pub fn answer_from_destination(control: &mut [u8]) -> usize {
    const LEN: usize = offset_of!(cmsghdr, cmsg_len);
    const LEVEL: usize = offset_of!(cmsghdr, cmsg_level);
    const DATA: usize = size_of::<cmsghdr>();
    const V4_INTERFACE: usize = DATA + offset_of!(in_pktinfo, ipi_ifindex);
    const V6_ADDRESS: usize = DATA + offset_of!(in6_pktinfo, ipi6_addr);
    const V6_INTERFACE: usize = DATA + offset_of!(in6_pktinfo, ipi6_ifindex);

    let Some(header) = control.first_chunk::<DATA>() else { return 0 };
    let len = usize::from_ne_bytes(header[LEN..LEN + 8].try_into().expect("8 bytes"));
    let level = i32::from_ne_bytes(header[LEVEL..LEVEL + 4].try_into().expect("4 bytes"));
    if len > control.len() {
        return 0;
    }
    if level == libc::IPPROTO_IP && len == DATA + size_of::<in_pktinfo>() {
        // `ipi_spec_dst` is the local address to answer from already, for a broadcast too.
        control[V4_INTERFACE..V4_INTERFACE + 4].fill(0);
    } else if level == libc::IPPROTO_IPV6 && len == DATA + size_of::<in6_pktinfo>() {
        let octets: [u8; 16] = control[V6_ADDRESS..V6_ADDRESS + 16].try_into().expect("16 bytes");
        let destination = Ipv6Addr::from(octets);
        if destination.is_multicast() {
            return 0;
        }
        if !destination.is_unicast_link_local() {
            control[V6_INTERFACE..V6_INTERFACE + 4].fill(0);
        }
    } else {
        return 0;
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(level: i32, data: &[u8]) -> Vec<u8> {
        let header = [level.to_ne_bytes(), [0; 4]].concat();
        [&(size_of::<cmsghdr>() + data.len()).to_ne_bytes()[..], &header, data].concat()
    }

    #[test]
    fn addresses_survive_the_kernels_layout() {
        for addr in ["127.0.0.1:80", "255.254.253.252:65535", "[::1]:443", "[fe80::1%7]:9"] {
            let addr: SocketAddr = addr.parse().expect("an address");
            assert_eq!(RawAddr::from(addr).get(), addr);
        }
        assert_eq!(RawAddr::default().get(), "[::]:0".parse().expect("an address"));
    }

    #[test]
    fn an_answer_over_ipv4_leaves_by_any_interface() {
        let mut info = control(libc::IPPROTO_IP, &[3, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 255]);
        assert_eq!(answer_from_destination(&mut info), info.len());
        assert_eq!(info, control(libc::IPPROTO_IP, &[0, 0, 0, 0, 10, 0, 0, 1, 10, 0, 0, 255]));
    }

    #[test]
    fn an_answer_over_ipv6_keeps_the_interface_of_a_link_only() {
        let info = |ip: &str, interface: u8| {
            let ip: Ipv6Addr = ip.parse().expect("an address");
            control(libc::IPPROTO_IPV6, &[&ip.octets()[..], &[interface, 0, 0, 0]].concat())
        };
        for (ip, kept) in [("fe80::1", 3), ("2001:db8::1", 0), ("::1", 0)] {
            let mut control = info(ip, 3);
            assert_eq!(answer_from_destination(&mut control), control.len());
            assert_eq!(control, info(ip, kept));
        }
        assert_eq!(answer_from_destination(&mut info("ff02::1", 3)), 0);
    }

    #[test]
    fn other_control_data_is_not_sent() {
        assert_eq!(answer_from_destination(&mut []), 0);
        assert_eq!(answer_from_destination(&mut [0; PACKET_INFO]), 0);
        let mut other = control(libc::SOL_SOCKET, &[0; 20]);
        assert_eq!(answer_from_destination(&mut other), 0);
        for level in [libc::IPPROTO_IPV6, libc::IPPROTO_IP] {
            assert_eq!(answer_from_destination(&mut control(level, &[0; 8])), 0);
        }
    }
}
