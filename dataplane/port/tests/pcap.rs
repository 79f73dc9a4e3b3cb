//! What tcpdump, an independent program, reads from a capture is what passed.

mod common;

use std::{
    fs::File,
    io::{self, Write},
    net::SocketAddr,
    path::Path,
    process::Command,
    time::Duration,
};

use berth_port::{Fault, FaultSpec, Faults, Loopback, Pcap, Port, Verdict};
use common::{A, B, Virtual, counter, number, pair};

/// A packet as tcpdump prints it: its summary line, and its bytes.
type Printed = (String, Vec<u8>);

fn tcpdump(file: &Path) -> Vec<Printed> {
    let out = Command::new("tcpdump")
        .args(["-nn", "-tt", "--time-stamp-precision=nano", "-v", "-x", "-r"])
        .arg(file)
        .output()
        .expect("tcpdump is installed: apt-get install tcpdump");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut packets: Vec<Printed> = Vec::new();
    for line in text.lines() {
        match line.trim_start().strip_prefix("0x").and_then(|dump| dump.split_once(':')) {
            Some((_, words)) => {
                let hex: String = words.split_whitespace().collect();
                let bytes = (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap());
                packets.last_mut().unwrap().1.extend(bytes);
            }
            None if line.starts_with(char::is_whitespace) => packets.last_mut().unwrap().0.push_str(line),
            None => packets.push((line.to_owned(), Vec::new())),
        }
    }
    packets
}

/// Sends a frame each way, answers the second, and returns what tcpdump prints.
fn capture([a, b]: [SocketAddr; 2]) -> Vec<Printed> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pcap");
    let clock = Virtual::default();
    clock.advance(Duration::new(1_700_000_000, 123_456_789));
    let (mut peer, port) = Loopback::pair([a, b], 4, 64);
    let mut port = Pcap::new(port, File::create(&file).unwrap(), 1 << 20, clock.clone());
    port.post(a.into(), |buf| {
        buf[..5].copy_from_slice(b"hello");
        5
    })
    .unwrap();
    peer.post(b.into(), number(u64::from_le_bytes(*b"question"))).unwrap();
    peer.tx();
    clock.advance(Duration::from_nanos(1));
    port.rx(|frame| {
        frame.buf_mut()[..3].copy_from_slice(b"yes");
        frame.set_len(3);
        Verdict::Reply
    });
    port.tx();
    assert_eq!((counter(&port, "pcap_frames"), counter(&port, "pcap_missed")), (3, 0));
    drop(port);
    tcpdump(&file)
}

#[test]
fn tcpdump_reads_every_frame_byte_for_byte_with_its_time_and_addresses() {
    let packets = capture([A, B]);
    assert_eq!(packets.len(), 3, "{packets:?}");
    for ((line, bytes), (at, hop, payload)) in packets.iter().zip([
        ("1700000000.123456789", "10.0.0.2.2 > 10.0.0.1.1", &b"hello"[..]),
        ("1700000000.123456790", "10.0.0.1.1 > 10.0.0.2.2", b"question"),
        ("1700000000.123456790", "10.0.0.2.2 > 10.0.0.1.1", b"yes"),
    ]) {
        assert!(line.starts_with(&format!("{at} IP ")), "{line}");
        assert!(line.contains(hop) && line.contains(&format!("UDP, length {}", payload.len())), "{line}");
        assert!(!line.contains("bad") && !line.contains("wrong"), "{line}");
        assert_eq!((bytes.len(), &bytes[28..]), (28 + payload.len(), payload));
    }
}

#[test]
fn tcpdump_finds_the_checksums_of_ipv6_right() {
    let packets = capture(["[fd00::1]:1".parse().unwrap(), "[fd00::2]:2".parse().unwrap()]);
    assert_eq!(packets.len(), 3);
    let (line, bytes) = &packets[1];
    assert!(line.contains("IP6") && line.contains("fd00::1.1 > fd00::2.2: [udp sum ok]"), "{line}");
    assert_eq!(&bytes[48..], b"question");
}

#[test]
fn around_faults_the_capture_shows_what_the_handler_saw() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pcap");
    let clock = Virtual::default();
    let (mut peer, port) = pair(64);
    let rx = Faults { drop: 0.5, ..Faults::default() };
    let port = Fault::new(port, FaultSpec { seed: 1, rx, ..FaultSpec::default() }, clock.clone());
    let mut port = Pcap::new(port, File::create(&file).unwrap(), 1 << 20, clock);
    for i in 0..32 {
        peer.post(B.into(), number(i)).unwrap();
    }
    peer.tx();
    let mut seen = Vec::new();
    port.rx(|frame| {
        seen.push(frame.data().to_vec());
        Verdict::Drop
    });
    assert_eq!(seen.len() as u64, 32 - counter(&port, "fault_rx_dropped"));
    drop(port);
    let captured: Vec<_> = tcpdump(&file).into_iter().map(|(_, bytes)| bytes[28..].to_vec()).collect();
    assert_eq!(captured, seen);
}

/// Posts frames of eight bytes until `frames` were sent; returns the numbers captured, missed, and of write errors.
fn post_eights(out: impl Write, limit: u64, frames: u64) -> [u64; 3] {
    let (mut peer, port) = pair(64);
    let mut port = Pcap::new(port, out, limit, Virtual::default());
    for i in 0..frames {
        port.post(A.into(), number(i)).unwrap();
        port.tx();
        assert_eq!(peer.rx(|_| Verdict::Drop), 1, "frames pass whatever becomes of the capture");
    }
    ["pcap_frames", "pcap_missed", "pcap_write_errors"].map(|name| counter(&port, name))
}

#[test]
fn a_capture_ends_before_its_limit_with_a_whole_packet() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.pcap");
    // A file header of 24 bytes, and for each frame 16 of record header, 28 of IP and UDP, and 8 of data.
    assert_eq!(post_eights(File::create(&file).unwrap(), 24 + 3 * 52 + 51, 10), [3, 7, 0]);
    assert_eq!((file.metadata().unwrap().len(), tcpdump(&file).len()), (24 + 3 * 52, 3));
    assert_eq!(post_eights(io::sink(), 23, 2), [0, 2, 0]);
}

#[test]
fn a_failing_writer_ends_the_capture_and_nothing_else() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    // 8 KiB are buffered before the first write: the header and 157 packets; the 158th is lost in the attempt.
    assert_eq!(post_eights(Full, u64::MAX, 1000), [157, 843, 1]);
}
