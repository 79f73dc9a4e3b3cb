//! Leases of a GPU's memory that the node cannot address: an engine beside it does all accesses, some time later.

use std::{
    collections::VecDeque,
    net::UdpSocket,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use berth_client::{Alloc, Client, Data, Error, Grant, Tasklet, Via};
use berth_control::Control;
use berth_lease::{
    BlockError, BlockInfo, BlockOp, BlockRequest, Blocks, Region, RegionId, RegionKind, Regions, Storage,
};
use berth_wire::fabric::{
    Op, Perms, RelocateMode, Status, TaskletRights, TaskletStatus,
    data::{
        IoStatus,
        page::{self, PageRef},
        shim::{self, Fields, Header},
    },
};
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

use crate::{
    common::{LOCAL, clients, endpoint, key, memory, start_with},
    tasklets::{node, tasklet},
};

const GRANULE: usize = 2 << 20;
const LEN: usize = 4 * GRANULE;

/// A GPU's memory. Its operations end on a thread of its own; the next ones fail as is said.
struct Gpu {
    bytes: Arc<Mutex<Vec<u8>>>,
    fails: Arc<Mutex<VecDeque<BlockError>>>,
    queue: mpsc::Sender<BlockRequest>,
}

impl Gpu {
    fn new() -> Arc<Self> {
        let (queue, requests) = mpsc::channel::<BlockRequest>();
        let (bytes, fails) = (Arc::new(Mutex::new(vec![0; LEN])), Arc::<Mutex<VecDeque<BlockError>>>::default());
        let (memory, failing) = (bytes.clone(), fails.clone());
        thread::spawn(move || {
            for request in requests {
                thread::sleep(Duration::from_micros(200));
                let failure = failing.lock().unwrap().pop_front();
                if failure.is_none() {
                    work(&request, &mut memory.lock().unwrap());
                }
                request.done.done(request.tag, request.pieces, failure.map_or(Ok(()), Err));
            }
        });
        Arc::new(Self { bytes, fails, queue })
    }

    /// The bytes of a range.
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        self.bytes.lock().unwrap()[at..at + len].to_vec()
    }

    fn fail(&self, next: &[BlockError]) {
        self.fails.lock().unwrap().extend(next);
    }
}

fn work(request: &BlockRequest, memory: &mut [u8]) {
    let range = &mut memory[request.at as usize..][..request.len() as usize];
    match request.op {
        BlockOp::Read => request.write_at(0, range),
        BlockOp::Write => request.read_at(0, range),
        BlockOp::Zero(_) => range.fill(0),
        BlockOp::Compare | BlockOp::Discard(_) | BlockOp::Flush => panic!("{request:?} is not for memory"),
    }
}

impl Blocks for Gpu {
    fn len(&self) -> u64 {
        LEN as u64
    }
    fn info(&self) -> BlockInfo {
        BlockInfo { granule: GRANULE as u64, volatile: true, ..BlockInfo::default() }
    }
    fn submit(&self, request: BlockRequest) {
        self.queue.send(request).unwrap();
    }
}

/// A node with ordinary memory and a GPU's.
fn start() -> (Control, Arc<Gpu>, TempDir) {
    let (folder, gpu) = (tempfile::tempdir().unwrap(), Gpu::new());
    let storage = Storage::Blocks(gpu.clone());
    let vram = Region { name: "vram".into(), kind: RegionKind::Vram, numa: None, storage };
    let host = memory(4 << 20).get(RegionId(0)).unwrap().clone();
    let control = start_with(folder.path(), Regions::new(vec![host, vram]), Vec::new(), node(Duration::from_secs(20)));
    (control, gpu, folder)
}

/// A client with a token.
async fn client(control: &Control) -> (Client, berth_client::Token) {
    let client = Client::quic(key(2), endpoint(control, "quic"), None).await.unwrap();
    let token = client.cap_request(Perms::ALL, 300, 0, None).await.unwrap();
    (client, token)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 256 + seed) as u8).collect()
}

async fn open(client: &Client, grant: &Grant, via: Via) -> Data {
    Data::open(client.identity(), grant, via, None).await.unwrap()
}

#[test]
fn every_socket_serves_any_range() {
    let (control, gpu, _folder) = start();
    clients(async {
        let (client, token) = client(&control).await;
        let grant = client.lease_alloc(&token, &Alloc::gpu((1 << 20) + 777, 300)).await.unwrap();
        assert_eq!(grant.len, (1 << 20) + 777);
        let mut model = vec![0; LEN];
        for (seed, via) in [Via::Shim, Via::Tcp, Via::Quic].into_iter().enumerate() {
            let mut data = open(&client, &grant, via).await;
            // More than a datagram has takes several.
            for (offset, len) in [(0, 1), (3, 513), (1, 1 << 20), ((1 << 20) + 776, 1)] {
                let wrote = pattern(len, seed + len);
                data.write(offset as u64, &wrote).await.unwrap();
                model[offset..offset + len].copy_from_slice(&wrote);
                assert!(gpu.bytes(0, LEN) == model, "{via:?} at {offset}");
                assert!(data.read(offset as u64, len as u64).await.unwrap() == wrote, "{via:?} at {offset}");
            }
            for (failure, status) in [(BlockError::Busy, IoStatus::Busy), (BlockError::Io(5), IoStatus::Internal)] {
                gpu.fail(&[failure; 2]);
                let [read, write] = [data.read(3, 5).await.map(drop), data.write(3, b"lost").await];
                for refused in [read, write] {
                    assert!(matches!(refused, Err(Error::Access(found)) if found == status), "{via:?}: {refused:?}");
                }
            }
        }
        let of_page = |page| PageRef { lease_id: grant.lease_id, page };
        let last = of_page(256);
        client.page_write(last, 3, &[9; 513]).await.unwrap();
        model[(1 << 20) + 3..][..513].fill(9);
        assert!(gpu.bytes(0, LEN) == model);
        assert_eq!(client.page_read(last, 0, 777).await.unwrap(), model[1 << 20..][..777]);
        gpu.fail(&[BlockError::Io(5)]);
        let failed = client.page_read(last, 0, 1).await;
        assert!(matches!(failed, Err(Error::Page { status: page::Status::LeaseNotActive, .. })), "{failed:?}");
    });
    control.stop(Duration::from_secs(5));
}

/// More accesses from one address than may be under way: the node answers the one too many at once.
#[test]
fn too_many_datagrams_under_way_are_answered_as_busy() {
    const MOST: u64 = 64;
    let (control, gpu, _folder) = start();
    let grant = clients(async {
        let (client, token) = client(&control).await;
        client.lease_alloc(&token, &Alloc::gpu(100, 300)).await.unwrap()
    });
    let socket = UdpSocket::bind(LOCAL).unwrap();
    socket.connect(endpoint(&control, "fbmu")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (op, kind, length) = (shim::Op::Read, shim::Kind::Memory, 3);
    let (lease_id, generation) = (grant.lease_id, grant.generation);
    let read = |request_id| {
        let fields = Fields { kind, op, status: 0, request_id, lease_id, generation, offset: 1, length };
        let header = Header::new(&fields);
        socket.send(header.with_crc(crc32c::crc32c(header.as_bytes())).as_bytes()).unwrap();
    };
    let answer = || {
        let mut answer = [0; 100];
        let len = socket.recv(&mut answer).unwrap();
        let fields = Header::parse(&answer[..len]).unwrap().fields().unwrap();
        (fields.status, fields.request_id, len - Header::LEN)
    };
    // Nothing ends while somebody has the bytes.
    let bytes = gpu.bytes.lock().unwrap();
    (0..=MOST).for_each(read);
    assert_eq!(answer(), (IoStatus::Busy as u8, MOST, 0));
    drop(bytes);
    for _ in 0..MOST {
        let (status, request_id, len) = answer();
        assert!((status, len) == (0, 3) && request_id < MOST);
    }
    read(MOST + 1);
    assert_eq!(answer(), (0, MOST + 1, 3));
    control.stop(Duration::from_secs(5));
}

#[test]
fn a_tasklet_reads_it_as_memory() {
    let (control, gpu, _folder) = start();
    clients(async {
        let (client, token) = client(&control).await;
        let grant = client.lease_alloc(&token, &Alloc::gpu(1001, 300)).await.unwrap();
        gpu.bytes.lock().unwrap()[..1001].fill(3);
        let caps = vec![(grant.lease_id, TaskletRights::FBMU_LEASE_IO)];
        let ran = client.tasklet_submit(&token, &Tasklet { caps, ..tasklet("sum") }).await.unwrap();
        assert_eq!((ran.status, ran.output), (TaskletStatus::Ok, 3003_u64.to_le_bytes().to_vec()));
    });
    control.stop(Duration::from_secs(5));
}

#[test]
fn bytes_move_between_it_and_memory_whatever_their_number() {
    const BYTES: usize = 300_001;
    let (control, gpu, _folder) = start();
    clients(async {
        let (client, token) = client(&control).await;
        let memory = client.lease_alloc(&token, &Alloc::memory(BYTES as u64, 300)).await.unwrap();
        let vram = client.lease_alloc(&token, &Alloc::gpu(BYTES as u64 + 1, 300)).await.unwrap();
        let back = client.lease_alloc(&token, &Alloc::memory(BYTES as u64 + 1, 300)).await.unwrap();
        let wrote = pattern(BYTES, 5);
        open(&client, &memory, Via::Tcp).await.write(0, &wrote).await.unwrap();
        gpu.fail(&[BlockError::Busy; 3]);
        let key = |grant: &Grant| grant.lease_id as u64;
        let there = client.lease_relocate(key(&memory), key(&vram), RelocateMode::Copy, None).await.unwrap();
        assert_eq!((there.bytes, there.failed), (BYTES as u64, None));
        assert!(gpu.bytes(0, BYTES) == wrote && gpu.bytes(BYTES, GRANULE) == vec![0; GRANULE]);
        let again = client.lease_relocate(key(&vram), key(&back), RelocateMode::Move, None).await.unwrap();
        assert_eq!((again.bytes, again.failed), (BYTES as u64 + 1, None));
        let read = open(&client, &back, Via::Tcp).await.read(0, BYTES as u64 + 1).await.unwrap();
        assert!(read == [&wrote[..], &[0]].concat());
        assert!(gpu.bytes(0, LEN) == vec![0; LEN], "the source is over, and was scrubbed");
    });
    control.stop(Duration::from_secs(5));
}

/// The engine's process may die: another one is there soon.
#[test]
fn all_granules_are_zero_when_a_lease_has_ended_though_the_engine_failed_for_a_while() {
    let (control, gpu, _folder) = start();
    clients(async {
        let (client, token) = client(&control).await;
        let grant = client.lease_alloc(&token, &Alloc::gpu(GRANULE as u64 + 1, 300)).await.unwrap();
        // A kernel reaches what lies behind the lease's last byte.
        gpu.bytes.lock().unwrap().fill(7);
        gpu.fail(&[BlockError::Io(32), BlockError::Busy, BlockError::Io(32)]);
        client.lease_free(grant.lease_id).await.unwrap();
        assert!(gpu.bytes(0, 2 * GRANULE) == vec![0; 2 * GRANULE]);
        assert!(gpu.bytes(2 * GRANULE, 2 * GRANULE) == vec![7; 2 * GRANULE], "nothing else");

        // What was never leased is zero as it is; what was is zeroed once more.
        gpu.bytes.lock().unwrap().fill(7);
        let again = client.lease_alloc(&token, &Alloc::gpu(1, 300)).await.unwrap();
        assert!(gpu.bytes(0, GRANULE) == vec![0; GRANULE] && gpu.bytes(GRANULE, 1) == [7]);
        client.lease_free(again.lease_id).await.unwrap();
        gpu.fail(&[BlockError::Io(5)]);
        let refused = client.lease_alloc(&token, &Alloc::gpu(1, 300)).await;
        let is_failed = |error| matches!(error, Error::Refused { op: Op::LeaseAlloc, status: Status::InternalError });
        assert!(refused.is_err_and(is_failed));
        client.lease_alloc(&token, &Alloc::gpu(LEN as u64, 300)).await.unwrap();
    });
    control.stop(Duration::from_secs(5));
}
