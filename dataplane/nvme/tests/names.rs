//! Names: of subsystems, and of the hosts that `LEASE_BIND` asks for.

use berth_lease::LeaseId;
use berth_nvme::{lease_of, nqn, requested_host};
use berth_wire::fabric::{BindingTlv, ClientTlv, NvmeTransport, Status, Tlv, Tlvs, Wire as _};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1";

fn asked(tlvs: &[u8]) -> Result<&str, Status> {
    requested_host(Tlvs::parse(tlvs).unwrap(), NvmeTransport::Tcp)
}

fn host(nqn: &str) -> Vec<u8> {
    let mut out = Vec::new();
    ClientTlv::HostNqn(nqn).write(&mut out);
    out
}

#[test]
fn a_subsystem_is_named_after_its_lease() {
    let lease = LeaseId(0xaaaa_0000_0000_0000_1111_2222_3333_4444);
    assert_eq!(nqn(lease), "nqn.2026-02.io.fabricbios:lease:aaaa0000000000001111222233334444");
    assert_eq!(lease_of(nqn(lease).as_bytes()), Some(lease));
    for other in ["", HOST, "nqn.2026-02.io.fabricbios:lease:", "nqn.2026-02.io.fabricbios:lease:x"] {
        assert_eq!(lease_of(other.as_bytes()), None, "{other}");
    }
    for other in ["1", "+aaaa0000000000001111222233334444", "AAAA0000000000001111222233334444"] {
        let other = format!("nqn.2026-02.io.fabricbios:lease:{other}");
        assert_eq!(lease_of(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn a_host_is_asked_for_by_its_nqn() {
    assert_eq!(asked(&host(HOST)), Ok(HOST));
    let longest = format!("nqn.{}", "x".repeat(219));
    assert_eq!(asked(&host(&longest)), Ok(longest.as_str()));
    assert_eq!(asked(&[]), Err(Status::InvalidParams));
    for bad in ["", "somebody", "nqn", "nqn.a\0b", "nqn.a\nb", &format!("{longest}x")] {
        assert_eq!(asked(&host(bad)), Err(Status::InvalidParams), "{bad:?}");
    }
    let mut not_utf8 = Vec::new();
    Tlv::of(0x0411, b"nqn.\xFF").unwrap().write(&mut not_utf8);
    assert_eq!(asked(&not_utf8), Err(Status::InvalidParams));
}

#[test]
fn a_transport_that_is_not_offered_is_refused() {
    let over = |transport| {
        let mut out = host(HOST);
        BindingTlv::NvmeTrType(transport).write(&mut out);
        out
    };
    assert_eq!(asked(&over(NvmeTransport::Tcp)), Ok(HOST));
    for other in [NvmeTransport::Rdma, NvmeTransport::Loop] {
        assert_eq!(asked(&over(other)), Err(Status::UnsupportedOp));
    }
    for malformed in [&[3][..], &[], &[0, 0]] {
        let mut out = host(HOST);
        Tlv::of(0x0304, malformed).unwrap().write(&mut out);
        assert_eq!(asked(&out), Err(Status::InvalidParams), "{malformed:?}");
    }
}
