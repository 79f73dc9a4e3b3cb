//! The dispatcher on the software device, and on CUDA devices by a driver in software, over rings that this process fills at
//! the same time.

mod beats;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod escape;
mod in_place;
mod nvidia;
mod rewritten;
mod session;
mod vram;

use std::{fs, path::Path, process::Command};

use berth_gpu::{Code, Function, Functions};
use berth_ring::{ErrorCode, TxError};
use common::{BOTH, On, Rig, WORKER, increment, module, symbol};

/// Functions and graphs of all kinds.
const EXAMPLE: &str = include_str!("../../kernels/example.ptx");

/// What other tests start as a worker.
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_some() {
        berth_gpu::worker::main();
    }
}

#[test]
fn the_texts_are_what_clang_makes_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    for kernel in ["dispatch", "handlers", "example", "../../../perf/baselines/cuda_bare"] {
        let made = Command::new("clang-14")
            .args(["-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=sm_70"])
            .args(["-Xclang", "-target-feature", "-Xclang", "+ptx63", "-O2", "-S", "-o", "-"])
            .arg(folder.join(format!("{kernel}.cu")))
            .output()
            .expect("clang-14, which `cargo xtask setup` installs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let committed = fs::read_to_string(folder.join(format!("{kernel}.ptx"))).unwrap();
        assert_eq!(String::from_utf8(made.stdout).unwrap(), committed, "{kernel}");
    }
}

#[test]
fn requests_are_answered_in_place_over_many_laps() {
    for on in BOTH {
        for (nth, blocks) in [(0, 1), (1, 4)] {
            let mut rig = Rig::new(on, nth, 64, 256, blocks);
            assert_eq!(
                rig.load(&Functions { all: vec![increment(0x191B_6322)], modules: vec![], lost: false }),
                "loaded"
            );
            rig.increments(0x191B_6322, if on == On::Soft { 2000 } else { 400 });
            assert_eq!(rig.producer.stats().unanswered, 0);
        }
    }
}

#[test]
fn what_cannot_be_called_is_told() {
    for on in BOTH {
        let mut rig = Rig::new(on, 2, 4, 64, 1);
        let exact = Function { fixed: 8, unit: 0, ..increment(2) };
        let words = Function { fixed: 1, unit: 4, ..increment(3) };
        let all = vec![increment(1), exact, words, symbol(4, "answer", false)];
        assert_eq!(rig.load(&Functions { all, modules: vec![module(EXAMPLE)], lost: false }), "loaded");
        assert_eq!(rig.call(1, &[255, 7]), (0, vec![0, 8]));
        assert_eq!(rig.call(9, &[1]), (-1, vec![]), "no such function");
        assert_eq!(rig.call(2, &[1; 7]), (-3, vec![]));
        assert_eq!(rig.call(2, &[1; 8]), (0, vec![2; 8]));
        assert_eq!(rig.call(3, &[1; 4]), (-3, vec![]));
        assert_eq!(rig.call(3, &[1; 9]), (0, vec![2; 9]));
        assert_eq!(rig.call(3, &[]), (-3, vec![]));
        // As its arguments say: status, result_len.
        assert_eq!(rig.call(4, &[5, 3]), (5, vec![]), "a handler's own status");
        assert_eq!(rig.call(4, &[0, 3]), (0, vec![7; 3]));
        assert_eq!(rig.call(4, &[0, 40]), (0, vec![7; 40]));
        assert_eq!(rig.call(4, &[0, 41]), (-4, vec![]), "no room");
        assert_eq!(rig.call(4, &[255, 3]), (-6, vec![]), "negative statuses are not a handler's");
        // A length beyond the slot, a request that is none.
        rig.producer
            .push(|slot| {
                slot[..24].copy_from_slice(&[0x4355_5152, 1, 41, 8, 8, 0].map(u32::to_le_bytes).concat());
                24
            })
            .unwrap();
        assert_eq!(rig.answer(), Ok((8, -2, vec![])));
        rig.producer
            .push(|slot| {
                slot[..4].fill(0);
                24
            })
            .unwrap();
        assert_eq!(rig.answer(), Err(TxError::Tagged(ErrorCode::SLOT_REUSED)));
        assert_eq!(rig.call(1, &[1]), (0, vec![2]));
    }
}

#[test]
fn plug_ins_run_by_thread_and_by_block_beside_recorded_answers() {
    for on in BOTH {
        let mut rig = Rig::new(on, 3, 8, 1024, 2);
        let rows = ["0001aa", "0101bb", "0100cc"].concat();
        let mock = Code::MockDecode { measurements: 2, observables: 1, rows };
        let all = vec![
            symbol(1, "reverse", false),
            symbol(2, "sum_by_block", true),
            Function {
                id: 3,
                code: mock.clone(),
                parallel: false,
                graph: false,
                built_in: false,
                checks_length: false,
                fixed: 2,
                unit: 0,
            },
            Function {
                id: 4,
                code: Code::MockDecode { measurements: 1, observables: 2, rows: "07beef".into() },
                parallel: false,
                graph: false,
                built_in: false,
                checks_length: false,
                fixed: 1,
                unit: 0,
            },
        ];
        assert_eq!(rig.load(&Functions { all, modules: vec![module(EXAMPLE)], lost: false }), "loaded");
        assert_eq!(rig.call(1, &[1, 2, 3]), (0, vec![3, 2, 1]));
        let bytes: Vec<u8> = (0..=255).cycle().take(900).collect();
        let sum: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(rig.call(2, &bytes), (0, sum.to_le_bytes().to_vec()));
        for (asked, answer) in [([0, 1], 0xaa), ([1, 1], 0xbb), ([1, 0], 0xcc), ([0, 0], 0)] {
            assert_eq!(rig.call(3, &asked), (0, vec![answer]));
        }
        assert_eq!(rig.call(4, &[7]), (0, vec![0xbe, 0xef]));
        assert_eq!(rig.call(4, &[8]), (0, vec![0, 0]));
    }
}

#[test]
fn a_kernel_that_faults_ends_and_is_told() {
    for on in BOTH {
        let mut rig = Rig::new(on, 4, 4, 64, 1);
        let line = 1 + EXAMPLE.lines().position(|line| line.contains("trap;")).unwrap();
        assert_eq!(
            rig.load(&Functions { all: vec![symbol(1, "traps", false)], modules: vec![module(EXAMPLE)], lost: false }),
            "loaded"
        );
        rig.push(1, 1, &[1]);
        let fault = rig.next()["fault"].as_str().unwrap().to_owned();
        let told = match on {
            On::Soft => {
                fault.contains("thread (0, 0, 0), traps, ")
                    && fault.ends_with(&format!("line {line}: the kernel trapped"))
            }
            On::Cuda => fault == "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure",
        };
        assert!(told, "{fault}");
        assert_eq!(rig.producer.collect(1, |_, _| ()), 0, "its request is the one who restarts it's to answer");
    }
}

#[test]
fn new_functions_begin_when_all_that_was_asked_before_is_answered() {
    for on in BOTH {
        let mut rig = Rig::new(on, 5, 64, 64, 1);
        assert_eq!(rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false }), "loaded");
        for id in 0..50 {
            rig.push(1, id, &[id as u8]);
        }
        assert_eq!(rig.load(&Functions { all: vec![increment(2)], modules: vec![], lost: false }), "loaded");
        for id in 0..50 {
            assert_eq!(rig.answer(), Ok((id, 0, vec![id as u8 + 1])), "by the function of then");
        }
        assert_eq!(rig.call(1, &[1]), (-1, vec![]));
        assert_eq!(rig.call(2, &[1]), (0, vec![2]));
        rig.end();
    }
}

#[test]
fn functions_that_cannot_be_loaded_are_refused() {
    for on in BOTH {
        let mut rig = Rig::new(on, 6, 4, 64, 1);
        let functions = Functions {
            all: vec![symbol(1, "nothing", false)],
            modules: vec![module(".version 6.3\n.target sm_70\n.address_size 64\n")],
            lost: false,
        };
        let refused = rig.load(&functions)["refused"].as_str().unwrap().to_owned();
        assert!(refused.contains("\"nothing\" is declared as extern and no module defines it"), "{refused}");
    }
}

fn graph(id: u32, name: &str, parallel: bool) -> Function {
    Function { graph: true, ..symbol(id, name, parallel) }
}

#[test]
fn graphs_answer_by_themselves_and_have_no_say_in_the_protocol() {
    for on in BOTH {
        let mut rig = Rig::new(on, 7, 4, 64, 1);
        let exact = Function { fixed: 8, unit: 0, ..graph(3, "reverse_graph", false) };
        let all = vec![graph(1, "reverse_graph", false), graph(2, "reverse_graph", true), exact];
        let functions = Functions { all, modules: vec![module(EXAMPLE)], lost: false };
        assert_eq!(rig.load(&functions), "loaded");
        for id in 0..50 {
            let args: Vec<u8> = (0..id % 40).map(|at| at as u8).collect();
            let back: Vec<_> = args.iter().rev().copied().collect();
            assert_eq!(rig.call(1 + id % 2, &args), (0, back));
        }
        assert_eq!(rig.call(1, &[5, 1]), (5, vec![]), "a status of its own");
        assert_eq!(rig.call(1, &[254, 1]), (-6, vec![]), "negative statuses are not a graph's");
        assert_eq!(rig.call(1, &[100]), (100, vec![]));
        assert_eq!(rig.call(1, &[101]), (-4, vec![]), "a result beyond its room");
        assert_eq!(rig.call(9, &[1]), (-1, vec![]));
        assert_eq!(rig.call(3, &[0; 7]), (-3, vec![]));
        assert_eq!(rig.call(3, &[0; 8]), (0, vec![0; 8]));
        rig.push(1, 7, &[255]);
        assert_eq!(rig.answer(), Err(TxError::Tagged(ErrorCode::UNWOUND)), "it ended and answered nothing");
        rig.producer
            .push(|slot| {
                slot[..24].copy_from_slice(&[0x4355_5152, 1, 41, 8, 8, 0].map(u32::to_le_bytes).concat());
                24
            })
            .unwrap();
        assert_eq!(rig.answer(), Ok((8, -2, vec![])), "longer than the slot");
        rig.producer
            .push(|slot| {
                slot[..4].fill(0);
                24
            })
            .unwrap();
        assert_eq!(rig.answer(), Err(TxError::Tagged(ErrorCode::SLOT_REUSED)));

        // Another program, of calls; and back.
        for id in 0..3 {
            rig.push(1, id, &[0, id as u8]);
        }
        assert_eq!(rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false }), "loaded");
        for id in 0..3 {
            assert_eq!(rig.answer(), Ok((id, 0, vec![id as u8, 0])), "by the function of then");
        }
        assert_eq!(rig.call(1, &[1]), (0, vec![2]));
        let traps = Functions { all: vec![graph(1, "trapping_graph", false)], ..functions };
        assert_eq!(rig.load(&traps), "loaded");
        rig.push(1, 1, &[1]);
        let fault = rig.next()["fault"].as_str().unwrap().to_owned();
        let told = match on {
            On::Soft => fault.contains("trapping_graph, line") && fault.contains("the kernel trapped"),
            On::Cuda => fault == "CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure",
        };
        assert!(told, "{fault}");
    }
}

#[test]
fn graphs_are_checked() {
    let functions = |all| Functions { all, modules: vec![module(EXAMPLE)], lost: false };
    assert!(berth_gpu::check(&functions(vec![graph(1, "reverse_graph", true)])).is_empty());
    for (all, wanted) in [
        (vec![graph(1, "gone", true)], "\"gone\" is no kernel; mode = \"graph\" is for extern \"C\" __global__"),
        (vec![graph(1, "reverse", true)], "\"reverse\" is no kernel"),
        (vec![symbol(1, "reverse_graph", true)], "\"reverse_graph\" is a kernel; a handler is a __device__ function"),
        (vec![graph(1, "reverse_graph", true), increment(2)], "mode = \"graph\" is not beside other functions"),
    ] {
        let problems = berth_gpu::check(&functions(all));
        assert!(problems.len() == 1 && problems[0].to_string().contains(wanted), "{wanted}: {problems:?}");
    }
    let kernel = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u32 a)\n{\nret;\n}\n";
    let functions = Functions { all: vec![graph(1, "k", false)], modules: vec![module(kernel)], lost: false };
    assert_eq!(
        berth_gpu::check(&functions)[0].to_string(),
        "line 4: \"k\" takes [4] bytes; a graph's kernel takes a GraphIOContext*, [8]"
    );
    let mut rig = Rig::new(On::Soft, 8, 4, 64, 1);
    let mixed = vec![graph(1, "reverse_graph", true), increment(2)];
    let refused =
        rig.load(&Functions { all: mixed, modules: vec![module(EXAMPLE)], lost: false })["refused"].to_string();
    assert!(refused.contains("is not beside other functions"), "{refused}");
}
