//! A lease in memory as a host uses it, from `ICReq` to the end.

mod common;

use berth_port::Next;
use berth_wire::nvme::{
    Sqe, Status,
    fabrics::{Property, property},
    identify::{Controller, Namespace, cns},
    opcode,
    pdu::flags,
};
use common::*;

/// What Linux does first, as Linux does it.
#[test]
fn a_linux_host_connects_reads_and_writes() {
    for digests in 0..4 {
        let node = Node::new();
        let mut admin = Host::initialised(&node.target, digests, 0);
        let id = admin.connect_admin(&node.memory);
        let cid = admin.cid();
        admin.command(&Property { offset: property::CAP, wide: true, value: 0 }.get(cid), &[]);
        assert_eq!(admin.ended(cid), (Status::SUCCESS, property::capabilities(127, 30)));
        assert_eq!(admin.property(property::VS), property::VERSION);
        assert_eq!(admin.property(property::CSTS), 0);
        admin.enable();
        let (page, status) = admin.identify(cns::CONTROLLER, 0);
        assert_eq!((page.len(), status), (4096, Status::SUCCESS));
        let controller = Controller::parse(&page).unwrap();
        assert_eq!(controller.controller.get(), id);
        assert_eq!(controller.subnqn.name(), Some(node.memory.as_bytes()));
        assert_eq!(controller.in_capsule_max(), 16 << 10);
        assert_eq!((controller.kas.get() > 0, controller.sgls.get() & 3, controller.mdts), (true, 1, 6));
        let (page, status) = admin.identify(cns::NAMESPACE, 1);
        assert_eq!(status, Status::SUCCESS);
        let namespace = Namespace::parse(&page).unwrap();
        assert_eq!((namespace.nsze.get(), namespace.format().shift), (LEN / 512, 9));
        assert_eq!(namespace.nguid, MEMORY.0.to_be_bytes());

        let mut io = Host::io(&node.target, &node.memory, id, 1, digests);
        assert_eq!(io.read(0, 8), (original(0, 4096), Status::SUCCESS));
        let short = pattern(1, 4096);
        assert_eq!(io.write(3, &short), Status::SUCCESS);
        assert_eq!(io.read(3, 8), (short, Status::SUCCESS));
        let long = pattern(2, MAX_IO as usize);
        assert_eq!(io.write_by_r2t(100, &long, 64 << 10), Status::SUCCESS);
        assert_eq!(io.read(100, MAX_IO / 512), (long, Status::SUCCESS));
        let cid = io.cid();
        io.command(&Sqe::new(opcode::io::FLUSH, cid, u32::MAX), &[]);
        assert_eq!(io.status(cid), Status::SUCCESS);
        assert!(node.canaries_live());
        assert_eq!((node.counter("nvme_reads"), node.counter("nvme_writes")), (3, 2));
        assert_eq!(node.counter("nvme_bytes_read"), 4096 + 4096 + u64::from(MAX_IO));
        assert_eq!(node.counter("nvme_bytes_written"), 4096 + u64::from(MAX_IO));
        admin.set_property(property::CC, property::cc::ENABLED | property::cc::SHUTDOWN_NORMAL);
        let done = property::csts::READY | property::csts::SHUTDOWN_COMPLETE;
        assert_eq!(admin.property(property::CSTS), done);
        drop(admin);
        io.run();
        assert_eq!(io.next, Next::Close, "no I/O queue outlives its controller");
        assert_eq!(node.counter("nvme_controllers"), 0);
    }
}

/// SQHD counts commands, and wraps at the queue's size; without flow control, successful reads have no response.
#[test]
fn flow_control_is_what_connect_says() {
    let node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut io = Host::initialised(&node.target, 0, 0);
    let connect = berth_wire::nvme::fabrics::Connect { size: 2, ..io_connect(1) };
    let cid = io.cid();
    let mut sqe = connect.command(cid);
    sqe.sgl = berth_wire::nvme::Sgl::in_capsule(1024);
    io.command(&sqe, zerocopy::IntoBytes::as_bytes(&connect_data(&node.memory, id)));
    let mut heads = Vec::new();
    for _ in 0..5 {
        let Pdu::Response { sqhd, .. } = io.hear() else { panic!("no response") };
        heads.push(sqhd);
        let cid = io.cid();
        io.command(&rw(opcode::io::READ, cid, 0, 1), &[]);
        let Pdu::Data { flags, .. } = io.hear() else { panic!("no data") };
        assert_eq!(flags, flags::LAST);
    }
    assert_eq!(heads, [1, 2, 0, 1, 2]);

    let mut io = Host::initialised(&node.target, 0, 0);
    let mut sqe = berth_wire::nvme::fabrics::Connect { attributes: 4, ..io_connect(2) }.command(9);
    sqe.sgl = berth_wire::nvme::Sgl::in_capsule(1024);
    io.command(&sqe, zerocopy::IntoBytes::as_bytes(&connect_data(&node.memory, id)));
    let expected = Pdu::Response { cid: 9, status: Status::SUCCESS, result: id.into(), sqhd: 0xFFFF };
    assert_eq!(io.hear(), expected);
    io.command(&rw(opcode::io::READ, 10, 0, 1), &[]);
    let flags = flags::LAST | flags::SUCCESS;
    assert_eq!(io.hear(), Pdu::Data { cid: 10, offset: 0, flags, data: original(0, 512) });
    io.hears_nothing();
    io.command(&rw(opcode::io::READ, 10, 5000, 1), &[]);
    assert_eq!(io.status(10), Status::LBA_OUT_OF_RANGE);
}
