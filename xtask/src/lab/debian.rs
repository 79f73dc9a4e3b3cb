//! A clean Debian for the suites of the installed program: its minimal base, systemd, and nothing else but what Berth's
//! packages depend on. These are there already as the guest has no network to get them from.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result};

use super::sysroot;
use crate::{
    package,
    sh::{cmd, run},
};

/// What a server has beside the base.
const SERVER: &[&str] = &["systemd-sysv", "dbus", "udev", "kmod", "iproute2", "procps", "ethtool", "driverctl"];

/// The root, made where there is none with these packages.
pub(super) fn make(folder: &Path) -> Result<PathBuf> {
    let mut wanted = package::dependencies(&package::make()?)?;
    wanted.extend(SERVER.iter().map(|name| (*name).to_owned()));
    let wanted = wanted.join(",");
    let (root, stamp) = (folder.join("debian"), folder.join("debian.packages"));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(root);
    }
    let codename = sysroot::codename()?;
    eprintln!("making a clean Debian {codename} in {}", root.display());
    let _ = fs::remove_file(&stamp);
    let _ = fs::remove_dir_all(&root);
    let sources = folder.join("debian.sources");
    let _ = fs::remove_dir_all(&sources);
    fs::create_dir_all(&sources)?;
    sysroot::write_sources(&codename, false, &sources)?;
    let mut mmdebstrap = cmd("mmdebstrap", ["--quiet", "--variant=minbase", &format!("--include={wanted}")]);
    mmdebstrap.args(["--aptopt=APT::Install-Recommends \"false\"", "--dpkgopt=force-unsafe-io", &codename]).arg(&root);
    for entry in fs::read_dir(&sources)? {
        mmdebstrap.arg(entry?.path());
    }
    run(mmdebstrap.stdout(Stdio::null())).context("a clean Debian comes from a Debian mirror, once")?;
    fs::write(&stamp, wanted)?;
    Ok(root)
}
