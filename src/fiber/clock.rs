//! The loop's time: read once a turn, so that it is constant between two waits, as Tarantool's `fiber.time()` is.

/// Nanoseconds of the monotonic and the wall clock.
#[derive(Clone, Copy, Default)]
pub struct Clock {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub monotonic: u64,
    /// CLOCK_REALTIME, nanoseconds since the epoch.
    pub wall: u64,
}

fn read(id: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid timespec to fill in.
    unsafe { libc::clock_gettime(id, &raw mut now) };
    // Both fields are non-negative after 1970.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// CLOCK_MONOTONIC now, in nanoseconds.
#[inline]
pub fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

impl Clock {
    /// Reads both clocks.
    pub fn update(&mut self) {
        self.monotonic = monotonic();
        self.wall = read(libc::CLOCK_REALTIME);
    }
}

/// A timeout in seconds as a deadline on the monotonic clock. `None` for one that never comes (infinite or beyond
/// 500 years); a negative timeout, or one that is no number, is over at once.
pub fn deadline(seconds: f64) -> Option<u64> {
    const FOREVER: f64 = 500.0 * 365.0 * 86400.0;
    if seconds >= FOREVER {
        return None;
    }
    // Bounded on both sides above, so the cast is exact enough and cannot wrap.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let nanoseconds = (seconds.max(0.0) * 1e9) as u64;
    Some(monotonic().saturating_add(nanoseconds))
}
