//! `berth gpu submit`

use std::{path::Path, process::ExitCode};

use anyhow::{Context as _, bail, ensure};
use berth_client::Kernel;
use berth_ptx::{Module, Parameter, Program};
use berth_wire::fabric::{GpuStatus, Perms};
use clap::Args;

use super::{
    super::{WithToken, block_on, id, lease, output},
    arguments::{Argument, shape},
    complain, read,
};

/// Run a kernel on a node, in a lease of a GPU that `berth lease alloc --type gpu` made.
#[derive(Debug, Args)]
pub(super) struct Submit {
    /// The lease's id, as `berth lease alloc` printed it.
    #[arg(value_parser = id)]
    lease: u128,
    /// The PTX file and the kernel in it, such as vadd.ptx#vadd. The kernel can be left out if there is only one.
    #[arg(value_name = "FILE#KERNEL")]
    kernel: String,
    /// The kernel's arguments in order. A number for a number, vram:OFFSET for a pointer into the lease, hex:BYTES for a
    /// structure.
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// Blocks: X, or X,Y or X,Y,Z.
    #[arg(long, value_name = "X,Y,Z", default_value = "1", value_parser = shape)]
    grid: [u32; 3],
    /// Threads of a block: X, or X,Y or X,Y,Z.
    #[arg(long, value_name = "X,Y,Z", default_value = "1", value_parser = shape)]
    block: [u32; 3],
    /// Print these bytes of the lease after the kernel, in hex digits: the first one, counted from the lease's first, and
    /// how many.
    #[arg(long, value_name = "OFFSET:LEN", value_parser = range)]
    output: Option<(u64, u32)>,
    #[command(flatten)]
    with: WithToken,
}

fn range(text: &str) -> Result<(u64, u32), String> {
    let parts = text.split_once(':').and_then(|(offset, len)| Some((offset.parse().ok()?, len.parse().ok()?)));
    parts.ok_or_else(|| format!("{text:?} is no place in a lease; write one such as 4096:256"))
}

impl Submit {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        let (file, name) = match self.kernel.rsplit_once('#') {
            Some((file, kernel)) => (Path::new(file), Some(kernel)),
            None => (Path::new(&self.kernel), None),
        };
        let text = read(file)?;
        let program = match Module::parse(&text).map_err(|e| vec![e]).and_then(|module| Program::link(&[module])) {
            Ok(program) => program,
            Err(errors) => return Ok(complain(&[file], &errors)),
        };
        let name = match (name, program.kernels().as_slice()) {
            (Some(name), _) => name.to_owned(),
            (None, [name]) => (*name).to_owned(),
            (None, kernels) => bail!("say which kernel to run: {}#KERNEL, of {}", file.display(), kernels.join(", ")),
        };
        let Some(parameters) = program.parameters(&name) else {
            bail!("{} has no kernel {name:?}; it has {}", file.display(), program.kernels().join(", "));
        };
        let (wanted, given) = (parameters.len(), self.arguments.len());
        ensure!(wanted == given, "{name} takes {wanted} arguments, {given} are given");
        let base = lease::recall(self.lease)?.vram().context("the lease is of no GPU")?;
        let args = self.arguments.iter().zip(parameters).enumerate().map(|(index, (text, parameter))| {
            argument(text, parameter, base).with_context(|| format!("argument {index}"))
        });
        let kernel = Kernel {
            resource: 0,
            binary: text.into_bytes(),
            name,
            grid: self.grid,
            block: self.block,
            args: args.collect::<anyhow::Result<_>>()?,
            output: self.output.unwrap_or((0, 0)),
        };
        block_on(self.submit(kernel))
    }

    async fn submit(&self, kernel: Kernel) -> anyhow::Result<ExitCode> {
        // A token for the lease alone.
        let (client, token) = self.with.connect(Perms::EXEC, self.lease).await?;
        let leases = client.lease_list().await?;
        let known = leases.iter().find(|known| known.lease_id == self.lease).context("the node has no such lease")?;
        let ran = client.gpu_submit(&token, &Kernel { resource: known.resource_id, ..kernel }).await?;
        client.close().await;
        let printed = match ran.status {
            GpuStatus::LoadFailed => String::from_utf8_lossy(&ran.output).into_owned(),
            _ => output::hex(&ran.output),
        };
        let mut report = vec![
            ("status", ran.status.name().into()),
            ("submit_id", ran.submit_id.into()),
            ("exit_code", ran.exit_code.into()),
        ];
        if !printed.is_empty() {
            report.push(("output", printed.into()));
        }
        output::pairs(self.with.node.own.json, &report);
        Ok(if ran.status == GpuStatus::Ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The bytes of an argument; pointers are into the lease.
fn argument(text: &str, parameter: &Parameter, base: u64) -> anyhow::Result<Vec<u8>> {
    if let Some(offset) = text.strip_prefix("vram:") {
        ensure!(parameter.bytes == 8 && !parameter.array, "{} is no pointer", parameter.name);
        let offset: u64 = offset.parse().with_context(|| format!("{text:?} names no byte of the lease"))?;
        return Ok(base.wrapping_add(offset).to_le_bytes().to_vec());
    }
    match Argument::read(text, parameter)? {
        Argument::Value(bytes) => Ok(bytes),
        Argument::Buffer(_) => bail!("a buffer is in the lease: write it there, and pass vram:OFFSET"),
    }
}
