//! The rings of poll cores, for others who work on their threads.
//!
//! A poll core enters its ring at every turn that has something to do. So what it calls, such as an engine of blocks, can
//! have operations of its own done there: started on that thread, completed on that thread, handed to nobody.

use std::{cell::RefCell, marker::PhantomData, rc::Rc};

use io_uring::squeue;

/// Most operations of others that are under way on one thread, in all of its rings together.
pub const LOCAL_MOST: usize = 128;

/// Set in the user data of operations of others.
const OTHERS: u64 = 1 << 63;

/// Who has operations done in the rings of a thread.
pub trait RingUser {
    /// The operation `tag` is over, with this result of the kernel. Called on the thread that started it, and free to
    /// start another.
    fn completed(&self, tag: u32, result: i32);
}

/// Number of a [`RingUser`], good on the thread where it joined.
#[derive(Debug, Clone, Copy)]
pub struct UserId(u32);

thread_local! {
    static LOCAL: RefCell<Local> = const { RefCell::new(Local::new()) };
}

struct Local {
    /// Rings that take operations of others.
    rings: usize,
    users: Vec<Rc<dyn RingUser>>,
    /// Started, and in no ring yet.
    queued: Vec<squeue::Entry>,
    /// Started, and not over.
    under_way: usize,
}

impl Local {
    const fn new() -> Self {
        Self { rings: 0, users: Vec::new(), queued: Vec::new(), under_way: 0 }
    }
}

/// Has a user's operations done on this thread from now on; none where it has no ring. The user is dropped with the last
/// ring.
pub fn join(user: Rc<dyn RingUser>) -> Option<UserId> {
    LOCAL.with_borrow_mut(|local| {
        if local.rings == 0 {
            return None;
        }
        local.users.push(user);
        Some(UserId(local.users.len() as u32 - 1))
    })
}

/// Starts an operation; false where as many are under way as may be, or the last ring of the thread is being closed.
///
/// # Safety
/// What the entry points to stays valid, and is left alone, until the user was told that the operation is over. The user
/// itself keeps it.
pub unsafe fn start(user: UserId, tag: u32, entry: squeue::Entry) -> bool {
    LOCAL.with_borrow_mut(|local| {
        let room = local.rings > 0 && local.under_way < LOCAL_MOST;
        if room {
            local.under_way += 1;
            local.queued.push(entry.user_data(OTHERS | u64::from(user.0) << 32 | u64::from(tag)));
        }
        room
    })
}

/// One ring's end: takes what was started, and tells of what is over.
pub(crate) struct Lending {
    /// Operations in this ring.
    under_way: usize,
    /// It stays on its thread.
    _thread: PhantomData<*const ()>,
}

impl Lending {
    pub(crate) fn new() -> Self {
        LOCAL.with_borrow_mut(|local| {
            local.rings += 1;
            local.queued.reserve(LOCAL_MOST);
        });
        Self { under_way: 0, _thread: PhantomData }
    }

    /// Gives every operation that was started to `push`.
    #[inline]
    pub(crate) fn take(&mut self, mut push: impl FnMut(&squeue::Entry)) {
        LOCAL.with_borrow_mut(|local| {
            self.under_way += local.queued.len();
            local.queued.drain(..).for_each(|entry| push(&entry));
        });
    }

    /// Tells its user that an operation is over. False where the completion is of none.
    #[inline]
    pub(crate) fn completed(&mut self, user_data: u64, result: i32) -> bool {
        if user_data & OTHERS == 0 {
            return false;
        }
        self.under_way -= 1;
        let user = LOCAL.with_borrow_mut(|local| {
            local.under_way -= 1;
            local.users[((user_data & !OTHERS) >> 32) as usize].clone()
        });
        user.completed(user_data as u32, result);
        true
    }

    /// Operations in the ring.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Takes no more operations if there is no other ring. Call [`Lending::take`] after it, and drop this when nothing is
    /// under way.
    pub(crate) fn close() {
        LOCAL.with_borrow_mut(|local| local.rings -= 1);
    }
}

/// Lets the users go with the last ring; not those of operations that the kernel may still work on.
impl Drop for Lending {
    fn drop(&mut self) {
        let users = LOCAL.with_borrow_mut(|local| match local.rings {
            0 => std::mem::take(&mut local.users),
            _ => Vec::new(),
        });
        if self.under_way > 0 {
            std::mem::forget(users);
        }
    }
}
