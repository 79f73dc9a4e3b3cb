//! The peers that may send to a port. Threads that admit them talk to the core that owns the port's address vector.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use berth_port::{Mailbox, Sender, mailbox};
use berth_wire::fabric::Status;

use crate::{
    address::{Format, MAX_ADDRESS},
    facts::Facts,
};

/// How long to wait for the port's core, and how often to check whether it has answered.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// The peers of one port. Clones share them.
#[derive(Debug, Clone)]
pub struct Peers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: usize,
    opened: OnceLock<(Facts, Format)>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of admissions of each address.
    admitted: HashMap<Box<[u8]>, usize>,
    /// The way to the port's core; `None` until the port is open.
    core: Option<Core>,
}

#[derive(Debug)]
struct Core {
    commands: Sender<Command, Done>,
    /// Number of commands that have not come back.
    under_way: usize,
}

/// A command to the port's core.
#[derive(Debug)]
pub(crate) enum Command {
    /// Accept messages from this endpoint; `host` is `None` if unknown.
    Insert { address: Box<[u8]>, padded: Box<[u8; MAX_ADDRESS]>, host: Option<IpAddr> },
    /// Refuse messages from this endpoint from now on.
    Remove { address: Box<[u8]> },
}

/// A command that was carried out. Each comes back, in order, with the memory to be freed.
#[derive(Debug)]
pub(crate) enum Done {
    /// Whether the peer was admitted.
    Inserted(bool, #[expect(dead_code, reason = "freed by who collects it")] Box<[u8; MAX_ADDRESS]>),
    Removed(#[expect(dead_code, reason = "freed by who collects it")] Box<[u8]>),
}

/// An admission. The peer may send for as long as it lives.
#[derive(Debug)]
pub struct Admitted {
    peers: Peers,
    address: Box<[u8]>,
}

impl Peers {
    /// Starts without peers; at most `limit` can be admitted at a time.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared { limit, opened: OnceLock::new(), state: Mutex::default() }))
    }

    pub(crate) fn limit(&self) -> usize {
        self.0.limit
    }

    /// Whether the limit is reached, as far as that can be told without waiting.
    pub(crate) fn is_full(&self) -> bool {
        self.0.state.try_lock().is_ok_and(|state| state.admitted.len() >= self.0.limit)
    }

    /// Description of the port; `None` before it is open.
    pub fn facts(&self) -> Option<&Facts> {
        self.0.opened.get().map(|(facts, _)| facts)
    }

    /// Called when the port is open. Returns the mailbox with the commands for its core.
    pub(crate) fn opened(&self, facts: Facts, format: Format) -> Mailbox<Command, Done> {
        // Each of so many peers may be coming or going.
        let depth = 2 * self.0.limit + 2;
        let (commands, mailbox) = mailbox(depth, depth);
        self.lock().core = Some(Core { commands, under_way: 0 });
        // A port is opened once.
        let _ = self.0.opened.set((facts, format));
        mailbox
    }

    /// Accepts messages from the endpoint at `address`. A peer may be admitted several times, and is removed with the
    /// last admission. Limits count all peers of one `host` as one; a peer whose host is unknown counts by itself.
    ///
    /// # Errors
    /// INVALID_PARAMS if the address is not valid for the port's provider, CAPACITY_EXCEEDED if there are too many
    /// peers, RESOURCE_BUSY if the port is not open or its core does not answer within a second.
    pub fn admit(&self, address: &[u8], host: Option<IpAddr>) -> Result<Admitted, Status> {
        let (_, format) = self.0.opened.get().ok_or(Status::ResourceBusy)?;
        let padded = format.check(address).ok_or(Status::InvalidParams)?;
        let State { admitted, core } = &mut *self.lock();
        let key: Box<[u8]> = address.into();
        let room = admitted.len() < self.0.limit;
        let times = match admitted.get(&key) {
            Some(times) => *times,
            None if room => 0,
            None => return Err(Status::CapacityExceeded),
        };
        if times == 0 {
            let core = core.as_mut().ok_or(Status::ResourceBusy)?;
            core.insert(&key, padded.into(), host, admitted.len())?;
        }
        admitted.insert(key.clone(), times + 1);
        Ok(Admitted { peers: self.clone(), address: key })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Admits a peer in addition to `others`, and waits until that is done.
    fn insert(
        &mut self,
        address: &[u8],
        padded: Box<[u8; MAX_ADDRESS]>,
        host: Option<IpAddr>,
        others: usize,
    ) -> Result<(), Status> {
        // It and all others may have to be removed before the core looks again, which must find room.
        if self.commands.room() < others + 2 {
            return Err(Status::ResourceBusy);
        }
        self.tell(Command::Insert { address: address.into(), padded, host });
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.collect() {
                Some(Done::Inserted(inserted, _)) if self.under_way == 0 => {
                    return if inserted { Ok(()) } else { Err(Status::InvalidParams) };
                }
                _ if self.commands.is_abandoned() || Instant::now() > deadline => {
                    // It may still come to that.
                    self.tell(Command::Remove { address: address.into() });
                    return Err(Status::ResourceBusy);
                }
                _ => thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn tell(&mut self, command: Command) {
        self.collect();
        // There is room for it, or the port is gone.
        self.under_way += usize::from(self.commands.send(command).is_ok());
    }

    /// Collects the commands that came back; returns the last one.
    fn collect(&mut self) -> Option<Done> {
        self.commands.returned().inspect(|_| self.under_way -= 1).last()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let State { admitted, core } = &mut *self.peers.lock();
        let Some(times) = admitted.get_mut(&self.address) else { return };
        *times -= 1;
        if *times == 0 {
            admitted.remove(&self.address);
            if let Some(core) = core {
                core.tell(Command::Remove { address: std::mem::take(&mut self.address) });
            }
        }
    }
}
