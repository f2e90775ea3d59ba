//! Time zones behind `cord.datetime`: the offset and the daylight saving of a zone at a moment, from the system's time
//! zone database or, where there is none, from the one inside the library. Everything else is in the Lua chunks.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use mlua::ffi::{lua_State, lua_createtable, lua_pushnumber, lua_setfield};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What datetime.lua declares as `struct cord_zone_info`.
#[repr(C)]
struct ZoneInfo {
    /// Seconds east of UTC.
    offset: i32,
    /// Whether the zone has daylight saving then.
    is_dst: bool,
}

/// Pushes `{ zone_info = <address of the function> }`.
///
/// # Safety
/// `l` is a live state with free stack slots.
pub unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract. Addresses are below 2^53, so a Lua number holds them.
    unsafe {
        lua_createtable(l, 0, 1);
        lua_pushnumber(l, (zone_info as *const ()).addr() as f64);
        lua_setfield(l, -2, c"zone_info".as_ptr());
    }
}

/// Looks the zone up at `epoch`, in seconds since 1970 UTC; moments beyond the years -9999 to 9999 count as their limits.
/// False when the database has no zone of that name.
///
/// # Safety
/// `name` has `len` readable bytes.
unsafe extern "C" fn zone_info(info: &mut ZoneInfo, name: *const u8, len: usize, epoch: f64) -> bool {
    // SAFETY: the caller's contract.
    let name = unsafe { std::slice::from_raw_parts(name, len) };
    let found = catch_unwind(AssertUnwindSafe(|| {
        let zone = TimeZone::get(std::str::from_utf8(name).ok()?).ok()?;
        let first = Timestamp::MIN.as_second();
        let second = (epoch as i64).clamp(first, Timestamp::MAX.as_second());
        let found = zone.to_offset_info(Timestamp::from_second(second).ok()?);
        Some(ZoneInfo { offset: found.offset().seconds(), is_dst: found.dst().is_dst() })
    }));
    match found {
        Ok(Some(found)) => {
            *info = found;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_up(name: &str, epoch: f64) -> Option<(i32, bool)> {
        let mut info = ZoneInfo { offset: 0, is_dst: false };
        // SAFETY: pointer and length of a live str.
        unsafe { zone_info(&mut info, name.as_ptr(), name.len(), epoch) }.then_some((info.offset, info.is_dst))
    }

    #[test]
    fn zones_have_their_rules_at_each_moment() {
        assert_eq!(look_up("Europe/Moscow", 1_341_187_200.0), Some((14_400, false)));
        assert_eq!(look_up("Europe/Berlin", 1_751_328_000.0), Some((7_200, true)));
        assert_eq!(look_up("Europe/Berlin", 1_735_689_600.0), Some((3_600, false)));
        assert_eq!(look_up("Nowhere/Land", 0.0), None);
        assert!(look_up("Europe/Berlin", 1e300).is_some() && look_up("Europe/Berlin", -1e300).is_some());
        assert!(look_up("Europe/Berlin", f64::NAN).is_some());
    }
}
