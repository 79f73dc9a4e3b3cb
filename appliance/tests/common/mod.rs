//! Runs the real binary, and speaks to it in bytes written from the protocol's documents.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use berth_process::{Finished, Process, Stop};
use serde_json::Value;
use tempfile::TempDir;

/// `fnv1a_hash` of the names, from the host API's table of ids.
pub const RPC_INCREMENT: u32 = 0x191B_6322;
pub const MOCK_DECODE: u32 = 0x6C45_A6D6;
pub const QEC_DECODE: u32 = 0xC4B0_E4BF;
pub const ENQUEUE_SYNDROMES: u32 = 0x7ED8_BE82;
pub const GET_CORRECTIONS: u32 = 0x882D_5BA1;
pub const RESET_DECODER: u32 = 0x977A_59CF;

pub const INCREMENT: &str = "[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n";

/// A udp port on CPU 0 that sleeps while idle, with these lines added.
pub fn port(name: &str, more: &str) -> String {
    format!("[[port]]\nname = \"{name}\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\n{more}\n")
}

/// A function of a plug-in written in C: its handler, as the configuration names it, and the id on the wire.
pub fn c_plugin(folder: &Path, name: &str, source: &str) -> (String, u32) {
    let (file, library) = (folder.join("plugin.c"), folder.join("plugin.so"));
    fs::write(&file, source).unwrap();
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &file]).status().unwrap();
    assert!(cc.success());
    let id = name.bytes().fold(2_166_136_261u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    (format!("plugin:{}#{name}", library.display()), id)
}

pub const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// The admin address.
pub fn admin(berth: &Berth) -> SocketAddr {
    berth.ready["endpoints"]["admin"].as_str().unwrap().parse().unwrap()
}

/// The status code and the body of an answer of the admin address.
pub fn get(addr: SocketAddr, path: &str, header: &str) -> (u16, String) {
    ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"))
}

pub fn ask(addr: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_string())
}

/// A running appliance.
pub struct Berth {
    /// Until its end is waited for.
    process: Option<Process>,
    pub ready: Value,
    folder: TempDir,
}

/// An appliance that has ended.
pub struct Stopped {
    pub status: ExitStatus,
    pub counters: Value,
    pub stderr: String,
}

/// Writes a configuration into a folder of its own.
pub fn write_config(text: &str, files: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        fs::write(folder.path().join(name), contents).unwrap();
        // A token that everybody may read is refused.
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    let config = folder.path().join("berth.toml");
    fs::write(&config, text).unwrap();
    (folder, config)
}

pub fn command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(["run", "--config"]).arg(config).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Berth {
    pub fn start(text: &str) -> Self {
        Self::start_with(text, &[])
    }

    pub fn start_with(text: &str, files: &[(&str, &str)]) -> Self {
        Self::start_fully(text, files, |_| ())
    }

    /// Started with what `set` gives the command.
    pub fn start_as(text: &str, set: impl FnOnce(&mut Command)) -> Self {
        Self::start_fully(text, &[], set)
    }

    /// Started with files beside the configuration, and with what `set` gives the command.
    pub fn start_fully(text: &str, files: &[(&str, &str)], set: impl FnOnce(&mut Command)) -> Self {
        let (folder, config) = write_config(text, files);
        Self::spawn_command(command(&config), folder, set)
    }

    /// Started with a configuration that is there.
    pub fn start_file(config: &Path, set: impl FnOnce(&mut Command)) -> Self {
        Self::spawn_command(command(config), tempfile::tempdir().unwrap(), set)
    }

    /// Started by a command that ends up being `berth run`; `folder` is kept as long.
    pub fn spawn_command(mut command: Command, folder: TempDir, set: impl FnOnce(&mut Command)) -> Self {
        command.stderr(Stdio::piped());
        set(&mut command);
        let (process, ready) = Process::berth(&mut command, &Stop::default()).unwrap();
        Self { process: Some(process), ready, folder }
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Where the configuration lies.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces a file beside the configuration, or `berth.toml` itself, as a whole.
    pub fn write(&self, name: &str, contents: &str) {
        let (new, file) = (self.folder.path().join("new"), self.folder.path().join(name));
        fs::write(&new, contents).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// The address of a port, from the ready line.
    pub fn addr(&self, name: &str) -> SocketAddr {
        let ports = self.ready["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == name).unwrap();
        port["addr"].as_str().unwrap().parse().unwrap()
    }

    pub fn client(&self, name: &str) -> Client {
        Client::new(self.addr(name))
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until it ends by itself, and returns how.
    pub fn wait(self, within: Duration) -> ExitStatus {
        self.end(within).status
    }

    /// Sends SIGTERM, and reads the stopped line and how it ended.
    pub fn stop(self) -> Stopped {
        self.stop_with("-TERM")
    }

    pub fn stop_with(self, signal: &str) -> Stopped {
        self.signal(signal);
        let Finished { status, lines, stderr, .. } = self.end(Duration::from_mins(1));
        let [stopped] = &lines[..] else { panic!("one line, not {lines:?}\n{stderr}") };
        let json = stopped.strip_prefix("berth stopped ").unwrap_or_else(|| panic!("{stopped}\n{stderr}"));
        Stopped { status, counters: serde_json::from_str(json).unwrap(), stderr }
    }

    fn end(mut self, within: Duration) -> Finished {
        self.process.take().unwrap().finish(within).unwrap()
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            process.kill();
        }
    }
}

impl Stopped {
    /// The sum of a counter over all queues of a port; `part` is `counters`, `port` or `service`.
    pub fn sum(&self, port: &str, part: &str, counter: &str) -> u64 {
        let lcores = self.counters["lcores"].as_array().unwrap();
        let lanes = lcores.iter().flat_map(|lcore| lcore["lanes"].as_array().unwrap());
        let values = lanes.filter(|lane| lane["name"] == port).map(|lane| lane[part][counter].as_u64().unwrap());
        values.sum()
    }
}

/// A peer on a plain socket.
pub struct Client {
    pub socket: UdpSocket,
}

/// The fields of `RPCResponse` and what follows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: i32,
    pub request_id: u32,
    pub ptp: u64,
    pub result: Vec<u8>,
}

/// A request with a 24-byte header.
pub fn request(function: u32, args: &[u8], request_id: u32, ptp: u64) -> Vec<u8> {
    let mut out = request_v16(function, args, request_id);
    out.splice(16..16, ptp.to_le_bytes());
    out
}

/// A request with a 16-byte header.
pub fn request_v16(function: u32, args: &[u8], request_id: u32) -> Vec<u8> {
    let words = [0x4355_5152, function, args.len() as u32, request_id];
    let mut out: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    out.extend(args);
    out
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Client {
    pub fn new(to: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        Self::of(socket)
    }

    pub fn of(socket: UdpSocket) -> Self {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self { socket }
    }

    pub fn send(&self, datagram: &[u8]) {
        self.socket.send(datagram).unwrap();
    }

    pub fn receive(&self) -> Vec<u8> {
        let mut buf = vec![0; 65536];
        let len = self.socket.recv(&mut buf).expect("an answer within 5 s");
        buf.truncate(len);
        buf
    }

    /// Fails if anything arrives within 200 ms.
    pub fn expect_silence(&self) {
        self.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let got = self.socket.recv(&mut [0; 2048]);
        assert!(got.is_err(), "an answer of {got:?} bytes");
        self.socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    }

    /// A round trip with 24-byte headers; the answer has exactly the length that it claims.
    pub fn call(&self, function: u32, args: &[u8]) -> Response {
        let (id, ptp) = (0xA1B2_C3D4, 0x0102_0304_0506_0708);
        self.send(&request(function, args, id, ptp));
        let answer = self.response();
        assert_eq!((answer.request_id, answer.ptp), (id, ptp));
        answer
    }

    pub fn response(&self) -> Response {
        let bytes = self.receive();
        assert_eq!(word(&bytes, 0), 0x4355_5153, "magic of a response");
        let result = bytes[24..].to_vec();
        assert_eq!(word(&bytes, 8) as usize, result.len(), "result_len");
        let ptp = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        Response { status: word(&bytes, 4).cast_signed(), request_id: word(&bytes, 12), ptp, result }
    }
}

/// Runs a configuration that cannot work, and returns the exit status and standard error.
pub fn fails(text: &str) -> (Option<i32>, String) {
    fails_as(text, |_| {})
}

/// The same, started with what `set` gives the command.
pub fn fails_as(text: &str, set: impl FnOnce(&mut Command)) -> (Option<i32>, String) {
    let (folder, config) = write_config(text, &[]);
    let mut command = command(&config);
    set(&mut command);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is ready");
    let prefix = format!("{}/", folder.path().display());
    (output.status.code(), String::from_utf8(output.stderr).unwrap().replace(&prefix, ""))
}
