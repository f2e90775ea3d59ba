//! Where the fibers' records are: in pages of their own, so that a million of them cost what they hold, and so that a
//! closed scheduler gives the memory back while old handles may still look at it.

use super::Body;
use super::fiber::{Fiber, FiberPtr};
use crate::sys::pages;

/// Bytes mapped at a time, first and later; the system commits them page by page. Few and large: LuaJIT's allocator maps
/// memory too, and goes through a list of its pieces each time, which grows if ours lie in between.
const FIRST: usize = 64 * 1024;
const LATER: usize = 4 * 1024 * 1024;

/// All records of a cord. They do not move.
pub struct Records<B: Body> {
    chunks: Vec<FiberPtr<B>>,
    made: usize,
}

impl<B: Body> Records<B> {
    const IN_FIRST: usize = FIRST / size_of::<Fiber<B>>();
    const IN_LATER: usize = LATER / size_of::<Fiber<B>>();

    /// None yet.
    pub fn new() -> Self {
        Records { chunks: Vec::new(), made: 0 }
    }

    /// Bytes of a chunk.
    fn bytes(chunk: usize) -> usize {
        if chunk == 0 { FIRST } else { LATER }
    }

    /// The chunk of slot `i`, and its place there.
    fn place(i: usize) -> (usize, usize) {
        match i.checked_sub(Self::IN_FIRST) {
            None => (0, i),
            Some(rest) => (1 + rest / Self::IN_LATER, rest % Self::IN_LATER),
        }
    }

    /// The record in slot `i`, or null if there are not as many.
    pub fn get(&self, i: usize) -> FiberPtr<B> {
        let (chunk, at) = Self::place(i);
        match self.chunks.get(chunk) {
            Some(chunk) if i < self.made => chunk.wrapping_add(at),
            _ => std::ptr::null_mut(),
        }
    }

    /// One more, blank.
    pub fn add(&mut self) -> FiberPtr<B> {
        let slot = self.made;
        if Self::place(slot).0 == self.chunks.len() {
            self.chunks.push(pages::map(Self::bytes(self.chunks.len())).cast());
        }
        self.made += 1;
        let f = self.get(slot);
        #[allow(clippy::cast_possible_truncation)] // four thousand million records do not fit in memory
        // SAFETY: the slot is in a mapped chunk and was never used.
        unsafe {
            f.write(Fiber::blank(slot as u32));
        }
        f
    }

    /// Gives the memory back. What still looks at a record sees one without an id, which serves nobody.
    ///
    /// # Safety
    /// No record serves a fiber that anybody waits for or that will run again, and none holds anything to drop.
    pub unsafe fn clear(&mut self) {
        for (i, chunk) in self.chunks.drain(..).enumerate() {
            // SAFETY: the caller's contract; a record of zeros is one that serves nobody.
            unsafe { pages::clear(chunk.cast(), Self::bytes(i)) };
        }
        self.made = 0;
    }
}

impl<B: Body> Default for Records<B> {
    fn default() -> Self {
        Self::new()
    }
}
