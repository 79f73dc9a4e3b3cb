//! Two hosts on one cable, and packets as a hostile or unlucky sender makes them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::{collections::BTreeMap, net::IpAddr};

use berth_net::{Answer, Host, HostConfig, Interface, Outcome, Taken, Transport as _, Verified};
use berth_port::{Frame, Nanos, Verdict};
use berth_roce::{Config, Endpoint, Local, Registrar, Remote, Slots, endpoint};
use berth_wire::{
    net::MacAddr,
    rendezvous::ImmForm,
    roce::{Bth, Icrc, Opcode, P_KEY_DEFAULT, PKey, Psn, Qpn, Reth, UDP_PORT, icrc},
};
use zerocopy::IntoBytes as _;

/// Size of a packet buffer.
pub const BUFFER: usize = 10_000;

pub const SLOTS: Slots = Slots { count: 8, stride: 1024, base: 0x1000, form: ImmForm::Psn20 };
pub const CONFIG: Config = Config { p_key: P_KEY_DEFAULT, slots: SLOTS, path_mtu: 1024, peers: 4 };

pub fn v4(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

pub fn v6(host: u8) -> IpAddr {
    [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)].into()
}

/// A host with its endpoint.
pub struct Node {
    pub host: Host,
    pub endpoint: Endpoint,
    pub registrar: Registrar,
    pub random: fastrand::Rng,
}

impl Node {
    pub fn new(number: u8, config: Config) -> Self {
        let mac = |host| MacAddr([2, 0, 0, 0, 0, host]);
        let host = Host::new(&HostConfig {
            mac: mac(number),
            interfaces: vec![
                Interface { address: v4(number), prefix: 24 },
                Interface { address: v6(number), prefix: 64 },
            ],
            vlan: None,
            udp_port: UDP_PORT,
            udp_checksums: false,
            mtu: 4200,
            neighbours: (1..5).flat_map(|other| [(v4(other), mac(other)), (v6(other), mac(other))]).collect(),
        });
        let (endpoint, registrar) = endpoint(config).unwrap();
        Self { host, endpoint, registrar, random: fastrand::Rng::with_seed(u64::from(number)) }
    }

    pub fn add(&mut self, remote: &Remote, psn: u32) -> Local {
        let local = self.registrar.add(remote, Psn::new(psn), || self.random.u32(..)).unwrap();
        self.endpoint.poll();
        local
    }

    /// Takes a frame like a port; returns what was lent, and the answer.
    pub fn rx(
        &mut self,
        frame: &[u8],
        handle: impl FnMut(&mut Frame<'_>) -> Verdict,
    ) -> (Option<usize>, Option<Vec<u8>>) {
        let mut buf = frame.to_vec();
        buf.resize(BUFFER, 0xee);
        let Outcome::Udp(datagram) = self.host.rx(&mut buf, frame.len(), Verified::default(), Nanos(1)) else {
            return (None, None);
        };
        let Taken { lent, answer } = self.endpoint.rx(&self.host, &mut buf, &datagram, false, handle);
        let answer = match answer {
            Answer::Sealed(sealed) => Some(buf[..sealed.len].to_vec()),
            Answer::None => None,
            Answer::TooLong => Some(Vec::new()),
        };
        (lent, answer)
    }

    /// A message to the peer that `local` describes; `None` if it does not take one this long.
    pub fn post(&mut self, address: IpAddr, local: &Local, message: &[u8]) -> Option<Vec<u8>> {
        let peer = Registrar::peer(address, local);
        let to = self.endpoint.address_of(peer).unwrap();
        let route = self.host.route(to, Nanos(1)).unwrap();
        let mut buf = vec![0xee; BUFFER];
        let sealed = self.endpoint.post(&self.host, &mut buf, &route, peer, false, |payload| {
            payload[..message.len()].copy_from_slice(message);
            message.len()
        })?;
        buf.truncate(sealed.len);
        Some(buf)
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters = BTreeMap::new();
        self.endpoint.counters(&mut |name, value| {
            assert_eq!(counters.insert(name, value), None, "{name} twice");
        });
        counters
    }

    /// The counters that are not zero.
    pub fn counted(&self) -> Vec<(&'static str, u64)> {
        self.counters().into_iter().filter(|(_, value)| *value != 0).collect()
    }
}

/// A peer at `address` that sends from `psn` on, and to which messages are sent, not written.
pub fn remote(address: IpAddr, psn: u32) -> Remote {
    Remote { address, qpn: Qpn::new(0x00ab_cdef), psn: Psn::new(psn), path_mtu: 4096, window: None }
}

/// A packet, field by field.
#[derive(Debug, Clone)]
pub struct Raw {
    pub opcode: u8,
    pub p_key: u16,
    pub qpn: u32,
    pub psn: u32,
    pub reth: Option<(u64, u32, u32)>,
    pub immediate: Option<u32>,
    pub payload: Vec<u8>,
}

impl Raw {
    pub fn new(opcode: Opcode, local: &Local, psn: u32, payload: &[u8]) -> Self {
        Self {
            opcode: opcode as u8,
            p_key: 0xffff,
            qpn: local.qpn.get(),
            psn,
            reth: None,
            immediate: None,
            payload: payload.to_vec(),
        }
    }

    pub fn to(mut self, address: u64, rkey: u32, len: usize) -> Self {
        self.reth = Some((address, rkey, len as u32));
        self
    }

    pub fn immediate(mut self, immediate: u32) -> Self {
        self.immediate = Some(immediate);
        self
    }

    /// The whole frame on its way from `from` to `to`.
    pub fn frame(&self, from: &mut Host, to: IpAddr) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() & 3;
        let mut bytes =
            Bth::new(self.opcode, pad, PKey(self.p_key), Qpn::new(self.qpn), Psn::new(self.psn)).as_bytes().to_vec();
        if let Some((address, rkey, len)) = self.reth {
            bytes.extend(Reth::new(address, rkey, len).as_bytes());
        }
        if let Some(immediate) = self.immediate {
            bytes.extend(immediate.to_be_bytes());
        }
        bytes.extend(&self.payload);
        bytes.extend(vec![0; pad + Icrc::LEN]);
        let route = from.route((to, UDP_PORT).into(), Nanos(1)).unwrap();
        let mut frame = vec![0; route.header_len()];
        frame.extend(&bytes);
        let sealed = from.seal(&mut frame, &route, bytes.len(), false);
        let (packet, crc) = frame[sealed.link_len..].split_last_chunk_mut::<4>().unwrap();
        *crc = icrc(packet, sealed.ip_len).0;
        frame
    }
}
