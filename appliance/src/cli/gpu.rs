//! `berth gpu`

pub(super) mod arguments;
mod submit;

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail, ensure};
use berth_gpu::{Choice, Job};
use berth_ptx::{
    Allocations, Device, Function, Launch, LaunchError, LoadError, Module, Param, Parameter, Program, TEXT_MAX,
};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::arguments::{Argument, Elements, Numbered};
use super::output;
use crate::{config::parse_bytes, run::gpus};

/// Look at and run GPU kernels, on a GPU in software here or on a node.
#[derive(Debug, Args)]
pub struct GpuCommand {
    #[command(subcommand)]
    command: Gpu,
}

#[derive(Debug, Subcommand)]
enum Gpu {
    /// Print what a PTX file has, and each line of it that the software GPU does not run. Exits with 2 if there is any.
    Check {
        /// The PTX file.
        file: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    Run(Box<Run>),
    Submit(Box<submit::Submit>),
}

/// Run a kernel, and print how long that took; on the software GPU how many instructions, too.
#[derive(Debug, Args)]
struct Run {
    /// The PTX file and the kernel in it, such as vadd.ptx#vadd. The kernel can be left out if there is only one.
    #[arg(value_name = "FILE#KERNEL")]
    kernel: String,
    /// The kernel's arguments in order. A number for a number. For a pointer, a buffer: @FILE with what is in the file,
    /// zero:SIZE with zeros, or TYPE:VALUES such as f32:1,0.5,0*100 or u32:0..256; hex:BYTES too, which is also how a
    /// structure is given. TYPE is u8 to u64, s8 to s64, f32 or f64.
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// The GPU: soft, or one of NVIDIA's: auto for the first, a PCI address, or a GPU-uuid.
    #[arg(long, default_value = "soft")]
    device: Choice,
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
    /// Another PTX file that defines what this one declares as extern. Can be given several times.
    #[arg(long, value_name = "FILE")]
    link: Vec<PathBuf>,
    /// Chooses the order in which threads of the software GPU take turns. The same seed gives the same order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Stop a kernel of the software GPU after so many instructions, of all threads together.
    #[arg(long, value_name = "N", default_value_t = 100_000_000_000)]
    fuel: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl GpuCommand {
    /// Runs the command. Mistakes in a PTX file are printed, and the status is 2.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.command {
            Gpu::Check { file, json } => check(file, *json),
            Gpu::Run(run) => run.run(),
            Gpu::Submit(submit) => submit.run(),
        }
    }
}

/// Reads a text, no more of it than is taken.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let (mut text, context) = (String::new(), || path.display().to_string());
    let file = fs::File::open(path).with_context(context)?;
    file.take(TEXT_MAX as u64 + 1).read_to_string(&mut text).with_context(context)?;
    Ok(text)
}

/// Prints mistakes on standard error, as compilers do.
pub(super) fn complain(paths: &[&Path], errors: &[LoadError]) -> ExitCode {
    for error in errors {
        let path = paths[error.module].display();
        eprintln!("{path}:{}: {}", error.line, error.reason);
        if !error.text.is_empty() {
            eprintln!("    {}", error.text);
        }
    }
    ExitCode::from(2)
}

fn types(params: &[Param<'_>]) -> String {
    let one = |param: &Param<'_>| match param.elements {
        Some(count) => format!("{}[{count}]", param.ty),
        None => param.ty.to_string(),
    };
    params.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn kind(function: &Function<'_>) -> &'static str {
    match (function.entry, &function.body) {
        (true, _) => "kernel",
        (false, Some(_)) => "function",
        (false, None) => "extern",
    }
}

fn check(file: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let text = read(file)?;
    let module = match Module::parse(&text) {
        Ok(module) => module,
        Err(error) => return Ok(complain(&[file], &[error])),
    };
    let errors = berth_ptx::check(&module);
    // What is declared first and defined later is one function.
    let defined = |name| module.functions.iter().any(|function| function.name == name && function.body.is_some());
    let functions = || module.functions.iter().filter(|one| one.body.is_some() || !defined(one.name));
    if as_json {
        let function = |function: &Function<'_>| {
            let params = |params: &[Param<'_>]| -> Vec<Value> {
                params.iter().map(|one| json!({ "type": one.ty.to_string(), "bytes": one.bytes() })).collect()
            };
            let signature = &function.signature;
            json!({
                "kind": kind(function), "name": function.name, "line": function.line,
                "takes": params(&signature.params), "returns": params(&signature.returns),
            })
        };
        let problem =
            |error: &LoadError| json!({ "line": error.line, "reason": error.reason.to_string(), "text": error.text });
        let (major, minor) = module.version;
        let report = json!({
            "version": format!("{major}.{minor}"), "target": module.target,
            "functions": functions().map(function).collect::<Vec<_>>(),
            "problems": errors.iter().map(problem).collect::<Vec<_>>(),
        });
        println!("{report}");
        return Ok(if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) });
    }
    let row = |function: &Function<'_>| {
        let signature = &function.signature;
        [kind(function).into(), function.name.into(), types(&signature.params), types(&signature.returns)]
    };
    print!("{}", output::table(["kind", "name", "takes", "returns"], &functions().map(row).collect::<Vec<_>>()));
    if errors.is_empty() {
        println!("PTX {}.{} for {}: the software GPU runs it", module.version.0, module.version.1, module.target);
        return Ok(ExitCode::SUCCESS);
    }
    Ok(complain(&[file], &errors))
}

impl Run {
    fn run(&self) -> anyhow::Result<ExitCode> {
        if let Choice::Hip(_) = self.device {
            bail!("GPUs of AMD's serve sessions of HIP Remote alone: berth hip run");
        }
        let (file, kernel) = match self.kernel.rsplit_once('#') {
            Some((file, kernel)) => (Path::new(file), Some(kernel)),
            None => (Path::new(&self.kernel), None),
        };
        let paths: Vec<&Path> = std::iter::once(file).chain(self.link.iter().map(PathBuf::as_path)).collect();
        let texts = paths.iter().map(|path| read(path)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut modules = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            match Module::parse(text) {
                Ok(module) => modules.push(module),
                Err(error) => return Ok(complain(&paths, &[LoadError { module: index, ..error }])),
            }
        }
        let program = match (&self.device, Program::link(&modules)) {
            (Choice::Soft, Err(errors)) => return Ok(complain(&paths, &errors)),
            // Others may run what the software GPU does not.
            (Choice::Soft, Ok(program)) => Some(program),
            _ => None,
        };
        let all = modules.iter().flat_map(|module| &module.functions).filter(|one| one.entry && one.body.is_some());
        let mut kernels: Vec<_> = all.clone().map(|one| one.name).collect();
        kernels.sort_unstable();
        let kernel = match (kernel, &kernels[..]) {
            (Some(kernel), _) => kernel,
            (None, [kernel]) => kernel,
            (None, kernels) => bail!("say which kernel to run: {}#KERNEL, of {}", file.display(), kernels.join(", ")),
        };
        let Some(found) = { all }.find(|one| one.name == kernel) else {
            bail!("{} has no kernel {kernel:?}; it has {}", file.display(), kernels.join(", "));
        };
        let arguments = self.arguments(found)?;
        let Some(program) = program else { return self.on_gpu(&texts, kernel, arguments) };
        let (mut memory, mut params, mut buffers) = (Allocations::default(), Vec::new(), BTreeMap::new());
        let parameters = program.parameters(kernel).unwrap_or_default();
        for (index, (argument, parameter)) in arguments.into_iter().zip(parameters).enumerate() {
            params.resize(parameter.offset, 0);
            match argument {
                Argument::Value(bytes) => params.extend(bytes),
                Argument::Buffer(bytes) => {
                    let at = memory.allocate(bytes);
                    buffers.insert(index, at);
                    params.extend(at.to_le_bytes());
                }
            }
        }
        let mut device = Device::new(program);
        let launch = Launch {
            kernel,
            grid: self.grid,
            block: self.block,
            shared: usize::try_from(self.shared.unwrap_or(0))?,
            params: &params,
            seed: self.seed,
            fuel: self.fuel,
        };
        let mut now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let begin = Instant::now();
        let statistics = match device.launch(&mut memory, &launch, &mut now) {
            Err(LaunchError::Fault(fault)) => bail!("{}: {fault}", paths[fault.module].display()),
            ran => ran?,
        };
        let took = begin.elapsed();
        let rate = statistics.instructions as f64 / took.max(Duration::from_nanos(1)).as_secs_f64();
        let report = vec![
            ("kernel", kernel.into()),
            ("threads", statistics.threads.into()),
            ("instructions", statistics.instructions.into()),
            ("time_us", (took.as_micros() as u64).into()),
            ("instructions_per_s", (rate as u64).into()),
        ];
        self.report(report, |index| buffers.get(&index).and_then(|at| memory.bytes(*at)).unwrap_or_default())
    }

    /// The arguments, as the kernel's parameters take them.
    fn arguments(&self, kernel: &Function<'_>) -> anyhow::Result<Vec<Argument>> {
        let parameters = &kernel.signature.params;
        let (wanted, given) = (parameters.len(), self.arguments.len());
        ensure!(wanted == given, "{} takes {wanted} arguments, {given} are given", kernel.name);
        let read = |(index, (text, parameter)): (usize, (&String, &Param<'_>))| {
            let Param { name, ty, elements, .. } = parameter;
            let (name, array, bytes) = ((*name).to_owned(), elements.is_some(), parameter.bytes() as usize);
            let parameter = Parameter { name, ty: *ty, array, offset: 0, bytes };
            Argument::read(text, &parameter).with_context(|| format!("argument {index}"))
        };
        let arguments: Vec<_> =
            self.arguments.iter().zip(parameters).enumerate().map(read).collect::<anyhow::Result<_>>()?;
        let named = self.print.iter().map(|one| one.index).chain(self.out.iter().map(|one| one.index));
        let is_buffer = |index: &usize| matches!(arguments.get(*index), Some(Argument::Buffer(_)));
        if let Some(index) = named.into_iter().find(|index| !is_buffer(index)) {
            bail!("argument {index} is no buffer");
        }
        Ok(arguments)
    }

    /// Runs it on one of NVIDIA's GPUs, in a worker.
    fn on_gpu(&self, texts: &[String], kernel: &str, arguments: Vec<Argument>) -> anyhow::Result<ExitCode> {
        let argument = |argument| match argument {
            Argument::Value(bytes) => berth_gpu::Argument::Value(bytes),
            Argument::Buffer(bytes) => berth_gpu::Argument::Buffer(bytes),
        };
        let job = Job {
            device: self.device.clone(),
            texts: texts.to_vec(),
            kernel: kernel.to_owned(),
            grid: self.grid,
            block: self.block,
            shared: usize::try_from(self.shared.unwrap_or(0))?,
            arguments: arguments.into_iter().map(argument).collect(),
        };
        let ran = berth_gpu::run(&gpus::worker()?, &job)?;
        let report = vec![
            ("kernel", kernel.into()),
            ("device", ran.device.into()),
            ("time_us", (ran.took.as_micros() as u64).into()),
        ];
        self.report(report, |index| match ran.arguments.get(index) {
            Some(berth_gpu::Argument::Buffer(bytes)) => bytes,
            _ => &[],
        })
    }

    /// Writes and prints what was asked for.
    fn report<'a>(
        &self,
        mut report: Vec<(&str, Value)>,
        bytes: impl Fn(usize) -> &'a [u8],
    ) -> anyhow::Result<ExitCode> {
        for Numbered { index, value: path } in &self.out {
            fs::write(path, bytes(*index)).with_context(|| path.display().to_string())?;
        }
        let printed: Vec<_> =
            self.print.iter().map(|one| (one.index.to_string(), one.value.values(bytes(one.index)))).collect();
        if self.json {
            report.push(("buffers", Value::Object(printed.into_iter().collect())));
            output::pairs(true, &report);
        } else {
            for (index, values) in printed {
                output::pairs(false, &[(index.as_str(), values)]);
            }
            output::pairs(false, &report);
        }
        Ok(ExitCode::SUCCESS)
    }
}
