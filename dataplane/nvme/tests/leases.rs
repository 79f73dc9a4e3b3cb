//! What a lease's life means to its host: who may connect, grace, renewal, the end.

mod common;

use std::time::Duration;

use berth_lease::{Entry, Generation, LeaseId, Rights, State};
use berth_nvme::{BindError, Limits};
use berth_port::{Nanos, Next, Session as _};
use berth_wire::nvme::{
    Sqe, Status,
    admin::{Abort, Event, SetFeatures, feature},
    fabrics::{Connect, Nqn, invalid_parameter, property},
    identify::{Namespace, cns, namespaces},
    log::{AnaGroup, AnaHeader, AnaState, DiscoveryHeader, DiscoveryRecord, id},
    opcode,
};
use common::*;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Asks for events, all of them.
fn wants_events(admin: &mut Host, requests: u16) -> Vec<u16> {
    let cid = admin.cid();
    let mut sqe = Sqe::new(opcode::admin::SET_FEATURES, cid, 0);
    SetFeatures { feature: feature::ASYNC_EVENT_CONFIGURATION, save: false, value: u32::MAX }.put(&mut sqe);
    admin.command(&sqe, &[]);
    assert_eq!(admin.status(cid), Status::SUCCESS);
    let request = |_| {
        let cid = admin.cid();
        admin.command(&Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, cid, 0), &[]);
        cid
    };
    (0..requests).map(request).collect()
}

fn told(admin: &mut Host) -> Option<Event> {
    admin.run();
    admin.try_hear().map(|pdu| match pdu {
        Pdu::Response { status: Status::SUCCESS, result, .. } => Event::of(result as u32).unwrap(),
        other => panic!("{other:?}"),
    })
}

fn ana(admin: &mut Host) -> AnaState {
    let (page, status) = admin.log(id::ANA, 0, 52, false);
    assert_eq!(status, Status::SUCCESS);
    let (header, group) = page.split_at(AnaHeader::LEN);
    assert_eq!(AnaHeader::parse(header).unwrap().groups.get(), 1);
    let (group, members) = group.split_at(AnaGroup::LEN);
    let group = AnaGroup::parse(group).unwrap();
    assert_eq!((group.id.get(), group.namespaces.get(), members), (1, 1, &[1, 0, 0, 0][..]));
    AnaState::of(group.state).unwrap()
}

#[test]
fn who_is_let_in() {
    let node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.memory, 0);
    let (_others, other_id) = Host::admin(&node.target, &node.blocks, 0);
    let status = |connect: Connect, change: &dyn Fn(&mut berth_wire::nvme::fabrics::ConnectData)| {
        let mut host = Host::initialised(&node.target, 0, 0);
        let controller = if connect.queue == 0 { 0xFFFF } else { id };
        let mut data = connect_data(&node.memory, controller);
        change(&mut data);
        let answer = host.connect(connect, &data);
        assert!(!host.connection.is_identified());
        assert!(matches!(host.next, Next::Input(_)), "it may try again");
        answer
    };
    let invalid = |parameter: u32| (Status::CONNECT_INVALID_PARAMETERS, parameter.into());
    let name = |name: &str| Nqn::new(name.as_bytes()).unwrap();
    for connect in [admin_connect(), io_connect(1)] {
        assert_eq!(status(Connect { format: 1, ..connect }, &|_| ()), (Status::CONNECT_FORMAT, 0));
        let unknown = format!("{}x", node.memory);
        assert_eq!(status(connect, &|data| data.subnqn = name(&unknown)), invalid(invalid_parameter::SUBNQN));
        let upper = node.memory.to_uppercase();
        assert_eq!(status(connect, &|data| data.subnqn = name(&upper)), invalid(invalid_parameter::SUBNQN));
        assert_eq!(status(connect, &|data| data.subnqn = name("")), invalid(invalid_parameter::SUBNQN));
        assert_eq!(status(connect, &|data| data.hostnqn = name("")), invalid(invalid_parameter::HOSTNQN));
        let other = status(connect, &|data| data.hostnqn = name("nqn.other"));
        assert_eq!(other, (Status::CONNECT_INVALID_HOST, 0));
        for size in [0, 256, u16::MAX] {
            assert_eq!(status(Connect { size, ..connect }, &|_| ()), invalid(invalid_parameter::SIZE));
        }
    }
    assert_eq!(status(Connect { size: 128, ..io_connect(1) }, &|_| ()), invalid(invalid_parameter::SIZE));
    assert_eq!(status(admin_connect(), &|data| data.controller = 1.into()), invalid(invalid_parameter::CONTROLLER));
    for controller in [0, id + 10, other_id, 0xFFFF] {
        let answer = status(io_connect(1), &|data| data.controller = controller.into());
        assert_eq!(answer, invalid(invalid_parameter::CONTROLLER));
    }
    assert_eq!(status(io_connect(1), &|data| data.host_id = [8; 16]), invalid(1 << 16));
    assert_eq!(status(io_connect(65), &|_| ()), invalid(invalid_parameter::QUEUE));
    assert_eq!(status(io_connect(1), &|data| data.subnqn = name(DISCOVERY)), invalid(invalid_parameter::QUEUE));
    let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
    assert_eq!(status(io_connect(1), &|_| ()), (Status::INVALID_QUEUE_ID, 0));
    assert_eq!(io.connect(io_connect(2), &connect_data(&node.memory, id)), (Status::SEQUENCE_ERROR, 0), "twice");
    assert_eq!(io.read(0, 1).1, Status::SUCCESS);
    // Before CC.EN, and before any Connect.
    let mut admin = Host::initialised(&node.target, 0, 0);
    let cid = admin.cid();
    admin.command(&Sqe::new(opcode::admin::KEEP_ALIVE, cid, 0), &[]);
    assert_eq!(admin.status(cid), Status::SEQUENCE_ERROR);
    let id = admin.connect_admin(&node.memory);
    let mut io = Host::initialised(&node.target, 0, 0);
    let answer = io.connect(io_connect(1), &connect_data(&node.memory, id));
    assert_eq!(answer, invalid(invalid_parameter::CONTROLLER));
    admin.enable();
    assert_eq!(io.connect(io_connect(1), &connect_data(&node.memory, id)), (Status::SUCCESS, id.into()));
}

#[test]
fn as_many_controllers_as_there_may_be() {
    let limits = Limits { controllers: 2, ..Limits::default() };
    let node = Node::with(limits, CHUNKS, memory(), blocks());
    let first = Host::admin(&node.target, &node.memory, 0);
    let _second = Host::admin(&node.target, &node.memory, 0);
    let mut third = Host::initialised(&node.target, 0, 0);
    let data = connect_data(&node.memory, 0xFFFF);
    assert_eq!(third.connect(admin_connect(), &data), (Status::retryable(0x181), 0));
    let _other = Host::admin(&node.target, &node.blocks, 0);
    drop(first);
    assert_eq!(third.connect(admin_connect(), &data).0, Status::SUCCESS);
}

/// Those of discovery, which anybody may have, take no controller from a lease, and do not stay for ever.
#[test]
fn discovery_is_limited_by_itself() {
    let limits = Limits { discoveries: 2, all_controllers: 2, ..Limits::default() };
    let node = Node::with(limits, CHUNKS, memory(), blocks());
    let discover = || {
        let mut host = Host::initialised(&node.target, 0, 0);
        let status = host.connect(admin_connect(), &connect_data(DISCOVERY, 0xFFFF)).0;
        (host, status)
    };
    let (mut first, status) = discover();
    assert_eq!(status, Status::SUCCESS);
    let _second = discover();
    assert_eq!(discover().1, Status::retryable(0x181));
    let _admins = [&node.memory, &node.blocks].map(|nqn| Host::admin(&node.target, nqn, 0));
    assert!(!first.connection.is_over(NOW + Duration::from_mins(2)));
    assert!(first.connection.is_over(NOW + Duration::from_mins(3)));
    drop(first);
    assert_eq!(discover().1, Status::SUCCESS);
}

#[test]
fn leases_that_cannot_be_bound() {
    let mut node = Node::new();
    let bind = |node: &Node, lease: LeaseId, generation, host: &str| {
        node.target.bind(lease, Generation(generation), host, NOW).unwrap_err()
    };
    assert_eq!(bind(&node, MEMORY, 7, HOST), BindError::Bound);
    node.target.unbind(MEMORY).unwrap();
    assert!(node.target.unbind(MEMORY).is_none());
    for host in ["", "nqn.a\0b", "iqn.a", &format!("nqn.{}", "x".repeat(220))] {
        assert_eq!(bind(&node, MEMORY, 7, host), BindError::HostNqn);
    }
    assert!(matches!(bind(&node, LeaseId(5), 7, HOST), BindError::Lease(_)));
    assert!(matches!(bind(&node, MEMORY, 6, HOST), BindError::Lease(_)));
    node.set(Entry { len: 511, ..memory() });
    assert_eq!(bind(&node, MEMORY, 7, HOST), BindError::TooSmall);
    node.set(Entry { max_io: 4095, ..memory() });
    assert_eq!(bind(&node, MEMORY, 7, HOST), BindError::TooSmall);
    node.set(memory());
    assert_eq!(node.target.bind(MEMORY, Generation(7), HOST, NOW), Ok(node.memory.clone()));
    let expected = "nqn.2026-02.io.fabricbios:lease:aaaa0000000000001111222233334444";
    assert_eq!(node.memory, expected);
}

#[test]
fn what_is_connected_is_counted() {
    let node = Node::new();
    let counts = || ["controllers", "hosts", "queues"].map(|name| node.counter(&format!("nvme_{name}")));
    assert_eq!(counts(), [0, 0, 0]);
    let (_memory, id) = Host::admin(&node.target, &node.memory, 0);
    assert_eq!(counts(), [1, 1, 0]);
    let queues = [1, 2].map(|qid| Host::io(&node.target, &node.memory, id, qid, 0));
    // One host, by whatever number of leases.
    let (_blocks, _) = Host::admin(&node.target, &node.blocks, 0);
    assert_eq!(counts(), [2, 1, 2]);
    drop(queues);
    assert_eq!(counts(), [2, 1, 0]);
}

#[test]
fn rights_and_ranges() {
    let limited = Entry { rights: Rights::READ, first: 4096, len: 8192 + 100, ..memory() };
    let node = Node::with(Limits::default(), CHUNKS, limited, Entry { rights: Rights::WRITE, ..blocks() });
    let (mut admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
    let (page, _) = admin.identify(cns::NAMESPACE, 1);
    let namespace = Namespace::parse(&page).unwrap();
    assert_eq!((namespace.nsze.get(), namespace.nsattr), (16, 1));
    assert_eq!(io.read(8, 8), (original(4096, 4096), Status::SUCCESS));
    assert_eq!(io.read(7, 2).1, Status::ACCESS_DENIED, "before its RANGE");
    for (slba, blocks) in [(9, 8), (16, 1), (u64::MAX, 1), (u64::MAX - 1, 3)] {
        assert_eq!(io.read(slba, blocks).1, Status::LBA_OUT_OF_RANGE);
    }
    assert_eq!(io.write(8, &pattern(1, 512)), Status::WRITE_PROTECTED);
    let cid = io.cid();
    io.command(&rw(opcode::io::WRITE, cid, 8, 8), &[]);
    assert_eq!(io.status(cid), Status::WRITE_PROTECTED, "without an R2T");
    assert_eq!(io.read(8, 513).1, Status::INVALID_FIELD, "over MDTS");
    let cid = io.cid();
    let mut sqe = rw(opcode::io::READ, cid, 8, 1);
    sqe.nsid = 2.into();
    io.command(&sqe, &[]);
    assert_eq!(io.status(cid), Status::INVALID_NAMESPACE);
    sqe.opcode = 0x80;
    io.command(&sqe, &[]);
    assert_eq!(io.status(cid), Status::INVALID_OPCODE);
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut io = Host::io(&node.target, &node.blocks, id, 1, 0);
    assert_eq!(io.read(0, 1).1, Status::ACCESS_DENIED, "no right to read");
    assert!(Status::ACCESS_DENIED.is_last());
}

/// Grace is told as a path that is gone for now; after a renewal nothing is lost.
#[test]
fn grace_and_renewal() {
    let mut node = Node::new();
    let (mut admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
    wants_events(&mut admin, 2);
    assert_eq!(ana(&mut admin), AnaState::Optimized);
    // A write that waits for its data when the lease expires.
    let cid = io.cid();
    io.command(&rw(opcode::io::WRITE, cid, 0, 16), &[]);
    let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
    (admin.now, io.now) = (EXPIRES, EXPIRES);
    let pdu = io.h2c_data(cid, ttag, 0, &pattern(1, 8192), true);
    io.say(&pdu);
    assert_eq!(io.status(cid), Status::ANA_INACCESSIBLE);
    assert_eq!(io.read(0, 8), (Vec::new(), Status::ANA_INACCESSIBLE));
    assert_eq!(io.write(0, &pattern(1, 512)), Status::ANA_INACCESSIBLE);
    assert!(!Status::ANA_INACCESSIBLE.is_last());
    assert!(!io.connection.is_over(EXPIRES) && !admin.connection.is_over(EXPIRES));
    assert_eq!(told(&mut admin), Some(Event::Ana));
    assert_eq!(told(&mut admin), None, "once, until its log is read");
    assert_eq!(ana(&mut admin), AnaState::Inaccessible);
    assert_eq!(admin.property(property::CSTS), property::csts::READY);
    let _another = Host::io(&node.target, &node.memory, id, 2, 0);
    node.set(Entry { expires: EXPIRES + Duration::from_mins(1), ..memory() });
    assert!(!admin.connection.is_over(EXPIRES));
    assert_eq!(told(&mut admin), Some(Event::Ana));
    assert_eq!(ana(&mut admin), AnaState::Optimized);
    assert_eq!(io.read(0, 8), (original(0, 4096), Status::SUCCESS));
}

/// However a lease ends, the next command is refused for good, and the association is gone within a second.
#[test]
fn ends() {
    type End = fn(&mut Node);
    let revoked: End = |node| node.set(Entry { state: State::Revoked, ..memory() });
    let removed: End = |node| assert!(node.writer.remove(MEMORY.key()));
    let lost: End = |node| node.set(Entry { generation: Generation(8), ..memory() });
    let unbound: End = |node| assert!(node.target.unbind(MEMORY).unwrap().is_over());
    for end in [revoked, removed, lost, unbound] {
        let mut node = Node::new();
        let (mut admin, id) = Host::admin(&node.target, &node.memory, 0);
        let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
        wants_events(&mut admin, 4);
        let cid = io.cid();
        io.command(&rw(opcode::io::WRITE, cid, 0, 16), &[]);
        let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
        end(&mut node);
        let before = node.heap.bytes();
        let pdu = io.h2c_data(cid, ttag, 0, &pattern(1, 8192), true);
        io.say(&pdu);
        assert_eq!(io.status(cid), Status::ACCESS_DENIED);
        assert_eq!(io.read(0, 8), (Vec::new(), Status::ACCESS_DENIED));
        assert_eq!(io.write(0, &pattern(1, 512)), Status::ACCESS_DENIED);
        assert_eq!(node.heap.bytes(), before);
        assert!(!admin.connection.is_over(NOW) && !io.connection.is_over(NOW));
        assert_eq!(told(&mut admin), Some(Event::Namespace));
        assert_eq!(told(&mut admin), Some(Event::Ana));
        assert_eq!(admin.property(property::CSTS), property::csts::READY | property::csts::FATAL);
        let (list, _) = admin.identify(cns::ACTIVE_NAMESPACES, 0);
        assert_eq!(namespaces(&list).count(), 0);
        let (changed, _) = admin.log(id::CHANGED_NAMESPACES, 0, 4096, false);
        assert_eq!(namespaces(&changed).collect::<Vec<_>>(), [1]);
        let (changed, _) = admin.log(id::CHANGED_NAMESPACES, 0, 4096, false);
        assert_eq!(namespaces(&changed).count(), 0, "until it is read");
        assert_eq!(ana(&mut admin), AnaState::PersistentLoss);
        let later = NOW + Duration::from_millis(600);
        assert!(admin.connection.is_over(later) && io.connection.is_over(later));
        let mut late = Host::initialised(&node.target, 0, 0);
        let answer = late.connect(admin_connect(), &connect_data(&node.memory, 0xFFFF));
        assert_eq!(answer, (Status::CONNECT_INVALID_PARAMETERS, invalid_parameter::SUBNQN.into()));
    }
}

/// What was read from blocks for a lease that has ended since is not sent.
#[test]
fn ends_while_blocks_are_read() {
    let mut node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut io = Host::io(&node.target, &node.blocks, id, 1, 0);
    io.command(&rw(opcode::io::READ, 5, 0, 16), &[]);
    node.set(Entry { state: State::Revoked, ..blocks() });
    let mut quiescence = node.writer.quiescence();
    assert!(!quiescence.is_over());
    node.disk.land(0, Ok(()));
    assert!(quiescence.is_over());
    io.run();
    assert_eq!(io.data(5), (Vec::new(), Status::ACCESS_DENIED));
}

/// A lease that is bound again has another association: what the old one had under way does not land.
#[test]
fn bound_again() {
    let node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut io = Host::io(&node.target, &node.blocks, id, 1, 0);
    let asked = io.cid();
    io.command(&rw(opcode::io::WRITE, asked, 0, 16), &[]);
    let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
    io.command(&in_capsule(opcode::io::WRITE, 900, 50, 512), &pattern(2, 512));
    let mut unbound = node.target.unbind(BLOCK).unwrap();
    assert!(!unbound.is_over(), "a write is under way");
    node.target.bind(BLOCK, Generation(7), HOST, NOW).unwrap();
    let pdu = io.h2c_data(asked, ttag, 0, &pattern(1, 8192), true);
    io.say(&pdu);
    assert_eq!(io.status(asked), Status::ACCESS_DENIED);
    assert_eq!(node.disk.ops().len(), 1, "it does not come to the blocks");
    node.disk.land(0, Ok(()));
    assert!(unbound.is_over());
    let (_admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut fresh = Host::io(&node.target, &node.blocks, id, 1, 0);
    fresh.command(&rw(opcode::io::READ, 7, 0, 8), &[]);
    node.disk.land(0, Ok(()));
    fresh.run();
    assert_eq!(fresh.data(7), (original(0, 4096), Status::SUCCESS));
}

/// Accesses of queues that are disabled do not land, and CSTS.RDY waits for those under way.
#[test]
fn a_reset_drains() {
    let node = Node::new();
    let (mut admin, id) = Host::admin(&node.target, &node.blocks, 0);
    let mut io = Host::io(&node.target, &node.blocks, id, 1, 0);
    io.command(&rw(opcode::io::WRITE, 900, 0, 16), &[]);
    let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
    io.command(&in_capsule(opcode::io::WRITE, 901, 50, 512), &pattern(2, 512));
    admin.set_property(property::CC, 0x0046_0000);
    assert_eq!(admin.property(property::CSTS), property::csts::READY);
    let pdu = io.h2c_data(900, ttag, 0, &pattern(1, 8192), true);
    io.say(&pdu);
    assert_eq!((io.next, node.disk.ops().len()), (Next::Close, 1));
    node.disk.land(0, Ok(()));
    assert_eq!(admin.property(property::CSTS), 0);
    admin.enable();
    let _again = Host::io(&node.target, &node.blocks, id, 1, 0);
    assert_eq!(io.connection.outstanding(), 1);
}

#[test]
fn keep_alive() {
    let node = Node::new();
    let mut admin = Host::initialised(&node.target, 0, 0);
    let connect = Connect { keep_alive: 1000, ..admin_connect() };
    let (status, id) = admin.connect(connect, &connect_data(&node.memory, 0xFFFF));
    assert_eq!(status, Status::SUCCESS);
    admin.enable();
    let mut io = Host::io(&node.target, &node.memory, id as u16, 1, 0);
    // Any command of any queue keeps the association alive.
    let mut now = NOW;
    for _ in 0..10 {
        now = now + Duration::from_millis(999);
        assert!(!admin.connection.is_over(now) && !io.connection.is_over(now));
        io.now = now;
        assert_eq!(io.read(0, 1).1, Status::SUCCESS);
    }
    let cid = io.cid();
    io.command(&rw(opcode::io::WRITE, cid, 0, 16), &[]);
    let Pdu::R2t { ttag, .. } = io.hear() else { panic!("no R2T") };
    let over = now + Duration::from_millis(1200);
    assert!(io.connection.is_over(over), "its own connection knows it");
    assert!(admin.connection.is_over(over));
    drop(admin);
    io.now = over;
    let pdu = io.h2c_data(cid, ttag, 0, &pattern(1, 8192), true);
    io.say(&pdu);
    assert_eq!(io.next, Next::Close);
    io.hears_nothing();
    assert_eq!(node.heap.bytes(), Node::new().heap.bytes(), "nothing was written afterwards");
    // A command that comes too late ends it as well.
    let mut admin = Host::initialised(&node.target, 0, 0);
    admin.connect(connect, &connect_data(&node.memory, 0xFFFF));
    admin.now = NOW + Duration::from_secs(2);
    let cid = admin.cid();
    admin.command(&Sqe::new(opcode::admin::KEEP_ALIVE, cid, 0), &[]);
    admin.hears_nothing();
    assert_eq!(admin.next, Next::Close);
    // Without a timeout there is none.
    let (mut admin, _) = Host::admin(&node.target, &node.memory, 0);
    assert!(!admin.connection.is_over(Nanos(u64::MAX / 2).min(EXPIRES)));
    let cid = admin.cid();
    admin.command(&Sqe::new(opcode::admin::KEEP_ALIVE, cid, 0), &[]);
    assert_eq!(admin.status(cid), Status::SUCCESS);
}

/// A host that asks to write and sends nothing does not keep its buffers.
#[test]
fn data_that_does_not_come() {
    let node = Node::new();
    let (_admin, id) = Host::admin(&node.target, &node.memory, 0);
    let mut io = Host::io(&node.target, &node.memory, id, 1, 0);
    io.command(&rw(opcode::io::WRITE, 5, 0, 16), &[]);
    assert!(!io.connection.is_over(NOW + Duration::from_secs(10)));
    assert!(io.connection.is_over(NOW + Duration::from_secs(11)));
    assert_eq!(node.counter("nvme_data_late"), 1);
}

#[test]
fn event_requests_are_limited_and_can_be_aborted() {
    let node = Node::new();
    let (mut admin, _) = Host::admin(&node.target, &node.memory, 0);
    let requests = wants_events(&mut admin, 4);
    let cid = admin.cid();
    admin.command(&Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, cid, 0), &[]);
    assert_eq!(admin.status(cid), Status::ASYNC_EVENT_LIMIT);
    let mut abort = |queue, of, aborted| {
        let cid = admin.cid();
        let mut sqe = Sqe::new(opcode::admin::ABORT, cid, 0);
        Abort { queue, cid: of }.put(&mut sqe);
        admin.command(&sqe, &[]);
        if aborted {
            assert_eq!(admin.status(of), Status::ABORT_REQUESTED);
        }
        assert_eq!(admin.ended(cid), (Status::SUCCESS, u64::from(!aborted)));
    };
    abort(0, requests[2], true);
    abort(0, requests[2], false);
    abort(1, requests[1], false);
    abort(0, 0xFFFF, false);
}

#[test]
fn discovery() {
    let node = Node::new();
    let mut admin = Host::initialised(&node.target, 0, 0);
    admin.connect_admin(DISCOVERY);
    admin.enable();
    wants_events(&mut admin, 1);
    let page = |admin: &mut Host| {
        let (header, status) = admin.log(id::DISCOVERY, 0, 1024, true);
        assert_eq!(status, Status::SUCCESS);
        let header = DiscoveryHeader::parse(&header).unwrap();
        let count = header.records.get() as usize;
        let (records, status) = admin.log(id::DISCOVERY, 1024, 1024 * count as u32, false);
        assert_eq!(status, Status::SUCCESS);
        let records = DiscoveryRecord::parse_all(&records, count).unwrap();
        let names = records.iter().map(|record| {
            assert_eq!((record.transport, record.family), (3, 1));
            assert_eq!(&record.address[..12], b"192.0.2.1   ");
            assert_eq!(&record.service[..6], b"4420  ");
            let name = std::str::from_utf8(record.subnqn.name().unwrap()).unwrap();
            (name.to_owned(), record.subsystem_type)
        });
        (header.generation.get(), names.collect::<Vec<_>>())
    };
    let (generation, names) = page(&mut admin);
    let own = (DISCOVERY.to_owned(), 3);
    assert_eq!(names, [own.clone(), (node.memory.clone(), 2), (node.blocks.clone(), 2)]);
    assert_eq!(told(&mut admin), None);
    node.target.unbind(MEMORY).unwrap();
    assert_eq!(told(&mut admin), Some(Event::Discovery));
    let (later, names) = page(&mut admin);
    assert_ne!(later, generation);
    assert_eq!(names, [own.clone(), (node.blocks.clone(), 2)]);
    // Another's leases are not shown, and change nothing.
    node.target.bind(MEMORY, Generation(7), "nqn.other", NOW).unwrap();
    assert_eq!(page(&mut admin), (later, names));
    node.target.unbind(BLOCK).unwrap();
    assert_eq!(page(&mut admin).1, [own]);
    assert_eq!(admin.log(id::ANA, 0, 52, false).1, Status::INVALID_LOG_PAGE);
    assert_eq!(admin.identify(cns::NAMESPACE, 1).1, Status::INVALID_FIELD);
    let (_, status) = admin.log(id::DISCOVERY, 3, 1024, false);
    assert_eq!(status, Status::INVALID_FIELD);
    let (_, status) = admin.log(id::DISCOVERY, 1 << 40, 1024, false);
    assert_eq!(status, Status::INVALID_FIELD);
}
