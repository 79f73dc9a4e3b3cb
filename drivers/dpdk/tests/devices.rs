//! Software devices without a kernel or a second process behind them, and devices that do not work.

mod common;

use std::path::Path;

use berth_dpdk::{Error, Memory, PortConfig, open};
use berth_port::{Port, Verdict};
use common::{config, counter, eal, serve};
use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader, VlanId};

/// Little-endian, microseconds, Ethernet: the classic format.
const PCAP_HEADER: [u8; 24] = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];

fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut file = PCAP_HEADER.to_vec();
    for frame in frames {
        let len = (frame.len() as u32).to_le_bytes();
        file.extend([[0; 4], [0; 4], len, len].concat());
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap();
}

fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// Tagged frames of another implementation, through files: the port must accept them, and accept its own answers.
#[test]
fn tagged_frames_from_a_capture_are_answered_in_their_vlan() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    // The driver numbers its address by what it has made so far; broadcast and a first look tell it.
    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let peer_mac = [2, 0, 0, 0, 0, 1];
    let frames = |mac| {
        let ethernet = |vlan| PacketBuilder::ethernet2(peer_mac, mac).single_vlan(VlanId::try_new(vlan).unwrap());
        let mut frames = vec![Vec::new(); 3];
        ethernet(7).ipv4([10, 77, 0, 1], [10, 77, 0, 2], 9).udp(5000, 4700).write(&mut frames[0], b"four").unwrap();
        let six = |host| [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host];
        ethernet(7).ipv6(six(1), six(2), 9).udp(5000, 4700).write(&mut frames[1], b"and six").unwrap();
        ethernet(8).ipv4([10, 77, 0, 1], [10, 77, 0, 2], 9).udp(5000, 4700).write(&mut frames[2], b"no").unwrap();
        frames
    };
    // What the driver calls itself: 02:70:63:61:70 and a number that starts at 0.
    let mac = [0x02, 0x70, 0x63, 0x61, 0x70, 0];
    write_pcap(&input, &frames(mac));
    let mut port = open(eal(), &PortConfig { vlan: Some(7), ..config(&device, 2) }).unwrap().remove(0);
    let mut served = 0;
    for _ in 0..100 {
        served += serve(&mut port);
    }
    assert_eq!((served, counter(&port, "rx_other_vlan")), (2, 1));
    drop(port);

    let answers = read_pcap(&output);
    assert_eq!(answers.len(), 2);
    for (answer, request) in answers.iter().zip([&b"four"[..], b"and six"]) {
        let packet = PacketHeaders::from_ethernet_slice(answer).unwrap();
        let inverted: Vec<u8> = request.iter().map(|b| !b).collect();
        assert_eq!(packet.payload.slice(), inverted);
        assert_eq!(packet.vlan_ids()[..], [VlanId::try_new(7).unwrap()]);
        let etherparse::LinkHeader::Ethernet2(link) = packet.link.unwrap() else { panic!("no Ethernet") };
        assert_eq!((link.source, link.destination), (mac, peer_mac));
        let Some(TransportHeader::Udp(udp)) = packet.transport else { panic!("no UDP") };
        assert_eq!((udp.source_port, udp.destination_port), (4700, 5000));
        let checksum = match packet.net.unwrap() {
            NetHeaders::Ipv4(ip, _) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                udp.calc_checksum_ipv4(&ip, &inverted)
            }
            NetHeaders::Ipv6(ip, _) => udp.calc_checksum_ipv6(&ip, &inverted),
            NetHeaders::Arp(_) => panic!("ARP was not asked"),
        };
        assert_eq!(udp.checksum, checksum.unwrap());
    }
}

#[test]
fn a_flood_of_frames_for_nobody_is_dropped_and_counted() {
    // The null driver makes a frame of zeros whenever it is asked, and swallows what it gets.
    let mut port = open(eal(), &config("net_null0,size=64", 2)).unwrap().remove(0);
    for _ in 0..1000 {
        assert_eq!(port.rx(|_| Verdict::Reply), 0);
    }
    assert_eq!(counter(&port, "rx_other_station"), 32_000);
    assert_eq!(counter(&port, "tx_frames"), 0);
}

#[test]
fn several_queues_are_several_ports() {
    let queues = PortConfig { queues: 2, ..config("net_null1,no-rx=1", 2) };
    let mut ports = open(eal(), &queues).unwrap();
    assert_eq!(ports.len(), 2);
    std::thread::scope(|scope| {
        for port in &mut ports {
            scope.spawn(|| (0..1000).for_each(|_| assert_eq!(serve(port), 0)));
        }
    });
    let error = open(eal(), &PortConfig { queues: 0, ..config("net_null2", 2) }).unwrap_err();
    assert!(matches!(error, Error::Queues { asked: 0, .. }), "{error}");
    let error = open(eal(), &PortConfig { queues: 4000, ..config("net_null2", 2) }).unwrap_err();
    assert!(matches!(error, Error::Queues { asked: 4000, .. }), "{error}");
}

#[test]
fn a_device_serves_once_at_a_time() {
    let config = config("net_null3,no-rx=1", 2);
    let first = open(eal(), &config).unwrap();
    let error = open(eal(), &config).unwrap_err();
    assert!(matches!(&error, Error::InUse(name) if name == "net_null3"), "{error}");
    drop(first);
    for _ in 0..30 {
        open(eal(), &config).unwrap();
    }
}

#[test]
fn devices_that_do_not_exist_are_named() {
    for device in ["net_nosuch0", "0000:ff:1f.7", "eth0", "", "net_af_packet9,iface=nosuch", "net_memif9,role=king"] {
        let error = open(eal(), &config(device, 2)).unwrap_err();
        assert!(matches!(&error, Error::Probe { device: named, .. } if named == device), "{device}: {error}");
        assert!(error.to_string().contains("net_memif0,role=server"), "{error}");
    }
    assert!(matches!(open(eal(), &config("net_null\0", 2)), Err(Error::Nul(_))));
}

#[test]
fn a_second_initialisation_is_refused() {
    eal();
    let again =
        berth_dpdk::Eal::init(&berth_dpdk::EalConfig { cpus: Vec::new(), memory: Memory::OrdinaryPages { mib: 64 } });
    assert!(matches!(again, Err(Error::AlreadyInitialised)));
}
