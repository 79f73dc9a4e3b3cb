//! The library as servers load it: a program in C that was written from the interface's description alone.

mod common;
mod cuda;

use std::{
    fs,
    net::UdpSocket,
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

use berth_process::{Finished, Process, Stop};
use berth_wire::rpc::{HeaderForm, RequestHeader, ResponseHeader, fnv1a, status};
use common::{Host, VALGRIND, compiled, library, perf};

const STOCK: &str = "--transport=berth --port=0";

#[test]
fn a_hundred_thousand_answers_in_either_shape() {
    for shape in ["ring", "unified"] {
        let host = Host::start(&[], &format!("{shape} {STOCK} --{shape}"));
        assert!(host.line.starts_with("transport=udp port="), "{}", host.line);
        assert!(host.line.ends_with(" slots=8 slot_size=256"), "{}", host.line);
        // More than there are slots, which wait in the socket.
        let (code, report) =
            perf(&format!("--peer 127.0.0.1:{} --count 100000 --window 16 --timeout 20000", host.port()));
        let counts = &report.cases[0].counts;
        assert_eq!((code, counts.answered, counts.wrong), (ExitCode::SUCCESS, 100_000, 0), "{shape}");
        assert_eq!(host.end(), ("served 100000".to_owned(), String::new()), "{shape}");
    }
}

#[test]
fn clean_under_valgrind_with_hostile_callers_too() {
    for shape in ["ring", "unified"] {
        let host = Host::start(VALGRIND, &format!("{shape} {STOCK} --{shape}"));
        let (code, report) = perf(&format!("--peer 127.0.0.1:{} --count 2000 --window 4 --timeout 20000", host.port()));
        assert_eq!((code, report.cases[0].counts.answered), (ExitCode::SUCCESS, 2000), "{shape}");
        assert_eq!(host.end(), ("served 2000".to_owned(), String::new()), "{shape}");
    }
    let host = Process::start(&mut common::host(VALGRIND, "hostile"), &Stop::default()).unwrap();
    let Finished { lines, stderr, status, .. } = host.finish(Duration::from_mins(2)).unwrap();
    assert!(status.success(), "{stderr}");
    assert_eq!(lines, ["done"], "the library prints nothing there");
    // What was wrong was told once each, and NULL not at all.
    assert_eq!(stderr.lines().filter(|line| line.starts_with("berth bridge: ")).count(), 13, "{stderr}");
    assert!(stderr.contains("--port=65536 is no number from 0 to 65535\n"), "{stderr}");
    assert!(
        stderr.contains("--pinned-rings needs a GPU and NVIDIA's driver: dlopen failed: libcuda.so.1: "),
        "{stderr}"
    );
}

/// A peer with its own socket, which waits for each answer.
struct Client(UdpSocket);

impl Client {
    fn of(host: &Host) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.connect(("127.0.0.1", host.port())).unwrap();
        Self(socket)
    }

    fn send(&self, function_id: u32, arg_len: u32, args: &[u8]) {
        let mut frame = vec![0; 24];
        let header = RequestHeader { function_id, arg_len, request_id: 7, ptp_timestamp: 1 << 40 };
        header.write(HeaderForm::V24, &mut frame).unwrap();
        self.0.send(&[&frame, args].concat()).unwrap();
    }

    /// Status and results of the next answer, which is a whole slot; behind the results it has zeros.
    fn answer(&self) -> (i32, Vec<u8>) {
        let mut frame = [0xFF; 2048];
        let len = self.0.recv(&mut frame).unwrap();
        assert_eq!(len, 256);
        let header = ResponseHeader::parse(HeaderForm::V24, &frame[..len]).unwrap();
        assert_eq!((header.request_id, header.ptp_timestamp), (7, 1 << 40));
        let (results, padding) = frame[24..len].split_at(header.result_len as usize);
        assert!(padding.iter().all(|byte| *byte == 0), "{padding:?}");
        (header.status, results.to_vec())
    }

    fn call(&self, function_id: u32, args: &[u8]) -> (i32, Vec<u8>) {
        self.send(function_id, args.len() as u32, args);
        self.answer()
    }
}

#[test]
fn every_request_is_answered_whatever_the_dispatcher_does() {
    let failed = (status::HANDLER_FAILED, vec![]);
    let increment = fnv1a("rpc_increment");
    for shape in ["ring", "unified"] {
        let host = Host::start(&[], &format!("{shape} {STOCK} --{shape} --unanswered-ms=10"));
        let client = Client::of(&host);
        assert_eq!(client.call(increment, &[0xFF; 232]), (0, vec![0; 232]));
        assert_eq!(client.call(increment, &[1, 2]), (0, vec![2, 3]));
        // No answer, an error flag; of the unified shape they are answers of an earlier request.
        if shape == "ring" {
            assert_eq!(client.call(1, &[]), failed);
            assert_eq!(client.call(2, &[]), failed);
        }
        assert_eq!(client.call(3, &[1]), failed, "no magic");
        assert_eq!(client.call(4, &[1]), failed, "a result beyond the slot");
        assert_eq!(client.call(5, &[1]), (0, vec![2]), "neither id nor time are written");
        assert_eq!(client.call(6, &[1]), (77, vec![2]), "a status of its own");
        assert_eq!(client.call(99, &[1]), (status::UNKNOWN_FUNCTION, vec![]));
        // What never reaches a slot.
        client.send(increment, 3, &[1, 2]);
        assert_eq!(client.answer(), (status::BAD_LENGTH, vec![]));
        client.send(increment, 233, &[1; 233]);
        assert_eq!(client.answer(), (status::BAD_LENGTH, vec![]));
        client.send(increment, u32::MAX, &[1; 2000]);
        assert_eq!(client.answer(), (status::BAD_LENGTH, vec![]));
        client.0.send(b"").unwrap();
        client.0.send(&[0x52; 256]).unwrap();
        // Padding is normal.
        client.send(increment, 1, &[4; 232]);
        assert_eq!(client.answer(), (0, vec![5]));
        let (served, stderr) = host.end();
        let (calls, failures) = if shape == "ring" { (10, 4) } else { (8, 2) };
        assert_eq!(served, format!("served {calls}"));
        let answered = calls - failures;
        let told = format!(
            "berth bridge: {calls} requests, {answered} answered by the dispatcher, {failures} without a proper answer, \
             3 refused for their length, 2 frames that are no requests, 0 unroutable\n"
        );
        assert_eq!(stderr, told);
    }
}

#[test]
fn any_port_of_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("berth.toml");
    // Where the dispatcher's thread opens the port, its number is no secret of the port's.
    let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (shape, port) in [("ring", 0), ("unified", free)] {
        let text = format!(
            "[[port]]\nname = \"other\"\ndriver = \"no such\"\n[[port]]\nname = \"fpga0\"\ndriver = \"uring\"\n\
             bind = \"127.0.0.1:{port}\"\nidle = \"adaptive\"\n[port.rpc]\nheader = \"v16\"\nslots = 4\nslot_size = 64\n"
        );
        fs::write(&file, text).unwrap();
        let arguments = format!("{shape} --port=1 --{shape} --config={} --port-name=fpga0", file.display());
        let host = Host::start(&[], &arguments);
        assert!(host.line.starts_with("transport=uring port="), "{}", host.line);
        assert!(host.line.ends_with(" slots=4 slot_size=64"), "{}", host.line);
        let client = Client::of(&host);
        let mut frame = [5; 20];
        let request = RequestHeader { function_id: 3, arg_len: 4, request_id: 7, ptp_timestamp: 0 };
        // The program in C knows the other header alone, so its answers are none.
        request.write(HeaderForm::V16, &mut frame).unwrap();
        client.0.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut answer = [0; 256];
        // Until its first poll there is no port of the unified shape, which the socket is told at once.
        let len = (0..60).find_map(|_| {
            let _ = client.0.send(&[&frame[..], &[0; 44]].concat());
            client.0.recv(&mut answer).inspect_err(|_| thread::sleep(Duration::from_millis(500))).ok()
        });
        assert_eq!(len, Some(64));
        let header = ResponseHeader::parse(HeaderForm::V16, &answer).unwrap();
        assert_eq!((header.status, header.request_id), (status::HANDLER_FAILED, 7));
        assert!(host.end().0.starts_with("served "));
    }
}

#[test]
fn mistakes_of_a_configuration_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("berth.toml");
    let port = |keys: &str| format!("[[port]]\nname = \"a\"\ndriver = \"uring\"\nbind = \"127.0.0.1:0\"\n{keys}");
    for (text, options, told) in [
        (port(""), "--unified", "give it one\n"),
        (
            port("[port.limits]\nrps = 5\n"),
            "",
            "berth.toml:5:7: port[0].limits: means nothing here; the bridge has none of it\n",
        ),
        (
            port("service = \"lease-io\"\n"),
            "",
            "berth.toml:5:1: port[0].service: means nothing here; the bridge is for RPC\n",
        ),
        (
            port("[port.rpc]\nslots = 0\n"),
            "",
            "berth.toml:6:9: port[0].rpc.slots: is 0; an integer from 1 to 65536 is wanted\n",
        ),
        ("x = [".to_owned(), "", "berth.toml:1:6: not TOML: "),
        ("[[port]]\nname = \"b\"\n".to_owned(), "", "berth.toml has no [[port]] \"a\"\n"),
        (
            port("").replace("uring", "tcp"),
            "",
            "berth.toml:3:1: port[0].driver: means nothing here; the bridge is for frames",
        ),
    ] {
        fs::write(&file, &text).unwrap();
        let mut host = common::host(&[], &format!("ring {options} --config={} --port-name=a", file.display()));
        let said = host.output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), "create says 1\n", "{text}");
        let stderr = String::from_utf8(said.stderr).unwrap();
        assert!(stderr.contains(told), "{text}\n{stderr}");
    }
}

#[test]
fn pinned_rings_are_the_drivers_memory_and_given_back() {
    let cuda = |whole: &[&str]| compiled("cuda.c", "libcuda.so.1", &[&["-shared", "-fPIC"], whole].concat());
    let (whole, lacking) = (cuda(&["-DWHOLE"]), cuda(&[]));
    let with = |folder: &tempfile::TempDir, fake: &str| {
        let mut host = common::host(&[], &format!("ring {STOCK} --pinned-rings"));
        host.env("LD_LIBRARY_PATH", folder.path()).env("FAKE_CUDA", fake);
        host
    };
    for (fake, retained) in [("", 1), ("current", 0)] {
        let host = Host::run(&mut with(&whole, fake));
        let (code, report) = perf(&format!("--peer 127.0.0.1:{} --count 1000 --timeout 20000", host.port()));
        assert_eq!((code, report.cases[0].counts.answered), (ExitCode::SUCCESS, 1000));
        let told = format!("allocated 1 freed 1 retained {retained} released {retained}\n");
        assert_eq!(host.end(), ("served 1000".to_owned(), told));
    }
    for (folder, fake, told) in [
        (&whole, "no device", "cuInit says 100\nallocated 0 freed 0 retained 0 released 0\n"),
        (&whole, "out of memory", "cuMemHostAlloc says 2\nallocated 0 freed 0 retained 1 released 1\n"),
        (&whole, "elsewhere", "no unified addressing\nallocated 1 freed 1 retained 1 released 1\n"),
        (&lacking, "", "cuMemFreeHost"),
    ] {
        let said = with(folder, fake).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), "create says 3\n", "{fake}");
        let stderr = String::from_utf8(said.stderr).unwrap();
        assert!(stderr.contains(told), "{fake}\n{stderr}");
    }
}

#[test]
fn one_symbol_is_exported_and_older_servers_get_an_older_table() {
    let said =
        Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(library()).output().unwrap();
    // The driver of DPDK, which tests of all features bring along, has one of its own.
    let more = if berth_ports::has_feature("dpdk") { "munmap\n" } else { "" };
    assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("cudaq_realtime_get_bridge_interface\n{more}"));
    for (wanted, version) in [("2", 2), ("1", 1), ("0", 3), ("9", 3), ("x", 3)] {
        let said = common::host(&[], "version").env("BERTH_BRIDGE_VERSION", wanted).output().unwrap();
        assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("version {version}\n"));
    }
}
