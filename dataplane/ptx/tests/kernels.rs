//! Kernels that clang compiled, against what they should compute.

mod common;

use std::{fs, path::Path, process::Command};

use common::{Arg, Gpu};

macro_rules! kernel {
    ($name:literal) => {
        include_str!(concat!("kernels/", $name, ".ptx"))
    };
}

/// Numbers without a pattern.
fn random(count: usize) -> Vec<u32> {
    let mut state = 0x1234_5678_u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..count).map(next).collect()
}

#[test]
fn the_texts_are_what_clang_makes_of_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    let mut sources = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let source = entry.unwrap().path();
        if source.extension().is_none_or(|extension| extension != "cu") {
            continue;
        }
        let options = ["-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=sm_70"];
        let mut clang = Command::new("clang-14");
        clang
            .args(options)
            .args(["-Xclang", "-target-feature", "-Xclang", "+ptx63", "-O2", "-S", "-o", "-"])
            .arg(&source);
        let made = clang.output().expect("clang-14, which `cargo xtask setup` installs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let committed = fs::read_to_string(source.with_extension("ptx")).unwrap();
        assert_eq!(String::from_utf8(made.stdout).unwrap(), committed, "{}", source.display());
        sources += 1;
    }
    assert_eq!(sources, 7);
}

#[test]
fn vectors_are_added() {
    let mut gpu = Gpu::load(&[kernel!("vadd")]);
    let a: Vec<f32> = (0..1000_u16).map(|i| f32::from(i) * 0.1).collect();
    let b: Vec<f32> = (0..1000_u16).map(|i| 1e6 - f32::from(i)).collect();
    let (x, y, z) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&[0_f32; 1000]));
    let statistics = gpu.run("vadd", 8, 128, &[x, y, z, Arg::Int(1000)]);
    let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(gpu.read::<f32>(z), sums);
    // 7 instructions to the branch, 14 more of the 1000, and `ret`.
    assert_eq!((statistics.threads, statistics.instructions), (1024, 1024 * 8 + 1000 * 14));
}

#[test]
fn matrices_are_multiplied_tile_by_tile() {
    let n = 48_usize;
    let mut gpu = Gpu::load(&[kernel!("matmul")]);
    let small = |values: Vec<u32>| values.into_iter().map(|x| (x % 2048) as f32 / 64.0 - 16.0).collect::<Vec<f32>>();
    let a = small(random(n * n));
    let b = small(random(2 * n * n)[n * n..].to_vec());
    let (x, y, z) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&vec![0_f32; n * n]));
    gpu.launch("matmul", [3, 3, 1], [16, 16, 1], &[x, y, z, Arg::Int(n as u32)]).unwrap();
    let cell = |at: usize| (0..n).fold(0_f32, |sum, k| a[at / n * n + k].mul_add(b[k * n + at % n], sum));
    assert_eq!(gpu.read::<f32>(z), (0..n * n).map(cell).collect::<Vec<_>>());
}

#[test]
fn blocks_are_reduced_by_shuffles_whatever_the_order() {
    let values: Vec<i32> = random(1000).into_iter().map(|x| x as i32 >> 8).collect();
    let sums: Vec<i32> = values.chunks(256).map(|block| block.iter().sum()).collect();
    let mut counts = Vec::new();
    for seed in 0..20 {
        let mut gpu = Gpu::load(&[kernel!("reduce")]);
        let (x, y) = (gpu.buffer(&values), gpu.buffer(&[0_i32; 4]));
        let args = [x, y, Arg::Int(1000)];
        let ran = gpu.launch_with("reduce", [4, 1, 1], [256, 1, 1], &args, 0, seed, common::FUEL).unwrap();
        assert_eq!(gpu.read::<i32>(y), sums, "seed {seed}");
        counts.push(ran.instructions);
    }
    // What is run does not depend on who is first.
    counts.dedup();
    assert_eq!(counts.len(), 1);
}

#[test]
fn bytes_are_counted_with_atomics() {
    let bytes: Vec<u8> = random(50_000).into_iter().map(|x| (x >> 3 & x >> 12) as u8).collect();
    let mut gpu = Gpu::load(&[kernel!("histogram")]);
    let (x, y) = (gpu.buffer(&bytes), gpu.buffer(&[0_i32; 256]));
    gpu.run("histogram", 6, 96, &[x, Arg::Int(50_000), y]);
    let mut counts = vec![0; 256];
    for byte in bytes {
        counts[usize::from(byte)] += 1;
    }
    assert_eq!(gpu.read::<i32>(y), counts);
}

#[test]
fn handlers_are_called_through_their_table() {
    let (count, stride) = (64_usize, 32_usize);
    let which: Vec<u32> = random(count).into_iter().map(|x| x % 3).collect();
    let input: Vec<u8> = random(count * stride).into_iter().map(|x| x as u8).collect();
    let mut gpu = Gpu::load(&[kernel!("dispatch")]);
    let (a, b) = (gpu.buffer(&which), gpu.buffer(&input));
    let (c, d) = (gpu.buffer(&vec![0_u8; count * stride]), gpu.buffer(&vec![0_i32; count]));
    let len = 20;
    gpu.run("dispatch", 2, 32, &[a, b, c, d, Arg::Int(len), Arg::Int(stride as u32)]);
    let (mut output, mut results) = (vec![0_u8; count * stride], Vec::new());
    for (i, which) in which.iter().enumerate() {
        let (request, answer) = (&input[i * stride..][..len as usize], &mut output[i * stride..][..stride]);
        results.push(if *which == 2 { 8 } else { len as i32 });
        match which {
            0 => request.iter().zip(answer).for_each(|(byte, answer)| *answer = byte.wrapping_add(1)),
            1 => request.iter().rev().zip(answer).for_each(|(byte, answer)| *answer = *byte),
            _ => answer[..8].copy_from_slice(&(1000 + i as u64).to_le_bytes()),
        }
    }
    assert_eq!(gpu.read::<i32>(d), results);
    assert_eq!(gpu.read::<u8>(c), output);
}

#[test]
fn doubles_are_those_of_the_host() {
    let x: Vec<f64> = random(200).into_iter().map(|x| f64::from(x) / 3e8 + 1e-3).collect();
    let mut gpu = Gpu::load(&[kernel!("doubles")]);
    let (a, b, c) = (gpu.buffer(&x), gpu.buffer(&[0_f64; 200]), gpu.buffer(&[0_f64; 200]));
    let d = gpu.buffer(&[0_i32; 200]);
    gpu.run("doubles", 4, 64, &[a, b, c, d, Arg::Int(200)]);
    let (mut roots, mut polynomials, mut rounded) = (Vec::new(), Vec::new(), Vec::new());
    for x in x {
        roots.push((0..40).fold(x / 2.0 + 0.5, |guess, _| f64::midpoint(guess, x / guess)));
        // clang contracts these to fused multiply-adds, as nvcc does.
        let sum = (1..=8).rev().fold(0.0, |sum: f64, k| sum.mul_add(x, 1.0 / f64::from(k)));
        polynomials.push(if x > 1.0 { -sum } else { sum });
        rounded.push((x * 1000.0) as i32 + sum as f32 as i32);
    }
    assert_eq!(gpu.read::<f64>(b), roots);
    assert_eq!(gpu.read::<f64>(c), polynomials);
    assert_eq!(gpu.read::<i32>(d), rounded);
}

#[test]
fn a_loop_of_integers_ends_where_the_host_does() {
    let mut gpu = Gpu::load(&[kernel!("loop")]);
    let out = gpu.buffer(&[0_u32; 64]);
    gpu.run("loop", 2, 32, &[out, Arg::Int(1000)]);
    let host = |thread: u32| {
        (0..1000).fold(thread + 1, |mut x, i| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.wrapping_add(i)
        })
    };
    assert_eq!(gpu.read::<u32>(out), (0..64).map(host).collect::<Vec<_>>());
}
