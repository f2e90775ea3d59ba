//! Whether this process is a child that was forked since something was made: it shares descriptors with its parent.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// How often this process and its parents were forked since the library was first asked. What was made under another
/// number belongs to the parent.
#[inline]
pub fn generation() -> u32 {
    static ONCE: Once = Once::new();
    // SAFETY: the handler does nothing but count, and the library is never unloaded.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forked));
    });
    FORKS.load(Ordering::Relaxed)
}

/// [`generation`], for whoever has asked that before.
#[inline(always)]
pub fn current() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
