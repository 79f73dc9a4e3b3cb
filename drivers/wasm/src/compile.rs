//! Compiling, in a process of its own within limits (T9): a module can make any compiler slow or large.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    path::PathBuf,
    process::{ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Resource, Rlimit, setrlimit},
};

use crate::engine;

/// Bytes of addresses that the child may have.
const MEMORY: u64 = 1 << 30;

/// How long it may take.
const TIME: Duration = Duration::from_secs(10);

/// Bytes of compiled code, at most.
const CODE: usize = 256 << 20;

/// What the child's answer begins with: code follows.
const COMPILED: u8 = 0;
/// A sentence follows.
const REFUSED: u8 = 1;

/// The program that compiles: one whose `main` ends in [`child`].
#[derive(Debug, Clone)]
pub struct Compiler {
    /// Its file. It is started without an environment, in `/`.
    pub program: PathBuf,
    /// What it is told so that it calls [`child`].
    pub args: Vec<OsString>,
}

impl Compiler {
    /// Compiles in a child of 10 s and 1 GiB of addresses, to 256 MiB of code at most; an error is a sentence.
    pub(crate) fn compile(&self, wasm: &[u8]) -> Result<Vec<u8>, String> {
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        let (mut input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let answer = thread::scope(|scope| {
            // A child that ends early leaves the pipe broken, and its answer says why.
            scope.spawn(move || drop(input.write_all(wasm)));
            let answer = read(output, Instant::now() + TIME);
            if answer.is_err() {
                // Else the thread above might wait for ever.
                let _ = child.kill();
            }
            answer
        });
        let status = child.wait();
        let answer = answer.map_err(|error| format!("compiling was given up: {error}"))?;
        match answer.split_first() {
            Some((&COMPILED, code)) => Ok(code.to_vec()),
            Some((&REFUSED, why)) => Err(String::from_utf8_lossy(why).into_owned()),
            _ => Err(match status {
                Ok(status) => format!("compiling takes more than {TIME:?} or {MEMORY} bytes of memory ({status})"),
                Err(error) => error.to_string(),
            }),
        }
    }
}

/// All that the child says until then.
fn read(mut output: ChildStdout, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("seconds");
        if poll(&mut [PollFd::new(&output, PollFlags::IN)], Some(&left))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match output.read(&mut piece)? {
            0 => return Ok(answer),
            len if answer.len() + len > CODE => return Err(io::Error::other(format!("over {CODE} bytes of code"))),
            len => answer.extend_from_slice(&piece[..len]),
        }
    }
}

/// The child's part: compiles what it reads, and writes the code or why there is none. It limits itself before it reads
/// anything.
pub fn child() -> ExitCode {
    match compile_input() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn compile_input() -> io::Result<()> {
    for (resource, most) in [
        (Resource::As, MEMORY),
        (Resource::Cpu, TIME.as_secs()),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nproc, 0),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    let mut wasm = Vec::new();
    io::stdin().read_to_end(&mut wasm)?;
    let compiled = engine::compiler().and_then(|engine| engine.precompile_module(&wasm));
    let mut out = io::stdout().lock();
    match compiled {
        Ok(code) => {
            out.write_all(&[COMPILED])?;
            out.write_all(&code)?;
        }
        Err(error) => {
            out.write_all(&[REFUSED])?;
            out.write_all(format!("{error:#}").as_bytes())?;
        }
    }
    out.flush()
}
