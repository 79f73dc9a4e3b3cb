//! The kernel's target as a binding of a node.

mod fake;

use std::{path::PathBuf, sync::Arc};

use berth_fabric::{Binding, BoundLease, Reach};
use berth_lease::{Generation, RegionId, Rights, Span};
use berth_nvmet::{Address, KernelBinding, Nvmet, Settings};
use berth_wire::fabric::{BindingTlv, ClientTlv, NvmeTransport, Status, Tlvs, Wire as _};
use fake::{Fake, lease};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1";

fn binding(fake: &Fake, addresses: Vec<Address>) -> KernelBinding<Fake> {
    let nvmet = Arc::new(Nvmet::over(fake.clone()).unwrap());
    let settings = Settings { addresses, max_leases: 2, backings: vec![Some(PathBuf::from("/srv/blocks")), None] };
    KernelBinding::new(nvmet, settings).unwrap()
}

fn over_rdma() -> Vec<Address> {
    vec![Address::Rdma("10.0.0.1:4420".parse().unwrap())]
}

fn bound(n: u128) -> BoundLease {
    let span = Span { region: RegionId(0), at: 4096, len: 65536 };
    BoundLease {
        id: lease(n),
        generation: Generation::FIRST,
        rights: Rights::ALL,
        reach: Reach::Bytes { span, first: 0 },
        secret: None,
    }
}

fn client(host: &str, transport: Option<NvmeTransport>) -> Vec<u8> {
    let mut out = Vec::new();
    ClientTlv::HostNqn(host).write(&mut out);
    if let Some(transport) = transport {
        BindingTlv::NvmeTrType(transport).write(&mut out);
    }
    out
}

/// As a node does it.
fn bind(binding: &mut KernelBinding<Fake>, lease: &BoundLease, client: &[u8]) -> Result<Vec<u8>, Status> {
    let client = Tlvs::parse(client).unwrap();
    if let Some(work) = binding.prepare(lease, client)? {
        work.run();
    }
    let mut out = Vec::new();
    binding.bind(lease, client, &mut out).map(|()| out)
}

fn unbind(binding: &mut KernelBinding<Fake>, n: u128) -> bool {
    match binding.teardown(lease(n)) {
        Ok(Some(work)) => {
            work.run();
            binding.torn_down(lease(n)).is_ok()
        }
        Ok(None) => true,
        Err(_) => false,
    }
}

fn count(binding: &KernelBinding<Fake>, name: &str) -> u64 {
    let mut found = None;
    binding.counters(&mut |known, value| found = found.or((known == name).then_some(value)));
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

#[test]
fn a_bind_is_answered_and_an_end_takes_it_away() {
    let fake = Fake::new();
    let mut rdma = binding(&fake, over_rdma());
    let empty = fake.left();
    let answer = bind(&mut rdma, &bound(1), &client(HOST, Some(NvmeTransport::Rdma))).unwrap();
    let answer = Tlvs::parse(&answer).unwrap();
    let tlvs: Vec<_> = answer.iter().map(|tlv| BindingTlv::read(tlv).unwrap().unwrap()).collect();
    let expected = [
        BindingTlv::NvmeNqn("nqn.2026-02.io.fabricbios:lease:aaaa0000000000001111222233330001"),
        BindingTlv::NvmeTrAddr("10.0.0.1"),
        BindingTlv::NvmeTrSvcId(4420),
        BindingTlv::NvmeTrType(NvmeTransport::Rdma),
    ];
    assert_eq!(tlvs, expected);
    assert_eq!(count(&rdma, "nvme_kernel_leases"), 1);
    assert!(unbind(&mut rdma, 1));
    assert_eq!((count(&rdma, "nvme_kernel_leases"), fake.left()), (0, empty));
    // Again, for another host.
    bind(&mut rdma, &bound(1), &client("nqn.2014-08.org.nvmexpress:uuid:2", None)).unwrap();
    assert!(!fake.left().iter().any(|left| left.ends_with("uuid:1")));
    assert_eq!(count(&rdma, "nvme_kernel_binds"), 2);
}

#[test]
fn nobody_is_let_in_before_the_node_says_so() {
    let fake = Fake::new();
    let mut rdma = binding(&fake, over_rdma());
    let client = client(HOST, None);
    rdma.prepare(&bound(1), Tlvs::parse(&client).unwrap()).unwrap().unwrap().run();
    assert!(!fake.left().iter().any(|left| left.contains("allowed_hosts/")));
    // The lease ended meanwhile.
    assert!(unbind(&mut rdma, 1));
    assert!(!fake.left().iter().any(|left| left.contains("io.fabricbios")));
}

#[test]
fn over_loop_there_is_no_address() {
    let mut local = binding(&Fake::new(), vec![Address::Loop]);
    let answer = bind(&mut local, &bound(1), &client(HOST, None)).unwrap();
    let tags: Vec<_> = Tlvs::parse(&answer).unwrap().iter().map(|tlv| tlv.tag).collect();
    assert_eq!(tags, [0x0301, 0x0304]);
}

#[test]
fn what_the_kernel_cannot_serve_is_refused() {
    let fake = Fake::new();
    let mut rdma = binding(&fake, over_rdma());
    let before = fake.left();
    let refused = |rdma: &mut KernelBinding<Fake>, lease: BoundLease, client: &[u8]| {
        rdma.prepare(&lease, Tlvs::parse(client).unwrap()).unwrap_err()
    };
    let whole = |at, len, region| Reach::Bytes { span: Span { region: RegionId(region), at, len }, first: 0 };
    let good = client(HOST, None);
    for (lease, expected) in [
        (BoundLease { reach: whole(0, 4096, 1), ..bound(1) }, Status::UnsupportedOp),
        (BoundLease { reach: Reach::Unit, ..bound(1) }, Status::UnsupportedOp),
        (BoundLease { rights: Rights::READ, ..bound(1) }, Status::UnsupportedOp),
        (BoundLease { reach: whole(0, 511, 0), ..bound(1) }, Status::InvalidParams),
        (BoundLease { reach: whole(100, 4096, 0), ..bound(1) }, Status::InvalidParams),
    ] {
        assert_eq!(refused(&mut rdma, lease, &good), expected, "{lease:?}");
    }
    assert_eq!(refused(&mut rdma, bound(1), &client(HOST, Some(NvmeTransport::Tcp))), Status::UnsupportedOp);
    for host in ["somebody", "nqn./../../ports/1", "nqn.a\nb"] {
        assert_eq!(refused(&mut rdma, bound(1), &client(host, None)), Status::InvalidParams, "{host:?}");
    }
    assert_eq!(refused(&mut rdma, bound(1), &[]), Status::InvalidParams);
    assert_eq!(fake.left(), before);
    for n in [1, 2] {
        bind(&mut rdma, &bound(n), &good).unwrap();
    }
    assert_eq!(refused(&mut rdma, bound(3), &good), Status::CapacityExceeded);
    assert_eq!(count(&rdma, "nvme_kernel_binds_full"), 1);
}

#[test]
fn a_kernel_that_fails_is_told_and_leaves_nothing() {
    let fake = Fake::new();
    let mut rdma = binding(&fake, over_rdma());
    let empty = fake.left();
    fake.fail(8, false);
    assert_eq!(bind(&mut rdma, &bound(1), &client(HOST, None)), Err(Status::InternalError));
    assert!(unbind(&mut rdma, 1));
    assert_eq!((fake.left(), count(&rdma, "nvme_kernel_binds_failed")), (empty, 1));
}

#[test]
fn an_end_is_not_answered_while_the_device_is_in_use() {
    let fake = Fake::new();
    let mut rdma = binding(&fake, over_rdma());
    let empty = fake.left();
    bind(&mut rdma, &bound(1), &client(HOST, None)).unwrap();
    fake.tree().busy = Some("/dev/loop0".to_owned());
    assert!(!unbind(&mut rdma, 1));
    assert_eq!((count(&rdma, "nvme_kernel_stuck"), count(&rdma, "nvme_kernel_leases")), (1, 0));
    assert!(!unbind(&mut rdma, 1), "it is still in use");
    fake.tree().busy = None;
    assert!(unbind(&mut rdma, 1));
    assert_eq!((fake.left(), count(&rdma, "nvme_kernel_stuck")), (empty, 0));
}

#[test]
fn leases_of_an_earlier_process_are_gone_and_bound_again() {
    let fake = Fake::new();
    let mut killed = binding(&fake, over_rdma());
    bind(&mut killed, &bound(1), &client(HOST, None)).unwrap();
    std::mem::forget(killed);
    let mut rdma = binding(&fake, over_rdma());
    assert!(rdma.resumes());
    assert!(!fake.left().iter().any(|left| left.contains("io.fabricbios")));
    assert!(unbind(&mut rdma, 1));
    bind(&mut rdma, &bound(1), &client(HOST, None)).unwrap();
}

#[test]
fn a_process_that_ends_takes_its_leases_with_it() {
    let fake = Fake::new();
    let mut rdma = binding(&fake, over_rdma());
    bind(&mut rdma, &bound(1), &client(HOST, None)).unwrap();
    drop(rdma);
    assert!(!fake.left().iter().any(|left| left.contains("io.fabricbios")));
}
