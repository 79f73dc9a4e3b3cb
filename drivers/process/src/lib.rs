//! Child processes: servers, which run for as long as we hold them, and clients, which run to their end. Tests, suites
//! and benches start `berth` with it. Workers are kept running by [`supervise`], and shut themselves in by [`sandbox`].

pub mod sandbox;
pub mod supervise;

use std::{
    io::{BufRead as _, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Interval at which waiting code checks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Time limit for an expected line: a node reads its journal back, huge pages are cleared, a memif client retries once
/// a second.
const READY: Duration = Duration::from_mins(1);

/// Time limit for a program to end after it was asked to.
const END: Duration = Duration::from_secs(30);

/// Time limit for the remaining output of a program that has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Limit on the kept part of standard error in bytes; the last ones are kept.
const STDERR: usize = 1 << 20;

/// Limit on the part of it that is quoted in an error, in bytes.
const COMPLAINT: usize = 4096;

/// Once set, nothing is waited for any more.
pub type Stop = Arc<AtomicBool>;

/// A running program. On drop it is asked to end, and killed if it does not.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: Lines,
    /// Sends all of it at its end; `None` if standard error goes elsewhere.
    stderr: Option<Lines>,
    stop: Stop,
}

/// Lines read by a thread. The mutex is never locked; it only lets tests share values that have a process.
type Lines = Mutex<Receiver<String>>;

impl Process {
    /// Starts a program. Its standard output is kept, and its standard error if the command has it piped. Its standard
    /// input stays open until [`Process::finish`], because some programs end when it is closed.
    pub fn start(command: &mut Command, stop: &Stop) -> anyhow::Result<Self> {
        let name = line(command);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take().expect("piped");
        let (line, lines) = mpsc::channel();
        // Both are read to their end whoever listens: a full pipe would stop the program.
        thread::spawn(move || {
            for text in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = line.send(text);
            }
        });
        let stderr = child.stderr.take().map(|stderr| {
            let (all, stderr_text) = mpsc::channel();
            thread::spawn(move || all.send(last_of(stderr)));
            Mutex::new(stderr_text)
        });
        Ok(Self { name, child, lines: Mutex::new(lines), stderr, stop: stop.clone() })
    }

    /// Starts `berth run`, and returns the contents of its ready line, the first that it prints.
    pub fn berth(command: &mut Command, stop: &Stop) -> anyhow::Result<(Self, Value)> {
        const READY_LINE: &str = "berth ready ";
        let mut process = Self::start(command, stop)?;
        let line = process.next(READY_LINE)?;
        let ready = line.strip_prefix(READY_LINE).with_context(|| format!("{} printed {line:?}", process.name))?;
        Ok((process, serde_json::from_str(ready).context("the ready line is not JSON")?))
    }

    /// Waits for a line with this prefix; returns the rest of it. Earlier lines are dropped.
    pub fn expect(&mut self, prefix: &str) -> anyhow::Result<String> {
        loop {
            if let Some(rest) = self.next(prefix)?.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
        }
    }

    /// Waits for the next line; `prefix` is for the error.
    fn next(&mut self, prefix: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + READY;
        while Instant::now() < deadline && !self.stop.load(Relaxed) {
            match receive(&mut self.lines, LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    let complaint = complaint(&self.last_words());
                    bail!("{} ended with {status} before it printed {prefix:?}{complaint}", self.name);
                }
            }
        }
        if self.stop.load(Relaxed) {
            bail!("stopped by a signal");
        }
        Err(anyhow!("{} did not print {prefix:?} within {} s", self.name, READY.as_secs()))
    }

    /// Closes standard input, and waits for the program's end; an error after `limit`, or when told to stop.
    pub fn finish(mut self, limit: Duration) -> anyhow::Result<Finished> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // What it started may outlive it and hold its output open: that is not waited for.
                let lines = std::iter::from_fn(|| receive(&mut self.lines, LAST_WORDS).ok()).collect();
                return Ok(Finished { name: self.name.clone(), status, lines, stderr: self.last_words() });
            }
            if self.stop.load(Relaxed) {
                bail!("stopped by a signal");
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {:.0} s", self.name, limit.as_secs_f64());
            }
            thread::sleep(LOOK);
        }
    }

    /// Asks the program to end with SIGTERM, and waits for its end, even after a stop.
    pub fn terminate(mut self) -> anyhow::Result<Finished> {
        self.ask_to_end();
        self.stop = Stop::default();
        self.finish(END)
    }

    /// Kills the program (SIGKILL) and waits for it.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM, if it runs: once it is reaped, its process id may be another's.
    fn ask_to_end(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.runs()) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Whether the program still runs. One that has ended is reaped.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Process id of the program, also after its end.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The end of its standard error.
    fn last_words(&mut self) -> String {
        let stderr = self.stderr.as_mut().and_then(|stderr| receive(stderr, LAST_WORDS).ok());
        stderr.unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.runs() {
            self.ask_to_end();
            let deadline = Instant::now() + END;
            while self.runs() && Instant::now() < deadline {
                thread::sleep(LOOK);
            }
            self.kill();
        }
    }
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    name: String,
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Lines that it printed after the last one that was waited for.
    pub lines: Vec<String>,
    /// The kept part of its standard error; empty if that went elsewhere.
    pub stderr: String,
}

impl Finished {
    /// Fails with the end of its standard error, unless its exit status was 0.
    pub fn check(self) -> anyhow::Result<Self> {
        if self.status.success() { Ok(self) } else { Err(self.failure()) }
    }

    /// The error that describes its failure: command line, exit status and the end of its standard error.
    pub fn failure(&self) -> anyhow::Error {
        anyhow!("{} ended with {}{}", self.name, self.status, complaint(&self.stderr))
    }

    /// The rest of the first line with this prefix; an error if there is none.
    pub fn line(&self, prefix: &str) -> anyhow::Result<&str> {
        let line = self.lines.iter().find_map(|line| line.strip_prefix(prefix));
        line.with_context(|| format!("{} ended without printing {prefix:?}", self.name))
    }

    /// The counters in the `berth stopped` line; an error unless the exit status was 0.
    pub fn counters(self) -> anyhow::Result<Value> {
        serde_json::from_str(self.check()?.line("berth stopped ")?).context("the stopped line is not JSON")
    }
}

/// The command line as one would type it, with very long words cut short.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(|word| {
        let word = word.to_string_lossy();
        word.char_indices().nth(200).map_or_else(|| word.to_string(), |(end, _)| format!("{}...", &word[..end]))
    });
    words.collect::<Vec<_>>().join(" ")
}

fn receive(lines: &mut Lines, within: Duration) -> Result<String, RecvTimeoutError> {
    lines.get_mut().unwrap_or_else(PoisonError::into_inner).recv_timeout(within)
}

/// The last bytes of a stream, which say why a program failed.
fn last_of(mut from: impl Read) -> String {
    let (mut text, mut part) = (Vec::new(), [0; COMPLAINT]);
    while let Ok(len @ 1..) = from.read(&mut part) {
        text.extend_from_slice(&part[..len]);
        text.drain(..text.len().saturating_sub(STDERR));
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// The end of `stderr`, formatted to follow a message.
fn complaint(stderr: &str) -> String {
    let text = stderr.trim();
    let text = &text[text.ceil_char_boundary(text.len().saturating_sub(COMPLAINT))..];
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(text: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", text]).stderr(Stdio::piped()), &Stop::default()).unwrap()
    }

    #[test]
    fn a_server_is_awaited_and_ended() {
        let mut server = start("echo hello; echo ready 7; exec sleep 60");
        assert_eq!(server.expect("ready ").unwrap(), "7");
        assert!(server.runs());
        let finished = server.terminate().unwrap();
        assert!(!finished.status.success() && finished.lines.is_empty());
    }

    #[test]
    fn a_berth_says_where_it_is_and_what_it_counted() {
        let stopped = r#"trap 'echo "berth stopped {\"n\":2}"; exit 0' TERM"#;
        let berth = |end: &str| format!(r#"{end}; echo 'berth ready {{"n":1}}'; while :; do sleep 0.01; done"#);
        let mut command = Command::new("sh");
        let (process, ready) = Process::berth(command.args(["-c", &berth(stopped)]), &Stop::default()).unwrap();
        assert_eq!((&ready["n"], &process.terminate().unwrap().counters().unwrap()["n"]), (&1.into(), &2.into()));
        let mut other = Command::new("sh");
        let other = Process::berth(other.args(["-c", "echo hello; echo 'berth ready {}'"]), &Stop::default());
        assert!(other.unwrap_err().to_string().ends_with("printed \"hello\""), "the ready line is the first");
        let mut process = start(&berth("trap 'echo no disk >&2; exit 3' TERM"));
        process.expect("berth ready ").unwrap();
        let error = process.terminate().unwrap().counters().unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3: no disk"), "{error}");
    }

    #[test]
    fn last_words_are_kept() {
        let error = start("echo no place >&2; exit 3").expect("ready").unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.ends_with("no place"), "{error}");
        let client = start("echo 1; echo 2").finish(END).unwrap();
        assert_eq!(client.check().unwrap().lines, ["1", "2"]);
        let slow = start("exec sleep 60").finish(Duration::from_millis(50));
        assert!(slow.unwrap_err().to_string().contains("did not end within"));
    }

    #[test]
    fn who_shall_stop_waits_no_more() {
        let stop = Stop::default();
        let mut server = Process::start(Command::new("sleep").arg("60"), &stop).unwrap();
        stop.store(true, Relaxed);
        assert!(server.expect("ready").is_err() && server.finish(END).is_err());
    }
}
