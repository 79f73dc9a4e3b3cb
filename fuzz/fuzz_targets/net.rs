//! The IP host under hostile frames: nothing panics, every answer fits its buffer, and a host that has read the frame
//! before, whose flow it may know by heart, says and answers the same.
#![no_main]

use berth_net::{Host, HostConfig, Interface, Outcome, Verified};
use berth_port::Nanos;
use berth_wire::net::MacAddr;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let [flags, frame @ ..] = input else { return };
    let mac = MacAddr([2, 0, 0, 0, 0, 2]);
    let config = HostConfig {
        mac,
        interfaces: vec![
            Interface { address: [10, 0, 0, 2].into(), prefix: 24 },
            Interface { address: [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(), prefix: 64 },
        ],
        vlan: (flags & 1 != 0).then_some(7),
        udp_port: 4700,
        udp_checksums: true,
        mtu: 1500,
        neighbours: Vec::new(),
    };
    let mut host = Host::new(&config);
    // Sums are what a fuzzer rarely gets right: half of the inputs count as verified by the device.
    let verified = Verified { ip: flags & 2 != 0, udp: flags & 4 != 0 };
    let mut read = || {
        let mut buf = frame.to_vec();
        buf.resize(frame.len() + usize::from(flags >> 3) * 64, 0);
        match host.rx(&mut buf, frame.len(), verified, Nanos(0)) {
            Outcome::Udp(datagram) => {
                assert!(datagram.payload.end <= frame.len());
                let sealed = host.reply(&mut buf, &datagram, datagram.capacity, flags & 1 != 0);
                assert!(sealed.len <= buf.len());
            }
            Outcome::Answer(len) => assert!(len <= buf.len()),
            Outcome::Drop(_) => {}
        }
        buf
    };
    let first = read();
    for _ in 0..3 {
        assert!(first == read());
    }
});
