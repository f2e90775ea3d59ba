//! Memory straight from the system.
#![allow(unsafe_code)]

use std::ffi::c_void;

fn anonymous(at: *mut u8, bytes: usize, fixed: i32) -> *mut u8 {
    // SAFETY: an anonymous mapping, fresh or (from `clear`) over one of the same size.
    let got = unsafe {
        libc::mmap(
            at.cast::<c_void>(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    if got == libc::MAP_FAILED { std::ptr::null_mut() } else { got.cast() }
}

/// `bytes` of zeros, aligned to a page. Without memory the process ends, as in any allocation that cannot fail.
pub fn map(bytes: usize) -> *mut u8 {
    let at = anonymous(std::ptr::null_mut(), bytes, 0);
    if at.is_null() {
        std::alloc::handle_alloc_error(
            std::alloc::Layout::array::<u8>(bytes).unwrap_or(std::alloc::Layout::new::<u8>()),
        );
    }
    at
}

/// Gives the memory of a mapping back and keeps its addresses, where zeros are read from now on.
///
/// # Safety
/// `at` and `bytes` are those of a [`map`]; nobody relies on what is there.
pub unsafe fn clear(at: *mut u8, bytes: usize) {
    anonymous(at, bytes, libc::MAP_FIXED);
}
