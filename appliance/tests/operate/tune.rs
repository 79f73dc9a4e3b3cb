//! `berth tune` on a host made of files, and a little of it on this one.

use std::{fs, path::Path, process::Command};

use berth::{
    config,
    tune::{
        Outcome::{self, Changed, Kept, Reverted},
        Report, apply, revert,
    },
};

const FILES: [(&str, &str); 13] = [
    ("/sys/devices/system/cpu/online", "0-3\n"),
    ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16\n"),
    ("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "4\n"),
    ("/proc/irq/default_smp_affinity", "f\n"),
    ("/proc/irq/24/smp_affinity_list", "0-3\n"),
    ("/proc/irq/25/smp_affinity_list", "0\n"),
    ("/proc/irq/26/smp_affinity_list", "2\n"),
    ("/sys/devices/virtual/workqueue/cpumask", "0000000f\n"),
    ("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "schedutil\n"),
    ("/sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "performance\n"),
    ("/proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
    ("/sys/class/net/eth0/napi_defer_hard_irqs", "0\n"),
    ("/sys/class/net/eth0/gro_flush_timeout", "0\n"),
];

const CONFIG: &str = "[runtime]\nhousekeeping_cpus = [0]\n\
    [[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 2\n\
    [port.rpc]\ndispatch = \"ring\"\nworker_cpus = [3]\n\
    [tune]\nhugepages_2m = 512\nhugepages_1g = 4\ngovernor = \"performance\"\nrt_throttling = false\n\
    [[tune.nic]]\nname = \"eth0\"\ndefer_hard_irqs = 200\ngro_flush_timeout_ns = 20000\n";

fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(&path[1..])).unwrap().trim().to_string()
}

fn host() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in FILES {
        let path = folder.path().join(&path[1..]);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn parse(text: &str) -> config::Config {
    let host = config::Host {
        cpus: (0..5).collect(),
        has_feature: |_| false,
        is_file: Path::is_file,
        is_public: |_| false,
        read: |path| fs::read_to_string(path),
    };
    config::parse(text, Path::new("berth.toml"), &host).unwrap().config
}

#[test]
fn the_workers_of_every_ring_have_their_cpus_for_themselves() {
    let ring = "[[port.rpc.ring]]\nname = \"decoders\"\nworker_cpus = [1]\n[tune]";
    let cpus = parse(&CONFIG.replace("[tune]", ring)).polled_cpus();
    assert_eq!(cpus.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn sessions_have_the_cpus_that_are_not_for_housekeeping() {
    let sessions = "[node]\nstate_dir = \"state\"\n[control]\nudp = \"127.0.0.1:0\"\n\
        [[binding]]\nkind = \"nvme\"\nlisten = [\"127.0.0.1:0\"]\ncpus = [0, 1]\n\
        [hip]\nlisten = \"127.0.0.1:0\"\n[[gpu]]\nname = \"g\"\ndevice = \"soft\"\nuse = \"hip\"\n\
        [[hip.device]]\ngpu = \"g\"\n[tune]";
    for (hip, wanted) in [("", &[1, 2, 3][..]), ("cpus = [4]\n", &[1, 2, 3, 4])] {
        let sessions = sessions.replace("[[gpu]]", &format!("{hip}[[gpu]]"));
        let cpus = parse(&CONFIG.replace("[tune]", &sessions)).polled_cpus();
        assert_eq!(cpus.into_iter().collect::<Vec<_>>(), wanted);
    }
}

fn outcomes(reports: &[Report]) -> Vec<(&str, Outcome)> {
    reports.iter().map(|report| (&*report.what, report.outcome)).collect()
}

#[test]
fn turns_each_knob_once_and_takes_all_of_it_back() {
    let (folder, config) = (host(), parse(CONFIG));
    let (root, state) = (folder.path(), folder.path().join("state.json"));
    let reports = apply(&config, root, &state).unwrap();
    assert_eq!(
        outcomes(&reports),
        [
            ("huge pages of 2 MiB", Changed),
            ("huge pages of 1 GiB", Kept),
            ("interrupts to come", Changed),
            ("interrupt 24", Changed),
            ("interrupt 26", Changed),
            ("kernel work", Changed),
            ("governor of CPU 2", Changed),
            ("governor of CPU 3", Kept),
            ("time of real-time tasks", Changed),
            ("napi_defer_hard_irqs of eth0", Changed),
            ("gro_flush_timeout of eth0", Changed),
        ]
    );
    for (path, text) in [
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512"),
        ("/proc/irq/default_smp_affinity", "00000003"),
        ("/proc/irq/24/smp_affinity_list", "0,1"),
        ("/proc/irq/25/smp_affinity_list", "0"),
        ("/proc/irq/26/smp_affinity_list", "0,1"),
        ("/sys/devices/virtual/workqueue/cpumask", "00000003"),
        ("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "performance"),
        ("/proc/sys/kernel/sched_rt_runtime_us", "-1"),
        ("/sys/class/net/eth0/napi_defer_hard_irqs", "200"),
        ("/sys/class/net/eth0/gro_flush_timeout", "20000"),
    ] {
        assert_eq!(read(root, path), text, "{path}");
    }
    // A second time there is nothing to do, and nothing of the first is forgotten.
    let again = apply(&config, root, &state).unwrap();
    assert!(again.iter().all(|report| report.outcome == Kept), "{again:?}");
    let reports = revert(root, &state).unwrap();
    assert_eq!(reports.len(), 9);
    assert!(reports.iter().all(|report| report.outcome == Reverted), "{reports:?}");
    for (path, text) in FILES {
        assert_eq!(read(root, path), text.trim(), "{path}");
    }
    assert!(!state.exists());
    assert_eq!(revert(root, &state).unwrap(), []);
}

#[test]
fn what_somebody_else_changed_since_is_left_alone() {
    let (folder, config) = (host(), parse(CONFIG));
    let (root, state) = (folder.path(), folder.path().join("state.json"));
    apply(&config, root, &state).unwrap();
    let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    fs::write(root.join(&pages[1..]), "1024\n").unwrap();
    let reports = revert(root, &state).unwrap();
    let failed: Vec<_> = reports.iter().filter(|report| report.outcome == Outcome::Failed).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].path, pages);
    assert_eq!(failed[0].why.as_deref(), Some("somebody has made it 1024 since; it is left alone"));
    assert_eq!(read(root, pages), "1024");
    assert!(!state.exists());
}

#[test]
fn a_knob_that_cannot_be_turned_is_reported_and_the_rest_is_turned() {
    let (folder, config) = (host(), parse(CONFIG));
    let (root, state) = (folder.path(), folder.path().join("state.json"));
    // One is no file, and one forgets what is written to it.
    let irq = "/proc/irq/24/smp_affinity_list";
    fs::remove_file(root.join(&irq[1..])).unwrap();
    fs::create_dir(root.join(&irq[1..])).unwrap();
    let deaf = "/proc/sys/kernel/sched_rt_runtime_us";
    fs::remove_file(root.join(&deaf[1..])).unwrap();
    std::os::unix::fs::symlink("/dev/null", root.join(&deaf[1..])).unwrap();
    let reports = apply(&config, root, &state).unwrap();
    let failed: Vec<_> = reports.iter().filter(|report| report.outcome == Outcome::Failed).collect();
    assert_eq!(failed.len(), 1, "{reports:?}");
    assert_eq!(failed[0].path, deaf);
    assert_eq!(failed[0].why.as_deref(), Some("the kernel made it , not -1"));
    assert_eq!(read(root, "/sys/class/net/eth0/napi_defer_hard_irqs"), "200");
    assert!(!fs::read_to_string(&state).unwrap().contains(deaf), "nothing of it to take back");
}

#[test]
fn a_damaged_state_is_refused() {
    let (folder, config) = (host(), parse(CONFIG));
    let state = folder.path().join("state.json");
    fs::write(&state, "{").unwrap();
    let e = format!("{:#}", apply(&config, folder.path(), &state).unwrap_err());
    assert!(e.contains("state.json is not a state of `berth tune`; remove it"), "{e}");
    assert_eq!(read(folder.path(), "/proc/irq/default_smp_affinity"), "f");
}

#[test]
fn the_command_says_what_it_kept() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("berth.toml");
    fs::write(&config, "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\n[tune]\nhugepages_2m = 0\ninterrupts = false\n")
        .unwrap();
    let berth = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.arg("tune").args(args).arg("--state").arg(folder.path().join("state.json"));
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let said = berth(&["apply", "--config", config.to_str().unwrap()]);
    assert!(said.starts_with("huge pages of 2 MiB: ") && said.contains(", as it was   (/sys/kernel/mm/"), "{said}");
    assert_eq!(berth(&["revert"]), "nothing to do\n");
    assert_eq!(berth(&["revert", "--json"]), "[]\n");
}
