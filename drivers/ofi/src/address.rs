//! Endpoint addresses from peers: bytes that a provider will read as a structure or as text.

use berth_libfabric_sys as sys;

/// Room for an address of any format, in bytes; textual ones are shorter.
pub const MAX_ADDRESS: usize = 256;

/// Form of an endpoint's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// libfabric's format code, such as `FI_SOCKADDR_IN`.
    pub code: u32,
    /// Length of the endpoint's own address in bytes.
    pub len: usize,
}

impl Format {
    /// Checks an address and pads it with zeros, so that a provider can neither read beyond it nor mistake its kind.
    pub fn check(self, address: &[u8]) -> Option<[u8; MAX_ADDRESS]> {
        let family = address.first_chunk().map(|family| i32::from(u16::from_ne_bytes(*family)));
        let is_ip = |wanted| match family {
            Some(libc::AF_INET) => wanted != libc::AF_INET6 && address.len() == size_of::<libc::sockaddr_in>(),
            Some(libc::AF_INET6) => wanted != libc::AF_INET && address.len() == size_of::<libc::sockaddr_in6>(),
            _ => false,
        };
        let sound = match self.code {
            sys::FI_SOCKADDR => is_ip(libc::AF_UNSPEC),
            sys::FI_SOCKADDR_IN => is_ip(libc::AF_INET),
            sys::FI_SOCKADDR_IN6 => is_ip(libc::AF_INET6),
            sys::FI_ADDR_STR => is_text(address),
            _ => address.len() == self.len,
        };
        if !sound || address.len() >= MAX_ADDRESS {
            return None;
        }
        let mut padded = [0; MAX_ADDRESS];
        padded[..address.len()].copy_from_slice(address);
        Some(padded)
    }
}

/// Whether it is printable characters with nothing after the first NUL.
fn is_text(address: &[u8]) -> bool {
    let end = address.iter().position(|byte| *byte == 0).unwrap_or(address.len());
    let (text, rest) = address.split_at(end);
    !text.is_empty() && text.iter().all(u8::is_ascii_graphic) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IN: Format = Format { code: sys::FI_SOCKADDR_IN, len: 16 };

    fn ipv4() -> Vec<u8> {
        let family = (libc::AF_INET as u16).to_ne_bytes();
        [&family[..], &[0x12, 0x34, 127, 0, 0, 1], &[0; 8]].concat()
    }

    fn ipv6() -> Vec<u8> {
        [&(libc::AF_INET6 as u16).to_ne_bytes()[..], &[0; 26]].concat()
    }

    #[test]
    fn an_address_has_the_length_and_the_family_of_its_format() {
        let (v4, v6) = (ipv4(), ipv6());
        assert_eq!(IN.check(&v4).unwrap()[..16], v4);
        let any = Format { code: sys::FI_SOCKADDR, len: 16 };
        let six = Format { code: sys::FI_SOCKADDR_IN6, len: 28 };
        for (format, good, bad) in
            [(IN, vec![&v4], vec![&v6]), (any, vec![&v4, &v6], vec![]), (six, vec![&v6], vec![&v4])]
        {
            for address in good {
                assert!(format.check(address).is_some());
                assert!(format.check(&address[..address.len() - 1]).is_none());
                assert!(format.check(&[&address[..], &[0]].concat()).is_none());
            }
            assert!(bad.iter().all(|address| format.check(address).is_none()));
        }
        assert!(IN.check(&[]).is_none());
        assert!(IN.check(&[2]).is_none());
    }

    #[test]
    fn a_text_ends_where_it_ends() {
        let text = Format { code: sys::FI_ADDR_STR, len: 20 };
        assert!(text.check(b"fi_shm://1:2:3\0").is_some());
        assert!(text.check(b"fi_shm://1:2:3").is_some());
        for bad in [&b""[..], b"\0", b"a\0b", b"a b\0", b"a\xff\0", b"\n\0", &[b'a'; MAX_ADDRESS]] {
            assert!(text.check(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn an_unknown_format_has_the_length_of_the_endpoints_own_address() {
        let efa = Format { code: sys::FI_ADDR_EFA, len: 32 };
        assert!(efa.check(&[7; 32]).is_some());
        assert!(efa.check(&[7; 31]).is_none() && efa.check(&[7; 33]).is_none());
    }

    proptest! {
        #[test]
        fn whatever_passes_is_followed_by_zeros(
            code in 0_u32..20,
            len in 0_usize..300,
            address in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Some(padded) = (Format { code, len }).check(&address) {
                prop_assert!(address.len() < MAX_ADDRESS);
                prop_assert_eq!(&padded[..address.len()], &address[..]);
                prop_assert!(padded[address.len()..].iter().all(|byte| *byte == 0));
            }
        }
    }
}
