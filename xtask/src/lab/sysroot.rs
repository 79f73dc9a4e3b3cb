//! QEMU and the guest's kernel, unpacked from Debian packages into a folder of their own: nothing is installed.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::sh::{cmd, run};

/// With all that they depend on, libc and the dynamic loader too: what the host has installed does not matter.
const PACKAGES: &[&str] = &["linux-image-amd64", "qemu-system-x86", "busybox-static"];

/// Written last: the names of the packages.
const STAMP: &str = "unpacked";

/// The unpacked packages.
pub(super) struct Sysroot {
    root: PathBuf,
    release: String,
}

impl Sysroot {
    /// Downloads and unpacks, the first time.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let root = folder.join("sysroot");
        if !root.join(STAMP).exists() {
            build(folder, &root).context(
                "the lab needs QEMU and a Debian kernel, which come from a Debian mirror once; without them the suites \
                 can run on this host itself: cargo xtask lab --native",
            )?;
        }
        let releases = fs::read_dir(root.join("usr/lib/modules"))?.flatten();
        let release = releases.map(|entry| entry.file_name().to_string_lossy().into_owned()).max();
        Ok(Self { release: release.with_context(|| format!("no kernel in {}", root.display()))?, root })
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.root.join(file)
    }

    pub(super) fn stamp(&self) -> PathBuf {
        self.path(STAMP)
    }

    pub(super) fn modules(&self) -> PathBuf {
        self.path("usr/lib/modules").join(&self.release)
    }

    /// The kernel as an ELF file, which QEMU starts by its PVH entry: a translated guest needs seconds to decompress it.
    pub(super) fn kernel(&self) -> PathBuf {
        self.path("boot").join(format!("vmlinux-{}", self.release))
    }

    /// QEMU, with the libraries that it was built for.
    pub(super) fn qemu(&self) -> Vec<String> {
        let path = |file| self.path(file).display().to_string();
        let libraries = path("usr/lib/x86_64-linux-gnu");
        let mut line = vec![path("usr/lib64/ld-linux-x86-64.so.2"), "--library-path".into(), libraries];
        line.push(path("usr/bin/qemu-system-x86_64"));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            line.extend(["-L".into(), path(data)]);
        }
        line
    }
}

fn build(folder: &Path, root: &Path) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the guest runs this host's programs, and is an x86-64 machine");
    eprintln!("making the lab's sysroot in {}: {} from Debian's backports", root.display(), PACKAGES.join(", "));
    let apt = folder.join("apt");
    let archives = apt.join("cache/archives");
    for name in ["sources", "state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(name))?;
    }
    let codename = codename()?;
    write_sources(&codename, true, &apt.join("sources"))?;
    fs::write(apt.join("status"), "")?;
    // A mirror that lacks backports fails the update and does not matter if another has them.
    let update = apt_get(&apt).args(["update", "-q"]).stdout(Stdio::null()).status();
    update.context("cannot start apt-get; this is not Debian")?;
    let release = format!("{codename}-backports");
    run(apt_get(&apt)
        .args(["install", "-y", "-q", "--no-install-recommends", "--download-only", "-t", &release])
        .args(PACKAGES)
        .stdout(Stdio::null()))?;

    // Debian's packages still name /bin, /lib and /sbin, which are links into /usr.
    let _ = fs::remove_dir_all(root);
    for name in ["bin", "lib", "lib64", "sbin"] {
        fs::create_dir_all(root.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
    }
    let mut unpacked = String::new();
    for entry in fs::read_dir(&archives)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            unpack(&path, root)?;
            let _ = writeln!(unpacked, "{}", path.file_name().unwrap_or_default().to_string_lossy());
        }
    }
    for entry in fs::read_dir(root.join("usr/lib/modules"))? {
        let release = entry?.file_name();
        run(cmd("/usr/sbin/depmod", ["-b".as_ref(), root.as_os_str()]).arg(&release))?;
        decompress(root, &release.to_string_lossy())?;
    }
    fs::remove_dir_all(&apt)?;
    Ok(fs::write(root.join(STAMP), unpacked)?)
}

/// Writes the kernel that a bzImage holds, one compressed by zstd, as Debian's are.
fn decompress(root: &Path, release: &str) -> Result<()> {
    // Offsets in the setup header: "The Linux/x86 Boot Protocol", 2.08 and later.
    const SETUP_SECTORS: usize = 0x1f1;
    const PAYLOAD_OFFSET: usize = 0x248;
    const PAYLOAD_LENGTH: usize = 0x24c;
    let image = root.join(format!("boot/vmlinuz-{release}"));
    let bytes = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let payload = || {
        let start = (usize::from(*bytes.get(SETUP_SECTORS)?) + 1) * 512 + word(PAYLOAD_OFFSET)?;
        // Its last four bytes are the length of the kernel.
        bytes.get(start..start + word(PAYLOAD_LENGTH)?)?.split_last_chunk::<4>()
    };
    let (compressed, _) = payload().with_context(|| format!("no compressed kernel in {}", image.display()))?;
    let kernel = root.join(format!("boot/vmlinux-{release}"));
    let packed = root.join("boot/vmlinux.zst");
    fs::write(&packed, compressed)?;
    run(&mut cmd("zstd", ["-dq".as_ref(), packed.as_os_str(), "-o".as_ref(), kernel.as_os_str()]))?;
    Ok(fs::remove_file(packed)?)
}

/// An `apt-get` that knows nothing of what is installed here, and changes nothing outside of `apt`.
fn apt_get(apt: &Path) -> Command {
    let mut command = cmd("apt-get", [] as [&str; 0]);
    let path = |name: &str| apt.join(name).display().to_string();
    for (key, value) in [
        ("Dir::Etc::sourcelist", "/dev/null".into()),
        ("Dir::Etc::sourceparts", path("sources")),
        ("Dir::Etc::preferences", "/dev/null".into()),
        ("Dir::Etc::preferencesparts", path("sources")),
        ("Dir::State", path("state")),
        ("Dir::State::status", path("status")),
        ("Dir::Cache", path("cache")),
        ("APT::Sandbox::User", String::new()),
        ("Debug::NoLocking", "true".into()),
    ] {
        command.arg("-o").arg(format!("{key}={value}"));
    }
    command
}

/// `bookworm` on Debian 12.
pub(super) fn codename() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot tell which Debian this is")?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(unquoted);
    match (field("ID"), field("VERSION_CODENAME")) {
        (Some("debian"), Some(codename)) => Ok(codename.to_owned()),
        _ => bail!("this is not a Debian release"),
    }
}

fn unquoted(text: &str) -> &str {
    text.trim_matches('"')
}

/// Copies this machine's package sources, those of Debian's main suite, with its backports beside it if wanted.
pub(super) fn write_sources(codename: &str, backports: bool, folder: &Path) -> Result<()> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten().map(|entry| entry.path());
    for path in parts.chain(["/etc/apt/sources.list".into()]) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let (name, sources) = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => (path.file_name(), deb822(&text, codename, backports)),
            _ => (path.file_name(), one_line(&text, codename, backports)),
        };
        if !sources.is_empty() {
            fs::write(folder.join(name.context("a file has a name")?), sources)?;
        }
    }
    Ok(())
}

/// One-line form: `deb [options] uri suite component...`.
fn one_line(text: &str, codename: &str, backports: bool) -> String {
    let mut sources = String::new();
    for line in text.lines() {
        let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
        let rest = rest.split_once(']').map_or(rest, |(_, rest)| rest);
        let words: Vec<_> = rest.split_whitespace().collect();
        if words.get(1) == Some(&codename) && words[2..].contains(&"main") {
            let _ = writeln!(sources, "{line}");
            if backports {
                let suite = format!(" {codename} ");
                let _ = writeln!(sources, "{}", line.replace(&suite, &format!(" {codename}-backports ")));
            }
        }
    }
    sources
}

/// Stanzas of `Field: value` lines.
fn deb822(text: &str, codename: &str, backports: bool) -> String {
    let suites = if backports { format!("{codename} {codename}-backports") } else { codename.to_owned() };
    let mut sources = String::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let has = |name: &str, word| field(name).is_some_and(|value| value.split_whitespace().any(|w| w == word));
        if has("Types", "deb") && has("Suites", codename) && has("Components", "main") && !has("Enabled", "no") {
            for line in stanza.lines() {
                if line.starts_with("Suites:") {
                    let _ = writeln!(sources, "Suites: {suites}");
                } else {
                    let _ = writeln!(sources, "{line}");
                }
            }
            sources.push('\n');
        }
    }
    sources
}

fn unpack(package: &Path, root: &Path) -> Result<()> {
    let mut archive =
        cmd("dpkg-deb", ["--fsys-tarfile".as_ref(), package.as_os_str()]).stdout(Stdio::piped()).spawn()?;
    let files = archive.stdout.take().expect("stdout is piped");
    let mut tar = cmd("tar", ["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]);
    let unpacked = tar.arg(root).stdin(files).status()?;
    ensure!(archive.wait()?.success() && unpacked.success(), "cannot unpack {}", package.display());
    Ok(())
}
