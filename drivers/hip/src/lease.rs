//! Claims on leases, which are looked at on threads that may wait, and sessions that their node ends.

use std::{
    fmt::Debug,
    net::IpAddr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use berth_hip_session::{Binder, Claim, Grant, Standing};
use berth_port::Nanos;
use berth_wire::hip::Code;
use tokio::runtime::Handle;

/// The node that grants leases of the devices.
pub trait Leases: Debug + Send + Sync {
    /// Gives `session` the device of a lease, if the claim is right. It may wait, and does for an earlier session of the
    /// lease to be gone.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] where it is refused.
    fn bind(&self, claim: &Claim, source: IpAddr, session: Arc<Occupant>) -> Result<Leased, Code>;
}

/// What a claim got.
pub struct Leased {
    /// Which device.
    pub device: usize,
    /// The lease's bytes.
    pub bytes: u64,
    /// Whether the lease may be used at a moment of the cores' clock.
    pub is_live: Box<dyn Fn(Nanos) -> bool + Send>,
}

impl Debug for Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leased({} bytes of {})", self.bytes, self.device)
    }
}

/// A session that has a leased device.
#[derive(Debug, Default)]
pub struct Occupant {
    stopped: AtomicBool,
    gone: Mutex<bool>,
    told: Condvar,
}

impl Occupant {
    fn lock(&self) -> MutexGuard<'_, bool> {
        // It holds one value, which is whole.
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session; returns when nothing is served any more and nothing of its memory is left.
    pub fn stop(&self) {
        self.stopped.store(true, Relaxed);
        let mut gone = self.lock();
        while !*gone {
            gone = self.told.wait(gone).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Tells of the end of a session's memory.
struct Held(Arc<Occupant>);

impl Drop for Held {
    fn drop(&mut self) {
        *self.0.lock() = true;
        self.0.told.notify_all();
    }
}

struct Live {
    occupant: Arc<Occupant>,
    is_live: Box<dyn Fn(Nanos) -> bool + Send>,
}

impl Standing for Live {
    fn is_stopped(&self) -> bool {
        self.occupant.stopped.load(Relaxed)
    }

    fn is_live(&self, now: Nanos) -> bool {
        !self.is_stopped() && (self.is_live)(now)
    }
}

/// Has the claims of one session looked at.
pub(crate) struct Claims {
    pub(crate) leases: Arc<dyn Leases>,
    pub(crate) source: IpAddr,
    pub(crate) threads: Handle,
    pub(crate) decided: Arc<Mutex<Decided>>,
}

/// What became of a claim, and who waits for that.
#[derive(Default)]
pub(crate) struct Decided {
    result: Option<Result<Grant, Code>>,
    waker: Option<Waker>,
}

/// Puts down what became of a claim, even where looking at it broke off.
struct Finish {
    decided: Arc<Mutex<Decided>>,
    result: Result<Grant, Code>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        decided.result = Some(std::mem::replace(&mut self.result, Err(Code::UNKNOWN)));
        let waker = decided.waker.take();
        drop(decided);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Binder for Claims {
    fn start(&mut self, claim: Claim) {
        let (leases, source, decided) = (self.leases.clone(), self.source, self.decided.clone());
        self.threads.spawn_blocking(move || {
            let mut finish = Finish { decided, result: Err(Code::UNKNOWN) };
            let occupant = Arc::<Occupant>::default();
            let held = Held(occupant.clone());
            finish.result = leases.bind(&claim, source, occupant.clone()).map(|leased| {
                let Leased { device, bytes, is_live } = leased;
                Grant { device, bytes, standing: Box::new(Live { occupant, is_live }), held: Box::new(held) }
            });
        });
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Grant, Code>> {
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = decided.result.take() {
            return Poll::Ready(result);
        }
        decided.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
