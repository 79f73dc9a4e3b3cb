//! TLV sequences: bindings, clients, intents, inventories and temperatures. What is understood is written back as it was.
#![no_main]

use berth_wire::fabric::{BindingTlv, ClientTlv, IntentTlv, Intents, InventoryTlv, Thermal, Tlv, Tlvs, Wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(tlvs) = Tlvs::parse(bytes) else { return };
    for tlv in tlvs {
        let same = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut again = Vec::new();
            write(&mut again);
            assert_eq!(again, tlv.to_vec());
        };
        if let Ok(Some(binding)) = BindingTlv::read(tlv) {
            same(&|to| binding.write(to));
        }
        if let Ok(Some(client)) = ClientTlv::read(tlv) {
            same(&|to| client.write(to));
        }
        if let Ok(Some(intent)) = IntentTlv::read(tlv) {
            same(&|to| intent.write(to));
        }
        if let Ok(Some(inventory)) = InventoryTlv::read(tlv) {
            let value = inventory.value();
            same(&|to| Tlv::of(inventory.tag(), &value).expect("as long as it was").write(to));
        }
    }
    if let Ok(intents) = Intents::read(tlvs) {
        assert!(intents.affinities().count() <= tlvs.iter().count());
    }
    if let Ok(thermal) = Thermal::parse(bytes) {
        assert_eq!(Thermal::parse(&thermal.to_vec()), Ok(thermal));
    }
});
