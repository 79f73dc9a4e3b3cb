//! Buffers of block accesses: a bounded number of chunks of one memory, shared by many connections.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
};

use berth_memory::{Memory, Part};
use crossbeam_queue::ArrayQueue;

/// Bytes of a chunk.
pub const CHUNK: usize = 32 << 10;

/// Chunks of one memory. Taking and giving back takes no lock, but where somebody waits.
pub struct Pool {
    memory: Arc<dyn Memory>,
    /// Chunks that nobody has, by their number.
    free: ArrayQueue<usize>,
    /// How many of them nobody has been promised.
    unclaimed: AtomicUsize,
    waiting: AtomicUsize,
    waiters: Mutex<Vec<Waker>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} chunks free)", self.unclaimed.load(SeqCst), self.free.capacity())
    }
}

impl Pool {
    /// The chunks of `memory`, at least one.
    ///
    /// # Panics
    /// If it is shorter than [`CHUNK`].
    pub fn new(memory: Arc<dyn Memory>) -> Arc<Self> {
        let chunks = memory.size() / CHUNK;
        let free = ArrayQueue::new(chunks);
        (0..chunks).for_each(|chunk| free.push(chunk).expect("the queue has room for every chunk"));
        let (waiting, waiters) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { memory, free, unclaimed: AtomicUsize::new(chunks), waiting, waiters })
    }

    /// Its memory, for engines to register.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Bytes of all chunks, taken or not.
    pub fn size(&self) -> usize {
        self.free.capacity() * CHUNK
    }

    /// Chunks for `len` bytes, in `buffers`, which are empty: all of them, or none where less than `leave` bytes would be
    /// left for others.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: usize, leave: usize, buffers: &mut Buffers) -> bool {
        let (wanted, leave) = (len.div_ceil(CHUNK), leave.div_ceil(CHUNK));
        let claim = |unclaimed: usize| unclaimed.checked_sub(wanted).filter(|left| *left >= leave);
        if self.unclaimed.fetch_update(SeqCst, SeqCst, claim).is_err() {
            return false;
        }
        buffers.pool = Some(self.clone());
        for at in 0..wanted {
            let chunk = self.free.pop().expect("a chunk for every claim");
            let size = CHUNK.min(len - at * CHUNK);
            let part = Part::new(self.memory.clone(), chunk * CHUNK, size);
            buffers.pieces.push(part.expect("a chunk within the memory"));
        }
        true
    }

    /// Ready where [`Pool::take`] may have so much; the task is woken when chunks are given back otherwise.
    pub fn poll(&self, len: usize, leave: usize, cx: &Context<'_>) -> Poll<()> {
        self.wait(cx);
        let wanted = len.div_ceil(CHUNK) + leave.div_ceil(CHUNK);
        if self.unclaimed.load(SeqCst) >= wanted { Poll::Ready(()) } else { Poll::Pending }
    }

    fn wait(&self, cx: &Context<'_>) {
        if cx.waker().will_wake(Waker::noop()) {
            return; // whoever it is looks again by himself
        }
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
            waiters.push(cx.waker().clone());
        }
        self.waiting.store(waiters.len(), SeqCst);
    }

    fn give_back(&self, pieces: &mut Vec<Part>) {
        let count = pieces.len();
        for piece in pieces.drain(..) {
            let at = piece.base().addr().get() - self.memory.base().addr().get();
            self.free.push(at / CHUNK).expect("the queue has room for every chunk");
        }
        self.unclaimed.fetch_add(count, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            self.waiting.store(0, SeqCst);
            let waiters = std::mem::take(&mut *self.waiters.lock().unwrap_or_else(PoisonError::into_inner));
            waiters.into_iter().for_each(Waker::wake);
        }
    }
}

/// Where the data of an access lies, piece after piece. Those of a [`Pool`] go back to it when this is dropped.
#[derive(Debug, Default)]
pub struct Buffers {
    pub(crate) pieces: Vec<Part>,
    pub(crate) pool: Option<Arc<Pool>>,
}

impl Buffers {
    /// Bytes of all pieces together.
    pub fn size(&self) -> usize {
        self.pieces.iter().map(Part::size).sum()
    }

    /// Gives chunks back; the list of pieces stays allocated.
    pub fn clear(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(&mut self.pieces);
        }
        self.pieces.clear();
    }

    /// Copies the bytes from `at` on into `into`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read_at(&self, at: usize, into: &mut [u8]) {
        let mut done = 0;
        self.each(at, into.len(), |piece, here, len| {
            piece.read_at(here, &mut into[done..done + len]);
            done += len;
        });
    }

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Panics
    /// If it is longer.
    pub fn write_at(&self, at: usize, from: &[u8]) {
        let mut done = 0;
        self.each(at, from.len(), |piece, here, len| {
            piece.write_at(here, &from[done..done + len]);
            done += len;
        });
    }

    /// The pieces with `len` bytes from `at` on: of each the first byte, and how many.
    fn each(&self, mut at: usize, mut len: usize, mut visit: impl FnMut(&Part, usize, usize)) {
        for piece in &self.pieces {
            let size = piece.size();
            if at < size && len > 0 {
                let here = len.min(size - at);
                visit(piece, at, here);
                (at, len) = (0, len - here);
            } else {
                at = at.saturating_sub(size);
            }
        }
        assert_eq!(len, 0, "bytes beyond the buffers");
    }
}

impl From<Part> for Buffers {
    fn from(part: Part) -> Self {
        Self { pieces: vec![part], pool: None }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.clear();
    }
}
