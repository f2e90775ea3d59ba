//! Trigger lists: on_stop and on_yield. Nodes come from a pool (or, switched off, from the allocator each time); the
//! payload is an opaque reference of the body's.

/// What a node carries: the body's reference to a function.
pub type Payload = i32;

/// A list, newest first. It costs one word in a fiber that has no triggers.
#[derive(Default, Clone, Copy)]
pub struct TriggerList {
    head: Option<std::ptr::NonNull<Node>>,
}

struct Node {
    payload: Payload,
    next: Option<std::ptr::NonNull<Node>>,
}

/// Where nodes come from and go to.
pub struct TriggerPool {
    free: Option<std::ptr::NonNull<Node>>,
    /// Nodes are kept for reuse; false: each goes back to the allocator.
    pub pooled: bool,
    live: usize,
}

impl Default for TriggerPool {
    fn default() -> Self {
        TriggerPool { free: None, pooled: true, live: 0 }
    }
}

impl TriggerPool {
    fn take(&mut self, payload: Payload, next: Option<std::ptr::NonNull<Node>>) -> std::ptr::NonNull<Node> {
        self.live += 1;
        let node = Node { payload, next };
        if let Some(free) = self.free {
            // SAFETY: nodes on the free list are boxes that nobody else holds.
            unsafe {
                self.free = free.as_ref().next;
                free.write(node);
            }
            return free;
        }
        std::ptr::NonNull::from(Box::leak(Box::new(node)))
    }

    fn give(&mut self, mut node: std::ptr::NonNull<Node>) {
        self.live -= 1;
        // SAFETY: the node was taken from this pool and unlinked by the caller: it is a box nobody else holds.
        unsafe {
            if self.pooled {
                node.as_mut().next = self.free;
                self.free = Some(node);
            } else {
                drop(Box::from_raw(node.as_ptr()));
            }
        }
    }

    /// Nodes attached to some list.
    pub fn live(&self) -> usize {
        self.live
    }
}

impl TriggerList {
    /// Whether there is nothing to run.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Adds at the head: the newest runs first.
    pub fn add(&mut self, pool: &mut TriggerPool, payload: Payload) {
        self.head = Some(pool.take(payload, self.head));
    }

    /// Takes the newest off.
    pub fn pop(&mut self, pool: &mut TriggerPool) -> Option<Payload> {
        let node = self.head?;
        // SAFETY: linked nodes are live.
        let (payload, next) = unsafe { (node.as_ref().payload, node.as_ref().next) };
        self.head = next;
        pool.give(node);
        Some(payload)
    }

    /// Takes off the first node for which `matches` says so.
    pub fn remove(&mut self, pool: &mut TriggerPool, mut matches: impl FnMut(Payload) -> bool) -> Option<Payload> {
        let mut at: *mut Option<std::ptr::NonNull<Node>> = &raw mut self.head;
        // SAFETY: `at` points at the head or at a live node's `next`.
        unsafe {
            while let Some(mut node) = *at {
                let payload = node.as_ref().payload;
                if matches(payload) {
                    *at = node.as_ref().next;
                    pool.give(node);
                    return Some(payload);
                }
                at = &raw mut node.as_mut().next;
            }
        }
        None
    }

    /// The payloads, newest first.
    pub fn iter(&self) -> impl Iterator<Item = Payload> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let node = at?;
            // SAFETY: linked nodes are live, and the list is borrowed meanwhile.
            unsafe {
                at = node.as_ref().next;
                Some(node.as_ref().payload)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_trigger_comes_first_and_nodes_are_reused() {
        let (mut pool, mut list) = (TriggerPool::default(), TriggerList::default());
        for payload in 1..=3 {
            list.add(&mut pool, payload);
        }
        assert_eq!(list.iter().collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(list.remove(&mut pool, |p| p == 2), Some(2));
        assert_eq!(list.remove(&mut pool, |p| p == 2), None);
        assert_eq!((list.pop(&mut pool), list.pop(&mut pool), list.pop(&mut pool)), (Some(3), Some(1), None));
        assert_eq!(pool.live(), 0);
        list.add(&mut pool, 7);
        assert_eq!(list.iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn without_the_pool_nodes_go_back_to_the_allocator() {
        let mut pool = TriggerPool { pooled: false, ..TriggerPool::default() };
        let mut list = TriggerList::default();
        list.add(&mut pool, 1);
        assert_eq!(list.pop(&mut pool), Some(1));
        assert!(pool.free.is_none());
    }
}
