//! Queues between housekeeping threads and a poll core.

use rtrb::{Consumer, Producer, RingBuffer};

/// The housekeeping end of a [`Mailbox`].
#[derive(Debug)]
pub struct Sender<T, R> {
    items: Producer<T>,
    returns: Consumer<R>,
}

/// The poll core's end: takes items that were sent, and gives back what their sender is to drop.
///
/// It takes no lock and neither allocates nor frees. To look for items is one load of memory, which stays in the core's
/// cache until one is sent.
#[derive(Debug)]
pub struct Mailbox<T, R> {
    items: Consumer<T>,
    returns: Producer<R>,
}

/// Both ends of a mailbox with room for `items` items for the core and `returns` returns for housekeeping.
pub fn mailbox<T, R>(items: usize, returns: usize) -> (Sender<T, R>, Mailbox<T, R>) {
    let (to_core, items) = RingBuffer::new(items);
    let (returns, from_core) = RingBuffer::new(returns);
    (Sender { items: to_core, returns: from_core }, Mailbox { items, returns })
}

impl<T, R> Sender<T, R> {
    /// Number of items that can be sent now.
    pub fn room(&self) -> usize {
        self.items.slots()
    }

    /// Sends an item; hands it back if there is no room.
    pub fn send(&mut self, item: T) -> Result<(), T> {
        self.items.push(item).map_err(|rtrb::PushError::Full(item)| item)
    }

    /// What the core has given back, oldest first.
    pub fn returned(&mut self) -> impl Iterator<Item = R> {
        std::iter::from_fn(|| self.returns.pop().ok())
    }

    /// Whether the core's end is gone, so that nobody takes what is sent.
    pub fn is_abandoned(&self) -> bool {
        self.items.is_abandoned()
    }
}

impl<T, R> Mailbox<T, R> {
    /// Whether no item waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The next item, provided that there is room to give something back for it.
    pub fn take(&mut self) -> Option<T> {
        if self.returns.is_full() {
            return None;
        }
        self.items.pop().ok()
    }

    /// Gives something back. There is room for one return per item taken; without room it is dropped here.
    pub fn give_back(&mut self, done: R) {
        drop(self.returns.push(done));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        thread,
    };

    use super::*;

    #[test]
    fn items_come_in_order_and_go_back() {
        let (mut sender, mut core) = mailbox(2, 2);
        assert!(core.is_empty() && core.take().is_none());
        assert_eq!([1, 2, 3].map(|item| sender.send(item)), [Ok(()), Ok(()), Err(3)]);
        assert_eq!(sender.room(), 0);
        assert!(!core.is_empty());
        while let Some(item) = core.take() {
            core.give_back(10 * item);
        }
        assert_eq!((sender.room(), sender.returned().collect::<Vec<_>>()), (2, vec![10, 20]));
    }

    #[test]
    fn the_core_takes_nothing_that_it_could_not_give_back() {
        let (mut sender, mut core) = mailbox(4, 2);
        (0..4).for_each(|item| sender.send(item).unwrap());
        let mut taken = 0;
        while let Some(item) = core.take() {
            core.give_back(item);
            taken += 1;
        }
        assert_eq!((taken, core.is_empty()), (2, false));
        assert_eq!(sender.returned().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(core.take(), Some(2));
    }

    #[test]
    fn what_neither_end_has_taken_is_dropped_with_them() {
        let item = Arc::new(());
        let (mut sender, mut core) = mailbox(2, 2);
        sender.send(item.clone()).unwrap();
        core.give_back(item.clone());
        drop(core);
        assert!(sender.is_abandoned());
        drop(sender);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn everything_is_freed_on_the_senders_thread() {
        const ITEMS: usize = 100_000;
        /// Counts its drops, and those on another thread than its own.
        struct Own(thread::ThreadId, Arc<[AtomicUsize; 2]>);
        impl Drop for Own {
            fn drop(&mut self) {
                let strayed = usize::from(thread::current().id() != self.0);
                self.1[strayed].fetch_add(1, Relaxed);
            }
        }
        let (mut sender, mut core) = mailbox(8, 3);
        let poll = thread::spawn(move || {
            let mut taken = 0;
            while taken < ITEMS {
                while let Some(item) = core.take() {
                    core.give_back(item);
                    taken += 1;
                }
                thread::yield_now();
            }
            core
        });
        let dropped = Arc::<[AtomicUsize; 2]>::default();
        let mut sent = 0;
        while dropped.iter().map(|dropped| dropped.load(Relaxed)).sum::<usize>() < ITEMS {
            if sent < ITEMS && sender.room() > 0 {
                assert!(sender.send(Own(thread::current().id(), dropped.clone())).is_ok());
                sent += 1;
            } else {
                thread::yield_now();
            }
            sender.returned().for_each(drop);
        }
        drop(poll.join().unwrap());
        assert_eq!(dropped[1].load(Relaxed), 0);
    }
}
