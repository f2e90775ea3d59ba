//! Wait lists: who waits for a cond, a channel, a join. Intrusive and first in, first out: a fiber is on at most one.

use super::fiber::{Fiber, FiberPtr, attention, flag};
use super::{Body, Cord};

/// A fiber's place on a wait list.
pub struct Link<B: Body> {
    list: *mut WaitList<B>,
    previous: FiberPtr<B>,
    next: FiberPtr<B>,
}

impl<B: Body> Default for Link<B> {
    fn default() -> Self {
        let null = std::ptr::null_mut();
        Link { list: std::ptr::null_mut(), previous: null, next: null }
    }
}

impl<B: Body> Link<B> {
    /// The fiber behind this one, or null.
    pub fn next(&self) -> FiberPtr<B> {
        self.next
    }
}

/// A list of waiting fibers. Its address must not change while it is not empty; whoever owns it wakes or unlinks its
/// fibers before it goes away.
pub struct WaitList<B: Body> {
    first: FiberPtr<B>,
    last: FiberPtr<B>,
}

impl<B: Body> Default for WaitList<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: Body> WaitList<B> {
    /// An empty list.
    pub const fn new() -> Self {
        WaitList { first: std::ptr::null_mut(), last: std::ptr::null_mut() }
    }

    /// The longest waiting fiber, or null.
    pub fn first(&self) -> FiberPtr<B> {
        self.first
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Puts `f` on the list, at the head for one that was woken for nothing and waits again, else at the tail.
    ///
    /// # Safety
    /// `this` and `f` are live; `f` is on no list.
    pub unsafe fn link(this: *mut Self, f: FiberPtr<B>, at_head: bool) {
        let null: *mut Fiber<B> = std::ptr::null_mut();
        // SAFETY: the caller's contract; neighbours are live because a linked fiber is.
        unsafe {
            let (previous, next) = if at_head { (null, (*this).first) } else { ((*this).last, null) };
            (*f).link = Link { list: this, previous, next };
            if previous.is_null() {
                (*this).first = f;
            } else {
                (*previous).link.next = f;
            }
            if next.is_null() {
                (*this).last = f;
            } else {
                (*next).link.previous = f;
            }
            (*f).attention |= attention::LINKED;
        }
    }

    /// As [`link`](Self::link) at the tail.
    ///
    /// # Safety
    /// As for `link`.
    #[inline(always)]
    pub unsafe fn link_last(this: *mut Self, f: FiberPtr<B>) {
        // SAFETY: the caller's contract.
        unsafe {
            let previous = (*this).last;
            (*f).link = Link { list: this, previous, next: std::ptr::null_mut() };
            if previous.is_null() {
                (*this).first = f;
            } else {
                (*previous).link.next = f;
            }
            (*this).last = f;
            (*f).attention |= attention::LINKED;
        }
    }

    /// The usual case of waking the first fiber of a list that is not empty: it waits for nothing else, not even a
    /// deadline, and there is room for it in the ready queue. Anything else is left to the caller: then this is false,
    /// and nothing has changed.
    ///
    /// # Safety
    /// The list and the cord are live.
    #[inline(always)]
    pub unsafe fn wake_first(this: *mut Self, cord: *mut Cord<B>) -> bool {
        // SAFETY: linked fibers are live.
        unsafe {
            let f = (*this).first;
            let usual = (*f).attention == attention::LINKED
                && !(*f).is(flag::READY | flag::DEAD)
                && f != (*cord).current
                && !(*cord).ready.is_full();
            if usual {
                let next = (*f).link.next;
                (*this).first = next;
                if next.is_null() {
                    (*this).last = next;
                } else {
                    (*next).link.previous = std::ptr::null_mut();
                }
                (*f).link.list = std::ptr::null_mut();
                (*f).link.next = std::ptr::null_mut();
                (*f).attention = 0;
                (*f).flags |= flag::READY;
                (*cord).ready.push_back_free(f);
            }
            usual
        }
    }

    /// Takes `f` off whatever list it is on.
    ///
    /// # Safety
    /// `f` is live.
    pub unsafe fn unlink(f: FiberPtr<B>) {
        // SAFETY: the list and both neighbours of a linked fiber are live.
        unsafe {
            let link = &mut (*f).link;
            if link.list.is_null() {
                return;
            }
            let (list, previous, next) = (link.list, link.previous, link.next);
            *link = Link::default();
            if previous.is_null() {
                (*list).first = next;
            } else {
                (*previous).link.next = next;
            }
            if next.is_null() {
                (*list).last = previous;
            } else {
                (*next).link.previous = previous;
            }
            (*f).attention &= !attention::LINKED;
        }
    }
}
