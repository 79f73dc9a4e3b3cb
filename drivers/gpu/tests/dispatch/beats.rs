//! Signs of life of a kernel that has much to do.

use std::time::{Duration, Instant};

use berth_gpu::Functions;

use crate::common::{BOTH, Rig, module, symbol};

/// Takes 40 ms.
const SLOW: &str = "
    .version 6.3
    .target sm_70
    .address_size 64
    .visible .func (.param .b32 status) slow(.param .b64 in, .param .b64 out, .param .b32 len, .param .b32 room,
        .param .b64 result_len)
    {
        .reg .b64 %t<4>;
        .reg .pred %p;
        ld.param.u64 %t3, [result_len];
        st.u32 [%t3], 0;
        mov.u64 %t1, %globaltimer;
        add.u64 %t1, %t1, 40000000;
    again:
        mov.u64 %t2, %globaltimer;
        setp.lt.u64 %p, %t2, %t1;
        @%p bra again;
        st.param.b32 [status], 0;
        ret;
    }";

/// A window of requests that are each within their time is no silence.
#[test]
fn a_full_ring_of_slow_calls_is_no_silence() {
    const SLOTS: u32 = 32;
    for on in BOTH {
        let mut rig = Rig::new(on, 65, SLOTS, 64, 1);
        let functions = Functions { all: vec![symbol(1, "slow", false)], modules: vec![module(SLOW)], lost: false };
        assert_eq!(rig.load(&functions), "loaded");
        (0..SLOTS).for_each(|id| rig.push(1, id, &[]));
        let began = Instant::now();
        // Without beats between them all but the first few take 1.2 s in one.
        while began.elapsed() < Duration::from_millis(40) * SLOTS {
            assert!(rig.beats_within(Duration::from_millis(500)), "{on:?}, after {:?}", began.elapsed());
        }
        (0..SLOTS).for_each(|id| assert_eq!(rig.answer(), Ok((id, 0, vec![]))));
    }
}
