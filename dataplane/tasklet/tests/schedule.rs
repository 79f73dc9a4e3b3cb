//! Turns, cores and arenas: worked examples, and invariants under random histories.

use std::collections::{BTreeMap, BTreeSet};

use berth_tasklet::schedule::{Config, Full, Go, Queued, Room, RunId, SHARING, Schedule};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn config(cores: u32, memory: u64) -> Config {
    Config { room: Room { cores, memory: memory * MIB }, queue: 16, inputs: 64 * MIB }
}

fn run(run: RunId, presenter: u128, memory: u64) -> Queued {
    Queued { run, group: None, presenter, memory: memory * MIB, input: 1 }
}

fn all(schedule: &mut Schedule) -> Vec<Go> {
    std::iter::from_fn(|| schedule.next_go()).collect()
}

#[test]
fn presenters_take_turns_whoever_came_first() {
    let mut schedule = Schedule::new(config(1, 256));
    for id in 1..=3 {
        schedule.submit(run(id, 7, 64)).unwrap();
    }
    assert_eq!(all(&mut schedule), [Go::Start(1)]);
    schedule.submit(run(9, 8, 64)).unwrap();
    // A slice of the first, and the newcomer has the next.
    schedule.slice_over(1);
    assert_eq!(all(&mut schedule), [Go::Start(9)]);
    schedule.slice_over(9);
    assert_eq!(all(&mut schedule), [Go::Resume(1)]);
    schedule.slice_over(1);
    assert_eq!(all(&mut schedule), [Go::Resume(9)]);
    schedule.ended(9);
    assert_eq!(all(&mut schedule), [Go::Resume(1)]);
    schedule.ended(1);
    assert_eq!(all(&mut schedule), [Go::Start(2)]);
    assert_eq!(schedule.counts(), (1, 1));
}

#[test]
fn whoever_has_a_run_under_way_leaves_memory_for_another() {
    let mut schedule = Schedule::new(config(4, 160));
    for id in 1..=3 {
        schedule.submit(run(id, 7, 64)).unwrap();
    }
    assert_eq!(all(&mut schedule), [Go::Start(1)], "a second one would leave less than a quarter");
    schedule.submit(run(9, 8, 64)).unwrap();
    assert_eq!(all(&mut schedule), [Go::Start(9)]);
    schedule.ended(1);
    assert_eq!(all(&mut schedule), [Go::Start(2)]);
}

#[test]
fn a_composite_lease_runs_as_many_as_it_has_cores_and_its_arena_holds() {
    let mut schedule = Schedule::new(config(4, 256));
    assert!(!schedule.open(5, Room { cores: 5, memory: MIB }));
    assert!(!schedule.open(5, Room { cores: 1, memory: 257 * MIB }));
    assert!(schedule.open(5, Room { cores: 2, memory: 100 * MIB }));
    assert_eq!(schedule.free(), Room { cores: 2, memory: 156 * MIB });
    let leased = |id, memory| Queued { group: Some(5), ..run(id, 7, memory) };
    for (id, memory) in [(1, 60), (2, 60), (3, 10)] {
        schedule.submit(leased(id, memory)).unwrap();
    }
    assert_eq!(all(&mut schedule), [Go::Start(1)], "the next waits, in order");
    schedule.ended(1);
    assert_eq!(all(&mut schedule), [Go::Start(2), Go::Start(3)]);
    schedule.submit(leased(4, 1)).unwrap();
    schedule.slice_over(2);
    assert_eq!(all(&mut schedule), [Go::Resume(2)], "two cores, two runs");
}

#[test]
fn cores_and_arena_come_back_when_the_last_run_has_ended() {
    let mut schedule = Schedule::new(config(2, 256));
    assert!(schedule.open(5, Room { cores: 2, memory: 100 * MIB }));
    schedule.submit(run(1, 8, 64)).unwrap();
    assert_eq!(all(&mut schedule), [], "no core is left to others");
    schedule.submit(Queued { group: Some(5), ..run(2, 7, 10) }).unwrap();
    schedule.submit(Queued { group: Some(5), ..run(3, 7, 10) }).unwrap();
    assert_eq!(all(&mut schedule), [Go::Start(2), Go::Start(3)]);
    assert_eq!(schedule.close(5), [2, 3]);
    assert_eq!(schedule.room(Some(5)), None);
    assert_eq!(schedule.submit(Queued { group: Some(5), ..run(4, 7, 10) }), Err(Full));
    schedule.ended(2);
    assert_eq!((schedule.free().cores, all(&mut schedule)), (0, vec![]));
    schedule.ended(3);
    assert_eq!(schedule.free().cores, 2);
    assert_eq!(all(&mut schedule), [Go::Start(1)]);
}

#[test]
fn a_presenter_has_a_quarter_of_the_queue() {
    let mut schedule = Schedule::new(config(1, 256));
    assert!(schedule.open(5, Room { cores: 1, memory: MIB }));
    for id in 1..=4 {
        schedule.submit(run(id, 7, 1)).unwrap();
    }
    assert_eq!(schedule.submit(run(5, 7, 1)), Err(Full));
    for id in 0..12 {
        schedule.submit(run(10 + id, 8 + u128::from(id), 1)).unwrap();
    }
    assert_eq!(schedule.submit(run(99, 99, 1)), Err(Full), "the queue is full");
    schedule.ended(1);
    assert_eq!(schedule.submit(run(99, 99, 1)), Ok(()), "one that was cancelled makes room");
    let long = |id, presenter| Queued { input: 9 * MIB, ..run(id, presenter, 1) };
    let mut schedule = Schedule::new(config(1, 256));
    schedule.submit(long(1, 7)).unwrap();
    assert_eq!(schedule.submit(long(2, 7)), Err(Full), "a quarter of the inputs is 16 MiB");
    schedule.submit(long(3, 8)).unwrap();
}

#[test]
fn so_many_share_at_a_time() {
    let mut schedule = Schedule::new(Config { queue: 1000, ..config(100, 256) });
    for id in 1..=u64::from(SHARING) + 1 {
        schedule.submit(run(id, id.into(), 0)).unwrap();
    }
    assert_eq!(all(&mut schedule).len(), SHARING as usize);
    schedule.ended(1);
    assert_eq!(all(&mut schedule), [Go::Start(u64::from(SHARING) + 1)]);
}

#[derive(Debug, Clone)]
enum Step {
    Submit { group: Option<u128>, presenter: u128, memory: u64 },
    Open { lease: u128, cores: u32, memory: u64 },
    Close { lease: u128 },
    Slice(usize),
    End(usize),
    Cancel(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let lease = 0..3_u128;
    prop_oneof![
        4 => (proptest::option::of(lease.clone()), 10..14_u128, 0..65_u64)
            .prop_map(|(group, presenter, memory)| Step::Submit { group, presenter, memory }),
        1 => (lease.clone(), 1..4_u32, 1..128_u64).prop_map(|(lease, cores, memory)| Step::Open { lease, cores, memory }),
        1 => lease.prop_map(|lease| Step::Close { lease }),
        4 => any::<usize>().prop_map(Step::Slice),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Cancel),
    ]
}

proptest! {
    /// Cores and memory are never exceeded, whatever happens in which order; each run begins once; nothing that could go on
    /// waits; and when all has ended all is free.
    #[test]
    fn cores_and_arenas_balance(steps in proptest::collection::vec(step(), 1..200)) {
        let config = config(3, 200);
        let mut schedule = Schedule::new(config);
        let mut open = BTreeMap::new();
        let (mut queued, mut on_core, mut ready) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let mut last = 0;
        let pick = |of: &BTreeSet<RunId>, at: usize| of.iter().nth(at % of.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Submit { group, presenter, memory } => {
                    last += 1;
                    let of = Queued { group, ..run(last, presenter, memory) };
                    if schedule.submit(of).is_ok() {
                        queued.insert(last, of);
                    }
                }
                Step::Open { lease, cores, memory } => {
                    let room = Room { cores, memory: memory * MIB };
                    if schedule.open(lease, room) {
                        open.insert(lease, room);
                    }
                }
                Step::Close { lease } => {
                    for run in schedule.close(lease).into_iter().filter(|run| schedule.is_waiting(*run)).collect::<Vec<_>>() {
                        schedule.ended(run);
                        queued.remove(&run);
                    }
                }
                Step::Slice(at) => if let Some(run) = pick(&on_core, at) {
                    on_core.remove(&run);
                    ready.insert(run);
                    schedule.slice_over(run);
                },
                Step::End(at) => if let Some(run) = pick(&on_core, at) {
                    on_core.remove(&run);
                    queued.remove(&run);
                    schedule.ended(run);
                },
                Step::Cancel(at) => {
                    let waiting: BTreeSet<_> = queued.keys().copied().filter(|run| schedule.is_waiting(*run)).collect();
                    if let Some(run) = pick(&waiting, at) {
                        schedule.ended(run);
                        queued.remove(&run);
                    }
                }
            }
            while let Some(go) = schedule.next_go() {
                match go {
                    Go::Start(run) => prop_assert!(!ready.contains(&run) && on_core.insert(run)),
                    Go::Resume(run) => prop_assert!(ready.remove(&run) && on_core.insert(run)),
                }
            }
            open.retain(|lease, _| schedule.room(Some(*lease)).is_some()
                || queued.values().any(|of| of.group == Some(*lease)));
            let leased = open.values().fold(Room::default(), |all, one| Room {
                cores: all.cores + one.cores,
                memory: all.memory + one.memory,
            });
            let under_way: BTreeSet<_> = on_core.union(&ready).copied().collect();
            for group in open.keys().copied().map(Some).chain([None]) {
                let of = |runs: &BTreeSet<RunId>| runs.iter().filter(|run| queued[run].group == group).count() as u32;
                let memory: u64 = under_way.iter().map(|run| &queued[run]).filter(|of| of.group == group)
                    .map(|of| of.memory).sum();
                let room = group.map_or(
                    Room { cores: config.room.cores - leased.cores, memory: config.room.memory - leased.memory },
                    |lease| open[&lease],
                );
                prop_assert!(memory <= room.memory);
                if group.is_some() {
                    prop_assert!(of(&under_way) <= room.cores);
                }
                prop_assert!(of(&ready) == 0 || of(&on_core) >= room.cores, "a core rests, and a run waits for its turn");
            }
            prop_assert_eq!(schedule.counts(), (queued.len() - under_way.len(), under_way.len()));
        }
        for lease in 0..3 {
            schedule.close(lease);
        }
        for run in queued.keys() {
            schedule.ended(*run);
        }
        prop_assert_eq!(schedule.free(), config.room);
        prop_assert_eq!(schedule.next_go(), None);
        prop_assert_eq!(schedule.counts(), (0, 0));
    }
}
