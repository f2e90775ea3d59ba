//! The ready queue: a power-of-two ring, so that looking ahead (for prefetching) costs an add and a mask.

/// A growable double-ended queue of pointers.
pub struct Ring<T> {
    slots: Box<[*mut T]>,
    mask: usize,
    /// Counts what left at the head and what came at the tail, wrapping: masked, they are slots.
    head: usize,
    tail: usize,
}

impl<T> Ring<T> {
    /// An empty queue with room for 64.
    pub fn new() -> Self {
        Self::with_room(64)
    }

    fn with_room(room: usize) -> Self {
        Ring { slots: vec![std::ptr::null_mut(); room].into_boxed_slice(), mask: room - 1, head: 0, tail: 0 }
    }

    /// How many wait.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether nobody waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// Whether the next one must allocate.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len() > self.mask
    }

    /// The one `i` places behind the head, or whatever the slot last held: only good for prefetching.
    #[inline(always)]
    pub fn peek(&self, i: usize) -> *mut T {
        // SAFETY: masked by the length of a power of two.
        unsafe { *self.slots.get_unchecked(self.head.wrapping_add(i) & self.mask) }
    }

    /// The head, or null.
    #[inline(always)]
    pub fn front(&self) -> *mut T {
        if self.is_empty() { std::ptr::null_mut() } else { self.peek(0) }
    }

    /// Adds at the tail.
    #[inline(always)]
    pub fn push_back(&mut self, item: *mut T) {
        if self.is_full() {
            self.grow();
        }
        self.push_back_free(item);
    }

    /// Adds at the tail of a queue that is not [full](Self::is_full).
    #[inline(always)]
    pub fn push_back_free(&mut self, item: *mut T) {
        debug_assert!(!self.is_full());
        let at = self.tail & self.mask;
        // SAFETY: masked.
        unsafe { *self.slots.get_unchecked_mut(at) = item };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Adds at the head.
    pub fn push_front(&mut self, item: *mut T) {
        if self.is_full() {
            self.grow();
        }
        self.head = self.head.wrapping_sub(1);
        let at = self.head & self.mask;
        // SAFETY: masked.
        unsafe { *self.slots.get_unchecked_mut(at) = item };
    }

    /// Takes the head off a queue that is not empty.
    #[inline(always)]
    pub fn pop_front(&mut self) {
        debug_assert!(!self.is_empty());
        self.head = self.head.wrapping_add(1);
    }

    #[cold]
    fn grow(&mut self) {
        let mut larger = Self::with_room((self.mask + 1) * 2);
        let len = self.len();
        for i in 0..len {
            if let Some(slot) = larger.slots.get_mut(i) {
                *slot = self.peek(i);
            }
        }
        larger.tail = len;
        *self = larger;
    }
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_across_growth_and_from_both_ends() {
        let mut items: Vec<u32> = (0..500).collect();
        let base = items.as_mut_ptr();
        let mut ring = Ring::new();
        // SAFETY: offsets stay inside the vector; nothing is read through them.
        let at = |i: usize| unsafe { base.add(i) };
        for i in 0..300 {
            ring.push_back(at(i));
            if i % 3 == 0 {
                let head = ring.front();
                ring.pop_front();
                ring.push_front(head);
            }
        }
        ring.push_front(at(400));
        assert_eq!(ring.len(), 301);
        assert_eq!(ring.front(), at(400));
        ring.pop_front();
        for i in 0..300 {
            assert_eq!(ring.front(), at(i));
            ring.pop_front();
        }
        assert!(ring.is_empty() && ring.front().is_null());
    }
}
