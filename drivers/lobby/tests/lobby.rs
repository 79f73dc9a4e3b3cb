//! Who gives way to whom.

use std::pin::pin;

use berth_lobby::{Limits, Lobby, Refused};
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

#[tokio::test]
async fn guests_are_limited_in_all_and_for_each_peer_and_stay() {
    let lobby = Lobby::new(LIMITS);
    let admit = |peer| lobby.enter().0.admit(peer);
    let (a, b) = (admit("a").unwrap(), admit("a").unwrap());
    assert_eq!(admit("a").unwrap_err(), Refused::Full);
    let c = admit("b").unwrap();
    assert_eq!(admit("c").unwrap_err(), Refused::Full);
    // Any number of strangers displaces no guest.
    let strangers: Vec<_> = (0..100).map(|_| lobby.enter()).collect();
    assert_eq!(lobby.population(), 2 + 3);
    drop((a, strangers));
    let d = admit("c").unwrap();
    assert_eq!(admit("a").unwrap_err(), Refused::Full);
    drop(b);
    assert!(admit("a").is_ok());
    drop((c, d));
    assert_eq!(lobby.population(), 0);
}
