//! A device with memory, for tests.
#![allow(dead_code, reason = "each test file uses a part")]

use berth_ptx::{Allocations, Device, Launch, LaunchError, Module, Program, Statistics};

/// Instructions that no test needs.
pub(crate) const FUEL: u64 = 200_000_000;

pub(crate) struct Gpu {
    pub(crate) device: Device,
    pub(crate) memory: Allocations,
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg {
    Pointer(u64),
    Int(u32),
    Long(u64),
}

impl Gpu {
    pub(crate) fn load(texts: &[&str]) -> Self {
        let modules: Vec<_> = texts.iter().map(|text| Module::parse(text).expect("a module")).collect();
        Self { device: Device::new(Program::link(&modules).expect("a program")), memory: Allocations::default() }
    }

    pub(crate) fn buffer<T: bytes::Plain>(&mut self, values: &[T]) -> Arg {
        Arg::Pointer(self.memory.allocate(values.iter().flat_map(|value| value.bytes()).collect()))
    }

    pub(crate) fn read<T: bytes::Plain>(&self, buffer: Arg) -> Vec<T> {
        let Arg::Pointer(at) = buffer else { panic!("no buffer") };
        self.memory.bytes(at).unwrap().chunks_exact(size_of::<T>()).map(T::from_bytes).collect()
    }

    pub(crate) fn launch(
        &mut self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: &[Arg],
    ) -> Result<Statistics, LaunchError> {
        self.launch_with(kernel, grid, block, args, 0, 1, FUEL)
    }

    #[allow(clippy::too_many_arguments, reason = "the launch's own")]
    pub(crate) fn launch_with(
        &mut self,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: &[Arg],
        shared: usize,
        seed: u64,
        fuel: u64,
    ) -> Result<Statistics, LaunchError> {
        let params = params(args);
        let launch = Launch { kernel, grid, block, shared, params: &params, seed, fuel };
        let mut now = 1_000_000_000;
        self.device.launch(&mut self.memory, &launch, &mut || {
            now += 100;
            now
        })
    }

    pub(crate) fn run(&mut self, kernel: &str, grid: u32, block: u32, args: &[Arg]) -> Statistics {
        self.launch(kernel, [grid, 1, 1], [block, 1, 1], args).expect("a kernel that ends")
    }
}

/// Runs [`text`] on the interpreter; each thread takes the next of `operands`.
pub(crate) fn run(declare: &str, body: &str, types: &[&str], result: &str, operands: &[[u64; 4]]) -> Vec<u64> {
    let mut gpu = Gpu::load(&[&text(declare, body, types, result)]);
    let input = gpu.buffer(&operands.iter().flatten().copied().collect::<Vec<u64>>());
    let output = gpu.buffer(&vec![0_u64; operands.len()]);
    gpu.run("k", 1, operands.len() as u32, &[input, output]);
    gpu.read(output)
}

/// A kernel `k` that runs `body` on `%a0` to `%a3`, registers of these types, and stores `%d`, of type `result`. It takes where
/// each thread has its four operands, and where its result is to be, of 64 bits each.
pub(crate) fn text(declare: &str, body: &str, types: &[&str], result: &str) -> String {
    let register = |ty: &str| if ty == ".pred" { ".pred".to_string() } else { format!(".b{}", &ty[2..]) };
    let mut text = String::from(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n\
         .reg .b64 %in, %out, %at;\n.reg .b32 %thread;\n.reg .pred %wide;\nld.param.u64 %in, [in];\n\
         ld.param.u64 %out, [out];\nmov.u32 %thread, %tid.x;\nmul.wide.u32 %at, %thread, 32;\nadd.s64 %in, %in, %at;\n\
         mul.wide.u32 %at, %thread, 8;\nadd.s64 %out, %out, %at;\n",
    );
    let mut line = |line: String| {
        text += &line;
        text.push('\n');
    };
    line(format!(".reg {} %d;\n{declare}", register(result)));
    for (index, ty) in types.iter().enumerate() {
        let register = register(ty);
        line(format!(".reg {register} %a{index};"));
        if register == ".pred" {
            line(format!("ld.global.u64 %at, [%in+{}];\nsetp.ne.u64 %a{index}, %at, 0;", 8 * index));
        } else {
            line(format!("ld.global{register} %a{index}, [%in+{}];", 8 * index));
        }
    }
    line(body.to_string());
    if result == ".pred" {
        line("selp.b64 %at, 1, 0, %d;\nst.global.b64 [%out], %at;".into());
    } else {
        line(format!("st.global{} [%out], %d;", register(result)));
    }
    line("ret;\n}".into());
    text
}

/// Arguments as a launch has them, each aligned to its size.
pub(crate) fn params(args: &[Arg]) -> Vec<u8> {
    let mut params = Vec::new();
    for arg in args {
        match arg {
            Arg::Pointer(value) | Arg::Long(value) => {
                params.resize(params.len().next_multiple_of(8), 0);
                params.extend(value.to_le_bytes());
            }
            Arg::Int(value) => params.extend(value.to_le_bytes()),
        }
    }
    params
}

pub(crate) mod bytes {
    pub(crate) trait Plain: Copy {
        fn bytes(self) -> Vec<u8>;
        fn from_bytes(bytes: &[u8]) -> Self;
    }

    macro_rules! plain {
        ($($ty:ty)*) => { $(
            impl Plain for $ty {
                fn bytes(self) -> Vec<u8> { self.to_le_bytes().to_vec() }
                fn from_bytes(bytes: &[u8]) -> Self { Self::from_le_bytes(bytes.try_into().unwrap()) }
            }
        )* };
    }
    plain!(u8 u32 i32 u64 i64 f32 f64);
}
