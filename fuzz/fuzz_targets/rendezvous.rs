//! Messages of the rendezvous, in both forms and both directions. What is understood is written back as the same.
#![no_main]

use berth_wire::rendezvous::{Answer, HostApi, Offer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = bytes.try_into() {
        let message = HostApi::parse(message);
        assert_eq!(HostApi::of_answer(&message.answer()), Some(message));
    }
    if let Ok(offer) = Offer::parse(bytes) {
        let mut again = Vec::new();
        offer.write(&mut again);
        assert_eq!(Offer::parse(&again[4..]), Ok(offer));
    }
    if let Ok(answer) = Answer::parse(bytes) {
        let rdma = answer.rdma();
        let mut again = Vec::new();
        answer.write(&mut again);
        assert_eq!(Answer::parse(&again[6..]).map(|answer| answer.rdma()), Ok(rdma));
    }
});
