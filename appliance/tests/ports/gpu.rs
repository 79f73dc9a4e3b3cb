//! `berth gpu` on the software GPU.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A kernel that clang compiled.
fn kernel(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dataplane/ptx/tests/kernels").join(name)
}

fn gpu(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("gpu").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = gpu(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command that fails says, and its status.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let output = gpu(args);
    assert!(!output.status.success(), "{args:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn check_names_kernels_functions_and_problems() {
    let file = kernel("dispatch.ptx");
    let report = json(&["check", file.to_str().unwrap()]);
    let names: Vec<_> =
        report["functions"].as_array().unwrap().iter().map(|one| [&one["kind"], &one["name"]]).collect();
    assert_eq!(
        json!(names),
        json!([["function", "increment"], ["function", "reverse"], ["function", "tell_id"], ["kernel", "dispatch"]])
    );
    let takes =
        |one: &Value| one["takes"].as_array().unwrap().iter().map(|param| param["bytes"].clone()).collect::<Value>();
    assert_eq!(takes(&report["functions"][0]), json!([8, 8, 4, 4, 8]));
    assert_eq!((&report["version"], &report["problems"]), (&json!("6.3"), &json!([])));

    let folder = TempDir::new().unwrap();
    let bad = folder.path().join("bad.ptx");
    let text = ".version 7.8\n.target sm_80\n.address_size 64\n.extern .func later;\n.visible .entry k()\n{\n.reg .b32 %r<2>;\n\
                wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1}, [%r1], 16;\nadd.s64 %r1, %r1, 1;\nret;\n}\n";
    fs::write(&bad, text).unwrap();
    let (status, said) = refused(&["check", bad.to_str().unwrap()]);
    let path = bad.display();
    assert_eq!(status, Some(2));
    assert_eq!(
        said,
        format!(
            "{path}:8: not covered by the software GPU: the instruction wmma\n    \
             wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {{%r1}}, [%r1], 16;\n\
             {path}:9: %r1 is a register of .b32; the instruction wants .s64\n    add.s64 %r1, %r1, 1;\n"
        )
    );
    fs::write(&bad, "\x7fELF").unwrap();
    let said = refused(&["check", bad.to_str().unwrap()]).1;
    assert_eq!(said, format!("{path}:1: this is no PTX: it does not begin with .version\n"));
}

#[test]
fn run_takes_numbers_and_buffers_and_gives_them_back() {
    let folder = TempDir::new().unwrap();
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    fs::write(&input, [1.5_f32, 2.0, -0.25, 8.0].map(f32::to_le_bytes).concat()).unwrap();
    let vadd = format!("{}#vadd", kernel("vadd.ptx").display());
    let [from, to] = [format!("@{}", input.display()), format!("2={}", output.display())];
    let args =
        ["run", &vadd, &from, "f32:1,0.5*2,100", "zero:16", "4", "--block", "4", "--print", "2=f32", "--out", &to];
    let report = json(&args);
    assert_eq!(report["buffers"], json!({ "2": [2.5, 2.5, 0.25, 108.0] }));
    assert_eq!((&report["threads"], &report["instructions"]), (&json!(4), &json!(4 * 22)));
    assert_eq!(fs::read(&output).unwrap(), [2.5_f32, 2.5, 0.25, 108.0].map(f32::to_le_bytes).concat());
    let text = String::from_utf8(gpu(&args).stdout).unwrap();
    assert!(text.starts_with("2  2.5 2.5 0.25 108.0\nkernel "), "{text}");
    // A range of integers, a negative number, and a kernel that need not be named.
    let file = kernel("reduce.ptx");
    let args = ["run", file.to_str().unwrap(), "s32:0..63,-1000", "zero:4", "64", "--block", "64", "--print", "1=s32"];
    assert_eq!(json(&args)["buffers"], json!({ "1": [62 * 63 / 2 - 1000] }));
}

#[test]
fn run_says_what_is_wrong() {
    let file = kernel("vadd.ptx");
    let file = file.to_str().unwrap();
    let run = |rest: &[&str]| refused(&[&["run", file], rest].concat()).1;
    assert_eq!(run(&["1"]), "berth: vadd takes 4 arguments, 1 are given\n");
    assert_eq!(
        run(&["zero:4", "zero:4", "zero:4", "x"]),
        "berth: argument 3: \"x\" is no number of u32: invalid digit found in string\n"
    );
    assert_eq!(
        run(&["zero:4", "zero:4", "zero:4", "-3000000000"]),
        "berth: argument 3: \"-3000000000\" is no number of u32\n"
    );
    assert_eq!(
        run(&["zero:4", "zero:4", "zero:4", "f32:1"]),
        "berth: argument 3: vadd_param_3 is of .u32, which no buffer's address fits\n"
    );
    assert_eq!(run(&["zero:4", "zero:4", "zero:4", "1", "--out", "3=x"]), "berth: argument 3 is no buffer\n");
    let beyond = run(&["zero:4", "zero:4", "zero:4", "2", "--block", "2"]);
    let fault = "block (0, 0, 0), thread (1, 0, 0), vadd, line 40: a read of 4 bytes at 0x100000004 (global), which the kernel \
                 may not touch";
    assert_eq!(beyond, format!("berth: {file}: {fault}\n"));
    let other = refused(&["run", &format!("{file}#other")]).1;
    assert_eq!(other, format!("berth: {file} has no kernel \"other\"; it has vadd\n"));
    let args = ["zero:4", "zero:4", "zero:4", "1", "--fuel", "10"];
    assert!(run(&args).contains("the launch ran all instructions that it may run"));
}

#[test]
fn run_links_what_another_file_defines() {
    let folder = TempDir::new().unwrap();
    let [first, second] = ["first.ptx", "second.ptx"].map(|name| folder.path().join(name));
    let head = ".version 6.3\n.target sm_70\n.address_size 64\n";
    let declared = "(.param .b32 r) twice(.param .b32 x)";
    let caller = format!(
        "{head}.extern .func {declared};\n.visible .entry k(.param .u64 out)\n{{\n.reg .b64 %rd<2>; .reg .b32 %r<2>;\n\
         .param .b32 x; .param .b32 y;\nst.param.b32 [x], 21;\ncall (y), twice, (x);\nld.param.b32 %r1, [y];\n\
         ld.param.u64 %rd1, [out];\nst.global.u32 [%rd1], %r1;\nret;\n}}\n"
    );
    let callee = format!(
        "{head}.visible .func {declared}\n{{\n.reg .b32 %r<2>;\nld.param.u32 %r1, [x];\nadd.s32 %r1, %r1, %r1;\n\
         st.param.b32 [r], %r1;\nret;\n}}\n"
    );
    fs::write(&first, caller).unwrap();
    fs::write(&second, callee).unwrap();
    let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());
    assert_eq!(json(&["check", first])["functions"][0]["kind"], "extern");
    let missing = refused(&["run", first, "zero:4"]);
    assert_eq!(missing.0, Some(2));
    assert!(missing.1.starts_with(&format!("{first}:4: \"twice\" is declared as extern and no module defines it")));
    let report = json(&["run", &format!("{first}#k"), "zero:4", "--link", second, "--print", "0=u32"]);
    assert_eq!(report["buffers"], json!({ "0": [42] }));
}

/// A command with NVIDIA's driver in software.
fn with_driver(args: &[&str]) -> Output {
    let folder = berth_cuda_soft::folder().unwrap();
    Command::new(env!("CARGO_BIN_EXE_berth")).args(args).env("LD_LIBRARY_PATH", folder).output().unwrap()
}

#[test]
fn kernels_run_on_a_gpu_of_nvidias() {
    let vadd = format!("{}#vadd", kernel("vadd.ptx").display());
    let args = ["f32:1,2,3,4", "f32:0.5*4", "zero:16", "4", "--block", "4", "--print", "2=f32", "--json"];
    let output = with_driver(&[&["gpu", "run", "--device", "5e:00.0", &vadd], &args[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["buffers"], json!({ "2": [1.5, 2.5, 3.5, 4.5] }));
    assert_eq!((&report["device"], &report["kernel"]), (&"0000:5e:00.0".into(), &"vadd".into()));

    let said = |args: &[&str]| {
        let output = with_driver(args);
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let strays = said(&["gpu", "run", "--device", "auto", &vadd, "f32:1", "f32:1", "zero:4", "2", "--block", "2"]);
    assert!(strays.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered"), "{strays}");
    let large = [&["gpu", "run", "--device", "auto", &vadd], &args[..4], &["--block", "2048"]].concat();
    let said = said(&large);
    assert!(said.contains("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1): invalid argument"), "{said}");
}

#[test]
fn doctor_tells_of_gpus_that_a_worker_can_have() {
    let output = with_driver(&["doctor", "--json"]);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let management = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "cuda driver").unwrap();
    assert_eq!(management["mend"], "apt-get install libnvidia-ml1", "{management}");
    let found = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "cuda 0000:5e:00.0").unwrap();
    let wanted =
        "GPU in software, GPU-22000000-0000-0000-0000-000000000000, 1024 MiB, capability 9.0, driver of CUDA 12.2";
    assert_eq!((&found["status"], &found["found"]), (&"ok".into(), &wanted.into()));
    let direct = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "cuda 0000:3b:00.0 gpudirect");
    let direct = &direct.unwrap()["found"];
    assert_eq!(direct, "network cards reach its memory by dma-bufs, and all GPUs see their writes in order");
}

/// NVIDIA's driver in software, but for the attributes that tell of network cards: a variable has each, or it is not known.
const ATTRIBUTES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const char *name = attribute == 116 ? "CUDA_RDMA" : attribute == 118 ? "CUDA_ORDER" : attribute == 124 ? "CUDA_DMA_BUF" : 0;
    if (!name) {
        int (*soft)(int *, int, int) = dlsym(RTLD_NEXT, "cuDeviceGetAttribute");
        return soft(value, attribute, device);
    }
    const char *told = getenv(name);
    if (told) *value = atoi(told);
    return told ? 0 : 1;
}
"#;

/// A folder with a library that is made from this C code, and linked to those of `with`.
fn library(name: &str, code: &str, with: &[&OsStr]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("stub.c"), folder.path().join(name));
    fs::write(&source, code).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"])
        .args([&library, &source])
        .args(with)
        .status()
        .unwrap();
    assert!(made.success());
    folder
}

/// The rows of `berth doctor` with these folders of libraries and variables: what is found, and what mends it.
fn rows(folders: &[&Path], variables: &[(&str, &str)]) -> impl Fn(&str) -> (String, Option<String>) + use<> {
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_berth"));
    doctor.args(["doctor", "--json"]).env("LD_LIBRARY_PATH", env::join_paths(folders).unwrap());
    let output = doctor.envs(variables.iter().copied()).output().unwrap();
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    move |what| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["what"] == what);
        let found = found.unwrap_or_else(|| panic!("no {what}: {findings:#}"));
        (found["found"].as_str().unwrap().to_owned(), found["mend"].as_str().map(str::to_owned))
    }
}

#[test]
fn doctor_tells_how_network_cards_reach_a_gpus_memory() {
    let soft = berth_cuda_soft::folder().unwrap();
    let beside = soft.parent().unwrap();
    let folder = library("libcuda.so.1", ATTRIBUTES, &[beside.join("libberth_cuda_soft.so").as_os_str()]);
    let row = |variables: &[(&str, &str)]| rows(&[folder.path(), beside], variables)("cuda 0000:3b:00.0 gpudirect");
    assert_eq!(row(&[]), ("the driver does not tell".to_owned(), None));
    let none = [("CUDA_RDMA", "0"), ("CUDA_DMA_BUF", "1")];
    let through = "network cards do not reach its memory: requests go through the host";
    assert_eq!(row(&none), (through.to_owned(), None));
    let peermem = "apt-get install nvidia-open-kernel-dkms, for Turing or later; else modprobe nvidia-peermem";
    let needs = "network cards need nvidia-peermem";
    for (variables, found, mend) in [
        (&[("CUDA_RDMA", "1")][..], format!("the driver does not tell of dma-bufs: {needs}"), Some(peermem)),
        (
            &[("CUDA_RDMA", "1"), ("CUDA_DMA_BUF", "0"), ("CUDA_ORDER", "100")],
            format!("the driver has no dma-bufs: {needs}, and it sees their writes in order"),
            Some(peermem),
        ),
        (
            &[("CUDA_RDMA", "1"), ("CUDA_DMA_BUF", "1"), ("CUDA_ORDER", "0")],
            "network cards reach its memory by dma-bufs, and it must flush before it reads what they wrote".into(),
            None,
        ),
    ] {
        assert_eq!(row(variables), (found, mend.map(str::to_owned)), "{variables:?}");
    }
}

/// A management library of two cards: one that does well, and one that does not.
const MANAGEMENT: &str = r#"
#include <string.h>
static int cards[2];
#define BAD (card == &cards[1])
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned len) { strncpy(text, "550.54.15", len); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **card) {
    *card = strcmp(id, "0000:3b:00.0") == 0 ? &cards[0] : &cards[1];
    return 0;
}
#define NUMBER(NAME, GOOD, WRONG) int NAME(void *card, unsigned *value) { *value = BAD ? WRONG : GOOD; return 0; }
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16, 4)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16, 16)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 1, 3)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5, 5)
NUMBER(nvmlDeviceGetPersistenceMode, 1, 0)
NUMBER(nvmlDeviceGetComputeMode, 0, 3)
int nvmlDeviceGetClockInfo(void *card, int type, unsigned *value) { *value = BAD ? 345 : 1755; return type != 1; }
int nvmlDeviceGetMaxClockInfo(void *card, int type, unsigned *value) { *value = 1980; return type != 1; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *card, unsigned long long *value) { *value = BAD ? 0x44 : 1; return 0; }
int nvmlDeviceGetEccMode(void *card, unsigned *now, unsigned *then) { *now = *then = 1; return 0; }
int nvmlDeviceGetMigMode(void *card, unsigned *now, unsigned *then) { *now = BAD; *then = 0; return 0; }
struct bar1 { unsigned long long all, unused, used; };
int nvmlDeviceGetBAR1MemoryInfo(void *card, struct bar1 *bar1) {
    bar1->all = (BAD ? 256ull : 2048ull) << 20, bar1->used = 4 << 20, bar1->unused = bar1->all - bar1->used;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *card, int type, int counter, unsigned long long *value) {
    *value = BAD ? 7 : 0;
    return type != 1 || counter != 0;
}
struct process { unsigned pid; unsigned long long memory; unsigned instance, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *count, struct process *all) {
    if (!BAD) { *count = 0; return 0; }
    if (*count < 2) return 7;
    all[0].pid = 41; all[1].pid = 42; *count = 2;
    return 0;
}
"#;

#[test]
fn doctor_tells_how_each_gpu_does() {
    let (soft, stub) = (berth_cuda_soft::folder().unwrap(), library("libnvidia-ml.so.1", MANAGEMENT, &[]));
    let find = rows(&[&soft, stub.path()], &[]);
    assert_eq!(find("cuda driver"), ("550.54.15, of CUDA 12.2".to_owned(), None));
    let idle = "(fewer while it is idle)";
    for (subject, well, ill, mend) in [
        (
            "link",
            format!("PCIe x16 of x16, generation 1 of 5 {idle}"),
            format!("PCIe x4 of x16, generation 3 of 5 {idle}"),
            "move the card to a slot that has all its lanes",
        ),
        (
            "clocks",
            "1755 of 1980 MHz".into(),
            "345 of 1980 MHz, held down by its power limit, its temperature".into(),
            "nvidia-smi -pl WATTS, as far as the card goes",
        ),
        (
            "memory",
            "errors are corrected".into(),
            "7 errors that could not be corrected".into(),
            "nvidia-smi -q -d ECC, and drain the card: its memory fails",
        ),
        ("persistence", "on".into(), "off: the first use takes seconds".into(), "nvidia-smi -pm 1"),
        ("compute mode", "default".into(), "one process: a second lease has none".into(), "nvidia-smi -c 0"),
        ("mig", "off".into(), "on, and off after the next reset".into(), "nvidia-smi --gpu-reset -i 0000:5e:00.0"),
        (
            "BAR1",
            "4 of 2048 MiB are in use".into(),
            "4 of 256 MiB are in use, and its memory has 1024 MiB".into(),
            "turn Above 4G Decoding and Resizable BAR on in the firmware",
        ),
        (
            "processes",
            "nobody's".into(),
            "41, 42: each waits for milliseconds while another one runs".into(),
            "a GPU for Berth alone, or MIG",
        ),
    ] {
        assert_eq!(find(&format!("cuda 0000:3b:00.0 {subject}")), (well, None));
        assert_eq!(find(&format!("cuda 0000:5e:00.0 {subject}")), (ill, Some(mend.to_owned())));
    }
    let stays = library("libnvidia-ml.so.1", &MANAGEMENT.replace("*then = 0;", "*then = BAD;"), &[]);
    let (found, mend) = rows(&[&soft, stays.path()], &[])("cuda 0000:5e:00.0 mig");
    assert_eq!(found, "on: a worker has the first instance, or the one in CUDA_VISIBLE_DEVICES of Berth's environment");
    assert_eq!(mend.as_deref(), Some("nvidia-smi -i 0000:5e:00.0 -mig 0, for the whole card"));
}
