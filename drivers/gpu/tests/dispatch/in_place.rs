//! Requests that lie outside of their ring, in memory that the worker cannot write.

use berth_gpu::{Function, Functions};
use berth_memory::Memory as _;
use berth_ring::{ErrorCode, TxError};

use crate::{
    EXAMPLE,
    common::{BOTH, FRAMES, On, Rig, increment, message, module, symbol},
};

impl Rig {
    /// Announces a request that lies there.
    fn push_in_place(&mut self, at: usize, message: &[u8]) {
        self.frames.as_ref().unwrap().write_at(at, message);
        let address = self.producer.address(at).unwrap();
        self.producer.push_at(address).unwrap();
    }
}

/// Lengths around what is read at once, and arguments with bytes of their own.
fn calls() -> impl Iterator<Item = (u32, Vec<u8>)> {
    let lengths = [0, 1, 3, 16, 39, 40, 41, 56, 57, 100, 255, 488];
    lengths.into_iter().enumerate().map(|(n, len)| (n as u32 + 10, (0..len).map(|at| (at * 7 + n) as u8).collect()))
}

#[test]
fn requests_are_read_where_they_lie() {
    for on in BOTH {
        let mut rig = Rig::in_place(on, 60, 4, 512, 1);
        let functions = Functions { all: vec![increment(1)], modules: vec![], lost: false };
        assert_eq!(rig.load(&functions), "loaded");
        // At every multiple of 4 within a line, and as near to the end as a slot fits.
        for at in (0..64).step_by(4).map(|at| 4096 + at).chain([0, FRAMES - 512]) {
            for (id, args) in calls() {
                rig.push_in_place(at, &message(1, id, &args));
                let wanted: Vec<_> = args.iter().map(|byte| byte.wrapping_add(1)).collect();
                assert_eq!(rig.answer(), Ok((id, 0, wanted)), "{on:?}, {at}");
            }
            // Those in slots come between them.
            assert_eq!(rig.call(1, &[41]), (0, vec![42]));
        }
        assert!(rig.end());
    }
}

#[test]
fn graphs_are_given_them_as_well() {
    for on in BOTH {
        let mut rig = Rig::in_place(on, 61, 4, 512, 1);
        let graph = Function { graph: true, ..symbol(1, "reverse_graph", false) };
        assert_eq!(rig.load(&Functions { all: vec![graph], modules: vec![module(EXAMPLE)], lost: false }), "loaded");
        for at in [0, 4100, FRAMES - 512] {
            rig.push_in_place(at, &message(1, 9, &[0, 1, 2, 3]));
            assert_eq!(rig.answer(), Ok((9, 0, vec![3, 2, 1, 0])), "{on:?}, {at}");
        }
    }
}

/// A flag that is no address of a request is not followed.
#[test]
fn other_addresses_are_refused() {
    for on in BOTH {
        for graphs in [false, true] {
            let mut rig = Rig::in_place(on, 62, 4, 512, 1);
            let graph = || Function { graph: true, ..symbol(1, "reverse_graph", false) };
            let (function, modules) = if graphs { (graph(), vec![module(EXAMPLE)]) } else { (increment(1), vec![]) };
            assert_eq!(rig.load(&Functions { all: vec![function], modules, lost: false }), "loaded");
            rig.frames.as_ref().unwrap().write_at(0, &message(1, 9, &[0]));
            let first = rig.producer.address(0).unwrap();
            let end = first + FRAMES as u64;
            let mut wrong = vec![first - 4, end - 508, end, end + 4096, 8, u64::MAX - 3];
            // Graphs are given copies, wherever they are of.
            wrong.extend((!graphs).then_some(first + 2));
            for address in wrong {
                rig.producer.push_at(address).unwrap();
                let refused = Err(TxError::Tagged(ErrorCode::BAD_FLAG));
                assert_eq!(rig.answer(), refused, "{on:?}, graphs {graphs}, {address:#x}");
            }
            rig.producer.push_at(first).unwrap();
            assert_eq!(rig.answer().map(|(id, ..)| id), Ok(9));
        }
    }
}

/// Nothing that runs there changes what the process of `berth` looks at.
#[test]
fn kernels_do_not_write_there() {
    const WRITES: &str = "
        .version 6.3
        .target sm_70
        .address_size 64
        .visible .func (.param .b32 status) writes(.param .b64 in, .param .b64 out, .param .b32 len, .param .b32 room,
            .param .b64 result_len)
        {
            .reg .b64 %at<2>;
            ld.param.u64 %at0, [in];
            ld.u64 %at1, [%at0];
            st.u32 [%at1], 7;
            st.param.b32 [status], 0;
            ret;
        }";
    for on in BOTH {
        let mut rig = Rig::in_place(on, 63, 4, 512, 1);
        let functions = Functions { all: vec![symbol(1, "writes", false)], modules: vec![module(WRITES)], lost: false };
        assert_eq!(rig.load(&functions), "loaded");
        let frames = rig.frames.clone().unwrap();
        frames.write_at(1024, &[1; 8]);
        let address = rig.producer.address(1024).unwrap();
        rig.push(1, 1, &address.to_le_bytes());
        let fault = rig.next();
        assert!(fault["fault"].is_string(), "{on:?}: {fault}");
        let mut found = [0; 8];
        frames.read_at(1024, &mut found);
        assert_eq!(found, [1; 8]);
    }
}

/// Requests are counted as what they are.
#[test]
fn both_kinds_are_counted() {
    let mut rig = Rig::in_place(On::Soft, 64, 4, 512, 1);
    assert_eq!(rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false }), "loaded");
    rig.push_in_place(0, &message(1, 1, &[1]));
    rig.push(1, 2, &[1]);
    assert_eq!((rig.answer().unwrap().0, rig.answer().unwrap().0), (1, 2));
    let stats = rig.producer.stats();
    assert_eq!((stats.pushed, stats.in_place, stats.collected), (2, 1, 2));
}
