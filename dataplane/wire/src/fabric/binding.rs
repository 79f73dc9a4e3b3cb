//! Binding TLVs: how a lease's bytes are reached. Tags are grouped by transport: 0x01xx every memory and block lease,
//! 0x02xx RDMA, 0x03xx NVMe-oF, 0x04xx the client's side of LEASE_BIND, 0x05xx SR-IOV, 0x06xx OFI.

use super::{
    EndpointKind,
    codec::{FabricError, Reader, Wire, utf8},
    macros::codes,
    tlv::Tlv,
};

codes! {
    /// `kind` of LEASE_BIND: the high byte of the tags that the answer carries.
    pub enum BindKind: u8 {
        Rdma = 2, "RDMA", "RDMA over converged Ethernet";
        NvmeOf = 3, "NVMe-oF", "NVMe over fabrics";
        SrIov = 5, "SR-IOV", "a virtual function of a PCIe device";
        Ofi = 6, "OFI", "libfabric";
    }

    /// Transports of an NVMe-oF target (TLV 0x0304).
    pub enum NvmeTransport: u8 {
        Tcp = 0, "tcp", "TCP";
        Rdma = 1, "rdma", "RDMA";
        Loop = 2, "loop", "within the host";
    }

    /// libfabric endpoint types (TLV 0x0603).
    pub enum OfiEndpoint: u8 {
        Msg = 1, "FI_EP_MSG", "connected messages";
        Dgram = 2, "FI_EP_DGRAM", "datagrams";
        Rdm = 3, "FI_EP_RDM", "reliable unconnected messages";
    }

    /// How bytes are reached over libfabric (TLV 0x0605).
    pub enum OfiAccess: u8 {
        Rma = 1, "RMA", "one-sided reads and writes";
        Msg = 2, "MSG", "two-sided messages, checked by the node";
    }
}

/// A PCI function's address, 4 bytes on the wire: domain (2), bus (1), devfn (1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciAddress {
    /// PCI segment; 0 on most machines.
    pub domain: u16,
    /// Bus number within the domain.
    pub bus: u8,
    /// `device << 3 | function`.
    pub devfn: u8,
}

impl<'a> Wire<'a> for PciAddress {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        Ok(Self { domain: from.get()?, bus: from.get()?, devfn: from.get()? })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.domain.write(to);
        self.bus.write(to);
        self.devfn.write(to);
    }
}

/// One TLV of a lease's binding (sections "... dataplane binding TLVs"; profile, "Binding TLVs").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingTlv<'a> {
    /// 0x0101, repeatable: an address at which the bytes are served.
    Endpoint {
        /// The protocol spoken there.
        kind: EndpointKind,
        /// `ip:port`.
        addr: &'a str,
    },
    /// 0x0102: the lease's generation, of 56 bits; a request that carries another is refused.
    Generation(u64),
    /// 0x0103: the low 64 bits of the lease id, which name the lease in two-sided requests.
    LeaseKey(u64),
    /// 0x0104: the extent of the lease.
    Limits {
        /// Always 0: offsets count from the lease's first byte (decision 15).
        offset: u64,
        /// Size of the lease in bytes.
        len: u64,
        /// Largest access in bytes.
        max_io: u32,
    },
    /// 0x0201: remote key of the registered memory region.
    RdmaRkey(u32),
    /// 0x0202: virtual address of the region's first byte, at the server.
    RdmaRemoteAddr(u64),
    /// 0x0203: number of the server's queue pair.
    RdmaQpNum(u32),
    /// 0x0204: GID of the server's port, in the form of an IPv6 address.
    RdmaGid([u8; 16]),
    /// 0x0205: port number on the server's RDMA device.
    RdmaPort(u16),
    /// 0x0206: first packet sequence number that the server sends.
    RdmaPsn(u32),
    /// 0x0301: NQN of the target subsystem.
    NvmeNqn(&'a str),
    /// 0x0302: the target's IP address, as text.
    NvmeTrAddr(&'a str),
    /// 0x0303: the target's TCP port.
    NvmeTrSvcId(u16),
    /// 0x0304: the transport that the target listens on.
    NvmeTrType(NvmeTransport),
    /// 0x0305: the secret of DH-HMAC-CHAP, `DHHC-1:hh:BASE64:`; over QUIC alone.
    NvmeDhChapSecret(&'a str),
    /// 0x0430: where the kernels of a GPU lease see its bytes.
    GpuVram {
        /// Address of the first byte.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// 0x0501: PCI address of the virtual function.
    SrIovVf(PciAddress),
    /// 0x0502: index of the virtual function within its physical function.
    SrIovVfIndex(u16),
    /// 0x0503: PCI address of the physical function.
    SrIovPf(PciAddress),
    /// 0x0601: libfabric provider name, such as `efa`, `tcp` or `verbs`.
    OfiProvider(&'a str),
    /// 0x0602: fabric name from `fi_fabric_attr`.
    OfiFabricName(&'a str),
    /// 0x0603: type of the server's endpoint.
    OfiEpType(OfiEndpoint),
    /// 0x0604: the server's address from `fi_getname`, opaque.
    OfiAddr(&'a [u8]),
    /// 0x0605: one-sided RMA or two-sided messages.
    OfiAccessModel(OfiAccess),
    /// 0x0606: capability bits from `fi_info->caps`.
    OfiCapabilityFlags(u64),
    /// 0x0607: longest message in bytes.
    OfiMaxMsgSize(u64),
    /// 0x0608: version of the two-sided framing; 1.
    OfiProtocolVersion(u8),
    /// 0x0609: the low 64 bits of the lease id.
    OfiLeaseId(u64),
}

impl<'a> BindingTlv<'a> {
    /// Reads a TLV. `Ok(None)` means that the tag is unknown and the TLV is to be skipped.
    pub fn read(tlv: Tlv<'a>) -> Result<Option<Self>, FabricError> {
        let text = || utf8(tlv.value());
        Ok(Some(match tlv.tag {
            0x0101 => {
                let (&kind, addr) = tlv.value().split_first().ok_or(FabricError::Truncated)?;
                let Some(kind) = EndpointKind::from_code(kind) else { return Ok(None) };
                Self::Endpoint { kind, addr: utf8(addr)? }
            }
            0x0102 => Self::Generation(tlv.parse_value()?),
            0x0103 => Self::LeaseKey(tlv.parse_value()?),
            0x0104 => {
                let mut value = Reader::new(tlv.value());
                let limits = Self::Limits { offset: value.get()?, len: value.get()?, max_io: value.get()? };
                value.finish()?;
                limits
            }
            0x0201 => Self::RdmaRkey(tlv.parse_value()?),
            0x0202 => Self::RdmaRemoteAddr(tlv.parse_value()?),
            0x0203 => Self::RdmaQpNum(tlv.parse_value()?),
            0x0204 => Self::RdmaGid(tlv.parse_value()?),
            0x0205 => Self::RdmaPort(tlv.parse_value()?),
            0x0206 => Self::RdmaPsn(tlv.parse_value()?),
            0x0301 => Self::NvmeNqn(text()?),
            0x0302 => Self::NvmeTrAddr(text()?),
            0x0303 => Self::NvmeTrSvcId(tlv.parse_value()?),
            0x0304 => Self::NvmeTrType(tlv.parse_value()?),
            0x0305 => Self::NvmeDhChapSecret(text()?),
            0x0430 => {
                let mut value = Reader::new(tlv.value());
                let vram = Self::GpuVram { base: value.get()?, len: value.get()? };
                value.finish()?;
                vram
            }
            0x0501 => Self::SrIovVf(tlv.parse_value()?),
            0x0502 => Self::SrIovVfIndex(tlv.parse_value()?),
            0x0503 => Self::SrIovPf(tlv.parse_value()?),
            0x0601 => Self::OfiProvider(text()?),
            0x0602 => Self::OfiFabricName(text()?),
            0x0603 => Self::OfiEpType(tlv.parse_value()?),
            0x0604 => Self::OfiAddr(tlv.value()),
            0x0605 => Self::OfiAccessModel(tlv.parse_value()?),
            0x0606 => Self::OfiCapabilityFlags(tlv.parse_value()?),
            0x0607 => Self::OfiMaxMsgSize(tlv.parse_value()?),
            0x0608 => Self::OfiProtocolVersion(tlv.parse_value()?),
            0x0609 => Self::OfiLeaseId(tlv.parse_value()?),
            _ => return Ok(None),
        }))
    }

    /// Appends the TLV.
    ///
    /// # Panics
    /// If a text or address is longer than the 65535 bytes that a TLV can hold.
    pub fn write(&self, to: &mut Vec<u8>) {
        Tlv::append(to, self.tag(), |to| match *self {
            Self::Endpoint { kind, addr } => {
                kind.write(to);
                to.extend_from_slice(addr.as_bytes());
            }
            Self::Limits { offset, len, max_io } => {
                offset.write(to);
                len.write(to);
                max_io.write(to);
            }
            Self::Generation(value)
            | Self::LeaseKey(value)
            | Self::RdmaRemoteAddr(value)
            | Self::OfiCapabilityFlags(value)
            | Self::OfiMaxMsgSize(value)
            | Self::OfiLeaseId(value) => value.write(to),
            Self::RdmaRkey(value) | Self::RdmaQpNum(value) | Self::RdmaPsn(value) => value.write(to),
            Self::RdmaGid(value) => value.write(to),
            Self::RdmaPort(value) | Self::NvmeTrSvcId(value) | Self::SrIovVfIndex(value) => value.write(to),
            Self::NvmeNqn(text)
            | Self::NvmeTrAddr(text)
            | Self::NvmeDhChapSecret(text)
            | Self::OfiProvider(text)
            | Self::OfiFabricName(text) => to.extend_from_slice(text.as_bytes()),
            Self::NvmeTrType(value) => value.write(to),
            Self::GpuVram { base, len } => {
                base.write(to);
                len.write(to);
            }
            Self::SrIovVf(address) | Self::SrIovPf(address) => address.write(to),
            Self::OfiEpType(value) => value.write(to),
            Self::OfiAddr(value) => to.extend_from_slice(value),
            Self::OfiAccessModel(value) => value.write(to),
            Self::OfiProtocolVersion(value) => value.write(to),
        });
    }

    /// The tag that [`Self::write`] writes.
    pub fn tag(&self) -> u16 {
        match self {
            Self::Endpoint { .. } => 0x0101,
            Self::Generation(_) => 0x0102,
            Self::LeaseKey(_) => 0x0103,
            Self::Limits { .. } => 0x0104,
            Self::RdmaRkey(_) => 0x0201,
            Self::RdmaRemoteAddr(_) => 0x0202,
            Self::RdmaQpNum(_) => 0x0203,
            Self::RdmaGid(_) => 0x0204,
            Self::RdmaPort(_) => 0x0205,
            Self::RdmaPsn(_) => 0x0206,
            Self::NvmeNqn(_) => 0x0301,
            Self::NvmeTrAddr(_) => 0x0302,
            Self::NvmeTrSvcId(_) => 0x0303,
            Self::NvmeTrType(_) => 0x0304,
            Self::NvmeDhChapSecret(_) => 0x0305,
            Self::GpuVram { .. } => 0x0430,
            Self::SrIovVf(_) => 0x0501,
            Self::SrIovVfIndex(_) => 0x0502,
            Self::SrIovPf(_) => 0x0503,
            Self::OfiProvider(_) => 0x0601,
            Self::OfiFabricName(_) => 0x0602,
            Self::OfiEpType(_) => 0x0603,
            Self::OfiAddr(_) => 0x0604,
            Self::OfiAccessModel(_) => 0x0605,
            Self::OfiCapabilityFlags(_) => 0x0606,
            Self::OfiMaxMsgSize(_) => 0x0607,
            Self::OfiProtocolVersion(_) => 0x0608,
            Self::OfiLeaseId(_) => 0x0609,
        }
    }
}

/// One TLV about the client in LEASE_BIND. 0x0401 REQUESTED_BYTES is reserved: the flat params carry the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTlv<'a> {
    /// 0x0410: the client's side of an RDMA connection.
    RdmaPeer {
        /// Number of the client's queue pair.
        qp_num: u32,
        /// GID of the client's port.
        gid: [u8; 16],
        /// First packet sequence number that the client sends.
        psn: u32,
        /// Path MTU in bytes.
        mtu: u16,
    },
    /// 0x0411: NQN of the NVMe host that will connect.
    HostNqn(&'a str),
    /// 0x0420: the address that the virtual function is to have.
    VfMac([u8; 6]),
    /// 0x0421: the VLAN that it is to be in; 0 is none.
    VfVlan(u16),
}

impl<'a> ClientTlv<'a> {
    /// Reads a TLV. `Ok(None)` means that the tag is unknown and the TLV is to be skipped.
    pub fn read(tlv: Tlv<'a>) -> Result<Option<Self>, FabricError> {
        Ok(Some(match tlv.tag {
            0x0410 => {
                let mut value = Reader::new(tlv.value());
                let peer =
                    Self::RdmaPeer { qp_num: value.get()?, gid: value.get()?, psn: value.get()?, mtu: value.get()? };
                value.finish()?;
                peer
            }
            0x0411 => Self::HostNqn(utf8(tlv.value())?),
            0x0420 => Self::VfMac(tlv.parse_value()?),
            0x0421 => Self::VfVlan(tlv.parse_value()?),
            _ => return Ok(None),
        }))
    }

    /// Appends the TLV.
    ///
    /// # Panics
    /// If the name is longer than the 65535 bytes that a TLV can hold.
    pub fn write(&self, to: &mut Vec<u8>) {
        match *self {
            Self::RdmaPeer { qp_num, gid, psn, mtu } => Tlv::append(to, 0x0410, |to| {
                qp_num.write(to);
                gid.write(to);
                psn.write(to);
                mtu.write(to);
            }),
            Self::HostNqn(name) => Tlv::append(to, 0x0411, |to| to.extend_from_slice(name.as_bytes())),
            Self::VfMac(mac) => Tlv::append(to, 0x0420, |to| mac.write(to)),
            Self::VfVlan(vlan) => Tlv::append(to, 0x0421, |to| vlan.write(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::testing::hex, *};

    #[test]
    fn every_binding_tlv_is_laid_out_as_documented() {
        let vf = PciAddress { domain: 0x0102, bus: 3, devfn: 0x21 };
        let cases = [
            (BindingTlv::Endpoint { kind: EndpointKind::Fbmu, addr: "1.2.3.4:5" }, "0101 000a 09 312e322e332e343a35"),
            (BindingTlv::Generation(7), "0102 0008 0000000000000007"),
            (BindingTlv::LeaseKey(7), "0103 0008 0000000000000007"),
            (
                BindingTlv::Limits { offset: 0, len: 0x1000, max_io: 0x2000 },
                "0104 0014 0000000000000000 0000000000001000 00002000",
            ),
            (BindingTlv::RdmaRkey(7), "0201 0004 00000007"),
            (BindingTlv::RdmaRemoteAddr(7), "0202 0008 0000000000000007"),
            (BindingTlv::RdmaQpNum(7), "0203 0004 00000007"),
            (BindingTlv::RdmaGid([0xAA; 16]), "0204 0010 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
            (BindingTlv::RdmaPort(7), "0205 0002 0007"),
            (BindingTlv::RdmaPsn(7), "0206 0004 00000007"),
            (BindingTlv::NvmeNqn("nqn"), "0301 0003 6e716e"),
            (BindingTlv::NvmeTrAddr("::1"), "0302 0003 3a3a31"),
            (BindingTlv::NvmeTrSvcId(4420), "0303 0002 1144"),
            (BindingTlv::NvmeTrType(NvmeTransport::Loop), "0304 0001 02"),
            (BindingTlv::NvmeDhChapSecret("DHHC-1:"), "0305 0007 444848432d313a"),
            (BindingTlv::GpuVram { base: 7, len: 4096 }, "0430 0010 0000000000000007 0000000000001000"),
            (BindingTlv::SrIovVf(vf), "0501 0004 01020321"),
            (BindingTlv::SrIovVfIndex(7), "0502 0002 0007"),
            (BindingTlv::SrIovPf(vf), "0503 0004 01020321"),
            (BindingTlv::OfiProvider("tcp"), "0601 0003 746370"),
            (BindingTlv::OfiFabricName("f"), "0602 0001 66"),
            (BindingTlv::OfiEpType(OfiEndpoint::Rdm), "0603 0001 03"),
            (BindingTlv::OfiAddr(&[1, 2]), "0604 0002 0102"),
            (BindingTlv::OfiAccessModel(OfiAccess::Msg), "0605 0001 02"),
            (BindingTlv::OfiCapabilityFlags(7), "0606 0008 0000000000000007"),
            (BindingTlv::OfiMaxMsgSize(7), "0607 0008 0000000000000007"),
            (BindingTlv::OfiProtocolVersion(1), "0608 0001 01"),
            (BindingTlv::OfiLeaseId(7), "0609 0008 0000000000000007"),
        ];
        for (tlv, bytes) in cases {
            let bytes = hex(bytes);
            let mut written = Vec::new();
            tlv.write(&mut written);
            assert_eq!(written, bytes, "{tlv:?}");
            assert_eq!(BindingTlv::read(Tlv::parse(&bytes).unwrap()), Ok(Some(tlv)));
            let longer = [&bytes[4..], &[0xFF]].concat();
            let longer = BindingTlv::read(Tlv::of(tlv.tag(), &longer).unwrap());
            assert!(!matches!(longer, Ok(Some(same)) if same == tlv), "{tlv:?}");
            let shorter = BindingTlv::read(Tlv::of(tlv.tag(), &bytes[4..bytes.len() - 1]).unwrap());
            assert_ne!(shorter, Ok(Some(tlv)));
        }
    }

    #[test]
    fn unknown_tags_and_endpoint_kinds_are_skipped() {
        for tag in [0x0100, 0x0105, 0x0207, 0x0307, 0x0504, 0x060A, 0x7777] {
            assert_eq!(BindingTlv::read(Tlv::of(tag, &[1]).unwrap()), Ok(None), "{tag:#x}");
        }
        assert_eq!(BindingTlv::read(Tlv::of(0x0101, &[99, b'x']).unwrap()), Ok(None));
        assert_eq!(ClientTlv::read(Tlv::of(0x0401, &[0; 8]).unwrap()), Ok(None));
    }

    #[test]
    fn the_clients_side_is_laid_out_as_documented() {
        let peer = ClientTlv::RdmaPeer { qp_num: 1, gid: [0xBB; 16], psn: 2, mtu: 4096 };
        let bytes = hex("0410 001a 00000001 bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb 00000002 1000");
        for (tlv, bytes) in [
            (peer, bytes),
            (ClientTlv::HostNqn("nqn"), hex("0411 0003 6e716e")),
            (ClientTlv::VfMac([2, 0, 0, 0, 0x10, 1]), hex("0420 0006 020000001001")),
            (ClientTlv::VfVlan(0x123), hex("0421 0002 0123")),
        ] {
            let mut written = Vec::new();
            tlv.write(&mut written);
            assert_eq!(written, bytes);
            assert_eq!(ClientTlv::read(Tlv::parse(&bytes).unwrap()), Ok(Some(tlv)));
        }
        assert_eq!(ClientTlv::read(Tlv::of(0x0410, &[0; 25]).unwrap()), Err(FabricError::Truncated));
        assert_eq!(ClientTlv::read(Tlv::of(0x0411, &[0xFF]).unwrap()), Err(FabricError::Utf8));
    }
}
