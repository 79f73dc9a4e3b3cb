//! Posted rings on loom's heap.

use crate::{Outstanding, Producer, SlotIndex, sync::Lane};

/// The steps of a device's dispatcher, which is no Rust: a model does what `drivers/gpu/kernels/dispatch.cu` does.
#[derive(Clone)]
pub struct Device {
    rx: Lane,
    tx: Lane,
}

/// `crate::posted` on loom's heap, and the dispatcher's view of it.
pub fn posted(slots: u32, slot_size: usize) -> (Producer, Outstanding, Device) {
    let lane = || Lane::new(slots, slot_size, false);
    let device = Device { rx: lane(), tx: lane() };
    // The file's slots of requests are not used.
    let producer = Producer::new(lane(), device.tx.clone(), slots, None).distrusting();
    let (producer, out) = producer.posting(device.rx.clone(), None);
    (producer, out, device)
}

impl Device {
    /// Copies the request in a slot, if its flag announces one.
    pub fn read(&self, slot: SlotIndex) -> Option<Vec<u8>> {
        let mut request = vec![0; self.rx.slot_size()];
        self.rx.announces(slot, self.rx.load(slot)).then(|| {
            self.rx.copy_out(slot, &mut request);
            request
        })
    }

    /// Writes an answer.
    pub fn write(&self, slot: SlotIndex, answer: &[u8]) {
        self.tx.copy_in(slot, answer);
    }

    /// Clears the flag of the request.
    pub fn clear(&self, slot: SlotIndex) {
        self.rx.store(slot, crate::abi::FREE);
    }

    /// Publishes the answer.
    pub fn publish(&self, slot: SlotIndex) {
        self.tx.store(slot, self.tx.address(slot));
    }
}
