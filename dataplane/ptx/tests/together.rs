//! What threads do together, and what a text like nvcc's says.

mod common;

use berth_ptx::{
    Allocations, Device, Host, Launch, Memory, Module, Order, Program, Refused, Scope, Scratch, Semantics, Width,
};
use common::{Arg, FUEL, Gpu};

#[test]
fn a_text_in_the_manner_of_nvcc() {
    let mut gpu = Gpu::load(&[include_str!("nvcc.ptx")]);
    let input: Vec<f32> = (0..256_u16).map(f32::from).collect();
    for scale in [0, 3] {
        let (x, y) = (gpu.buffer(&input), gpu.buffer(&[0_f32; 64]));
        // The structure has 12 bytes, the last four of which count.
        let args = [x, Arg::Int(0), Arg::Int(0), Arg::Int(scale), y];
        gpu.launch_with("stage", [1; 3], [64, 1, 1], &args, 256, 3, FUEL).unwrap();
        let sum = |i: usize| {
            let factor = [1.0, 2.0, 3.0, -4.0][i & 3];
            let v = &input[4 * i..];
            v[2] + v[0].mul_add(factor, v[1]) + v[3]
        };
        let expected = |i: usize| match scale {
            0 => sum(i ^ 1),
            _ => ((f64::from(sum(i ^ 1)) * 3.0 + i as f64) * 2.0) as f32,
        };
        assert_eq!(gpu.read::<f32>(y), (0..64).map(expected).collect::<Vec<_>>());
    }
}

/// A kernel whose 32 threads each run `body` and store `%r9`; `%r1` is the lane, `%r2` an input.
fn warp(body: &str, input: &[u32; 32]) -> Vec<u32> {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{{\n\
         .reg .b64 %rd<5>; .reg .b32 %r<12>; .reg .pred %p<5>;\nmov.u32 %r1, %laneid;\nld.param.u64 %rd1, [in];\n\
         ld.param.u64 %rd2, [out];\nmul.wide.u32 %rd3, %r1, 4;\nadd.u64 %rd1, %rd1, %rd3;\nadd.u64 %rd2, %rd2, %rd3;\n\
         ld.global.u32 %r2, [%rd1];\n{body}\nst.global.u32 [%rd2], %r9;\nret;\n}}\n"
    );
    let results = |seed| {
        let mut gpu = Gpu::load(&[&text]);
        let (x, y) = (gpu.buffer(input), gpu.buffer(&[0_u32; 32]));
        gpu.launch_with("k", [1; 3], [32, 1, 1], &[x, y], 0, seed, FUEL).unwrap();
        gpu.read::<u32>(y)
    };
    let first = results(0);
    assert_eq!(first, results(99));
    first
}

#[test]
fn shuffles_of_segments() {
    let input: [u32; 32] = std::array::from_fn(|i| 100 + i as u32);
    // Each result, and whether the source was in the segment.
    let shuffle = |mode: &str, b: u32, c: u32| {
        warp(
            &format!("shfl.sync.{mode}.b32 %r9|%p1, %r2, {b}, {c}, 0xffffffff;\n@!%p1 add.u32 %r9, %r9, 1000;"),
            &input,
        )
    };
    // Segments of 8 lanes: c has 32 - 8 in its bits 8 to 12.
    let segment = (32 - 8) << 8;
    let lanes = |f: fn(u32) -> (u32, bool)| -> Vec<u32> {
        (0..32).map(f).map(|(from, inside)| 100 + from + if inside { 0 } else { 1000 }).collect()
    };
    assert_eq!(shuffle("up", 3, segment), lanes(|i| if i % 8 >= 3 { (i - 3, true) } else { (i, false) }));
    assert_eq!(shuffle("down", 3, segment | 31), lanes(|i| if i % 8 < 5 { (i + 3, true) } else { (i, false) }));
    assert_eq!(shuffle("bfly", 5, segment | 31), lanes(|i| (i ^ 5, true)));
    assert_eq!(shuffle("idx", 10, segment | 31), lanes(|i| (i / 8 * 8 + 2, true)));
    assert_eq!(shuffle("idx", 6, 3), lanes(|i| (i, false)));
}

#[test]
fn votes_matches_and_reductions() {
    let input: [u32; 32] = std::array::from_fn(|i| i as u32 % 5);
    let ones = |wanted: fn(u32) -> bool| (0..32).filter(|i| wanted(*i)).fold(0_u32, |all, i| all | 1 << i);
    let all = 0xFFFF_FFFF_u32;
    let cases = [
        ("setp.eq.u32 %p1, %r2, 2; vote.sync.ballot.b32 %r9, %p1, 0xffffffff;", vec![ones(|i| i % 5 == 2); 32]),
        ("setp.lt.u32 %p1, %r2, 5; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r9, 7, 8, %p2;", vec![7; 32]),
        ("setp.lt.u32 %p1, %r2, 4; vote.sync.all.pred %p2, %p1, -1; selp.u32 %r9, 7, 8, %p2;", vec![8; 32]),
        ("setp.lt.u32 %p1, %r2, 1; vote.sync.any.pred %p2, !%p1, -1; selp.u32 %r9, 7, 8, %p2;", vec![7; 32]),
        ("setp.lt.u32 %p1, %r2, 1; vote.sync.uni.pred %p2, %p1, -1; selp.u32 %r9, 7, 8, %p2;", vec![8; 32]),
        ("match.all.sync.b32 %r9|%p1, 5, -1; @!%p1 mov.u32 %r9, 1;", vec![all; 32]),
        ("redux.sync.add.s32 %r9, %r2, -1;", vec![6 * 10 + 1; 32]),
        ("redux.sync.max.u32 %r9, %r1, 0xffffffff;", vec![31; 32]),
    ];
    for (body, expected) in cases {
        assert_eq!(warp(body, &input), expected, "{body}");
    }
    let same = |i: u32| (0..32).filter(|j| j % 5 == i % 5).fold(0_u32, |all, j| all | 1 << j);
    assert_eq!(warp("match.any.sync.b32 %r9, %r2, 0xffffffff;", &input), (0..32).map(same).collect::<Vec<_>>());
    // Two groups, each at an instruction of its own.
    let halves = "setp.lt.u32 %p1, %r1, 16;\n@%p1 bra L;\nredux.sync.add.u32 %r9, %r1, 0xffff0000;\nbra M;\nL:\n\
                  redux.sync.add.u32 %r9, %r1, 0xffff;\nM:\nbar.warp.sync 0xffffffff;";
    assert_eq!(warp(halves, &input), [[120; 16], [376; 16]].concat());
    assert_eq!(warp("mov.u32 %r9, %lanemask_le;", &input), (0..32).map(|i| all >> (31 - i)).collect::<Vec<_>>());
}

/// Threads of one warp that wait for each other by memory go on: one holds a lock while the others spin.
#[test]
fn a_lock_that_a_warp_shares() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<3>; \
                .reg .b32 %r<5>; .reg .pred %p<3>;\nld.param.u64 %rd1, [p];\nSPIN:\n\
                atom.acquire.gpu.global.cas.b32 %r1, [%rd1], 0, 1;\nsetp.ne.s32 %p1, %r1, 0;\n@%p1 nanosleep.u32 20;\n\
                @%p1 bra SPIN;\nld.global.u32 %r2, [%rd1+4];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%rd1+4], %r2;\n\
                membar.gl;\nst.release.gpu.global.u32 [%rd1], 0;\nred.global.add.u32 [%rd1+8], 2;\nret;\n}\n";
    for seed in 0..10 {
        let mut gpu = Gpu::load(&[text]);
        let buffer = gpu.buffer(&[0_u32; 3]);
        gpu.launch_with("k", [4, 1, 1], [64, 1, 1], &[buffer], 0, seed, FUEL).unwrap();
        assert_eq!(gpu.read::<u32>(buffer), [0, 256, 512]);
    }
}

/// Threads that race come in an order that the seed chooses: the same one each time.
#[test]
fn a_seed_repeats_the_order_of_a_race_and_others_make_others() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<4>; \
                .reg .b32 %r<3>;\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\natom.global.add.u32 %r2, [%rd1], 1;\n\
                mul.wide.u32 %rd2, %r2, 4;\nadd.u64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3+4], %r1;\nret;\n}\n";
    let order = |seed| {
        let mut gpu = Gpu::load(&[text]);
        let buffer = gpu.buffer(&[0_u32; 65]);
        gpu.launch_with("k", [1; 3], [64, 1, 1], &[buffer], 0, seed, FUEL).unwrap();
        gpu.read::<u32>(buffer)[1..].to_vec()
    };
    let mut all: Vec<_> = (0..20).map(order).collect();
    for (seed, first) in all.iter().enumerate() {
        assert_eq!(order(seed as u64), *first, "seed {seed}");
        let mut threads = first.clone();
        threads.sort_unstable();
        assert_eq!(threads, (0..64).collect::<Vec<_>>(), "each came once");
    }
    all.sort_unstable();
    all.dedup();
    assert!(all.len() > 1);
}

/// A host whose time goes on only while all threads sleep.
#[derive(Default)]
struct Sleeping {
    now: u64,
    slept: Vec<u32>,
}

impl Host for Sleeping {
    fn now(&mut self) -> u64 {
        self.now
    }

    fn idle(&mut self, nanoseconds: u32) {
        self.now += u64::from(nanoseconds);
        self.slept.push(nanoseconds);
    }
}

/// The host has the core while all threads that could run sleep, for as long as the first of them does. One thread runs
/// without sleep until the others have slept, one waits at the barrier for all.
#[test]
fn the_host_rests_while_all_threads_sleep() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 busy)\n{\n.reg .b64 %rd<3>; .reg \
                .b32 %r<5>; .reg .pred %p<3>;\nld.param.u32 %r3, [busy];\nmov.u32 %r1, %tid.x;\nsetp.gt.u32 %p1, %r1, 1;\n\
                @%p1 bra END;\nmad.lo.s32 %r2, %r1, 400, 500;\nSPIN:\nsub.u32 %r3, %r3, 1;\nsetp.lt.s32 %p2, %r3, 0;\n\
                @%p2 nanosleep.u32 %r2;\nmov.u64 %rd1, %globaltimer;\nsetp.lt.u64 %p1, %rd1, 10000;\n@%p1 bra SPIN;\nEND:\n\
                bar.sync 0;\nret;\n}\n";
    for busy in [0_u32, 5000] {
        let modules = [Module::parse(text).unwrap()];
        let mut device = Device::new(Program::link(&modules).unwrap());
        let params = busy.to_le_bytes();
        let launch =
            Launch { kernel: "k", grid: [1; 3], block: [3, 1, 1], shared: 0, params: &params, seed: 1, fuel: FUEL };
        let mut host = Sleeping::default();
        let ran = device.launch(&mut Allocations::default(), &launch, &mut host).unwrap();
        assert_eq!(host.slept, [500; 20]);
        assert!(ran.instructions > u64::from(busy) * 6 && ran.instructions < u64::from(busy) * 24 + 2000, "{ran:?}");
    }
}

/// Barriers of a part of the threads, and what they reduce.
#[test]
fn barriers_count_and_pass_on() {
    // The first 32 threads only say that they are ready, the other 32 wait for them; then all count.
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<4>; \
                .reg .b32 %r<9>; .reg .pred %p<5>; .shared .u32 said;\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\n\
                mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd1, %rd1, %rd2;\nsetp.lt.u32 %p1, %r1, 32;\n@!%p1 bra WAIT;\n\
                atom.shared.add.u32 %r2, [said], 1;\nbar.arrive 3, 64;\nmov.u32 %r2, 0;\nbra ALL;\nWAIT:\nbar.sync 3, 64;\n\
                ld.shared.u32 %r2, [said];\nALL:\nbar.red.popc.u32 %r3, 0, %p1;\nbar.red.and.pred %p2, 0, %p1;\n\
                bar.red.or.pred %p3, 0, %p1;\nselp.u32 %r4, 1000, 0, %p2;\nselp.u32 %r5, 2000, 0, %p3;\n\
                add.u32 %r2, %r2, %r3;\nadd.u32 %r2, %r2, %r4;\nadd.u32 %r2, %r2, %r5;\nst.global.u32 [%rd1], %r2;\nret;\n}\n";
    for seed in 0..10 {
        let mut gpu = Gpu::load(&[text]);
        let buffer = gpu.buffer(&[0_u32; 64]);
        gpu.launch_with("k", [1; 3], [64, 1, 1], &[buffer], 0, seed, FUEL).unwrap();
        assert_eq!(gpu.read::<u32>(buffer), [[2032; 32], [2064; 32]].concat());
    }
}

#[test]
fn blocks_wait_for_each_other_and_clocks_go_on() {
    // The first block waits until the last has written; all run at the same time.
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<9>; \
                .reg .b32 %r<9>; .reg .pred %p<5>;\nld.param.u64 %rd1, [p];\nmov.u64 %rd2, %globaltimer;\nmov.u32 %r1, %ctaid.y;\n\
                setp.eq.u32 %p1, %r1, 7;\n@%p1 bra LAST;\nL: ld.acquire.gpu.u32 %r2, [%rd1];\nsetp.eq.u32 %p2, %r2, 0;\n\
                @%p2 bra L;\nmov.u64 %rd3, %globaltimer;\nsetp.gt.u64 %p3, %rd3, %rd2;\n@!%p3 trap;\nmov.u64 %rd4, %clock64;\n\
                st.global.u64 [%rd1+8], %rd4;\nret;\nLAST:\nst.release.sys.u32 [%rd1], 1;\nret;\n}\n";
    let mut gpu = Gpu::load(&[text]);
    let buffer = gpu.buffer(&[0_u64; 2]);
    let ran = gpu.launch("k", [1, 8, 1], [1; 3], &[buffer]).unwrap();
    let [done, clock] = gpu.read::<u64>(buffer)[..] else { panic!() };
    assert!(done == 1 && clock > 10 && clock <= ran.instructions);
}

/// What a launch leaves in the memory that it shares with the next one is not found there.
#[test]
fn a_scratch_passes_nothing_on() {
    let head = ".version 7.8\n.target sm_80\n.address_size 64\n";
    // All that there is of a thread and a block is filled; each thread ends within a call.
    let fills = format!(
        "{head}.func ends() {{\n.local .align 8 .b64 l[8]; .reg .b64 %rd<3>;\nmov.u64 %rd1, -1;\nst.local.u64 [l+56], %rd1;\nexit;\n}}\n\
         .visible .entry k() {{\n.local .align 8 .b64 l[8]; .shared .align 8 .b64 s[64]; .reg .b64 %rd<9>; .reg .b32 %r<3>;\n\
         mov.u32 %r1, %tid.x;\nmov.u64 %rd1, s;\nmul.wide.u32 %rd2, %r1, 8;\nadd.u64 %rd1, %rd1, %rd2;\nmov.u64 %rd3, -1;\n\
         mov.u64 %rd4, -1;\nmov.u64 %rd5, -1;\nmov.u64 %rd6, -1;\nmov.u64 %rd7, -1;\nst.shared.u64 [%rd1], %rd3;\n\
         st.local.u64 [l], %rd3;\nst.local.u64 [l+56], %rd3;\nbar.sync 0;\ncall.uni ends;\nret;\n}}\n"
    );
    let finds = format!(
        "{head}.visible .entry k(.param .u64 p) {{\n.local .align 8 .b64 l[8]; .shared .align 8 .b64 s[64]; .reg .b64 %rd<9>; \
         .reg .b32 %r<3>;\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 8;\nadd.u64 %rd1, %rd1, %rd2;\n\
         mov.u64 %rd3, s;\nadd.u64 %rd3, %rd3, %rd2;\nld.shared.u64 %rd3, [%rd3];\nor.b64 %rd4, %rd4, %rd3;\n\
         or.b64 %rd4, %rd4, %rd5;\nor.b64 %rd4, %rd4, %rd6;\nor.b64 %rd4, %rd4, %rd7;\nld.local.u64 %rd3, [l];\n\
         or.b64 %rd4, %rd4, %rd3;\nld.local.u64 %rd3, [l+56];\nor.b64 %rd4, %rd4, %rd3;\nbar.sync 0;\nadd.u64 %rd4, %rd4, 1;\n\
         st.global.u64 [%rd1], %rd4;\nret;\n}}\n"
    );
    let (mut scratch, mut filling, mut finding) = (Scratch::default(), Gpu::load(&[&fills]), Gpu::load(&[&finds]));
    for (before, threads) in [(64, 64), (1, 64), (40, 33), (64, 1)] {
        let shape = |threads, params| Launch {
            kernel: "k",
            grid: [1; 3],
            block: [threads, 1, 1],
            shared: 0,
            params,
            seed: 1,
            fuel: FUEL,
        };
        let Gpu { device, memory } = &mut filling;
        let ran = device.launch_in(&mut scratch, memory, &shape(before, &[]), &mut || 0).unwrap();
        assert_eq!(ran.threads, u64::from(before));
        let found = finding.buffer(&[0_u64; 64]);
        let Arg::Pointer(at) = found else { panic!("a buffer") };
        let params = at.to_le_bytes();
        let Gpu { device, memory } = &mut finding;
        let ran = device.launch_in(&mut scratch, memory, &shape(threads, &params), &mut || 0).unwrap();
        assert!(finding.read::<u64>(found)[..threads as usize].iter().all(|one| *one == 1), "{before}, {threads}");
        let Gpu { device, memory } = &mut finding;
        let alone = device.launch(memory, &shape(threads, &params), &mut || 0).unwrap();
        assert_eq!(ran, alone, "{before}, {threads}");
    }
}

/// Memory that writes down what it is asked for.
struct Recorder {
    memory: Allocations,
    seen: Vec<(&'static str, u8, Order)>,
}

impl Memory for Recorder {
    fn load(&mut self, at: u64, width: Width, order: Order) -> Result<u64, Refused> {
        self.seen.push(("load", width.bytes(), order));
        self.memory.load(at, width, order)
    }

    fn store(&mut self, at: u64, width: Width, value: u64, order: Order) -> Result<(), Refused> {
        self.seen.push(("store", width.bytes(), order));
        self.memory.store(at, width, value, order)
    }

    fn update(&mut self, at: u64, width: Width, order: Order, f: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        self.seen.push(("update", width.bytes(), order));
        self.memory.update(at, width, order, f)
    }

    fn fence(&mut self, order: Order) {
        self.seen.push(("fence", 0, order));
    }
}

/// What an instruction orders, and among whom, is what the memory is told.
#[test]
fn the_memory_hears_the_order_of_every_access() {
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<3>; \
                .reg .b32 %r<5>; .reg .b16 %rs<3>;\nld.param.u64 %rd1, [p];\nld.acquire.sys.global.u64 %rd2, [%rd1];\n\
                st.release.sys.u32 [%rd1], 1;\nld.volatile.u8 %rs1, [%rd1];\nld.relaxed.gpu.u16 %rs1, [%rd1];\n\
                fence.acq_rel.sys;\nfence.sc.cta;\nmembar.gl;\natom.add.u32 %r1, [%rd1], 1;\n\
                red.release.sys.global.add.u32 [%rd1], 1;\natom.acq_rel.cta.cas.b16 %rs1, [%rd1], %rs1, %rs2;\n\
                ld.global.v2.u32 {%r1, %r2}, [%rd1];\nret;\n}\n";
    let module = Module::parse(text).unwrap();
    let mut device = Device::new(Program::link(&[module]).unwrap());
    let mut recorder = Recorder { memory: Allocations::default(), seen: Vec::new() };
    let params = recorder.memory.allocate(vec![0; 8]).to_le_bytes();
    let launch = Launch { kernel: "k", grid: [1; 3], block: [1; 3], shared: 0, params: &params, seed: 1, fuel: FUEL };
    device.launch(&mut recorder, &launch, &mut || 0).unwrap();
    let order = |semantics, scope| Order { semantics, scope };
    assert_eq!(
        recorder.seen,
        [
            ("load", 8, order(Semantics::Acquire, Scope::System)),
            ("store", 4, order(Semantics::Release, Scope::System)),
            ("load", 1, order(Semantics::Relaxed, Scope::System)),
            ("load", 2, order(Semantics::Relaxed, Scope::Device)),
            ("fence", 0, order(Semantics::AcquireRelease, Scope::System)),
            ("fence", 0, order(Semantics::Sequential, Scope::Block)),
            ("fence", 0, order(Semantics::Sequential, Scope::Device)),
            ("update", 4, order(Semantics::Relaxed, Scope::Device)),
            ("update", 4, order(Semantics::Release, Scope::System)),
            ("update", 2, order(Semantics::AcquireRelease, Scope::Block)),
            ("load", 4, Order::WEAK),
            ("load", 4, Order::WEAK),
        ]
    );
}
