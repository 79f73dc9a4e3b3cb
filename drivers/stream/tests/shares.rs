//! Who gets a place, who waits, and who is served next.

use std::{pin::Pin, sync::Arc};

use berth_stream::{Place, Shares};
use tokio::select;

type Waiting<'a> = Pin<Box<dyn Future<Output = Place<&'static str>> + 'a>>;

/// The place that is waited for, if it has been given.
async fn now(waiting: &mut Waiting<'_>) -> Option<Place<&'static str>> {
    select! {
        biased;
        place = waiting => Some(place),
        () = async {} => None,
    }
}

async fn wait<'a>(shares: &'a Arc<Shares<&'static str>>, peer: &'static str) -> Waiting<'a> {
    let mut waiting: Waiting<'a> = Box::pin(shares.enter(peer));
    assert!(now(&mut waiting).await.is_none(), "{peer} is served at once");
    waiting
}

#[test]
fn greedy_peers_leave_as_many_places_as_each_of_them_holds() {
    let shares = Shares::new(100, 60);
    let mut held = Vec::new();
    let mut of = |peer: u32| {
        let mine: Vec<_> = std::iter::from_fn(|| shares.try_enter(peer)).collect();
        let count = mine.len();
        held.extend(mine);
        count
    };
    // Half of all, half of the rest, and so on: who comes next always finds some.
    assert_eq!([of(1), of(2), of(3), of(4), of(5)], [50, 25, 13, 6, 3]);
    assert_eq!(of(1), 0);
    held.clear();
    let shares = Shares::new(100, 30);
    assert_eq!(std::iter::from_fn(|| shares.try_enter(1)).collect::<Vec<_>>().len(), 30, "its share");
}

#[tokio::test]
async fn who_holds_the_fewest_is_served_first_then_who_waited_longest() {
    let shares = Shares::new(3, 3);
    let (a1, b1) = (shares.try_enter("a").unwrap(), shares.try_enter("b").unwrap());
    let mut a2 = wait(&shares, "a").await;
    let mut b2 = wait(&shares, "b").await;
    let c1 = shares.try_enter("c").expect("who holds none finds one");
    let mut d1 = wait(&shares, "d").await;
    drop(c1);
    let d = now(&mut d1).await.expect("d holds none, and is before a and b who came earlier");
    assert!(now(&mut a2).await.is_none() && now(&mut b2).await.is_none());
    assert!(shares.is_wanted());
    drop((d, b1));
    // Two are free. b holds none any more, a one.
    let b = now(&mut b2).await.expect("b holds none");
    assert!(now(&mut a2).await.is_none(), "a may not hold two while one is free");
    drop(b);
    let a = now(&mut a2).await.expect("two are free");
    drop((a, a1));
    assert!(!shares.is_wanted());
}

#[tokio::test]
async fn who_gives_up_waiting_leaves_nothing_behind() {
    let shares = Shares::new(2, 1);
    let held = shares.try_enter("a").unwrap();
    let second = wait(&shares, "a").await;
    let mut third = wait(&shares, "a").await;
    drop(second);
    assert!(shares.is_wanted());
    drop(held);
    // It was granted a place that nobody takes any more: the next one gets it.
    let fourth = wait(&shares, "a").await;
    drop(fourth);
    let place = now(&mut third).await.expect("its turn");
    let fifth = wait(&shares, "a").await;
    let mut sixth = wait(&shares, "a").await;
    drop(place);
    drop(fifth);
    assert!(now(&mut sixth).await.is_some());
    drop(sixth);
    assert!(shares.try_enter("a").is_some());
}

#[tokio::test]
async fn what_is_closed_gives_no_place_and_waits_for_those_it_gave() {
    let shares = Shares::new(4, 2);
    let (first, second) = (shares.try_enter("a").unwrap(), shares.try_enter("a").unwrap());
    let mut waiting = wait(&shares, "a").await;
    let closing = tokio::spawn({
        let shares = shares.clone();
        async move { shares.close().await }
    });
    tokio::task::yield_now().await;
    assert!(shares.try_enter("b").is_none());
    drop(first);
    assert!(now(&mut waiting).await.is_none());
    tokio::task::yield_now().await;
    assert!(!closing.is_finished());
    drop(second);
    closing.await.unwrap();
}
