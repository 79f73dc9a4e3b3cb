//! One FBBT connection with many reads under way.

use std::sync::{Arc, Mutex};

use berth_client::{Alloc, Client};
use berth_lease::{BlockOp, BlockRequest, Blocks, Region, RegionKind, Regions, Storage};
use berth_wire::fabric::{
    Perms,
    data::stream::{Header, Hello, HelloAck, Kind, Op, Range, ReadResp},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use zerocopy::IntoBytes as _;

use crate::common::{clients, endpoint, start, who};

const DEPTH: usize = 64;
const LEN: u64 = 1 << 20;
/// Blocks per read: all reads together need a place among the long ones.
const BLOCKS: u32 = 8;

/// Blocks that contain their own number. Their reads end in reverse order, once as many as allowed are under way.
#[derive(Default)]
struct Disk(Mutex<Vec<BlockRequest>>);

impl Blocks for Disk {
    fn len(&self) -> u64 {
        LEN
    }
    fn submit(&self, request: BlockRequest) {
        if request.op != BlockOp::Read {
            return request.done.done(request.tag, request.pieces, Ok(()));
        }
        let mut waiting = self.0.lock().unwrap();
        waiting.push(request);
        if waiting.len() == DEPTH {
            for request in waiting.drain(..).rev() {
                let number = (request.at / 512 / u64::from(BLOCKS)) as u8;
                let [piece] = &request.pieces[..] else { panic!("a read has one buffer") };
                piece.write_at(0, &vec![number; piece.size()]);
                request.done.done(request.tag, request.pieces, Ok(()));
            }
        }
    }
}

fn message(op: Op, request_id: u32, payload: &[u8]) -> Vec<u8> {
    [Header::new(Kind::Block, op, payload.len() as u32, request_id).as_bytes(), payload].concat()
}

#[test]
fn sixty_four_reads_of_one_connection_are_under_way_and_answered_as_they_end() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::Blocks(Arc::new(Disk::default()));
    let region = Region { name: "blocks".into(), kind: RegionKind::Block, numa: None, storage };
    let control = start(folder.path(), Regions::new(vec![region]), Vec::new());
    let at = endpoint(&control, "fbbt");
    clients(async {
        let client = Client::quic(Arc::new(who(3)), endpoint(&control, "quic"), None).await.unwrap();
        let token = client.cap_request(Perms::ALL, 300, 0, None).await.unwrap();
        let grant = client.lease_alloc(&token, &Alloc::block(LEN, 300)).await.unwrap();
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(&message(Op::Hello, 0, Hello::new(grant.lease_id).as_bytes())).await.unwrap();
        stream.read_exact(&mut [0; Header::LEN + HelloAck::LEN]).await.unwrap();
        for round in 0..3 {
            let reads: Vec<u8> = (0..DEPTH as u32)
                .flat_map(|i| message(Op::Read, 1 + i, Range::new((i * BLOCKS).into(), BLOCKS).as_bytes()))
                .collect();
            stream.write_all(&reads).await.unwrap();
            if round == 2 {
                stream.shutdown().await.unwrap();
            }
            for expected in (0..DEPTH as u32).rev() {
                let mut answer = vec![0; Header::LEN + ReadResp::LEN + BLOCKS as usize * 512];
                stream.read_exact(&mut answer).await.unwrap();
                let header = Header::parse(&answer).unwrap();
                assert_eq!((header.op(), header.request_id()), (Some(Op::ReadResp), 1 + expected));
                assert!(answer[Header::LEN + ReadResp::LEN..].iter().all(|byte| u32::from(*byte) == expected));
            }
        }
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    });
}
