//! A QEMU guest that lives for one suite.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::{devices, initramfs, suite::Suite, sysroot::Sysroot};
use crate::sh::cmd;

/// What a boot may take before a suite's own time begins, and its end afterwards, in seconds.
const BOOT_SECONDS: u32 = 60;
/// The same for the trial of KVM, where a boot takes about one.
const TRIAL_SECONDS: u32 = 10;

/// How to boot guests here.
pub(super) struct Hypervisor {
    sysroot: Sysroot,
    initramfs: PathBuf,
    accelerator: &'static str,
}

impl Hypervisor {
    /// Makes in `folder` what is not there yet.
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let sysroot = Sysroot::make(folder)?;
        let initramfs = initramfs::make(&sysroot, folder)?;
        let mut hypervisor = Self { sysroot, initramfs, accelerator: "kvm" };
        if !hypervisor.boots(folder)? {
            hypervisor.accelerator = "tcg";
        }
        Ok(hypervisor)
    }

    pub(super) fn accelerator(&self) -> &'static str {
        self.accelerator
    }

    /// Whether a guest gets as far as its first program. That /dev/kvm opens does not tell: there are kernels whose
    /// KVM runs only guests of their own kind. The verdict holds until the host's kernel is another one.
    fn boots(&self, folder: &Path) -> Result<bool> {
        if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
            return Ok(false);
        }
        let verdict = folder.join("kvm");
        let kernel = fs::read_to_string("/proc/version")?;
        match fs::read_to_string(&verdict).unwrap_or_default().strip_prefix(&kernel) {
            Some("boots") => return Ok(true),
            Some("does not boot") => return Ok(false),
            _ => eprintln!("trying whether a guest boots with KVM"),
        }
        let mut trial = self.qemu(&[], TRIAL_SECONDS, 256, 1, "berth.trial");
        let out = trial.args(["-serial", "file:/dev/stdout"]).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
        let boots = String::from_utf8_lossy(&out.stdout).contains("berth trial boot");
        fs::write(verdict, kernel + if boots { "boots" } else { "does not boot" })?;
        Ok(boots)
    }

    /// The command that boots a guest for this suite. It prints what the suite prints; `run` is shared with the guest
    /// as /run/lab, and the kernel's own messages go to `run`/console.
    pub(super) fn command(&self, suite: &Suite, run: &Path) -> Result<Command> {
        fs::copy("lab/guest.sh", run.join("guest.sh")).context("cannot copy lab/guest.sh")?;
        let mut arguments = suite.kernel.join(" ");
        if suite.devices.iter().any(|name| name == "iommu") {
            // A host that is busy lets the trial of the timer fail, which with interrupt remapping is a panic.
            arguments += " intel_iommu=on iommu=nopt no_timer_check";
        }
        let prefix = devices::prefix(&suite.devices);
        let mut qemu = self.qemu(prefix, suite.timeout + BOOT_SECONDS, suite.memory, suite.cpus, &arguments);
        qemu.stderr(fs::File::create(run.join("qemu"))?);
        let share = |tag: &str, path: &Path, options: &str| {
            let path = path.to_str().filter(|path| !path.contains(',')).context("QEMU wants paths without commas")?;
            Ok::<_, anyhow::Error>([
                "-fsdev".to_owned(),
                format!("local,id={tag},path={path},security_model=none{options}"),
                "-device".to_owned(),
                format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
            ])
        };
        // First of all: other devices stand behind the IOMMU only when it is there before them.
        qemu.args(devices::arguments(&suite.devices)?);
        let root = if suite.debian { &crate::sh::root().join(super::FOLDER).join("debian") } else { Path::new("/") };
        qemu.args(share("root", root, ",readonly=on,multidevs=remap")?);
        if suite.debian {
            qemu.args(share("repository", &crate::sh::root(), ",readonly=on,multidevs=remap")?);
        }
        qemu.args(share("modules", &self.sysroot.path("usr/lib/modules"), ",readonly=on")?);
        qemu.args(share("lab", run, "")?);
        qemu.args(["-serial", &format!("file:{}", run.join("console").display())]);
        qemu.args(["-device", "virtio-serial-pci", "-chardev", "file,id=out,path=/dev/stdout"]);
        qemu.args(["-device", "virtserialport,chardev=out,name=berth"]);
        qemu.args(["-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"]);
        Ok(qemu)
    }

    /// A machine with nothing but memory and CPUs.
    fn qemu(&self, prefix: &[&str], seconds: u32, memory: u32, cpus: u32, arguments: &str) -> Command {
        let mut line = prefix.to_vec();
        let seconds = seconds.to_string();
        line.extend(["timeout", "--foreground", "-k", "5", &seconds]);
        let mut qemu = cmd(line[0], &line[1..]);
        qemu.args(self.sysroot.qemu());
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        qemu.args(["-machine", "q35,kernel-irqchip=split", "-accel", self.accelerator]);
        qemu.args(["-cpu", if self.accelerator == "kvm" { "host" } else { "max" }]);
        qemu.args(["-m", &memory.to_string(), "-smp", &cpus.to_string()]);
        qemu.arg("-kernel").arg(self.sysroot.kernel()).arg("-initrd").arg(&self.initramfs);
        let arguments = format!(
            "console=ttyS0 quiet panic=-1 sysctl.kernel.panic_on_rcu_stall=1 mitigations=off net.ifnames=0 {arguments}"
        );
        qemu.args(["-append", &arguments]);
        qemu
    }
}
