//! Programs beside us: servers for as long as we hold them, clients to their end.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often a waiting suite looks whether it shall stop.
const LOOK: Duration = Duration::from_millis(20);

/// How long a server may take to be ready: a memif client retries once a second, and huge pages are cleared.
const READY: Duration = Duration::from_secs(30);

/// How long a program may take to end after it was asked to.
const END: Duration = Duration::from_secs(10);

/// How long the output of a program that has ended may be on its way.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Bytes of a program's complaints that are kept.
const COMPLAINT: usize = 4096;

/// Set by SIGINT or SIGTERM.
pub(super) type Stop = Arc<AtomicBool>;

/// A program, named by its command line. It is killed when it is dropped.
pub(super) struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    complaints: Receiver<String>,
}

impl Process {
    /// Starts a program; what it prints is kept.
    pub(super) fn start(words: &[String]) -> anyhow::Result<Self> {
        let (program, args) = words.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        // Some servers end when their standard input does.
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let (line, lines) = mpsc::channel();
        let (complaint, complaints) = mpsc::channel();
        // Both are read to their end whoever listens: a full pipe would stop the program.
        thread::spawn(move || {
            for text in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = line.send(text);
            }
        });
        thread::spawn(move || {
            let (mut text, mut stderr) = (Vec::new(), BufReader::new(stderr));
            let mut part = [0; COMPLAINT];
            while let Ok(len @ 1..) = stderr.read(&mut part) {
                text.extend_from_slice(&part[..len]);
                // The last words say why.
                text.drain(..text.len().saturating_sub(COMPLAINT));
            }
            let _ = complaint.send(String::from_utf8_lossy(&text).trim().to_owned());
        });
        Ok(Self { name: words.join(" "), child, lines, complaints })
    }

    /// Waits for the line that begins so, and returns the rest of it.
    pub(super) fn expect(&mut self, prefix: &str, stop: &Stop) -> anyhow::Result<String> {
        let deadline = Instant::now() + READY;
        while Instant::now() < deadline && !stop.load(Relaxed) {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return Ok(rest.to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("{} ended with {status} before it was ready{}", self.name, self.complaint());
                }
            }
        }
        Err(anyhow!("{} was not ready within {} s", self.name, READY.as_secs()))
    }

    /// Waits for the end and returns what was printed, a line each, and whether the exit status was 0.
    pub(super) fn finish(mut self, limit: Duration, stop: &Stop) -> anyhow::Result<Finished> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // What it started may outlive it and hold its output open: that is not waited for.
                let lines = std::iter::from_fn(|| self.lines.recv_timeout(LAST_WORDS).ok()).collect();
                let complaint = self.complaint();
                return Ok(Finished { name: self.name.clone(), success: status.success(), lines, complaint });
            }
            if stop.load(Relaxed) {
                bail!("stopped by a signal");
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {:.0} s", self.name, limit.as_secs_f64());
            }
            thread::sleep(LOOK);
        }
    }

    /// Asks the program to end with SIGTERM, and waits for it.
    pub(super) fn terminate(self) -> anyhow::Result<Finished> {
        self.signal(Signal::TERM);
        self.finish(END, &Stop::default())
    }

    /// Whether it still runs.
    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, signal);
        }
    }

    /// What it said on standard error, to stand behind a message.
    fn complaint(&self) -> String {
        match self.complaints.recv_timeout(LAST_WORDS) {
            Ok(text) if !text.is_empty() => format!(": {text}"),
            _ => String::new(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.runs() {
            self.signal(Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(2);
            while self.runs() && Instant::now() < deadline {
                thread::sleep(LOOK);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Finished {
    name: String,
    pub(super) success: bool,
    pub(super) lines: Vec<String>,
    complaint: String,
}

impl Finished {
    /// An error with its last words, unless its exit status was 0.
    pub(super) fn check(self) -> anyhow::Result<Self> {
        if self.success { Ok(self) } else { Err(self.failure()) }
    }

    /// The error that it failed.
    pub(super) fn failure(&self) -> anyhow::Error {
        anyhow!("{} failed{}", self.name, self.complaint)
    }
}

/// What `/proc` tells of a process: resident KiB, descriptors, threads.
pub(super) fn resources(pid: u32) -> anyhow::Result<(u64, u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |key: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
    Ok((number("VmRSS:").context("no VmRSS")?, descriptors, number("Threads:").context("no Threads")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        ["sh", "-c", text].map(String::from).into()
    }

    #[test]
    fn a_server_is_awaited_and_ended() {
        let mut server = Process::start(&words("echo hello; echo ready 7; exec sleep 60")).unwrap();
        assert_eq!(server.expect("ready ", &Stop::default()).unwrap(), "7");
        assert!(server.runs() && resources(server.id()).unwrap().1 >= 3);
        assert!(!server.terminate().unwrap().success);
    }

    #[test]
    fn last_words_are_kept() {
        let mut server = Process::start(&words("echo no place >&2; exit 3")).unwrap();
        let error = server.expect("ready", &Stop::default()).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("no place"), "{error}");
        let client = Process::start(&words("echo 1; echo 2")).unwrap().finish(END, &Stop::default()).unwrap();
        assert_eq!(client.check().unwrap().lines, ["1", "2"]);
        let slow = Process::start(&words("exec sleep 60")).unwrap().finish(Duration::from_millis(50), &Stop::default());
        assert!(slow.unwrap_err().to_string().contains("did not end within"));
    }
}
