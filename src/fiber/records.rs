//! Where the fibers' records are: in pages of their own, so that a million of them cost what they hold, and so that a
//! closed scheduler gives the memory back while old handles may still look at it.

use super::Body;
use super::fiber::{Fiber, FiberPtr};
use crate::sys::pages;

/// Bytes mapped at a time; the system commits them page by page.
const CHUNK: usize = 64 * 1024;

/// All records of a cord. They do not move.
pub struct Records<B: Body> {
    chunks: Vec<FiberPtr<B>>,
    made: usize,
}

impl<B: Body> Records<B> {
    const EACH: usize = CHUNK / size_of::<Fiber<B>>();

    /// None yet.
    pub fn new() -> Self {
        Records { chunks: Vec::new(), made: 0 }
    }

    /// The record in slot `i`, or null if there are not as many.
    pub fn get(&self, i: usize) -> FiberPtr<B> {
        match self.chunks.get(i / Self::EACH) {
            Some(chunk) if i < self.made => chunk.wrapping_add(i % Self::EACH),
            _ => std::ptr::null_mut(),
        }
    }

    /// One more, blank.
    pub fn add(&mut self) -> FiberPtr<B> {
        if self.made == self.chunks.len() * Self::EACH {
            self.chunks.push(pages::map(CHUNK).cast());
        }
        let slot = self.made;
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
        for chunk in self.chunks.drain(..) {
            // SAFETY: the caller's contract; a record of zeros is one that serves nobody.
            unsafe { pages::clear(chunk.cast(), CHUNK) };
        }
        self.made = 0;
    }
}

impl<B: Body> Default for Records<B> {
    fn default() -> Self {
        Self::new()
    }
}
