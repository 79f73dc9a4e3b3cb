//! What kernels do wrong: which fault, of which thread, at which line.

mod common;

use berth_ptx::{Access, Fault, FaultKind, Host, Launch, LaunchError, Space};
use common::{Arg, Gpu};

/// A kernel `k` of these lines; the first one is line 9 of the text.
fn text(body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n\
         .visible .entry k(.param .u64 a, .param .u32 n)\n{{\n\
         .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .pred %p<9>;\n\
         ld.param.u64 %rd1, [a]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;\n{body}\nret;\n}}\n"
    )
}

/// Runs it with a buffer of 64 bytes, and expects a fault.
fn fault_of(body: &str, block: u32, n: u32) -> Fault {
    let mut gpu = Gpu::load(&[&text(body)]);
    let buffer = gpu.buffer(&[0_u64; 8]);
    let ran = gpu.launch_with("k", [1; 3], [block, 1, 1], &[buffer, Arg::Int(n)], 32, 7, 1_000_000);
    match ran {
        Err(LaunchError::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

/// A fault of thread `x` at line 9 + `line`.
fn at(x: u32, line: u32, kind: FaultKind) -> Fault {
    Fault { block: [0; 3], thread: [x, 0, 0], module: 0, function: "k".into(), line: 9 + line, kind }
}

#[test]
fn an_access_beyond_a_buffer() {
    let fault = fault_of("mul.wide.u32 %rd2, %r2, 4;\nadd.u64 %rd2, %rd1, %rd2;\nst.global.u32 [%rd2+4], %r2;", 16, 0);
    let kind =
        FaultKind::OutOfBounds { access: Access::Write, address: (1 << 32) + 64, bytes: 4, space: Space::Global };
    assert_eq!(fault, at(15, 2, kind));
    assert_eq!(
        fault.to_string(),
        "block (0, 0, 0), thread (15, 0, 0), k, line 11: a write of 4 bytes at 0x100000040 (global), which the kernel may \
         not touch"
    );
    let null = fault_of("mov.u64 %rd2, 0;\nld.u8 %r3, [%rd2];", 1, 0).kind;
    assert_eq!(null, FaultKind::OutOfBounds { access: Access::Read, address: 0, bytes: 1, space: Space::Generic });
}

#[test]
fn every_space_has_its_end() {
    let of = |access, address, bytes, space| FaultKind::OutOfBounds { access, address, bytes, space };
    // 32 bytes of dynamic shared memory.
    let shared = fault_of("mov.u32 %r3, dynamic;\nst.shared.u32 [%r3+28], %r2;\nld.shared.u32 %r4, [%r3+32];", 1, 0);
    assert_eq!(shared, at(0, 2, of(Access::Read, 32, 4, Space::Shared)));
    let generic = fault_of("cvta.shared.u64 %rd2, 0;\natom.add.u32 %r4, [%rd2+32], 1;", 1, 0);
    assert_eq!(generic, at(0, 1, of(Access::Atomic, (1 << 56) + 32, 4, Space::Generic)));
    // A frame has room to the next multiple of 128.
    let local = fault_of(".local .align 8 .b8 x[8];\nmov.u64 %rd2, x;\nst.local.u64 [%rd2+128], %rd2;", 1, 0);
    assert_eq!(local, at(0, 2, of(Access::Write, 128, 8, Space::Local)));
    let param = fault_of("ld.param.u32 %r3, [a+12];", 1, 0);
    assert_eq!(param, at(0, 0, of(Access::Read, 12, 4, Space::Param)));
}

#[test]
fn a_constant_is_not_written() {
    let module = ".version 7.8\n.target sm_80\n.address_size 64\n.const .u32 c = 5;\n.global .u32 g = 6;\n\
                  .visible .entry k(.param .u64 out)\n{\n.reg .b64 %rd<5>; .reg .b32 %r<5>;\n\
                  ld.param.u64 %rd1, [out];\nld.const.u32 %r1, [c];\nld.global.u32 %r2, [g];\nadd.u32 %r1, %r1, %r2;\n\
                  st.global.u32 [g], %r1;\nst.global.u32 [%rd1], %r1;\nmov.u64 %rd2, c;\nst.u32 [%rd2], %r1;\nret;\n}\n";
    let mut gpu = Gpu::load(&[module]);
    let out = gpu.buffer(&[0_u32]);
    for sum in [11, 16] {
        let Err(LaunchError::Fault(fault)) = gpu.launch("k", [1; 3], [1; 3], &[out]) else { panic!("it ran") };
        assert!(matches!(fault.kind, FaultKind::OutOfBounds { access: Access::Write, bytes: 4, .. }));
        assert_eq!(fault.line, 16);
        // A variable keeps what it holds from launch to launch.
        assert_eq!(gpu.read::<u32>(out), [sum]);
    }
}

#[test]
fn an_address_that_is_not_aligned() {
    let fault = fault_of("cvt.u64.u32 %rd2, %r2;\nadd.u64 %rd2, %rd1, %rd2;\nld.global.f32 %f1, [%rd2];", 2, 0);
    let kind = FaultKind::Misaligned { access: Access::Read, address: (1 << 32) + 1, bytes: 4, space: Space::Global };
    assert_eq!(fault, at(1, 2, kind));
    let vector = fault_of("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+8];", 1, 0);
    let kind = FaultKind::Misaligned { access: Access::Read, address: (1 << 32) + 8, bytes: 16, space: Space::Global };
    assert_eq!(vector, at(0, 0, kind));
}

#[test]
fn a_trap() {
    let body = "setp.eq.u32 %p1, %r2, %r1;\n@!%p1 bra L;\ntrap;\nL:";
    assert_eq!(fault_of(body, 64, 40), at(40, 2, FaultKind::Trap));
}

#[test]
fn a_loop_without_an_end_runs_out_of_fuel() {
    let fault = fault_of("L:\nadd.u32 %r3, %r3, 1;\nbra.uni L;", 1, 0);
    assert_eq!(fault.kind, FaultKind::OutOfFuel);
    assert!((10..=11).contains(&fault.line), "{fault}");
    // What it may run is exact: 3 loads and moves, the loop, `ret`.
    let run = |fuel| {
        let mut gpu = Gpu::load(&[&text("L:\nadd.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 10;\n@%p1 bra L;")]);
        let buffer = gpu.buffer(&[0_u64; 8]);
        gpu.launch_with("k", [1; 3], [1; 3], &[buffer, Arg::Int(0)], 0, 1, fuel)
    };
    assert_eq!(run(34).unwrap().instructions, 34);
    assert!(matches!(run(33), Err(LaunchError::Fault(Fault { kind: FaultKind::OutOfFuel, .. }))));
}

#[test]
fn barriers_that_threads_do_not_share() {
    // Half of the threads wait for each other at one barrier, the rest at another.
    let two = "setp.lt.u32 %p1, %r2, 32;\n@%p1 bra L;\nbarrier.sync 1;\nret;\nL:\nbarrier.sync 2;";
    assert_eq!(fault_of(two, 64, 0), at(0, 5, FaultKind::Divergent));
    // One warp comes to the same barrier by two ways, which `bar.sync` forbids and `barrier.sync` allows.
    let ways = "setp.eq.u32 %p1, %r2, 0;\n@%p1 bra L;\nbar.sync 0;\nret;\nL:\nbar.sync 0;";
    assert_eq!(fault_of(ways, 32, 0), at(1, 2, FaultKind::Divergent));
    let mut gpu = Gpu::load(&[&text(&ways.replace("bar.sync", "barrier.sync"))]);
    let buffer = gpu.buffer(&[0_u64; 8]);
    gpu.run("k", 1, 32, &[buffer, Arg::Int(0)]);
    assert_eq!(fault_of("bar.sync 16;", 1, 0), at(0, 0, FaultKind::BadBarrier { barrier: 16, threads: 0 }));
    assert_eq!(fault_of("bar.sync 0, 96;", 64, 0).kind, FaultKind::BadBarrier { barrier: 0, threads: 96 });
}

#[test]
fn who_has_ended_keeps_nobody_waiting() {
    let body = "setp.lt.u32 %p1, %r2, 16;\n@%p1 exit;\nbar.sync 0;\nvote.sync.ballot.b32 %r3, 1, 0xffffffff;\n\
                mul.wide.u32 %rd2, %r2, 4;\nsub.u64 %rd2, %rd2, 64;\nadd.u64 %rd1, %rd1, %rd2;\nst.global.u32 [%rd1], %r3;";
    let mut gpu = Gpu::load(&[&text(body)]);
    let buffer = gpu.buffer(&[0_u32; 16]);
    gpu.run("k", 1, 32, &[buffer, Arg::Int(0)]);
    assert_eq!(gpu.read::<u32>(buffer), [0xFFFF_0000; 16]);
}

#[test]
fn a_warp_that_does_not_come_together() {
    let alone = "setp.ne.u32 %p1, %r2, 3;\n@%p1 bra L;\nshfl.sync.idx.b32 %r3, %r2, 0, 31, 0xf;\nL:\nbar.sync 0;";
    assert_eq!(fault_of(alone, 32, 0), at(0, 4, FaultKind::Divergent));
    let stranger = fault_of("bar.warp.sync 0x7fffffff;", 32, 0);
    assert_eq!(stranger, at(31, 0, FaultKind::NotMember(0x7FFF_FFFF)));
}

#[test]
fn calls_that_lead_nowhere_or_too_deep() {
    let prototype = "P: .callprototype (.param .b32 _) _ (.param .b32 _);\n.param .b32 x; .param .b32 y;\n";
    let call = |address: &str| format!("{prototype}mov.u64 %rd2, {address};\ncall (y), %rd2, (x), P;");
    assert_eq!(fault_of(&call("12345"), 1, 0), at(0, 3, FaultKind::BadCall(12345)));
    let functions = ".version 7.8\n.target sm_80\n.address_size 64\n\
        .func (.param .b32 r) deep(.param .b32 n)\n{\n.reg .b32 %r<3>; .param .b32 x; .param .b32 y;\n\
        ld.param.u32 %r1, [n];\nadd.u32 %r1, %r1, 1;\nst.param.b32 [x], %r1;\ncall (y), deep, (x);\n\
        ld.param.b32 %r2, [y];\nst.param.b32 [r], %r2;\nret;\n}\n.func other(.param .b64 a) { ret; }\n\
        .entry k()\n{\n.reg .b64 %rd<3>; .param .b32 x; .param .b32 y;\n";
    let run = |body: &str| {
        let mut gpu = Gpu::load(&[&format!("{functions}{body}\nret;\n}}\n")]);
        let Err(LaunchError::Fault(fault)) = gpu.launch("k", [1; 3], [1; 3], &[]) else { panic!("it ran") };
        (fault.function.clone(), fault.line, fault.kind)
    };
    assert_eq!(run("call (y), deep, (x);"), ("deep".into(), 10, FaultKind::StackOverflow));
    let indirect =
        "P: .callprototype (.param .b32 _) _ (.param .b32 _);\nmov.u64 %rd2, other;\ncall (y), %rd2, (x), P;";
    assert_eq!(run(indirect), ("k".into(), 21, FaultKind::BadPrototype));
}

#[test]
fn a_branch_beyond_its_list() {
    let body =
        "T: .branchtargets A, B;\nbrx.idx %r1, T;\nA:\nst.global.u32 [%rd1], 1;\nret;\nB:\nst.global.u32 [%rd1], 2;";
    assert_eq!(fault_of(body, 1, 2), at(0, 1, FaultKind::BadBranch(2)));
    for n in 0..2 {
        let mut gpu = Gpu::load(&[&text(body)]);
        let buffer = gpu.buffer(&[0_u32]);
        gpu.run("k", 1, 1, &[buffer, Arg::Int(n)]);
        assert_eq!(gpu.read::<u32>(buffer), [n + 1]);
    }
}

#[test]
fn launches_that_do_not_fit() {
    let mut gpu = Gpu::load(&[&text("")]);
    let args = [Arg::Pointer(0), Arg::Int(0)];
    let mut launch = |grid, block, args: &[Arg], shared| gpu.launch_with("k", grid, block, args, shared, 1, 1000);
    assert!(launch([1; 3], [1; 3], &args, 0).is_ok());
    for (grid, block) in [([0, 1, 1], [1; 3]), ([1; 3], [1025, 1, 1]), ([1; 3], [1, 1, 65]), ([1, 65536, 1], [1; 3])] {
        assert!(matches!(launch(grid, block, &args, 0), Err(LaunchError::Shape(_))));
    }
    assert!(matches!(launch([1; 3], [1; 3], &args, 228 << 10), Err(LaunchError::Shape(_))));
    assert_eq!(launch([1; 3], [1; 3], &args[..1], 0), Err(LaunchError::Arguments { expected: 12, given: 8 }));
    let none = gpu.launch("other", [1; 3], [1; 3], &[]);
    assert_eq!(none, Err(LaunchError::NoKernel("other".into())));
}

/// A host that stops the launch when it was asked ten times.
struct Asked(u32);

impl Host for Asked {
    fn now(&mut self) -> u64 {
        0
    }

    fn stops(&mut self) -> bool {
        self.0 += 1;
        self.0 == 10
    }
}

#[test]
fn a_launch_is_stopped_between_turns() {
    let mut gpu = Gpu::load(&[&text("LOOP:\nbra LOOP;")]);
    let Arg::Pointer(buffer) = gpu.buffer(&[0_u64; 8]) else { panic!("no buffer") };
    let params = [&buffer.to_le_bytes()[..], &[0; 4]].concat();
    let launch =
        Launch { kernel: "k", grid: [1; 3], block: [1; 3], shared: 0, params: &params, seed: 1, fuel: u64::MAX };
    let mut host = Asked(0);
    match gpu.device.launch(&mut gpu.memory, &launch, &mut host) {
        Err(LaunchError::Fault(fault)) => assert_eq!(fault.kind, FaultKind::Stopped),
        other => panic!("{other:?}"),
    }
    assert_eq!(host.0, 10);
}
