//! Deadlines that become wakeups. Equal deadlines fire in the order they were set.

use super::fiber::FiberPtr;
use std::collections::BTreeMap;

/// The key of an armed timer: deadline in monotonic nanoseconds, then age.
pub type Key = (u64, u64);

/// The armed timers of one scheduler.
pub struct Timers<B: super::Body> {
    armed: BTreeMap<Key, FiberPtr<B>>,
    age: u64,
}

impl<B: super::Body> Timers<B> {
    /// No timers.
    pub fn new() -> Self {
        Timers { armed: BTreeMap::new(), age: 0 }
    }

    /// Arms a timer; the key disarms it.
    pub fn arm(&mut self, deadline: u64, fiber: FiberPtr<B>) -> Key {
        self.age += 1;
        let key = (deadline, self.age);
        self.armed.insert(key, fiber);
        key
    }

    /// Disarms; false if it had fired.
    pub fn disarm(&mut self, key: Key) -> bool {
        self.armed.remove(&key).is_some()
    }

    /// The next deadline.
    pub fn next(&self) -> Option<u64> {
        self.armed.first_key_value().map(|(key, _)| key.0)
    }

    /// Takes one timer whose deadline is not after `now`.
    pub fn expired(&mut self, now: u64) -> Option<FiberPtr<B>> {
        match self.armed.first_entry() {
            Some(first) if first.key().0 <= now => Some(first.remove()),
            _ => None,
        }
    }

    /// Whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }
}

impl<B: super::Body> Default for Timers<B> {
    fn default() -> Self {
        Self::new()
    }
}
