//! The listener, on a thread of its own.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
};

use berth_stream::{Connections, Event, Limits as Crowd, Listener, Pending};
use berth_wire::{
    fabric::{FabricError, Status},
    rendezvous::{Answer, HostApi, MAX_MESSAGE, Offer},
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    select,
    sync::oneshot,
    task::LocalSet,
    time::sleep,
};

use crate::{Acceptor, DEAD_AFTER, Form, Limits, PeerId, TICK, counters::Counters};

/// Connections whose request has not come yet, at a time.
const PENDING: usize = 64;

/// A listener with its thread; dropping it stops the thread, and drops the acceptor there.
#[derive(Debug)]
pub struct Rendezvous {
    local: SocketAddr,
    counters: Arc<Counters>,
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Binds `addr` and serves it on a new thread, which inherits the caller's CPUs.
    pub fn listen(addr: SocketAddr, form: Form, limits: Limits, acceptor: impl Acceptor) -> io::Result<Self> {
        let listener = Listener::bind(addr)?;
        let local = listener.local_addr()?;
        let counters = Arc::<Counters>::default();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counts = counters.clone();
        let thread = thread::Builder::new().name("rendezvous".into()).spawn(move || {
            let tasks = LocalSet::new();
            let house = Rc::new(House {
                form,
                limits,
                counters: counts,
                acceptor: RefCell::new(acceptor),
                guests: RefCell::default(),
            });
            tasks.block_on(&runtime, async {
                select! {
                    _ = accept(listener, &house) => {}
                    () = keep_house(&house) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { local, counters, stop: Some(stop), thread: Some(thread) })
    }

    /// Where peers connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Reports `rendezvous_peers` (taken in), `rendezvous_gone`, `rendezvous_refused` (by the port), `rendezvous_full`
    /// (over the limit of peers), `rendezvous_displaced` (without a request when newcomers needed their places),
    /// `rendezvous_malformed` and `rendezvous_timed_out`.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic in the acceptor has been reported by its thread.
            let _ = thread.join();
        }
    }
}

/// What the tasks of the thread share.
struct House<A> {
    form: Form,
    limits: Limits,
    counters: Arc<Counters>,
    acceptor: RefCell<A>,
    guests: RefCell<Guests>,
}

#[derive(Default)]
struct Guests {
    /// The number of the next peer.
    next: u64,
    /// What ends the connection of a peer that has one.
    peers: HashMap<PeerId, Option<oneshot::Sender<()>>>,
    /// Host-API peers: who told of whom.
    addressed: HashMap<(IpAddr, Ipv4Addr), PeerId>,
}

async fn accept<A: Acceptor>(listener: Listener, house: &Rc<House<A>>) -> io::Result<()> {
    let counters = house.counters.clone();
    // Who becomes a peer is decided with the offer.
    let limits = Crowd { pending: PENDING, identify_within: house.limits.request_within, admitted: 0, per_peer: 0 };
    let connections = Connections::new(limits, move |event| match event {
        Event::Displaced => counters.displaced.add(),
        Event::Refused => {}
        Event::Expired => counters.timed_out.add(),
    });
    let spawn = |stream, from, pending| {
        let house = house.clone();
        tokio::task::spawn_local(async move { house.meet(stream, from, pending).await });
    };
    listener.serve(connections, spawn).await
}

async fn keep_house<A: Acceptor>(house: &House<A>) {
    loop {
        sleep(TICK).await;
        let mut ended = Vec::new();
        house.acceptor.borrow_mut().tick(&mut |peer| ended.push(peer));
        for peer in ended {
            house.forget(peer);
        }
    }
}

/// Why a connection came to nothing.
enum Failure {
    Io,
    Malformed,
}

impl From<io::Error> for Failure {
    fn from(_: io::Error) -> Self {
        Self::Io
    }
}

impl From<FabricError> for Failure {
    fn from(_: FabricError) -> Self {
        Self::Malformed
    }
}

impl<A: Acceptor> House<A> {
    /// One connection, from its request to its end.
    async fn meet(self: Rc<Self>, mut stream: TcpStream, from: SocketAddr, mut pending: Pending<()>) {
        let meeting = pending.identify(async {
            watch(&stream)?;
            match self.form {
                Form::HostApi => self.host_api(&mut stream, from).await.map(|()| None),
                Form::Berth => self.tlvs(&mut stream, from).await,
            }
        });
        let met = meeting.await;
        drop(pending);
        match met {
            Some(Ok(Some(mut guest))) => select! {
                // Whether it closes or says more than it may: it is gone.
                _ = stream.read_u8() => {}
                _ = &mut guest.ended => {}
            },
            Some(Err(Failure::Malformed)) => self.counters.malformed.add(),
            Some(Ok(None) | Err(Failure::Io)) | None => {}
        }
    }

    async fn host_api(&self, stream: &mut TcpStream, from: SocketAddr) -> Result<(), Failure> {
        let mut request = [0; HostApi::LEN];
        stream.read_exact(&mut request).await?;
        let request = HostApi::parse(&request);
        let offer = request.offer();
        let key = (from.ip(), request.addr);
        let predecessor = self.guests.borrow_mut().addressed.remove(&key);
        if let Some(predecessor) = predecessor {
            self.leave(predecessor);
        }
        // The form has no word for a refusal: the connection closes.
        let Ok((id, answer)) = self.take(from, &offer, None) else { return Ok(()) };
        self.guests.borrow_mut().addressed.insert(key, id);
        if let Some(answer) = HostApi::of_answer(&answer) {
            stream.write_all(&answer.to_bytes()).await?;
        } else {
            self.leave(id);
        }
        Ok(())
    }

    async fn tlvs(&self, stream: &mut TcpStream, from: SocketAddr) -> Result<Option<Guest<'_, A>>, Failure> {
        let len = stream.read_u32().await? as usize;
        if len > MAX_MESSAGE {
            stream.write_all(&Answer::refusal(Status::InvalidParams)).await?;
            return Err(Failure::Malformed);
        }
        let mut request = vec![0; len];
        stream.read_exact(&mut request).await?;
        let offer = match Offer::parse(&request) {
            Ok(offer) => offer,
            Err(e) => {
                stream.write_all(&Answer::refusal(Status::InvalidParams)).await?;
                return Err(e.into());
            }
        };
        let (end, ended) = oneshot::channel();
        match self.take(from, &offer, Some(end)) {
            Ok((id, answer)) => {
                let guest = Guest { house: self, id, ended };
                let mut bytes = Vec::new();
                answer.write(&mut bytes);
                stream.write_all(&bytes).await?;
                Ok(Some(guest))
            }
            Err(status) => {
                stream.write_all(&Answer::refusal(status)).await?;
                Ok(None)
            }
        }
    }

    /// Takes a peer in, where there is room and the port likes it.
    fn take(
        &self,
        from: SocketAddr,
        offer: &Offer<'_>,
        end: Option<oneshot::Sender<()>>,
    ) -> Result<(PeerId, Answer), Status> {
        let mut guests = self.guests.borrow_mut();
        if guests.peers.len() >= self.limits.peers {
            self.counters.full.add();
            return Err(Status::CapacityExceeded);
        }
        let id = PeerId(guests.next);
        let mut answer = Answer::default();
        if let Err(status) = self.acceptor.borrow_mut().offer(id, from, offer, &mut answer) {
            self.counters.refused.add();
            return Err(status);
        }
        guests.next += 1;
        guests.peers.insert(id, end);
        self.counters.taken.add();
        Ok((id, answer))
    }

    /// A peer is gone, unless it was told to.
    fn leave(&self, id: PeerId) {
        if self.forget(id) {
            self.acceptor.borrow_mut().gone(id);
        }
    }

    /// Strikes a peer off, which ends its connection; false where it was before.
    fn forget(&self, id: PeerId) -> bool {
        let mut guests = self.guests.borrow_mut();
        guests.addressed.retain(|_, peer| *peer != id);
        let known = guests.peers.remove(&id).is_some();
        if known {
            self.counters.gone.add();
        }
        known
    }
}

/// A peer that lives as long as its connection.
struct Guest<'a, A: Acceptor> {
    house: &'a House<A>,
    id: PeerId,
    ended: oneshot::Receiver<()>,
}

impl<A: Acceptor> Drop for Guest<'_, A> {
    fn drop(&mut self) {
        self.house.leave(self.id);
    }
}

/// Makes the kernel notice a host that is gone without a word.
fn watch(stream: &TcpStream) -> io::Result<()> {
    const PROBES: u32 = 4;
    let every = DEAD_AFTER / (PROBES + 1);
    let keepalive = TcpKeepalive::new().with_time(every).with_interval(every).with_retries(PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}
