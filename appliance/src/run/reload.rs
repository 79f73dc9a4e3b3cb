//! Live reload: a changed configuration takes effect without a request lost, or not at all.
//!
//! ```text
//! SIGHUP ─▶ supervisor ─▶ a thread of its own: read, check, compare, build every program ─▶ supervisor: refuse, or
//!     hand programs to workers, then to lcores; policies, limits and levels to where they are held
//! ```
//!
//! An lcore takes a program between two bursts and hands the old one back, which is dropped here: see
//! [`berth_rpc::Updates`]. Nothing is handed out before everything is built, so that a reload is whole or does not
//! happen.

use std::{
    fmt::Display,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use berth_control::Control;
use berth_host::Waker;
use berth_kernels::Runs;
use berth_port::Sender;
use berth_qec::window::Pool;
use tracing::{debug, error, info, warn};

use super::{
    gpus::Gpus,
    leases,
    service::{self, Program, Runner, Updates},
};
use crate::{
    check,
    config::{Change, Loaded},
    log,
};

/// How long the threads get to take a program. One that runs a long handler takes it later.
const PATIENCE: Duration = Duration::from_millis(100);

/// Where one queue, or one worker for one queue, takes a new program.
pub(super) struct ProgramSlot {
    /// The port, by position in the configuration.
    port: usize,
    /// The name of the thread.
    thread: String,
    sender: Sender<Program, Program>,
}

impl ProgramSlot {
    /// Adds one to `slots`, and returns what its thread is to have.
    pub(super) fn add(slots: &mut Vec<Self>, port: usize, thread: String) -> Updates {
        let (sender, updates) = berth_rpc::updates();
        slots.push(Self { port, thread, sender });
        updates
    }
}

/// Every place where programs are replaced.
pub(super) struct ProgramSlots {
    pub(super) workers: Vec<ProgramSlot>,
    pub(super) lcores: Vec<ProgramSlot>,
}

/// What is ready to take effect.
pub(super) struct Prepared {
    loaded: Loaded,
    changes: Vec<Change>,
    /// One for each slot, in their order.
    workers: Vec<Program>,
    lcores: Vec<Program>,
}

/// The configuration that runs, and what it takes to replace it.
pub(super) struct Reloader {
    running: Arc<Loaded>,
    slots: ProgramSlots,
    /// By port, the windows of its sessions that wait for a core.
    pools: Arc<[Pool]>,
    gpus: Gpus,
}

impl Reloader {
    pub(super) fn new(running: Arc<Loaded>, slots: ProgramSlots, pools: Arc<[Pool]>, gpus: Gpus) -> Self {
        Self { running, slots, pools, gpus }
    }

    /// What reads the configuration again and builds what it asks for, on whatever thread calls it; an error has a line
    /// for each mistake.
    pub(super) fn preparation(&self) -> impl FnOnce() -> anyhow::Result<Prepared> + Send + use<> {
        let (running, pools) = (self.running.clone(), self.pools.clone());
        let ports = |slots: &[ProgramSlot]| slots.iter().map(|slot| slot.port).collect::<Vec<_>>();
        let (workers, lcores) = (ports(&self.slots.workers), ports(&self.slots.lcores));
        move || {
            let loaded = running.again().and_then(|loaded| check::load_plugins(&loaded).map(|()| loaded));
            let loaded = loaded.map_err(|notes| lines(&notes))?;
            let (changes, refused): (Vec<_>, Vec<_>) =
                loaded.changes_from(&running).into_iter().partition(|change| change.live);
            ensure!(refused.is_empty(), lines(refused.iter().map(|change| &change.note)));
            let successor =
                |port: usize, runner| service::successor(&running.config, &loaded.config, port, runner, &pools[port]);
            let workers: anyhow::Result<_> = workers.into_iter().map(|port| successor(port, Runner::Worker)).collect();
            let mut admission: Vec<_> = loaded.config.ports.iter().map(|port| port.admission().into_iter()).collect();
            let queue = |port: usize| Ok(successor(port, Runner::Queue)?.limited(admission[port].next()));
            let lcores: anyhow::Result<_> = lcores.into_iter().map(queue).collect();
            Ok(Prepared { changes, workers: workers?, lcores: lcores?, loaded })
        }
    }

    /// Puts what is prepared in the place of what runs.
    pub(super) fn apply(
        &mut self,
        prepared: Prepared,
        control: Option<&Control>,
        wakers: &[Waker],
    ) -> anyhow::Result<()> {
        let Prepared { loaded, changes, workers, lcores } = prepared;
        let ProgramSlots { workers: at_workers, lcores: at_lcores } = &mut self.slots;
        for slot in at_workers.iter().chain(at_lcores.iter()) {
            ensure!(slot.sender.room() > 0, "{} has not taken the last reload yet; try again later", slot.thread);
        }
        self.gpus.reload(&self.running.config, &loaded.config)?;
        for note in &loaded.warnings {
            warn!("{note}");
        }
        if loaded.config.log.level != self.running.config.log.level {
            log::set_level(&loaded.config.log.level)?;
        }
        if let (Some(control), Some(settings)) = (control, &loaded.config.control) {
            leases::reconfigure(control, settings, &loaded.config.regions);
        }
        // A request that a queue takes in finds a worker that knows its function.
        hand_out(at_workers, workers, wakers)?;
        hand_out(at_lcores, lcores, wakers)?;
        // Nobody asks code that is replaced once more.
        self.log_kernels();
        self.running = Arc::new(loaded);
        for Change { note, .. } in &changes {
            info!("{note}");
        }
        info!("reloaded, {} changes", changes.len());
        Ok(())
    }

    /// Logs what ring kernels have said since the last time.
    pub(super) fn log_kernels(&self) {
        for kernel in &self.running.config.kernels {
            let Runs::Code(code) = &kernel.settings.runs else { continue };
            let name = kernel.settings.request.name();
            let lost = code.take_log(&mut |level, text| {
                // What a message holds may stand in it.
                let text = String::from_utf8_lossy(text);
                match level {
                    0 => error!("ring kernel {name}: {text:?}"),
                    1 => warn!("ring kernel {name}: {text:?}"),
                    2 => info!("ring kernel {name}: {text:?}"),
                    _ => debug!("ring kernel {name}: {text:?}"),
                }
            });
            if lost > 0 {
                warn!("ring kernel {name}: {lost} records more");
            }
        }
    }

    /// Drops what late threads have replaced since.
    pub(super) fn collect(&mut self) {
        let ProgramSlots { workers, lcores } = &mut self.slots;
        for slot in workers.iter_mut().chain(lcores) {
            slot.sender.returned().for_each(drop);
        }
    }
}

/// Hands each slot its program, and waits until most likely all have taken theirs.
fn hand_out(slots: &mut [ProgramSlot], programs: Vec<Program>, wakers: &[Waker]) -> anyhow::Result<()> {
    for (slot, program) in slots.iter_mut().zip(programs) {
        slot.sender.send(program).map_err(|_| anyhow!("{} takes no program", slot.thread))?;
    }
    wakers.iter().for_each(Waker::wake);
    let deadline = Instant::now() + PATIENCE;
    for slot in slots {
        while slot.sender.returned().count() == 0 {
            if Instant::now() > deadline {
                warn!("{} takes the new functions when it is done with what it does", slot.thread);
                break;
            }
            sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

fn lines(notes: impl IntoIterator<Item = impl Display>) -> anyhow::Error {
    let lines: Vec<_> = notes.into_iter().map(|note| note.to_string()).collect();
    anyhow!(lines.join("\n"))
}
