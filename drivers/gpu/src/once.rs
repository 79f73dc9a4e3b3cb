//! What a worker does once: looks at NVIDIA's GPUs, runs a kernel. The process of `berth` never opens a driver.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    child,
    choice::Choice,
    cuda::{self, Cards, Cuda},
    device::{Device as _, DeviceError, Launch},
    gpu::GpuError,
    walls::shut_in,
};

/// How long a driver may take to say what it has.
const LOOK: Duration = Duration::from_secs(30);

/// A kernel to run on one of NVIDIA's GPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Which GPU.
    pub device: Choice,
    /// PTX texts, which are linked.
    pub texts: Vec<String>,
    /// The kernel's name.
    pub kernel: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: usize,
    /// The arguments: as many as the kernel has parameters.
    pub arguments: Vec<Argument>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    /// These bytes, passed by value.
    Value(Vec<u8>),
    /// A pointer to memory of the GPU with these bytes.
    Buffer(Vec<u8>),
}

/// What a kernel left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// The PCI address of the GPU.
    pub device: String,
    /// From the launch to its end, without loading and copying.
    pub took: Duration,
    /// The arguments, buffers as the kernel left them.
    pub arguments: Vec<Argument>,
}

/// What a worker answers, as JSON on its standard output.
type Answer<T> = Result<T, String>;

fn answer<T: Serialize>(found: Result<T, DeviceError>) -> io::Result<bool> {
    let answer: Answer<T> = found.map_err(|e| e.to_string());
    let mut stdout = io::stdout();
    stdout.write_all(&serde_json::to_vec(&answer)?)?;
    stdout.flush()?;
    Ok(true)
}

/// The worker's half of [`cards`].
pub(crate) fn probe() -> io::Result<bool> {
    shut_in(&Choice::Auto, 0, &[])?;
    answer(cuda::cards())
}

/// The worker's half of [`run()`].
pub(crate) fn perform() -> io::Result<bool> {
    shut_in(&Choice::Auto, 0, &[])?;
    let job: Job = serde_json::from_reader(io::stdin())?;
    answer(ran(&job))
}

fn ran(job: &Job) -> Result<Ran, DeviceError> {
    let mut gpu = Cuda::open(&job.device)?;
    let texts: Vec<_> = job.texts.iter().map(String::as_str).collect();
    let program = gpu.load(&texts)?;
    let parameters = gpu.parameters(program, &job.kernel)?;
    if parameters.len() != job.arguments.len() {
        let (wanted, given) = (parameters.len(), job.arguments.len());
        return Err(DeviceError::other(format!("{} takes {wanted} arguments, {given} are given", job.kernel)));
    }
    let (mut params, mut buffers) = (Vec::new(), Vec::new());
    for (argument, parameter) in job.arguments.iter().zip(parameters) {
        params.resize(parameter.offset, 0);
        match argument {
            Argument::Value(bytes) => params.extend(bytes),
            Argument::Buffer(bytes) => {
                let at = gpu.reserve(bytes.len())?;
                gpu.write(at, bytes)?;
                params.extend(at.to_le_bytes());
                buffers.push(at);
            }
        }
    }
    let (kernel, grid, block, shared) = (job.kernel.clone(), job.grid, job.block, job.shared);
    let began = Instant::now();
    gpu.launch(program, &Launch { kernel, grid, block, shared, params, endless: false })?;
    gpu.wait()?;
    let (took, mut buffers, mut arguments) = (began.elapsed(), buffers.into_iter(), job.arguments.clone());
    for argument in &mut arguments {
        if let Argument::Buffer(bytes) = argument
            && let Some(at) = buffers.next()
        {
            gpu.read(at, bytes)?;
        }
    }
    Ok(Ran { device: gpu.place().to_owned(), took, arguments })
}

/// NVIDIA's driver and its GPUs, as the worker at this path finds them within 30 s.
pub fn cards(worker: &Path) -> Result<Cards, GpuError> {
    ask(worker, "probe", &[], Some(LOOK))
}

/// Has the worker at this path run a kernel, for as long as that takes.
pub fn run(worker: &Path, job: &Job) -> Result<Ran, GpuError> {
    let job = serde_json::to_vec(job).expect("plain data");
    ask(worker, "run", &job, None)
}

fn ask<T: DeserializeOwned>(worker: &Path, mode: &str, input: &[u8], limit: Option<Duration>) -> Result<T, GpuError> {
    let ended = |what| GpuError::Worker { what, worker: worker.to_owned() };
    let mut command = child::worker(worker, &Choice::Auto, Vec::new());
    command.arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read has ended, which is told below.
        let _ = stdin.write_all(input);
    }
    let Some(mut stdout) = child.stdout.take() else { return Err(ended("says nothing")) };
    let reader = thread::spawn(move || {
        let mut said = Vec::new();
        stdout.read_to_end(&mut said).map(|_| said)
    });
    let began = Instant::now();
    while !reader.is_finished() && limit.is_none_or(|limit| began.elapsed() < limit) {
        thread::sleep(Duration::from_millis(1));
    }
    let is_late = !reader.is_finished();
    if is_late {
        child.kill()?;
    }
    child.wait()?;
    let said = reader.join().map_err(|_| ended("says nothing"))??;
    if is_late {
        return Err(ended("waits for its driver"));
    }
    let answer: Answer<T> = serde_json::from_slice(&said).map_err(|_| ended("ended before it answered"))?;
    answer.map_err(GpuError::Refused)
}
