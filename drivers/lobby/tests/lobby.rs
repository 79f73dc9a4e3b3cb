//! Who gives way to whom.

use std::pin::pin;

use berth_lobby::{Guest, Limits, Lobby, Refused};
use tokio::select;

const LIMITS: Limits = Limits { strangers: 2, guests: 3, per_peer: 2 };

/// Whether a newcomer has taken the place.
async fn is_displaced(stranger: &mut berth_lobby::Stranger<&str>) -> bool {
    select! {
        biased;
        () = stranger.displaced() => true,
        () = pin!(async {}) => false,
    }
}

#[tokio::test]
async fn the_stranger_who_waited_longest_gives_way_to_a_newcomer() {
    let lobby = Lobby::<&str>::new(LIMITS);
    let ((mut first, none), (mut second, no)) = (lobby.enter(), lobby.enter());
    assert!(!none && !no);
    let (mut third, crowded) = lobby.enter();
    assert!(crowded);
    assert_eq!([is_displaced(&mut first).await, is_displaced(&mut second).await], [true, false]);
    assert_eq!(lobby.population(), 2);
    // Who was displaced is not admitted any more, and leaves nothing behind.
    assert_eq!(first.admit("a").unwrap_err(), Refused::Displaced);
    assert_eq!(lobby.population(), 2);
    // Who left makes room.
    drop(second);
    let (fourth, crowded) = lobby.enter();
    assert!(!crowded && !is_displaced(&mut third).await);
    drop((third, fourth));
    assert_eq!(lobby.population(), 0);
}

/// Whether another peer's guest has taken the place.
async fn gave_way(guest: &mut Guest<&str>) -> bool {
    select! {
        biased;
        () = guest.displaced() => true,
        () = pin!(async {}) => false,
    }
}

#[tokio::test]
async fn guests_are_limited_for_each_peer_and_the_greediest_gives_way_where_that_is_fairer() {
    let lobby = Lobby::new(LIMITS);
    let admit = |peer| lobby.enter().0.admit(peer);
    let (mut a, mut b) = (admit("a").unwrap(), admit("a").unwrap());
    assert_eq!(admit("a").unwrap_err(), Refused::Full);
    let mut c = admit("b").unwrap();
    // Any number of strangers displaces no guest.
    let strangers: Vec<_> = (0..100).map(|_| lobby.enter()).collect();
    assert_eq!(lobby.population(), 2 + 3);
    drop(strangers);
    assert_eq!(admit("b").unwrap_err(), Refused::Full, "it would have as many as the greediest has now");
    let mut d = admit("c").unwrap();
    assert_eq!([gave_way(&mut a).await, gave_way(&mut b).await, gave_way(&mut c).await], [false, true, false]);
    assert_eq!(lobby.population(), 3);
    // It has given its place away already.
    drop(b);
    assert_eq!(lobby.population(), 3);
    assert_eq!(admit("d").unwrap_err(), Refused::Full, "each has one");
    assert!(!gave_way(&mut d).await);
    drop(a);
    let e = admit("d").unwrap();
    drop((c, d, e));
    assert_eq!(lobby.population(), 0);
}
