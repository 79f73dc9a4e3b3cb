#![no_main]
//! PTX text: nothing panics or takes unbounded memory or time, neither when it is loaded nor when it is run.

use berth_ptx::{Allocations, Device, Launch, Module, Program, check};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(module) = Module::parse(text) else { return };
    let problems = check(&module);
    let Ok(program) = Program::link(std::slice::from_ref(&module)) else { return };
    // What is refused alone is refused in company.
    assert!(problems.is_empty());
    let kernels: Vec<String> = program.kernels().into_iter().take(4).map(String::from).collect();
    let mut device = Device::new(program);
    for kernel in kernels {
        let mut memory = Allocations::default();
        let buffer = memory.allocate(vec![1; 256]);
        let mut params = Vec::new();
        for parameter in device.program().parameters(&kernel).unwrap_or_default() {
            params.resize(parameter.offset, 0);
            let pointer = if parameter.bytes == 8 { buffer } else { 3 };
            params.extend(pointer.to_le_bytes().iter().cycle().take(parameter.bytes));
        }
        let launch = Launch {
            kernel: &kernel,
            grid: [2, 1, 1],
            block: [33, 1, 1],
            shared: 64,
            params: &params,
            seed: 1,
            fuel: 20_000,
        };
        let _ = device.launch(&mut memory, &launch, &mut || 0);
    }
});
