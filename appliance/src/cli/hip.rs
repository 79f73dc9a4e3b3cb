//! `berth hip`

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};
use berth_hip::{Access, Arguments, Client, Lease, Shape, text};
use berth_ptx::{Allocations, Device, Launch, Module, Program};
use berth_wire::fabric::Perms;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    WithToken, block_on,
    gpu::{
        arguments::{self, Argument, Elements, Numbered},
        complain, read,
    },
    id, output, token,
};
use crate::config::parse_bytes;

/// Instructions of a kernel that is run here to verify.
const FUEL: u64 = 100_000_000_000;

/// Use the GPUs of a HIP Remote worker.
#[derive(Debug, Args)]
pub struct HipCommand {
    #[command(subcommand)]
    command: Hip,
}

#[derive(Debug, Subcommand)]
enum Hip {
    /// Print the devices of a worker.
    Info(Box<Worker>),
    Run(Box<Run>),
}

#[derive(Debug, Args)]
struct Worker {
    /// The worker's address.
    #[arg(long = "worker", value_name = "ADDR", env = "BERTH_HIP_WORKER", default_value = "127.0.0.1:18515")]
    address: SocketAddr,
    /// Connect under TLS, to a worker that has this very certificate: a PEM file, as of hip.tls.cert. A worker that lets in
    /// certain keys alone is shown this client's.
    #[arg(long, value_name = "FILE", env = "BERTH_HIP_TLS")]
    tls: Option<PathBuf>,
    /// Use a lease: its device alone, and its memory. The node is asked for a token, unless one is given.
    #[arg(long, value_name = "ID", env = "BERTH_HIP_LEASE", value_parser = id)]
    lease: Option<u128>,
    #[command(flatten)]
    with: WithToken,
}

/// Run a kernel of a PTX file on a worker, and print how long that took.
#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    worker: Worker,
    /// The PTX file and the kernel in it, such as vadd.ptx#vadd. The kernel can be left out if there is only one.
    #[arg(value_name = "FILE#KERNEL")]
    kernel: String,
    /// The kernel's arguments in order, as of `berth gpu run`: a number, or a buffer such as f32:1,0.5,0*100 or zero:4096
    /// for a pointer.
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// The device.
    #[arg(long, value_name = "ID", default_value_t = 0)]
    device: i32,
    /// Blocks: X, or X,Y or X,Y,Z.
    #[arg(long, value_name = "X,Y,Z", default_value = "1", value_parser = arguments::shape)]
    grid: [u32; 3],
    /// Threads of a block: X, or X,Y or X,Y,Z.
    #[arg(long, value_name = "X,Y,Z", default_value = "1", value_parser = arguments::shape)]
    block: [u32; 3],
    /// Dynamic shared memory of a block.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    shared: Option<u64>,
    /// Print the buffer of argument N, counted from 0, after the kernel, as values of a type: --print 2=f32. Can be given
    /// several times.
    #[arg(long, value_name = "N=TYPE")]
    print: Vec<Numbered<Elements>>,
    /// Write the buffer of argument N, counted from 0, to a file after the kernel. Can be given several times.
    #[arg(long, value_name = "N=FILE")]
    out: Vec<Numbered<PathBuf>>,
    /// Run the kernel on the software GPU of this command, too, and fail if any buffer differs.
    #[arg(long)]
    verify: bool,
}

impl HipCommand {
    /// Runs the command. Mistakes in the PTX file are printed, and the status is 2.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.command {
            Hip::Info(worker) => worker.info(),
            Hip::Run(run) => run.run(),
        }
    }
}

impl Worker {
    fn connect(&self) -> anyhow::Result<Client> {
        let mut access = Access::default();
        if let Some(path) = &self.tls {
            let pem = fs::read(path).with_context(|| path.display().to_string())?;
            let key = self.with.node.own.identity_if_any()?;
            access = access.tls(&pem, key.as_deref()).with_context(|| path.display().to_string())?;
        }
        if let Some(id) = self.lease {
            let lease = Lease { id, token: self.token(id)?, holder: self.with.node.own.identity()? };
            access = access.lease(lease);
        }
        Client::connect_with(self.address, access).with_context(|| match self.lease {
            Some(lease) => format!("HIP worker {}, lease {lease:032x}", self.address),
            None => format!("HIP worker {}, without a lease", self.address),
        })
    }

    /// A token to run kernels with a lease.
    fn token(&self, lease: u128) -> anyhow::Result<Vec<u8>> {
        let token = match &self.with.token {
            Some(path) => token::read(path)?,
            None => block_on(async {
                let (client, token) = self.with.connect(Perms::EXEC, lease).await?;
                client.close().await;
                Ok(token)
            })?,
        };
        Ok(token.as_bytes().to_vec())
    }

    fn info(&self) -> anyhow::Result<ExitCode> {
        let client = self.connect()?;
        for id in 0..client.devices() {
            let device = client.device(id)?;
            let properties = device.properties()?;
            let (free, total) = device.memory()?;
            let report = [
                ("device", id.into()),
                ("name", text(&properties.name).into()),
                ("arch", text(&properties.gcn_arch_name).into()),
                ("memory_free", free.into()),
                ("memory_total", total.into()),
                ("threads_per_block", properties.max_threads_per_block.get().into()),
                ("shared_memory_per_block", properties.shared_mem_per_block.get().into()),
                ("multiprocessors", properties.multi_processor_count.get().into()),
            ];
            output::pairs(self.with.node.own.json, &report);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What a kernel is called with: the bytes of each argument, or those that its pointer leads to.
struct Call {
    arguments: Vec<(usize, Argument)>,
}

impl Run {
    fn run(&self) -> anyhow::Result<ExitCode> {
        let (file, kernel) = match self.kernel.rsplit_once('#') {
            Some((file, kernel)) => (Path::new(file), Some(kernel)),
            None => (Path::new(&self.kernel), None),
        };
        let text = read(file)?;
        let program =
            match Module::parse(&text).map_err(|error| vec![error]).and_then(|module| Program::link(&[module])) {
                Ok(program) => program,
                Err(errors) => return Ok(complain(&[file], &errors)),
            };
        let kernel = match (kernel, program.kernels().as_slice()) {
            (Some(kernel), _) => kernel.to_owned(),
            (None, [kernel]) => (*kernel).to_owned(),
            (None, kernels) => bail!("say which kernel to run: {}#KERNEL, of {}", file.display(), kernels.join(", ")),
        };
        let Some(parameters) = program.parameters(&kernel) else {
            bail!("{} has no kernel {kernel:?}; it has {}", file.display(), program.kernels().join(", "));
        };
        let (wanted, given) = (parameters.len(), self.arguments.len());
        ensure!(wanted == given, "{kernel} takes {wanted} arguments, {given} are given");
        let mut call = Call { arguments: Vec::new() };
        for (index, (text, parameter)) in self.arguments.iter().zip(parameters).enumerate() {
            let argument = Argument::read(text, parameter).with_context(|| format!("argument {index}"))?;
            call.arguments.push((parameter.offset, argument));
        }
        let named = self.print.iter().map(|one| one.index).chain(self.out.iter().map(|one| one.index));
        let is_buffer = |index: &usize| matches!(call.arguments.get(*index), Some((_, Argument::Buffer(_))));
        if let Some(index) = named.into_iter().find(|index| !is_buffer(index)) {
            bail!("argument {index} is no buffer");
        }
        let begin = Instant::now();
        let buffers = self.remote(&text, &kernel, &call)?;
        let took = begin.elapsed();
        if self.verify {
            let expected = self.local(program, &kernel, &call)?;
            let differs = buffers.iter().find(|(index, bytes)| expected[index] != **bytes);
            if let Some((index, _)) = differs {
                bail!("the buffer of argument {index} is not what the software GPU makes of it");
            }
        }
        for Numbered { index, value: path } in &self.out {
            fs::write(path, &buffers[index]).with_context(|| path.display().to_string())?;
        }
        let mut report = vec![("kernel", kernel.into()), ("time_us", (took.as_micros() as u64).into())];
        if self.verify {
            report.push(("verified", true.into()));
        }
        let printed: Vec<_> =
            self.print.iter().map(|one| (one.index.to_string(), one.value.values(&buffers[&one.index]))).collect();
        if self.worker.with.node.own.json {
            report.push(("buffers", Value::Object(printed.into_iter().collect())));
        } else {
            for (index, values) in printed {
                output::pairs(false, &[(index.as_str(), values)]);
            }
        }
        output::pairs(self.worker.with.node.own.json, &report);
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the kernel on the worker; returns what the buffers hold then.
    fn remote(&self, text: &str, kernel: &str, call: &Call) -> anyhow::Result<BTreeMap<usize, Vec<u8>>> {
        let device = self.worker.connect()?.device(self.device)?;
        let function = device.load(text.as_bytes())?.function(kernel)?;
        let (mut arguments, mut places) = (Arguments::new(), Vec::new());
        for (index, (_, argument)) in call.arguments.iter().enumerate() {
            arguments = match argument {
                Argument::Value(bytes) => arguments.bytes(bytes),
                Argument::Buffer(bytes) => {
                    let buffer = device.upload(bytes)?;
                    let arguments = arguments.buffer_at(&buffer);
                    places.push((index, buffer));
                    arguments
                }
            };
        }
        let shape = Shape { grid: self.grid, block: self.block, shared: u32::try_from(self.shared.unwrap_or(0))? };
        device.default_stream().launch(&function, shape, &arguments)?;
        device.synchronize()?;
        let mut buffers = BTreeMap::new();
        for (index, buffer) in places {
            let mut bytes = vec![0; usize::try_from(buffer.len())?];
            buffer.read(0, &mut bytes)?;
            buffers.insert(index, bytes);
        }
        Ok(buffers)
    }

    /// The same here.
    fn local(&self, program: Program, kernel: &str, call: &Call) -> anyhow::Result<BTreeMap<usize, Vec<u8>>> {
        let (mut memory, mut params, mut places) = (Allocations::default(), Vec::new(), Vec::new());
        for (index, (offset, argument)) in call.arguments.iter().enumerate() {
            params.resize(*offset, 0);
            match argument {
                Argument::Value(bytes) => params.extend(bytes),
                Argument::Buffer(bytes) => {
                    let at = memory.allocate(bytes.clone());
                    places.push((index, at));
                    params.extend(at.to_le_bytes());
                }
            }
        }
        let (grid, block, shared) = (self.grid, self.block, self.shared.unwrap_or(0) as usize);
        let launch = Launch { kernel, grid, block, shared, params: &params, seed: 1, fuel: FUEL };
        Device::new(program).launch(&mut memory, &launch, &mut || 0)?;
        Ok(places.into_iter().map(|(index, at)| (index, memory.bytes(at).unwrap_or_default().to_vec())).collect())
    }
}
