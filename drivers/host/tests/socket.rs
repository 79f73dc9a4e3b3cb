//! If a socket cannot be opened, the error says what would help.

use std::thread;

use berth_host::{BindError, UdpConfig, UdpSocket};

fn config(bind: &str) -> UdpConfig {
    UdpConfig::new(bind.parse().expect("an address"))
}

fn refused(config: &UdpConfig) -> (BindError, String) {
    let error = UdpSocket::bind(config).expect_err("it cannot be had");
    let message = error.to_string();
    (error, message)
}

#[test]
fn an_address_in_use() {
    for bind in ["127.0.0.1:0", "[::1]:0"] {
        let first = UdpSocket::bind(&config(bind)).expect("a socket");
        let taken = UdpConfig { bind: first.local_addr(), ..config(bind) };
        let (error, message) = refused(&taken);
        assert!(matches!(error, BindError::InUse(addr) if addr == taken.bind), "{message}");
        assert!(message.contains("ss -ulpn"), "{message}");
        // Sharing takes the consent of both.
        refused(&UdpConfig { reuse_port: true, ..taken });
    }
}

#[test]
fn an_address_of_another_host() {
    for bind in ["192.0.2.1:0", "[2001:db8::1]:0"] {
        let (error, message) = refused(&config(bind));
        assert!(matches!(error, BindError::NotLocal(_)), "{message}");
    }
}

#[test]
fn a_frame_that_udp_cannot_carry() {
    for (bind, longest) in [("127.0.0.1:0", 65_507), ("[::1]:0", 65_527)] {
        for max_frame in [0, longest + 1] {
            let (error, message) = refused(&UdpConfig { max_frame, ..config(bind) });
            assert!(matches!(error, BindError::MaxFrame { .. }), "{message}");
            assert!(message.contains(&longest.to_string()), "{message}");
        }
        UdpSocket::bind(&UdpConfig { max_frame: longest, ..config(bind) }).expect("the longest");
    }
}

#[test]
fn what_only_the_administrator_may_have() {
    // A thread that gives its user away loses its capabilities, and the process keeps them.
    thread::spawn(|| {
        // SAFETY: the bare system call takes no pointer and changes the calling thread alone. It fails where the
        // process is not privileged in the first place.
        unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").expect("procfs");
        let first: u16 = first.trim().parse().expect("a port");
        if let Some(port @ 1..) = first.checked_sub(1) {
            let (error, message) = refused(&config(&format!("127.0.0.1:{port}")));
            assert!(matches!(error, BindError::NotPermitted(_)), "{message}");
        }
        let (error, message) = refused(&UdpConfig { rcvbuf: Some(1 << 30), ..config("127.0.0.1:0") });
        assert!(matches!(error, BindError::Buffer { asked: 0x4000_0000, .. }), "{message}");
        assert!(message.contains("net.core.rmem_max"), "{message}");
        let (_, message) = refused(&UdpConfig { sndbuf: Some(1 << 30), ..config("127.0.0.1:0") });
        assert!(message.contains("net.core.wmem_max"), "{message}");
    })
    .join()
    .expect("the thread's own checks hold");
}
