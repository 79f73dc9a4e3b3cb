//! Places for the processes of leases: who takes one, and who makes way.

use super::*;

#[test]
fn an_idle_worker_makes_way_for_the_next_lease_of_its_holder() {
    let mut bench = Bench::new();
    let leases: Vec<_> = (0..9).map(|_| bench.lease(1, GpuExclusivity::Shared)).collect();
    let theirs = bench.lease(2, GpuExclusivity::Shared);
    assert_eq!(bench.run(2, theirs), Ok(GpuStatus::Ok));
    for lease in &leases[..8] {
        assert_eq!(bench.run(1, *lease), Ok(GpuStatus::Ok));
    }
    // The first one's is no longer the one that has been idle for longest, and the second one's has a kernel.
    assert_eq!(bench.run(1, leases[0]), Ok(GpuStatus::Ok));
    let busy = bench.submit_to(1, leases[1], "busy").ok().unwrap();
    assert!(bench.gpu.stopped().is_empty());
    bench.world.held = Some(Vec::new());
    assert_eq!(bench.run(1, leases[8]), Ok(GpuStatus::Ok));
    // Until it is gone, its lease has no other, and does not end.
    assert_eq!(bench.run(1, leases[2]), Err(Status::ResourceBusy));
    let free = LeaseRef { lease_id: leases[2].0 }.to_vec();
    let outcome = bench.world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &free);
    let [stop] = <[_; 1]>::try_from(bench.world.held.take().unwrap()).unwrap();
    assert!(!outcome.endings[0].is_over());
    let base = bench.base(leases[2]);
    bench.world.tear_down(stop);
    assert_eq!(bench.gpu.stopped(), [base]);
    assert!(outcome.endings[0].is_over() && !outcome.endings[0].has_failed());
    // A lease whose worker made way gets another.
    let tenth = bench.lease(1, GpuExclusivity::Shared);
    assert_eq!(bench.run(1, tenth), Ok(GpuStatus::Ok));
    assert_eq!(bench.gpu.stopped(), [base, bench.base(leases[3])]);
    assert_eq!(bench.run(1, leases[3]), Ok(GpuStatus::Ok));
    bench.gpu.end("busy");
    assert_eq!(bench.answer(busy).unwrap().0, GpuStatus::Ok);
}

#[test]
fn of_a_full_node_any_idle_worker_makes_way_and_no_busy_one() {
    let mut bench = Bench::new();
    let mut waiting = Vec::new();
    for n in 1..HOLDERS {
        for _ in 0..8 {
            let lease = bench.lease(n, GpuExclusivity::Shared);
            waiting.push((lease, bench.submit_to(n, lease, "busy").ok().unwrap()));
        }
    }
    let late = bench.lease(HOLDERS, GpuExclusivity::Shared);
    let refused = bench.submit_to(HOLDERS, late, "k").err().unwrap();
    assert_eq!(refused.answer.status, Status::CapacityExceeded);
    let (lease, first) = waiting.remove(0);
    bench.gpu.end("busy");
    assert!(bench.answer(first).is_ok());
    assert_eq!(bench.run(HOLDERS, late), Ok(GpuStatus::Ok));
    assert_eq!(bench.gpu.stopped(), [bench.base(lease)]);
}

/// Nothing is opened for them.
#[test]
fn a_binary_for_another_device_takes_no_place() {
    let mut bench = Bench::new();
    let lease = bench.lease(1, GpuExclusivity::Shared);
    let (token, params) = (bench.world.token(1, ALL), bench.params("k"));
    let cubin = GpuSubmit { binary: Bytes::of(b"cubin").unwrap(), ..GpuSubmit::parse(&params).unwrap() }.to_vec();
    assert_eq!(bench.refused(1, &token, &cubin), Ok(GpuStatus::Unsupported));
    bench.world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    assert!(bench.gpu.stopped().is_empty());
}
