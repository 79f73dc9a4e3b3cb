//! `berth run` under a service manager: what it says on `$NOTIFY_SOCKET`, and when it stops saying that it is alive.

use std::{
    os::unix::net::UnixDatagram,
    time::{Duration, Instant},
};

use crate::common::{Berth, INCREMENT, RPC_INCREMENT, c_plugin, port, request};

/// A service manager that grants a second between two signs of life.
struct Manager {
    socket: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { socket, folder }
    }

    fn start(&self, config: &str) -> Berth {
        let socket = self.folder.path().join("notify");
        Berth::start_as(config, |command| {
            command.env("NOTIFY_SOCKET", socket).env("WATCHDOG_USEC", "1000000");
        })
    }

    fn next(&self) -> String {
        let mut buf = [0; 4096];
        let len = self.socket.recv(&mut buf).unwrap();
        String::from_utf8(buf[..len].to_vec()).unwrap()
    }
}

#[test]
fn says_ready_alive_and_stopping_in_this_order() {
    let manager = Manager::new();
    let berth = manager.start(&format!("{}{INCREMENT}", port("a", "")));
    assert_eq!(manager.next(), "READY=1\nSTATUS=serving\n");
    let ready = Instant::now();
    for _ in 0..3 {
        assert_eq!(manager.next(), "WATCHDOG=1\n");
    }
    assert!(ready.elapsed() < Duration::from_secs(3), "a sign of life in every granted second");
    berth.stop();
    let last = std::iter::from_fn(|| Some(manager.next())).find(|said| said != "WATCHDOG=1\n");
    assert_eq!(last.unwrap(), "STOPPING=1\nSTATUS=draining\n");
}

#[test]
fn a_stuck_lcore_is_named_and_no_sign_of_life() {
    let manager = Manager::new();
    let six_seconds = "#include <unistd.h>\nvoid hang(const void *rx, void *tx, size_t len) { sleep(6); }";
    let (handler, id) = c_plugin(manager.folder.path(), "hang", six_seconds);
    let function = format!("[[function]]\nname = \"hang\"\nhandler = \"{handler}\"\nabi = \"host_call\"\n");
    let berth = manager.start(&format!("{}{function}{INCREMENT}", port("a", "")));
    assert_eq!(manager.next(), "READY=1\nSTATUS=serving\n");
    assert_eq!(manager.next(), "WATCHDOG=1\n");
    berth.client("a").send(&request(id, &[], 1, 0));
    // What was under way when the handler began to hang may still be a sign of life.
    let said = std::iter::from_fn(|| Some(manager.next())).find(|said| said != "WATCHDOG=1\n");
    assert_eq!(said.unwrap(), "STATUS=cpu0 does not poll\n");
    manager.socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    assert!(manager.socket.recv(&mut [0; 64]).is_err(), "two granted seconds without a sign of life");
    // It ends by itself, and all is well again.
    manager.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let said = [manager.next(), manager.next()];
    assert_eq!(said, ["WATCHDOG=1\n", "STATUS=serving\n"]);
    assert_eq!(berth.client("a").call(RPC_INCREMENT, &[4]).result, [5]);
    berth.stop();
}
