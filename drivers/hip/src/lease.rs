//! Claims on leases, and sessions that their node ends.
//!
//! A claim is looked at on a thread that may wait for the node. Where an earlier session of its lease is still there, it
//! waits for that without a thread, and is alone to do so: the next claim on the lease takes its place.

use std::{
    collections::HashMap,
    fmt::Debug,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use berth_hip_session::{Binder, Claim, Grant, Standing};
use berth_port::Nanos;
use berth_wire::hip::Code;
use tokio::{
    runtime::Handle,
    select,
    sync::{Mutex as Turn, Notify, OwnedMutexGuard},
    time::sleep,
};

/// How long a claim waits for an earlier session of its lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// The node that grants leases of the devices.
pub trait Leases: Debug + Send + Sync {
    /// Gives `session` the device of a lease, if the claim is right, and ends the session that the lease had, without
    /// waiting for it ([`Occupant::end`]).
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] where it is refused.
    fn bind(&self, claim: &Claim, source: IpAddr, session: Arc<Occupant>) -> Result<Leased, Code>;
}

/// What a claim got.
pub struct Leased {
    /// The device's place in the worker's `Settings::devices`.
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

/// The memory of a lease, which one session has at a time.
type Place = Arc<Turn<()>>;

/// The memory of each lease that is claimed or in use.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<u128, Weak<Turn<()>>>>);

impl Places {
    fn of(&self, lease: u128) -> Place {
        // Each entry is whole.
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|_, place| place.strong_count() > 0);
        let known = places.get(&lease).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let place = Place::default();
            places.insert(lease, Arc::downgrade(&place));
            place
        })
    }
}

/// A session that has a leased device, or waits for it.
#[derive(Debug)]
pub struct Occupant {
    is_ended: AtomicBool,
    told: Notify,
    place: Place,
}

impl Occupant {
    fn new(place: Place) -> Arc<Self> {
        Arc::new(Self { is_ended: AtomicBool::new(false), told: Notify::new(), place })
    }

    /// Has the session end, and does not wait for that.
    pub fn end(&self) {
        self.is_ended.store(true, SeqCst);
        self.told.notify_one();
    }

    /// Ends the session; returns when nothing is served any more and nothing of its memory is left, nor of what an earlier
    /// session of the lease had.
    pub fn stop(&self) {
        self.end();
        drop(self.place.blocking_lock());
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(SeqCst)
    }

    /// Waits for the memory; refused if the session ends meanwhile.
    async fn enter(&self) -> Result<OwnedMutexGuard<()>, Code> {
        let entered = select! {
            entered = self.place.clone().lock_owned() => entered,
            () = self.told.notified() => return Err(Code::INVALID_CONTEXT),
            () = sleep(PATIENCE) => return Err(Code::NOT_READY),
        };
        // Whoever stops it has seen the memory free, and does not wait any more.
        if self.is_ended() { Err(Code::INVALID_CONTEXT) } else { Ok(entered) }
    }
}

struct Live {
    occupant: Arc<Occupant>,
    is_live: Box<dyn Fn(Nanos) -> bool + Send>,
}

impl Standing for Live {
    fn is_stopped(&self) -> bool {
        self.occupant.is_ended()
    }

    fn is_live(&self, now: Nanos) -> bool {
        !self.is_stopped() && (self.is_live)(now)
    }
}

/// Has the claims of one session looked at.
pub(crate) struct Claims {
    leases: Arc<dyn Leases>,
    source: IpAddr,
    threads: Handle,
    places: Arc<Places>,
    /// The last claim.
    claim: Option<(Arc<Occupant>, Arc<Mutex<Decided>>)>,
}

impl Claims {
    pub(crate) fn new(leases: Arc<dyn Leases>, source: IpAddr, threads: Handle, places: Arc<Places>) -> Self {
        Self { leases, source, threads, places, claim: None }
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        if let Some((occupant, _)) = &self.claim {
            occupant.end();
        }
    }
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
        let (leases, source, decided) = (self.leases.clone(), self.source, Arc::<Mutex<Decided>>::default());
        let occupant = Occupant::new(self.places.of(claim.lease));
        self.claim = Some((occupant.clone(), decided.clone()));
        self.threads.spawn(async move {
            let mut finish = Finish { decided, result: Err(Code::UNKNOWN) };
            let session = occupant.clone();
            let bound = tokio::task::spawn_blocking(move || leases.bind(&claim, source, session)).await;
            finish.result = match bound {
                Ok(Ok(Leased { device, bytes, is_live })) => occupant.enter().await.map(|held| {
                    let standing = Box::new(Live { occupant, is_live });
                    Grant { device, bytes, standing, held: Box::new(held) }
                }),
                Ok(Err(code)) => Err(code),
                // It panicked, or the worker is dropped.
                Err(_) => Err(Code::UNKNOWN),
            };
        });
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Grant, Code>> {
        let Some((_, decided)) = &self.claim else { return Poll::Pending };
        let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = decided.result.take() {
            return Poll::Ready(result);
        }
        decided.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
