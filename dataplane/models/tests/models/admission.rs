//! Two queues of a port, whatever the order in which their cores read and write.

use berth_admission::{Admission, Limits, Rate};
use berth_port::{Nanos, Peer};
use loom::thread;

const MS: u64 = 1_000_000;

fn peer(number: u32) -> Peer {
    Peer::Connection { number, host: None }
}

fn queues(per_peer: Option<Rate>, all: Option<Rate>) -> [Admission; 2] {
    Admission::of_port(Limits { per_peer, all }, 2).try_into().unwrap()
}

fn once() -> Rate {
    Rate::new(1000, 1)
}

/// How many requests of each of three peers are admitted, which come at one time.
fn ask(queue: &mut Admission, peers: &[u32]) -> [u32; 3] {
    let mut admitted = [0; 3];
    for number in peers {
        admitted[*number as usize] += u32::from(queue.admit(peer(*number), Nanos(10 * MS)).is_ok());
    }
    admitted
}

/// Two queues at once, and one of them again.
fn at_once([mut here, mut there]: [Admission; 2], [ours, theirs, then]: [&'static [u32]; 3]) -> [u32; 3] {
    let other = thread::spawn(move || ask(&mut there, theirs));
    let mut admitted = [ask(&mut here, ours), other.join().unwrap(), [0; 3]];
    admitted[2] = ask(&mut here, then);
    [0, 1, 2].map(|peer| admitted.iter().map(|by| by[peer]).sum())
}

#[test]
fn a_peer_has_one_bucket_in_both_queues() {
    loom::model(|| {
        let admitted = at_once(queues(Some(Rate::new(1000, 2)), None), [&[0, 0], &[0, 0], &[0]]);
        assert_eq!(admitted, [2, 0, 0]);
    });
}

#[test]
fn a_newcomer_to_both_queues_gets_one_place() {
    loom::model(|| {
        let admitted = at_once(queues(Some(once()), None), [&[0], &[1, 0], &[0, 1]]);
        assert_eq!(admitted, [1, 1, 0]);
    });
}

#[test]
fn a_place_that_is_given_away_takes_no_token_with_it() {
    loom::model(|| {
        let mut queues = queues(Some(once()), None);
        // The first one has been quiet for longest, so that its place is the third one's.
        for number in [0, 1] {
            assert!(queues[0].admit(peer(number), Nanos(u64::from(number + 1) * MS)).is_ok());
        }
        assert_eq!(at_once(queues, [&[0], &[2], &[0, 2]]), [1, 0, 1]);
    });
}

#[test]
fn all_peers_share_one_bucket() {
    loom::model(|| {
        let admitted = at_once(queues(Some(once()), Some(once())), [&[0], &[1], &[]]);
        assert_eq!(admitted.iter().sum::<u32>(), 1);
    });
}
