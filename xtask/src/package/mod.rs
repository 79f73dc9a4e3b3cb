//! `cargo xtask package`: the Debian packages, in `target/package`.
//!
//! Three of them: `berth-common` has all that does not depend on the processor; `berth` and `berth-full`, of which a host
//! has one, have the program without and with DPDK, RDMA and libfabric. Debian's own tools read the dependencies from
//! the program and write the archives; `systemd/debian` has what they want to be told.

mod copyright;

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{
    build::{DRIVERS, FEATURES},
    setup,
    sh::{cargo, cmd, output, run},
};

pub(crate) const FOLDER: &str = "target/package";
const UNITS: &str = "usr/lib/systemd/system";

/// Files of `berth-common` that are installed as they are.
const FILES: &[(&str, &str)] = &[
    ("systemd/berth.service", UNITS),
    ("systemd/berth@.service", UNITS),
    ("systemd/berth-tune.service", UNITS),
    ("systemd/berth-executor.service", UNITS),
    ("systemd/berth-executor.socket", UNITS),
    ("systemd/berth.slice", UNITS),
    ("systemd/10-sandbox.conf", "usr/lib/systemd/system/berth.service.d"),
    ("systemd/10-sandbox.conf", "usr/lib/systemd/system/berth@.service.d"),
    ("systemd/af-xdp.conf", "usr/share/doc/berth-common/examples"),
    ("systemd/nvmet.conf", "usr/share/doc/berth-common/examples"),
    ("systemd/packet.conf", "usr/share/doc/berth-common/examples"),
    ("systemd/60-berth.rules", "usr/lib/udev/rules.d"),
    ("systemd/sysusers.d/berth.conf", "usr/lib/sysusers.d"),
    ("systemd/tmpfiles.d/berth.conf", "usr/lib/tmpfiles.d"),
    ("systemd/back-off", "usr/lib/berth"),
];

/// Folders whose files `berth-common` has.
const FOLDERS: &[(&str, &str)] =
    &[("config/decoders", "usr/share/berth/models"), ("config/examples", "usr/share/doc/berth-common/examples")];

/// `cargo xtask package`: builds all, and says where they are.
pub(crate) fn command() -> Result<()> {
    for package in make()? {
        println!("{}", package.display());
    }
    Ok(())
}

/// Builds the packages and returns their files. The same commit makes the same bytes.
pub(crate) fn make() -> Result<Vec<PathBuf>> {
    setup::package()?;
    let work = Path::new(FOLDER).join("work");
    let _ = fs::remove_dir_all(FOLDER);
    fs::create_dir_all(work.join("debian"))?;
    fs::copy("systemd/debian/control", work.join("debian/control"))?;
    let epoch = epoch()?;
    let changelog = changelog(&epoch)?;
    fs::write(work.join("debian/changelog"), &changelog)?;

    // With the drivers along, the crates below have the same features in both and are built once. The full one last:
    // others find it in target/release.
    for (name, more) in [("berth", &DRIVERS[..]), ("berth-full", &["--features", FEATURES])] {
        run(cargo(["build", "--release", "--locked", "-p", "berth"]).args(more))?;
        let tree = work.join(name);
        // Tasklets are in the full one.
        let executor = (name == "berth-full").then_some("berth-executor");
        let programs = ["berth", "berth-gpu-worker"].into_iter().chain(executor);
        let programs: Vec<_> = programs.map(|program| tree.join("usr/bin").join(program)).collect();
        for program in &programs {
            let built = Path::new("target/release").join(program.file_name().context("a file")?);
            copy(&built, program, 0o755)?;
            run(cmd("strip", ["--strip-unneeded", "--remove-section=.comment"]).arg(program))?;
        }
        let program = &programs[0];
        let doc = tree.join("usr/share/doc").join(name);
        fs::create_dir_all(doc.parent().context("/usr/share/doc has a parent")?)?;
        symlink("berth-common", doc)?;
        let mut needs = cmd("dpkg-shlibdeps", [format!("-T{name}.substvars")]);
        run(needs.arg(program.strip_prefix(&work)?).current_dir(&work))?;
    }
    common(&work, &changelog)?;
    for name in ["berth-common", "berth", "berth-full"] {
        archive(name, &work, &epoch)?;
    }
    let entries = fs::read_dir(FOLDER)?.flatten().map(|entry| entry.path());
    let mut packages: Vec<_> = entries.filter(|path| path.extension() == Some(OsStr::new("deb"))).collect();
    packages.sort();
    Ok(packages)
}

/// Lays out what all hosts have.
fn common(work: &Path, changelog: &str) -> Result<()> {
    let tree = work.join("berth-common");
    for (from, to) in FILES {
        let from = Path::new(from);
        let executable =
            fs::metadata(from).with_context(|| from.display().to_string())?.permissions().mode() & 0o111 != 0;
        let mode = if executable { 0o755 } else { 0o644 };
        copy(from, &tree.join(to).join(from.file_name().context("a file has a name")?), mode)?;
    }
    for (from, to) in FOLDERS {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &tree.join(to).join(entry.file_name()), 0o644)?;
        }
    }
    for folder in ["etc/berth/conf.d", "usr/lib/berth/plugins"] {
        fs::create_dir_all(tree.join(folder))?;
    }
    let config = fs::read_to_string("config/berth.toml")?;
    write(&tree.join("etc/berth/berth.toml"), &config.replace("\"decoders/", "\"/usr/share/berth/models/"))?;
    manual(work, &tree)?;
    let doc = tree.join("usr/share/doc/berth-common");
    write(&doc.join("copyright"), &copyright::text(FEATURES)?)?;
    write(&doc.join("changelog"), changelog)?;
    gzip(&doc.join("changelog"))
}

/// Man pages and completions, which the program writes itself.
fn manual(work: &Path, tree: &Path) -> Result<()> {
    let made = work.join("manual");
    fs::create_dir_all(&made)?;
    run(cmd("target/release/berth", ["manual"]).arg(&made))?;
    for entry in fs::read_dir(&made)? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let to = match &*name {
            "berth.bash" => "usr/share/bash-completion/completions/berth".to_owned(),
            "_berth" => "usr/share/zsh/vendor-completions/_berth".to_owned(),
            "berth.fish" => "usr/share/fish/vendor_completions.d/berth.fish".to_owned(),
            _ => format!("usr/share/man/man1/{name}"),
        };
        copy(&path, &tree.join(&to), 0o644)?;
    }
    gzip(&tree.join("usr/share/man/man1"))
}

/// Makes the archive of a tree.
fn archive(name: &str, work: &Path, epoch: &str) -> Result<()> {
    let (tree, control) = (work.join(name), work.join(name).join("DEBIAN"));
    fs::create_dir_all(&control)?;
    let scripts = if name == "berth-common" { "berth-common" } else { "berth" };
    for script in ["postinst", "prerm", "postrm"] {
        let from = format!("systemd/debian/{scripts}.{script}");
        if fs::exists(&from)? {
            copy(Path::new(&from), &control.join(script), 0o755)?;
        }
    }
    // Paths below the tree, sorted, as dpkg and people expect them.
    let find = "find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | LC_ALL=C sort -z";
    let sums = output(cmd("sh", ["-c", &format!("{find} | xargs -0r md5sum")]).current_dir(&tree))?;
    fs::write(control.join("md5sums"), sums)?;
    let conffiles =
        output(cmd("sh", ["-c", &format!("{find} | tr '\\0' '\\n' | sed -n 's|^etc/|/etc/|p'")]).current_dir(&tree))?;
    if !conffiles.is_empty() {
        fs::write(control.join("conffiles"), conffiles)?;
    }
    let mut write_control =
        cmd("dpkg-gencontrol", [format!("-p{name}"), format!("-P{name}"), format!("-T{name}.substvars")]);
    run(write_control.arg(format!("-O{name}/DEBIAN/control")).current_dir(work))?;
    // Whatever the umask was.
    run(cmd("chmod", ["-R", "u=rwX,go=rX"]).arg(&tree))?;
    // Debian's usual xz is a fourth smaller, and takes ten times as long to write and five times as long to read.
    let mut build = cmd("dpkg-deb", ["-Zzstd", "--root-owner-group", "--build"]);
    run(build.arg(&tree).arg(FOLDER).env("SOURCE_DATE_EPOCH", epoch))
}

/// The time that files bear: the last commit's, unless the environment says otherwise.
fn epoch() -> Result<String> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(epoch) => Ok(epoch),
        Err(_) => Ok(output(&mut cmd("git", ["log", "-1", "--format=%ct"]))?.trim().to_owned()),
    }
}

/// Debian's form of it, of which tools read the version; what changed is in CHANGELOG.md.
fn changelog(epoch: &str) -> Result<String> {
    let date = output(&mut cmd("date", ["-u", "-R", "-d", &format!("@{epoch}")]))?;
    let control = fs::read_to_string("systemd/debian/control")?;
    let maintainer = control.lines().find_map(|line| line.strip_prefix("Maintainer: ")).context("no maintainer")?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(format!("berth ({version}) stable; urgency=medium\n\n  * Release {version}.\n\n -- {maintainer}  {date}"))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let text = || format!("cannot copy {} to {}", from.display(), to.display());
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::copy(from, to).with_context(text)?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).with_context(text)
}

fn write(to: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}

/// A file, or all of a folder; without name and time, so that the bytes depend on the contents alone.
fn gzip(files: &Path) -> Result<()> {
    run(cmd("gzip", ["-9nr"]).arg(files))
}

/// The names of the packages that these need or recommend, without those among them.
pub(crate) fn dependencies(packages: &[PathBuf]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for package in packages {
        for field in ["Depends", "Recommends"] {
            let list = output(&mut deb_field(package, field))?;
            // The first of alternatives, without its version.
            let firsts = list.split(',').filter_map(|entry| entry.split(['|', '(']).next()).map(str::trim);
            names.extend(firsts.filter(|name| !name.is_empty() && !name.starts_with("berth")).map(str::to_owned));
        }
    }
    names.sort();
    names.dedup();
    ensure!(!names.is_empty(), "packages without dependencies");
    Ok(names)
}

fn deb_field(package: &Path, field: &str) -> Command {
    cmd("dpkg-deb", ["--field".as_ref(), package.as_os_str(), field.as_ref()])
}
