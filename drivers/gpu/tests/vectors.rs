//! The golden vectors on one of NVIDIA's GPUs: what `run.sh` has a GPU work out, and here its driver in software.

#[path = "../../../dataplane/ptx/tests/common/mod.rs"]
mod common;
#[path = "../../../dataplane/ptx/tests/golden/mod.rs"]
mod golden;

use std::{env, fs, process::Command};

use berth_gpu::{Choice, Cuda, Device as _, Launch};
use golden::{VECTORS, groups, kernel};
use tempfile::TempDir;

/// The file for what the first GPU has worked out; without it no driver is opened.
const OUT: &str = "BERTH_VECTORS_OUT";

#[test]
fn a_gpu_works_out_what_the_manual_says() {
    let Some(out) = env::var_os(OUT) else { return };
    let mut gpu = Cuda::open(&Choice::Auto).unwrap();
    let (mut lines, mut wrong) = (String::new(), Vec::new());
    let most = groups().iter().map(Vec::len).max().unwrap();
    let (input, output) = (gpu.reserve(32 * most).unwrap(), gpu.reserve(8 * most).unwrap());
    for group in groups() {
        let program = gpu.load(&[&kernel(&group)]).unwrap();
        let operands: Vec<u8> = group.iter().flat_map(|case| case.operands).flat_map(u64::to_le_bytes).collect();
        let mut found = vec![0; 8 * group.len()];
        gpu.write(input, &operands).unwrap();
        gpu.write(output, &found).unwrap();
        let params = [input, output].map(u64::to_le_bytes).concat();
        let block = [group.len() as u32, 1, 1];
        let launch = Launch { kernel: "k".into(), grid: [1; 3], block, shared: 0, params, endless: false };
        gpu.launch(program, &launch).and_then(|()| gpu.wait()).unwrap();
        gpu.read(output, &mut found).unwrap();
        gpu.unload(program);
        for (case, found) in group.iter().zip(found.chunks_exact(8)) {
            let line = case.line(u64::from_le_bytes(found.try_into().unwrap()));
            if !case.is(u64::from_le_bytes(found.try_into().unwrap())) {
                wrong.push(format!("{}, not {}", line.trim_end(), case.result));
            }
            lines += &line;
        }
    }
    fs::write(out, lines).unwrap();
    assert!(wrong.is_empty(), "{} are others:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn its_driver_in_software_does() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("vectors.txt");
    let mut on_driver = Command::new(env::current_exe().unwrap());
    on_driver.args(["a_gpu_works_out_what_the_manual_says", "--exact"]).env(OUT, &out);
    let ended = on_driver.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    let (found, wanted) = (fs::read_to_string(out).unwrap(), VECTORS.lines());
    assert_eq!(found.lines().count(), wanted.clone().count());
    for (found, wanted) in found.lines().zip(wanted) {
        // A NaN has its bits.
        let is_nan = wanted.strip_suffix("nan").is_some_and(|rest| found.starts_with(rest));
        assert!(found == wanted || is_nan, "{found}, not {wanted}");
    }
}
