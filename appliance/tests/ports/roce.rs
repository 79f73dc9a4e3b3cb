//! Software-RoCE ports of a running appliance: the FPGA emulator over memif and over a virtual cable, and a sender of
//! raw packets, written from the specification, which does what it must not.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::{Command, Output},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::common::{Berth, INCREMENT, RPC_INCREMENT, Stopped, request};

/// A port on CPU 0 whose peers come by rendezvous.
fn port(device: &str, more: &str) -> String {
    format!(
        "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n[[port]]\nname = \"d\"\ndriver = \"dpdk\"\ndevice = \
         \"{device}\"\naddress = [\"10.79.0.2/24\", \"fd79::2/64\"]\ntransport = \"roce\"\ncpu = 0\nidle = \"adaptive\"\n\
         rendezvous = \"127.0.0.1:0\"\n{more}\n"
    )
}

/// The emulator on CPU 1, who asks for `rpc_increment` so often.
fn emulate(berth: &Berth, device: &str, address: &str, count: u64, more: &[&str]) -> Output {
    let rendezvous = berth.ready["ports"][0]["rendezvous"].as_str().unwrap();
    let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
    perf.args(["perf", "rpc", "--port", "roce", "--device", device, "--address", address, "--no-progress"]);
    perf.args(["--rendezvous", rendezvous, "--count", &count.to_string(), "--warmup", "0.1", "--cpu", "1"]);
    let output = perf.args(more).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Every packet was taken and every request answered, at least so many.
fn all_went_well(stopped: &Stopped, least: u64) {
    assert_eq!(stopped.status.code(), Some(0));
    let port = |counter| stopped.sum("d", "port", counter);
    assert!(port("roce_messages") >= least);
    assert_eq!(port("roce_messages"), stopped.sum("d", "service", "answered"));
    assert_eq!(port("roce_sent"), port("roce_messages"));
    for counter in ["psn_gaps", "roce_bad_icrc", "roce_stale_psn", "slot_mismatches", "roce_malformed", "tx_too_long"] {
        assert_eq!(port(counter), 0, "{counter}");
    }
}

fn memif(more: &str) -> (Berth, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("m.sock").display().to_string();
    let berth = Berth::start(&format!("{}{INCREMENT}", port(&format!("net_memif0,role=server,socket={socket}"), more)));
    (berth, format!("net_memif1,role=client,socket={socket}"), folder)
}

#[test]
fn answers_a_hundred_thousand_over_memif() {
    let (berth, client, _folder) = memif("");
    assert_eq!(berth.ready["ports"][0]["addr"], "10.79.0.2:4791");
    emulate(&berth, &client, "10.79.0.1/24", 100_000, &["--window", "16", "--payload", "32"]);
    // The client is gone, and so is its queue pair: another one comes, over IPv6.
    emulate(&berth, &client, "fd79::1/64", 2000, &["--payload", "1,999"]);
    let stopped = berth.stop();
    all_went_well(&stopped, 104_000);
    assert_eq!(stopped.sum("d", "port", "peers_joined"), 2);
    assert_eq!(stopped.sum("d", "port", "rendezvous_gone"), 2);
}

#[test]
fn answers_as_the_fpga_writes() {
    let slots = "rendezvous_form = \"host-api\"\n[port.rpc]\nptp = \"sec_nsec\"\n[port.roce]\nslots = 4\nstride = 384\n\
                 base = 0x10000\nimmediate = \"psn24\"";
    let (berth, client, _folder) = memif(slots);
    let agreed = "--style hsb --rendezvous-form host-api --slots 4 --stride 384 --base 65536 --immediate psn24";
    let agreed: Vec<&str> = agreed.split(' ').chain(["--window", "4", "--payload", "1,40,41,300"]).collect();
    emulate(&berth, &client, "10.79.0.1/24", 5000, &agreed);
    let stopped = berth.stop();
    all_went_well(&stopped, 20_000);
    assert_eq!(stopped.sum("d", "service", "bad_stamps"), 0);
    // Its length is filled up to windows of 64 bytes: 25 -> 64, 64 -> 64, 65 -> 128, 324 -> 384.
    assert_eq!(stopped.sum("d", "port", "rx_bytes") % 64, 0);
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A virtual cable between the ends "k" and "d".
struct Cable(String);

impl Cable {
    fn new(name: &str) -> Self {
        let name = format!("b{name}{}", std::process::id());
        ip(&format!("link add {name}k type veth peer name {name}d"));
        let cable = Self(name);
        for end in ["k", "d"] {
            ip(&format!("link set {}{end} up", cable.0));
        }
        cable
    }

    fn device(&self, driver: &str, end: &str) -> String {
        format!("{driver}0,iface={}{end}", self.0)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &format!("{}k", self.0)]).status();
    }
}

fn answers_a_hundred_thousand_over_a_cable(name: &str, driver: &str) {
    let cable = Cable::new(name);
    let berth = Berth::start(&format!("{}{INCREMENT}", port(&cable.device(driver, "d"), "")));
    emulate(&berth, &cable.device("net_af_packet", "k"), "10.79.0.1/24", 100_000, &["--window", "16"]);
    all_went_well(&berth.stop(), 100_000);
}

#[test]
fn answers_a_hundred_thousand_over_af_packet() {
    answers_a_hundred_thousand_over_a_cable("ra", "net_af_packet");
}

#[test]
fn answers_a_hundred_thousand_over_af_xdp() {
    answers_a_hundred_thousand_over_a_cable("rx", "net_af_xdp");
}

/// A sender of raw packets at 10.79.0.1, on the kernel's end of a cable.
struct Sender {
    raw: Socket,
    answers: UdpSocket,
    qpn: u32,
    rkey: u32,
    psn: u32,
    request: u32,
    /// The number of the next answer.
    answer_psn: u32,
}

const PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2)), 4791);
const PEER_QPN: u32 = 0x00c0_ffee;

/// CRC-32, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// An IPv4 header, its checksum left to the kernel.
fn ip_header(id: u16, len: usize, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let [id, len] = [id.to_be_bytes(), (20 + len as u16).to_be_bytes()];
    [&[0x45, 0], &len[..], &id, &[0x40, 0, 64, 17, 0, 0], &from, &to].concat()
}

/// The ICRC of a packet, as the specification describes it.
fn icrc(ip: &[u8], udp: &[u8]) -> [u8; 4] {
    let mut packet = [&[0xff; 8], ip, udp].concat();
    for at in [8 + 1, 8 + 8, 8 + 10, 8 + 11, 28 + 6, 28 + 7, 28 + 8 + 4] {
        packet[at] = 0xff;
    }
    crc32(&packet).to_le_bytes()
}

/// What is changed in a request before it is sent.
#[derive(Default)]
struct Wrong {
    opcode: Option<u8>,
    p_key: Option<u16>,
    qpn: u32,
    rkey: u32,
    address: u64,
    immediate: u32,
    psn: i32,
    icrc: u8,
}

impl Sender {
    fn new(berth: &Berth) -> Self {
        let known = &berth.ready["ports"][0]["peers"][0];
        let number = |key: &str| known[key].as_u64().unwrap() as u32;
        assert_eq!((known["address"].as_str(), number("psn")), (Some("10.79.0.1"), 0x00ff_fffe));
        assert_eq!((number("slots"), number("stride"), number("base")), (64, 2048, 0));
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::UDP)).unwrap();
        raw.set_header_included_v4(true).unwrap();
        let answers = UdpSocket::bind("10.79.0.1:4791").unwrap();
        answers.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let psn = 0x00ff_fffe;
        Self { raw, answers, qpn: number("qpn"), rkey: number("rkey"), psn, request: 0, answer_psn: psn }
    }

    /// Writes a request for `rpc_increment` of three bytes into the slot of its number, with something wrong.
    fn send(&mut self, wrong: &Wrong) {
        let message = request(RPC_INCREMENT, &[1, 2, 255], self.request, 7);
        let (slot, psn) = (self.request % 64, self.psn.wrapping_add_signed(wrong.psn) & 0x00ff_ffff);
        let mut bth = vec![wrong.opcode.unwrap_or(0x2b), 1 << 4];
        bth.extend(wrong.p_key.unwrap_or(0xffff).to_be_bytes());
        bth.extend((self.qpn ^ wrong.qpn).to_be_bytes());
        bth.extend(psn.to_be_bytes());
        let mut packet = bth;
        packet.extend((u64::from(slot) * 2048).wrapping_add(wrong.address).to_be_bytes());
        packet.extend((self.rkey ^ wrong.rkey).to_be_bytes());
        packet.extend((message.len() as u32).to_be_bytes());
        packet.extend(((psn << 12) | (slot + wrong.immediate)).to_be_bytes());
        packet.extend(&message);
        packet.push(0);
        let len = (8 + packet.len() + 4) as u16;
        let udp =
            [&51234_u16.to_be_bytes()[..], &4791_u16.to_be_bytes(), &len.to_be_bytes(), &[0, 0], &packet].concat();
        let ip = ip_header(0x1234, usize::from(len), [10, 79, 0, 1], [10, 79, 0, 2]);
        let mut crc = icrc(&ip, &udp);
        crc[2] ^= wrong.icrc;
        self.raw.send_to(&[&ip[..], &udp, &crc].concat(), &PORT.into()).unwrap();
        if wrong.psn == 0 {
            self.psn = (self.psn + 1) & 0x00ff_ffff;
        }
        self.request += 1;
    }

    /// Sends a right request, and checks its answer to the last bit.
    fn ask(&mut self) {
        let number = self.request;
        self.send(&Wrong::default());
        let mut buf = [0; 2048];
        let (len, from) = self.answers.recv_from(&mut buf).expect("an answer within 5 s");
        assert_eq!(from, PORT);
        let (packet, crc) = buf[..len].split_last_chunk::<4>().unwrap();
        let udp_len = (8 + len) as u16;
        let udp =
            [&4791_u16.to_be_bytes()[..], &4791_u16.to_be_bytes(), &udp_len.to_be_bytes(), &[0, 0], packet].concat();
        let ip = ip_header(0, usize::from(udp_len), [10, 79, 0, 2], [10, 79, 0, 1]);
        assert_eq!(*crc, icrc(&ip, &udp), "the answer's ICRC");
        // UC SEND Only, one byte of padding.
        assert_eq!((packet[0], packet[1] & 0x3f, &packet[2..4]), (0x24, 1 << 4, &[0xff, 0xff][..]));
        assert_eq!(packet[4..8], PEER_QPN.to_be_bytes());
        assert_eq!(packet[8..12], self.answer_psn.to_be_bytes());
        self.answer_psn = (self.answer_psn + 1) & 0x00ff_ffff;
        let answer = &packet[12..packet.len() - 1];
        let words: Vec<u32> = answer[..16].chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [0x4355_5153, 0, 3, number]);
        assert_eq!(answer[16..], [7, 0, 0, 0, 0, 0, 0, 0, 2, 3, 0]);
    }
}

#[test]
fn what_is_wrong_is_counted_and_contained() {
    let cable = Cable::new("rw");
    let end = &cable.0;
    ip(&format!("address add 10.79.0.1/24 dev {end}k"));
    let ethtool = Command::new("ethtool").args(["-K", &format!("{end}k"), "tx", "off"]).output().unwrap();
    assert!(ethtool.status.success());
    let peer = format!("[[port.peer]]\naddress = \"10.79.0.1\"\nqpn = {PEER_QPN}\npsn = 0xfffffe");
    let berth = Berth::start(&format!("{}{INCREMENT}", port(&cable.device("net_af_packet", "d"), &peer)));
    let mut sender = Sender::new(&berth);
    for _ in 0..100 {
        sender.ask();
    }
    let wrong = |change: fn(&mut Wrong)| {
        let mut wrong = Wrong::default();
        change(&mut wrong);
        wrong
    };
    // What each must be counted as, and what else must be counted then.
    let cases: [(Wrong, &str, Option<&str>); 10] = [
        (wrong(|w| w.rkey = 1), "roce_wrong_rkey", None),
        (wrong(|w| w.address = 64 * 2048 + 1 - 27), "roce_out_of_range", None),
        (wrong(|w| w.address = u64::MAX), "roce_out_of_range", None),
        (wrong(|w| w.psn = -3), "roce_stale_psn", None),
        (wrong(|w| w.p_key = Some(0x8001)), "roce_wrong_p_key", Some("psn_gaps")),
        (wrong(|w| w.icrc = 0x20), "roce_bad_icrc", Some("psn_gaps")),
        (wrong(|w| w.qpn = 0x40_0000), "roce_unknown_qpn", Some("psn_gaps")),
        (wrong(|w| w.immediate = 64), "slot_overruns", None),
        (wrong(|w| w.immediate = 1), "slot_mismatches", None),
        (wrong(|w| w.opcode = Some(0x0b)), "roce_unknown_opcode", Some("psn_gaps")),
    ];
    let mut expected = std::collections::BTreeMap::new();
    for (wrong, counter, also) in &cases {
        // Slot 0, where an address is off by no more than the case says.
        sender.request = sender.request.next_multiple_of(64);
        sender.send(wrong);
        for counter in also.iter().chain([counter]) {
            *expected.entry(*counter).or_insert(0) += 1;
        }
        // It stays the peer it was.
        sender.ask();
    }
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0));
    for (counter, value) in expected {
        assert_eq!(stopped.sum("d", "port", counter), value, "{counter}");
    }
    let right = 100 + cases.len() as u64;
    assert_eq!(stopped.sum("d", "service", "received"), right);
    assert_eq!(stopped.sum("d", "service", "calls_rpc_increment"), right);
}
