//! The thread that does the arithmetic of authentication, so that no poll core and no listener waits for it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    net::IpAddr,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use berth_nvme::auth::{Job, Machine, Random};

/// Jobs that wait for the thread. There is at most one of each connection.
#[derive(Default)]
pub(crate) struct Arithmetic {
    waiting: Mutex<Waiting>,
    news: Condvar,
}

#[derive(Default)]
struct Waiting {
    jobs: BTreeMap<IpAddr, VecDeque<Job>>,
    /// Peers that have some, in the order of their turns.
    turns: VecDeque<IpAddr>,
    is_over: bool,
}

/// Ends the thread when it is dropped.
pub(crate) struct Running(Arc<Arithmetic>);

impl fmt::Debug for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Arithmetic")
    }
}

impl Machine for Arithmetic {
    fn random(&self) -> Random {
        let mut bytes = [0; Random::LEN];
        // A challenge that can be guessed would let anybody in.
        getrandom::fill(&mut bytes).expect("the system gives random bytes once it has booted");
        Random::new(bytes)
    }

    fn compute(&self, peer: IpAddr, job: Job) {
        let mut waiting = self.lock();
        let jobs = waiting.jobs.entry(peer).or_default();
        let has_turn = !jobs.is_empty();
        // Those of connections that are gone.
        jobs.retain(Job::is_wanted);
        jobs.push_back(job);
        if !has_turn {
            waiting.turns.push_back(peer);
        }
        drop(waiting);
        self.news.notify_one();
    }
}

impl Arithmetic {
    /// Starts the thread, on the CPUs of the one that calls this.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<Running> {
        let own = self.clone();
        thread::Builder::new().name("nvme-auth".into()).spawn(move || own.run())?;
        Ok(Running(self.clone()))
    }

    /// Does one job of each peer after the other. It rests as long as it works: strangers take at most half a CPU.
    fn run(&self) {
        while let Some(job) = self.next() {
            if job.is_wanted() {
                let began = Instant::now();
                job.run();
                thread::sleep(began.elapsed());
            }
        }
    }

    /// The next job, once there is one; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut waiting = self.lock();
        loop {
            if waiting.is_over {
                return None;
            }
            if let Some(job) = waiting.take() {
                return Some(job);
            }
            waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Job> {
        let peer = self.turns.pop_front()?;
        let jobs = self.jobs.get_mut(&peer)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.jobs.remove(&peer);
        } else {
            self.turns.push_back(peer);
        }
        job
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.news.notify_one();
    }
}
