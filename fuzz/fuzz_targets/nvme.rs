//! Every view of NVMe/TCP over the same bytes. A PDU is taken as a receiver would; what is understood is written back as
//! the same.
#![no_main]

use berth_wire::nvme::{
    Cqe, Sqe,
    admin::{Abort, Event, GetFeatures, GetLogPage, Identify, QueueCounts, SetFeatures},
    auth::{self, Message, SECRET_TEXT_MAX, Secret},
    fabrics::{Authentication, Connect, ConnectData, Connected, Nqn, Property, property},
    identify::{self, Controller, Descriptor, Namespace, NvmController},
    io::{Access, CopyCommand, CopyRange, DatasetManagement, DsmRange},
    log::{AnaGroup, AnaHeader, DiscoveryHeader, DiscoveryRecord, Effects, ErrorEntry, FirmwareSlots, Health},
    pdu::{Common, DataPdu, Framing, HEAD_MAX, Header, IcReq, IcResp, Kind, R2t, Rules, Side, TermReq},
    virtualization::{self, Attachment, Format, Primary, SECONDARIES_MAX, VirtualizationManagement},
};
use libfuzzer_sys::fuzz_target;
use zerocopy::IntoBytes as _;

fuzz_target!(|input: &[u8]| {
    let [how, alignment, bytes @ ..] = input else { return };
    let flag = |bit: u8| how & 1 << bit != 0;
    let rules = Rules {
        sender: if flag(0) { Side::Host } else { Side::Controller },
        initialised: !flag(1),
        framing: Framing::new(flag(2), flag(3), *alignment),
        capsule_data_max: 8192,
    };
    pdu(bytes, &rules);
    if let Some(sqe) = Sqe::parse(bytes) {
        arguments(sqe, u32::from(*alignment));
    }
    if let Some(cqe) = Cqe::parse(bytes) {
        let (result, status) = (cqe.result(), cqe.status());
        let again = Cqe::new(cqe.cid.get(), cqe.sqhd.get(), result, status);
        assert_eq!((again.result(), again.status()), (result, status));
        let _ = (format!("{status:?}"), Connected::of(result as u32), Event::of(result as u32));
        let _ = (QueueCounts::of(result as u32), property::entries_max(result), property::ready_time(result));
    }
    data(bytes, usize::from(*alignment));
    if let Ok((t_id, message)) = Message::parse(bytes) {
        let mut again = vec![0; bytes.len()];
        let len = message.write(t_id, &mut again);
        // A descriptor of another protocol is not kept, and a response that is not valid need not be there.
        let len = len.unwrap_or_else(|| {
            assert!(matches!(message, Message::Success1 { response: None, .. }));
            again.resize(512, 0);
            message.write(t_id, &mut again).unwrap()
        });
        assert_eq!(Message::parse(&again[..len]), Ok((t_id, message)));
    }
    let mut room = [0; 68];
    if let Some(secret) = str::from_utf8(bytes).ok().and_then(|text| Secret::parse(text, &mut room)) {
        assert_eq!(secret.write(&mut [0; SECRET_TEXT_MAX]).map(str::as_bytes), Some(bytes));
    }
});

fn pdu(bytes: &[u8], rules: &Rules) {
    let Some(common) = bytes.first_chunk::<{ Common::LEN }>() else { return };
    let Ok(header) = Header::parse(common, rules) else { return };
    assert!(header.len <= HEAD_MAX && header.len <= header.data_at);
    let _ = header.check_digest(bytes);
    let Some(head) = bytes.get(..header.len) else { return };
    match header.kind {
        Kind::IcReq => drop(IcReq::parse(head).unwrap().accept()),
        Kind::IcResp => drop(IcResp::parse(head).unwrap().accept()),
        Kind::H2cTermReq | Kind::C2hTermReq => drop(TermReq::parse(head).unwrap().fatal()),
        Kind::CapsuleCmd => drop(Sqe::parse(&head[Common::LEN..]).unwrap().pointer(header.data_len, 8192)),
        Kind::CapsuleResp => drop(Cqe::parse(&head[Common::LEN..]).unwrap().status()),
        Kind::H2cData | Kind::C2hData => {
            if let Ok(data) = DataPdu::checked(head, &header, 65_536) {
                assert!(data.len.get() == header.data_len && (1..=65_536).contains(&header.data_len));
            }
        }
        Kind::R2t => drop(R2t::parse(head).unwrap().len.get()),
    }
}

fn arguments(sqe: &Sqe, in_capsule: u32) {
    let _ = (sqe.fuse(), sqe.fctype(), sqe.transfer(), sqe.pointer(in_capsule, 8192), sqe.pointer(0, 0));
    let mut again = *sqe;
    Access::of(sqe).put(&mut again);
    assert_eq!(Access::of(&again), Access::of(sqe));
    DatasetManagement::of(sqe).put(&mut again);
    assert_eq!(DatasetManagement::of(&again), DatasetManagement::of(sqe));
    CopyCommand::of(sqe).put(&mut again);
    assert_eq!(CopyCommand::of(&again), CopyCommand::of(sqe));
    GetLogPage::of(sqe).put(&mut again);
    assert_eq!(GetLogPage::of(&again), GetLogPage::of(sqe));
    Identify::of(sqe).put(&mut again);
    assert_eq!(Identify::of(&again), Identify::of(sqe));
    SetFeatures::of(sqe).put(&mut again);
    assert_eq!(SetFeatures::of(&again), SetFeatures::of(sqe));
    GetFeatures::of(sqe).put(&mut again);
    assert_eq!(GetFeatures::of(&again), GetFeatures::of(sqe));
    Abort::of(sqe).put(&mut again);
    assert_eq!(Abort::of(&again), Abort::of(sqe));
    VirtualizationManagement::of(sqe).put(&mut again);
    assert_eq!(VirtualizationManagement::of(&again), VirtualizationManagement::of(sqe));
    Format::of(sqe).put(&mut again);
    assert_eq!(Format::of(&again), Format::of(sqe));
    if let Some(attachment) = Attachment::of(sqe) {
        attachment.put(&mut again);
        assert_eq!(Attachment::of(&again), Some(attachment));
    }
    assert_eq!(Connect::of(&Connect::of(sqe).command(0)), Connect::of(sqe));
    if let Some(property) = Property::of(sqe) {
        assert_eq!(Property::of(&property.set(0)), Some(property));
    }
    if let Some(authentication) = Authentication::of(sqe) {
        assert_eq!(Authentication::of(&authentication.command(5, 0)), Some(authentication));
    }
}

fn data(bytes: &[u8], count: usize) {
    if let Some(ranges) = DsmRange::parse_all(bytes, count) {
        assert!(ranges.len() == count && ranges.iter().filter(|range| range.is_within(count as u64)).count() <= count);
    }
    if let Some(ranges) = CopyRange::parse_all(bytes, count) {
        assert!(ranges.iter().all(|range| range.blocks() > 0 && !range.is_within(0)));
    }
    if let Some(name) = Nqn::parse(bytes).and_then(Nqn::name) {
        assert_eq!(Nqn::new(name).unwrap().name(), Some(name));
    }
    let _ = ConnectData::parse(bytes).map(|data| (data.subnqn.name(), data.hostnqn.name()));
    let _ = Controller::parse(bytes).map(|controller| (controller.subnqn.name(), controller.in_capsule_max()));
    let _ = Namespace::parse(bytes).map(Namespace::format);
    let _ = (NvmController::parse(bytes), Primary::parse(bytes));
    let ids: Vec<_> = virtualization::controllers(bytes).collect();
    assert!(virtualization::controllers(&virtualization::controller_list(&ids)).eq(ids.into_iter().take(2047)));
    assert!(virtualization::secondaries(bytes).count() <= SECONDARIES_MAX);
    assert!(identify::namespaces(bytes).count() <= bytes.len() / 4);
    let descriptors: Vec<_> = Descriptor::parse_all(bytes).take(100).collect();
    assert!(Descriptor::parse_all(&Descriptor::list(&descriptors)).eq(descriptors));
    let _ = ErrorEntry::parse(bytes).map(ErrorEntry::status);
    let _ = (Health::parse(bytes), FirmwareSlots::parse(bytes), Effects::parse(bytes));
    if let Some(header) = AnaHeader::parse(bytes) {
        let mut rest = &bytes[AnaHeader::LEN..];
        for _ in 0..header.groups.get() {
            let Some((group, namespaces, behind)) = AnaGroup::split(rest) else { break };
            assert_eq!(group.as_bytes().len() + namespaces.as_bytes().len() + behind.len(), rest.len());
            rest = behind;
        }
    }
    let _ = DiscoveryHeader::parse(bytes);
    let _ = DiscoveryRecord::parse_all(bytes, count % 4);
    let _ = (auth::Hash::of(count as u8), auth::Group::of(count as u8));
}
