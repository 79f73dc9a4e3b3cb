//! A virtual Ethernet cable. One end is for the port under test, the other is in a network namespace, where the
//! kernel's own IP stack is an independent peer. Needs root.

use std::{
    fs::File,
    os::fd::AsRawFd,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// A cable whose far end has `10.77.0.1/24` and `fd77::1/64`. Removed on drop.
pub(crate) struct Veth {
    /// The interface of the near end.
    pub(crate) near: String,
    far: String,
    namespace: String,
}

/// Runs a command, which must succeed.
pub(crate) fn run(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Veth {
    pub(crate) fn new() -> Self {
        static CABLES: AtomicU32 = AtomicU32::new(0);
        let id = format!("bt{}x{}", std::process::id() % 100_000, CABLES.fetch_add(1, Ordering::Relaxed));
        let veth = Self { near: format!("{id}n"), far: format!("{id}f"), namespace: id };
        let Self { near, far, namespace } = &veth;
        run(&format!("ip netns add {namespace}"));
        run(&format!("ip link add {near} type veth peer name {far} netns {namespace}"));
        // The kernel leaves checksums to the device, and a cable has none; a packet on it must be whole.
        veth.far_run(&format!("ethtool -K {far} tx off txvlan off"));
        run(&format!("ip -n {namespace} address add 10.77.0.1/24 dev {far}"));
        run(&format!("ip -n {namespace} address add fd77::1/64 dev {far} nodad"));
        run(&format!("ip -n {namespace} link set {far} up"));
        // The near end belongs to the port: the kernel shall not talk on it.
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{near}/disable_ipv6"), "1").unwrap();
        run(&format!("ip link set {near} up"));
        veth.at_far_end(|| std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0").unwrap());
        veth
    }

    fn far_run(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.namespace));
    }

    /// Runs `work` in the far end's network namespace; sockets made there stay there.
    pub(crate) fn at_far_end<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.namespace)).unwrap();
        std::thread::scope(|scope| {
            scope
                .spawn(move || {
                    // SAFETY: changes the network of this thread alone, which ends after `work`.
                    assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
                    work()
                })
                .join()
                .unwrap()
        })
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.near]).status();
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}
