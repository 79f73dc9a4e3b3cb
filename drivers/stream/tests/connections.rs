//! Which connection displaces which.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_stream::{Admitted, Connections, Event, Limits, Pending};
use tokio::{select, time::sleep};

const LIMITS: Limits = Limits { pending: 2, identify_within: Duration::from_mins(1), admitted: 3, per_peer: 2 };

fn connections(limits: Limits) -> (Arc<Connections<&'static str>>, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::<Mutex<Vec<_>>>::default();
    let seen = events.clone();
    (Connections::new(limits, move |event| seen.lock().unwrap().push(event)), events)
}

/// Whether the connection was displaced; otherwise its peer identifies itself at once.
async fn is_displaced(pending: &mut Pending<&str>) -> bool {
    tokio::task::yield_now().await;
    pending.identify(sleep(Duration::from_millis(1))).await.is_none()
}

#[tokio::test]
async fn the_one_that_is_pending_for_longest_gives_way_to_a_newcomer() {
    let (connections, events) = connections(LIMITS);
    let (mut first, mut second) = (connections.enter(), connections.enter());
    assert_eq!(*events.lock().unwrap(), []);
    let mut third = connections.enter();
    assert_eq!(*events.lock().unwrap(), [Event::Displaced]);
    assert_eq!([is_displaced(&mut first).await, is_displaced(&mut second).await], [true, false]);
    assert_eq!(connections.count(), 2);
    // What was displaced is not admitted any more, and leaves nothing behind.
    assert!(first.admit("a").is_none());
    assert_eq!(connections.count(), 2);
    // What is over makes room.
    drop(second);
    let fourth = connections.enter();
    assert!(!is_displaced(&mut third).await);
    drop((third, fourth));
    assert_eq!(connections.count(), 0);
    assert_eq!(*events.lock().unwrap(), [Event::Displaced]);
}

#[tokio::test]
async fn a_peer_that_does_not_identify_itself_in_time_is_cut_off() {
    let (connections, events) = connections(Limits { identify_within: Duration::from_millis(100), ..LIMITS });
    assert_eq!(connections.enter().identify(async {}).await, Some(()));
    assert_eq!(*events.lock().unwrap(), []);
    assert_eq!(connections.enter().identify(sleep(Duration::from_mins(1))).await, None);
    assert_eq!(*events.lock().unwrap(), [Event::Expired]);
    assert_eq!(connections.count(), 0);
}

/// Whether the connection was displaced.
async fn gave_way(admitted: &mut Admitted<&str>) -> bool {
    select! {
        biased;
        () = admitted.displaced() => true,
        () = pin!(async {}) => false,
    }
}

#[tokio::test]
async fn admitted_ones_are_limited_for_each_peer_and_the_greediest_gives_way_where_that_is_fairer() {
    let (connections, events) = connections(LIMITS);
    let admit = |peer| connections.enter().admit(peer);
    let (mut a, mut b) = (admit("a").unwrap(), admit("a").unwrap());
    assert!(admit("a").is_none());
    assert_eq!(*events.lock().unwrap(), [Event::Refused]);
    let mut c = admit("b").unwrap();
    // Any number of pending ones displaces no admitted one.
    let pending: Vec<_> = (0..100).map(|_| connections.enter()).collect();
    assert_eq!(connections.count(), 2 + 3);
    drop(pending);
    events.lock().unwrap().clear();
    assert!(admit("b").is_none(), "it would have as many as the greediest has now");
    let mut d = admit("c").unwrap();
    assert_eq!(*events.lock().unwrap(), [Event::Refused, Event::Displaced]);
    assert_eq!([gave_way(&mut a).await, gave_way(&mut b).await, gave_way(&mut c).await], [false, true, false]);
    assert_eq!(connections.count(), 3);
    // It has given its place away already.
    drop(b);
    assert_eq!(connections.count(), 3);
    assert!(admit("d").is_none(), "each has one");
    assert!(!gave_way(&mut d).await);
    drop(a);
    let e = admit("d").unwrap();
    drop((c, d, e));
    assert_eq!(connections.count(), 0);
}
