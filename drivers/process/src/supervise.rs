//! Children that are kept running: watched by what they say, killed when they say nothing, started again, each time after
//! a longer rest.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often a supervisor looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(20);

/// Longest line that a child may say, in bytes.
const LINE_MAX: usize = 64 << 10;

/// A child that ran for so long is started again after the shortest rest.
const PROVEN: Duration = Duration::from_secs(10);

/// A program, and what is done about it. All is called on the supervisor's thread.
pub trait Ward: Send + 'static {
    /// The program. Its standard input becomes one end of a socket, by which both talk in lines.
    fn command(&mut self) -> Command;

    /// What it is told first, each time that it is started.
    fn greeting(&mut self) -> Vec<u8>;

    /// It said a line; returns whether that is a sign of life. Until the first one it has [`Patience::start`].
    fn heard(&mut self, line: &[u8]) -> bool;

    /// It has ended, and was waited for.
    fn ended(&mut self, end: End);
}

/// Why a child has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, or somebody killed it; `None` if it could not be started.
    Itself(Option<ExitStatus>),
    /// It was killed, since it gave no sign of life in time.
    Silent,
    /// It was killed, since nobody wants it any more.
    Unwanted,
}

/// How long a child may be silent, and how long it rests.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Until its first sign of life.
    pub start: Duration,
    /// From one sign of life to the next.
    pub silence: Duration,
    /// The first rest; each further one is twice as long.
    pub rest: Duration,
    /// The longest rest.
    pub rest_max: Duration,
}

/// A child that is kept running. It is killed on drop.
#[derive(Debug)]
pub struct Supervised {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// 0 while there is none.
    pid: AtomicU32,
    restarts: AtomicU64,
    timeouts: AtomicU64,
    /// The way to the child, once it has been greeted.
    told: Mutex<Option<UnixStream>>,
}

impl Supervised {
    /// Starts the ward's program, on a thread of its own. Fails for want of a thread alone: a program that does not
    /// start is tried again.
    pub fn start(name: &str, mut ward: impl Ward, patience: Patience) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let thread = thread::Builder::new().name(name.to_owned()).spawn({
            let shared = shared.clone();
            move || shared.supervise(&mut ward, patience)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The process that runs now; `None` while it rests.
    pub fn pid(&self) -> Option<u32> {
        Some(self.shared.pid.load(Acquire)).filter(|pid| *pid != 0)
    }

    /// How often it was started again; attempts that failed count.
    pub fn restarts(&self) -> u64 {
        self.shared.restarts.load(Relaxed)
    }

    /// How often it was killed for its silence.
    pub fn timeouts(&self) -> u64 {
        self.shared.timeouts.load(Relaxed)
    }

    /// Tells the child that runs now a line; one that is started later is greeted instead. A child that takes nothing in
    /// is waited for, for as long as it may be silent.
    pub fn tell(&self, line: &[u8]) {
        if let Some(socket) = &mut *self.shared.told() {
            // What cannot be told is noticed by the silence that follows.
            let _ = socket.write_all(line);
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            // A ward that panicked has no child any more.
            let _ = thread.join();
        }
    }
}

/// Kills a child when it goes out of scope, and waits for it.
#[derive(Debug)]
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Shared {
    fn told(&self) -> std::sync::MutexGuard<'_, Option<UnixStream>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn supervise(&self, ward: &mut impl Ward, patience: Patience) {
        let mut rest = patience.rest;
        loop {
            let began = Instant::now();
            let end = self.run(ward, patience);
            self.pid.store(0, Release);
            *self.told() = None;
            if end == End::Silent {
                self.timeouts.fetch_add(1, Relaxed);
            }
            ward.ended(end);
            rest = if began.elapsed() > PROVEN { patience.rest } else { rest };
            let over = Instant::now() + rest;
            while Instant::now() < over && !self.stop.load(Acquire) {
                thread::sleep(LOOK.min(rest));
            }
            if self.stop.load(Acquire) {
                return;
            }
            rest = (2 * rest).min(patience.rest_max);
            self.restarts.fetch_add(1, Relaxed);
        }
    }

    /// One life of the child.
    fn run(&self, ward: &mut impl Ward, patience: Patience) -> End {
        let started = UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_read_timeout(Some(LOOK))?;
            ours.set_write_timeout(Some(patience.silence))?;
            let child = ward.command().stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
            Ok((ours, Running(child)))
        });
        let Ok((socket, mut child)) = started else { return End::Itself(None) };
        self.pid.store(child.0.id(), Release);
        let ended = |child: &mut Running| End::Itself(child.0.wait().ok());
        let Ok(input) = socket.try_clone() else { return End::Itself(None) };
        {
            // Whoever tells it something meanwhile waits, or has the greeting say so.
            let mut told = self.told();
            // What cannot be told is noticed by the silence that follows.
            let _ = told.insert(socket).write_all(&ward.greeting());
        }
        let (mut input, mut read) = (BufReader::new(input), Vec::new());
        let mut deadline = Instant::now() + patience.start;
        loop {
            match input.by_ref().take((LINE_MAX + 1 - read.len()) as u64).read_until(b'\n', &mut read) {
                // It has closed its end: it ends, or is of no use.
                Ok(0) => {
                    let until = Instant::now() + LOOK;
                    while matches!(child.0.try_wait(), Ok(None)) && Instant::now() < until {
                        thread::sleep(LOOK / 20);
                    }
                    let _ = child.0.kill();
                    return ended(&mut child);
                }
                Ok(_) if read.len() <= LINE_MAX => {
                    if ward.heard(&std::mem::take(&mut read)) {
                        deadline = Instant::now() + patience.silence;
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
                _ => return End::Itself(None),
            }
            if self.stop.load(Acquire) {
                return End::Unwanted;
            }
            if Instant::now() > deadline {
                return End::Silent;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A shell that talks over its standard input.
    struct Shell {
        script: &'static str,
        said: Sender<String>,
    }

    impl Ward for Shell {
        fn command(&mut self) -> Command {
            let mut command = Command::new("bash");
            command.args(["-c", self.script]);
            command
        }

        fn greeting(&mut self) -> Vec<u8> {
            b"hello\n".to_vec()
        }

        fn heard(&mut self, line: &[u8]) -> bool {
            let line = String::from_utf8_lossy(line).trim().to_owned();
            let is_beat = line == "beat";
            let _ = self.said.send(line);
            is_beat
        }

        fn ended(&mut self, end: End) {
            let _ = self.said.send(format!("{end:?}"));
        }
    }

    fn start(script: &'static str) -> (Supervised, Receiver<String>) {
        let (said, heard) = channel();
        let ms = Duration::from_millis;
        let patience = Patience { start: ms(10_000), silence: ms(300), rest: ms(10), rest_max: ms(40) };
        (Supervised::start("shell", Shell { script, said }, patience).unwrap(), heard)
    }

    fn next(heard: &Receiver<String>) -> String {
        heard.recv_timeout(Duration::from_secs(20)).unwrap()
    }

    #[test]
    fn a_child_that_ends_is_started_again_and_greeted() {
        let (child, heard) = start("read line; echo got $line >&0; exit 7");
        for _ in 0..3 {
            assert_eq!(next(&heard), "got hello");
            assert!(next(&heard).contains("Itself(Some(ExitStatus(unix_wait_status(1792))))"));
        }
        assert!(child.restarts() >= 2 && child.timeouts() == 0);
    }

    #[test]
    fn a_child_that_falls_silent_is_killed_and_one_that_beats_is_not() {
        let (child, heard) = start("read line; for i in 1 2 3 4 5 6; do echo beat >&0; sleep 0.1; done; kill -STOP $$");
        for _ in 0..6 {
            assert_eq!(next(&heard), "beat");
        }
        assert_eq!(next(&heard), "Silent");
        assert_eq!(child.timeouts(), 1);
    }

    #[test]
    fn a_child_is_told_more_and_killed_with_its_supervisor() {
        let (child, heard) =
            start("read line; echo beat >&0; while read line; do echo got $line >&0; echo beat >&0; done");
        assert_eq!(next(&heard), "beat");
        let pid = child.pid().unwrap();
        child.tell(b"more\n");
        assert_eq!(next(&heard), "got more");
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        assert!(heard.try_iter().any(|line| line == "Unwanted"));
    }

    #[test]
    fn a_program_that_is_not_there_is_tried_again() {
        struct Nothing(Sender<End>);
        impl Ward for Nothing {
            fn command(&mut self) -> Command {
                Command::new("/no/such/program")
            }
            fn greeting(&mut self) -> Vec<u8> {
                Vec::new()
            }
            fn heard(&mut self, _: &[u8]) -> bool {
                true
            }
            fn ended(&mut self, end: End) {
                let _ = self.0.send(end);
            }
        }
        let (said, heard) = channel();
        let ms = Duration::from_millis;
        let patience = Patience { start: ms(100), silence: ms(100), rest: ms(5), rest_max: ms(5) };
        let _child = Supervised::start("nothing", Nothing(said), patience).unwrap();
        for _ in 0..3 {
            assert_eq!(heard.recv_timeout(Duration::from_secs(20)).unwrap(), End::Itself(None));
        }
    }
}
