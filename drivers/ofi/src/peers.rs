//! Who may send to a port: from the threads that let peers in to the core that owns the port's address vector.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use berth_wire::fabric::Status;

use crate::{
    address::{Format, MAX_ADDRESS},
    facts::Facts,
};

/// How long a peer waits for the port's core.
const PATIENCE: Duration = Duration::from_secs(1);

/// The peers of one port. Clones are the same.
#[derive(Debug, Clone)]
pub struct Peers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    opened: OnceLock<(Facts, Format)>,
    /// How often each address was let in.
    admitted: Mutex<HashMap<Box<[u8]>, usize>>,
    /// The port is gone.
    closed: AtomicBool,
    /// Whether `commands` is worth a look.
    waiting: AtomicBool,
    commands: Mutex<Vec<Command>>,
}

/// What the port's core shall do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Let messages of this endpoint in. The peer gets an address of its own at `ip`; the answer is whether it could be.
    Insert { address: Box<[u8]>, padded: Box<[u8; MAX_ADDRESS]>, ip: IpAddr, done: SyncSender<bool> },
    /// Refuse them from now on.
    Remove { address: Box<[u8]> },
}

/// A peer that was let in, for as long as this lives.
#[derive(Debug)]
pub struct Admitted {
    peers: Peers,
    address: Box<[u8]>,
}

impl Peers {
    /// Nobody yet, and at most `limit` at a time.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared {
            limit,
            opened: OnceLock::new(),
            admitted: Mutex::default(),
            closed: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            commands: Mutex::default(),
        }))
    }

    pub(crate) fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether there is room for nobody else, as far as that can be told without waiting.
    pub(crate) fn is_full(&self) -> bool {
        self.0.admitted.try_lock().is_ok_and(|admitted| admitted.len() >= self.0.limit)
    }

    /// Where the port is; `None` before it is open.
    pub fn facts(&self) -> Option<&Facts> {
        self.0.opened.get().map(|(facts, _)| facts)
    }

    pub(crate) fn opened(&self, facts: Facts, format: Format) {
        // A port is opened once.
        let _ = self.0.opened.set((facts, format));
    }

    /// Lets messages of the endpoint at `address` in. A peer may be let in several times, for several reasons, and goes
    /// with the last. In frames it is an address at `ip` of its own.
    ///
    /// # Errors
    /// INVALID_PARAMS where that is no address of the port's provider, CAPACITY_EXCEEDED where there are too many peers,
    /// RESOURCE_BUSY where the port is not open or its core does not answer within a second.
    pub fn admit(&self, address: &[u8], ip: IpAddr) -> Result<Admitted, Status> {
        let (_, format) = self.0.opened.get().ok_or(Status::ResourceBusy)?;
        let padded = format.check(address).ok_or(Status::InvalidParams)?;
        let mut admitted = lock(&self.0.admitted);
        let key: Box<[u8]> = address.into();
        let room = admitted.len() < self.0.limit;
        let times = match admitted.get(&key) {
            Some(times) => *times,
            None if room => 0,
            None => return Err(Status::CapacityExceeded),
        };
        if times == 0 {
            let (done, answer) = sync_channel(1);
            self.tell(Command::Insert { address: key.clone(), padded: padded.into(), ip, done });
            match answer.recv_timeout(PATIENCE) {
                Ok(true) => {}
                Ok(false) => return Err(Status::InvalidParams),
                Err(_) => {
                    // It may still come to that.
                    self.tell(Command::Remove { address: key });
                    return Err(Status::ResourceBusy);
                }
            }
        }
        admitted.insert(key.clone(), times + 1);
        Ok(Admitted { peers: self.clone(), address: key })
    }

    fn tell(&self, command: Command) {
        let mut commands = lock(&self.0.commands);
        // Under the lock: whoever waits for an answer to a command that nobody will take learns so at once.
        if !self.0.closed.load(Acquire) {
            commands.push(command);
            self.0.waiting.store(true, Release);
        }
    }

    /// The port is gone: nobody is let in any more.
    pub(crate) fn close(&self) {
        let mut commands = lock(&self.0.commands);
        self.0.closed.store(true, Release);
        commands.clear();
    }

    /// What there is to do, for the port's core: one load where there is nothing.
    #[inline]
    pub(crate) fn commands(&self) -> Vec<Command> {
        if self.0.waiting.load(Acquire) { self.take() } else { Vec::new() }
    }

    #[cold]
    fn take(&self) -> Vec<Command> {
        // Where somebody is just adding one, the next burst takes it.
        let Ok(mut commands) = self.0.commands.try_lock() else { return Vec::new() };
        self.0.waiting.store(false, Release);
        std::mem::take(&mut commands)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut admitted = lock(&self.peers.0.admitted);
        let Some(times) = admitted.get_mut(&self.address) else { return };
        *times -= 1;
        if *times == 0 {
            admitted.remove(&self.address);
            self.peers.tell(Command::Remove { address: std::mem::take(&mut self.address) });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
