//! Each command's list of packages against the programs that its code calls.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{FOR_BENCH, FOR_DEMO, FOR_LAB, FOR_PACKAGE, FOR_TEST};
use crate::sh::{cmd, root};

/// Programs that are called, and the packages that bring them.
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("clang-14", "clang-14"),
    ("depmod", "kmod"),
    ("dpdk-testpmd", "dpdk-dev"),
    ("dpkg-gencontrol", "dpkg-dev"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("ethtool", "ethtool"),
    ("fi_pingpong", "libfabric-bin"),
    ("g++", "g++"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("kill", "procps"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("modprobe", "kmod"),
    ("mount", "mount"),
    ("nm", "binutils"),
    ("openssl", "openssl"),
    ("pgrep", "procps"),
    ("pkg-config", "pkg-config"),
    ("python3", "python3"),
    ("strip", "binutils"),
    ("tcpdump", "tcpdump"),
    ("umount", "mount"),
    ("valgrind", "valgrind"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// Of packages that every Debian has: essential ones, apt and what those contain.
const EVERYWHERE: &[&str] = &[
    "apt-get",
    "base64",
    "bash",
    "chmod",
    "date",
    "dd",
    "dpkg-deb",
    "dpkg-query",
    "env",
    "fallocate",
    "gzip",
    "id",
    "mkfifo",
    "script",
    "setpriv",
    "sh",
    "sleep",
    "stdbuf",
    "tar",
    "taskset",
    "timeout",
    "unshare",
];

/// Programs that start the one which stands behind their options.
const STARTERS: &[&str] = &["taskset", "stdbuf", "timeout", "setpriv", "unshare", "env"];

/// In how many lines the arguments of such a program are looked for.
const NEAR: usize = 6;

/// What `setup` itself calls where it is there, or is the tool chain.
const NOT_OURS: &[&str] = &["sudo", "cargo", "rustc", "rustup", "berth"];

fn sources(at: &Path, found: &mut Vec<PathBuf>) {
    if at.is_dir() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("target") {
                sources(&path, found);
            }
        }
    } else if at.extension().is_some_and(|extension| extension == "rs") {
        found.push(at.to_path_buf());
    }
}

/// The string literals at the start of `text`.
fn literals(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).step_by(2)
}

/// The programs that this source calls.
fn calls(text: &str) -> BTreeSet<String> {
    let mut called = BTreeSet::new();
    for start in ["Command::new(\"", " cmd(\"", "(cmd(\"", "mut cmd(\"", " run(\"", "(run(\""] {
        for (at, _) in text.match_indices(start) {
            let Some(program) = literals(&text[at..]).next() else { continue };
            called.insert(program.to_owned());
            if STARTERS.contains(&program) {
                // Its arguments stand with it, or in the statements behind.
                let near: Vec<_> = text[at..].lines().take(NEAR).collect();
                let near = near.join("\n");
                let known = |word: &&str| PROGRAMS.iter().any(|(name, _)| name == word);
                called.extend(literals(&near).find(known).map(str::to_owned));
            }
        }
    }
    let name = |word: &String| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    called.into_iter().filter(name).filter(|name| !NOT_OURS.contains(&name.as_str())).collect()
}

/// What a command installs.
type Lists = [&'static [&'static str]];

#[test]
fn every_command_installs_what_it_calls() {
    let tests = ["appliance", "dataplane", "drivers", "perf", "xtask/src/test"];
    let commands: [(&str, &Lists, &[&str]); 5] = [
        ("demo", FOR_DEMO, &["xtask/src/demo.rs", "drivers/process/src"]),
        ("test", FOR_TEST, &tests),
        ("lab", FOR_LAB, &["xtask/src/lab"]),
        ("package", FOR_PACKAGE, &["xtask/src/package"]),
        ("bench", FOR_BENCH, &["xtask/src/bench", "drivers/process/src", "xtask/src/setup.rs"]),
    ];
    let mut wrong = Vec::new();
    let mut all = BTreeSet::new();
    for (command, lists, places) in commands {
        let listed = lists.concat();
        let mut files = Vec::new();
        for place in places {
            sources(&root().join(place), &mut files);
        }
        assert!(!files.is_empty(), "{command}");
        for program in files.iter().flat_map(|file| calls(&fs::read_to_string(file).unwrap())) {
            match PROGRAMS.iter().find(|(name, _)| *name == program) {
                Some((_, package)) if listed.contains(package) => {}
                Some((_, package)) => wrong.push(format!("{command} calls {program} and does not install {package}")),
                None if EVERYWHERE.contains(&program.as_str()) => {}
                None => wrong.push(format!("{command} calls {program}: say in this test which package brings it")),
            }
            all.insert(program);
        }
    }
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for program in ["dpdk-testpmd", "fi_pingpong", "iperf3", "openssl", "ip"] {
        assert!(all.contains(program), "{program} is not found among {all:?}");
    }
}

/// The packages that the file of a program belongs to, or those that its symbolic links do.
fn owners(program: &str) -> Option<Vec<String>> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(Path::new);
    let mut file = folders.iter().map(|folder| folder.join(program)).find(|file| file.exists())?;
    let mut owners = Vec::new();
    loop {
        // Of a Debian whose /bin is /usr/bin, packages may still say /bin.
        let short = file.strip_prefix("/usr").map_or_else(|_| file.clone(), |rest| Path::new("/").join(rest));
        for name in [&file, &short] {
            let told = cmd("dpkg", ["-S"]).arg(name).output().ok()?.stdout;
            for line in String::from_utf8_lossy(&told).lines() {
                owners.extend(line.split(':').next().map(str::to_owned));
            }
        }
        match fs::read_link(&file) {
            Ok(to) => file = file.parent()?.join(to),
            Err(_) => return Some(owners),
        }
    }
}

/// Where a program is installed, it is of the package that is said to bring it.
#[test]
fn programs_are_of_the_packages_that_are_said_to_bring_them() {
    if !Path::new("/usr/bin/dpkg").exists() {
        return;
    }
    for (program, package) in PROGRAMS {
        // A program that no package owns was put there by hand.
        let Some(owners) = owners(program).filter(|owners| !owners.is_empty()) else { continue };
        // Packages that have no files and depend on the one which has them.
        let stands_for = |owner: &str| {
            matches!((*package, owner), ("pkg-config", "pkgconf" | "pkgconf-bin") | ("python3", "python3-minimal"))
        };
        let is = owners.iter().any(|owner| owner == package || stands_for(owner));
        assert!(is, "{program} is of {owners:?}, not of {package}");
    }
}

#[test]
fn calls_are_found_where_they_stand() {
    let found = calls(
        r#"
        let mut a = cmd("taskset", ["-c", CPU, "iperf3", "-s"]);
        run(&mut cmd("cc", ["-o", &out]))?;
        let mut b = Command::new("stdbuf");
        b.args(["-oL", "dpdk-testpmd"]);
        assert!(run("ip", "link"));
        Command::new("target/release/berth").arg("x");
        "#,
    );
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["cc", "dpdk-testpmd", "ip", "iperf3", "stdbuf", "taskset"]);
}
