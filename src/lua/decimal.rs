//! Decimal numbers: the arithmetic of Tarantool's `decimal` on libdecnumber (the library Tarantool uses), behind a
//! table of C functions that the Lua chunk calls through the FFI.
//!
//! ```text
//! decimal.lua: cdata decimal_t --FFI--> Api (this file) --safe calls--> dec::Context --> libdecnumber
//! ```
//!
//! Results have 38 significant digits and at most 38 of them before the point, as in every Tarantool before 3.5.
//! Storage has room for 78, the size of Tarantool's structure since 3.5, so what a newer server sends stays whole.
//!
//! No function here calls Lua. Each checks the structure it is given, since a script can write into its fields, and
//! stops panics at the boundary.

use dec::{Context, Decimal, Rounding, Status};
use mlua::ffi::{lua_State, lua_createtable, lua_pushnumber, lua_setfield};
use std::cmp::Ordering;
use std::ffi::{c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Significant digits of a result.
const DIGITS: usize = 38;
/// Units of three digits in the structure.
const UNITS: usize = 26;
/// Digits of a decoded number at most, as in Tarantool since 3.5.
const DIGITS_STORED: u32 = 76;
/// Longest text: sign, point, exponent, or the zeros of plain notation.
const TEXT_LEN: usize = 256;
/// Exponents beyond this make the text scientific; those of 38-digit numbers never are.
const PLAIN_EXPONENT: i32 = 76;
/// Sign of infinities and NaNs in `bits`.
const SPECIAL: u8 = 0x70;

type Number = Decimal<UNITS>;
type Arithmetic = Context<Number>;

/// `decimal_t` of decimal.lua.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    digits: u32,
    exponent: i32,
    bits: u8,
    lsu: [u16; UNITS],
}

impl Raw {
    /// The number, unless a script has made the fields meaningless.
    fn load(&self) -> Option<Number> {
        let fits = self.digits >= 1 && self.digits <= (UNITS * 3) as u32 && self.bits & SPECIAL == 0;
        let sane = self.exponent.unsigned_abs() <= 999_999_999 && self.lsu.iter().all(|unit| *unit <= 999);
        (fits && sane).then(|| Number::from_raw_parts(self.digits, self.exponent, self.bits, self.lsu))
    }

    fn store(&mut self, number: &Number) {
        (self.digits, self.exponent, self.bits, self.lsu) = number.to_raw_parts();
    }
}

/// What decimal.lua declares as `struct cord_decimal_api`; field for field.
#[repr(C)]
struct Api {
    binary: extern "C" fn(&mut Raw, c_int, &Raw, &Raw) -> bool,
    unary: extern "C" fn(&mut Raw, c_int, &Raw) -> bool,
    scaled: extern "C" fn(&mut Raw, c_int, &Raw, c_int) -> bool,
    compare: extern "C" fn(&Raw, &Raw) -> c_int,
    parse: unsafe extern "C" fn(&mut Raw, *const u8, usize) -> bool,
    from_i64: extern "C" fn(&mut Raw, i64),
    from_u64: extern "C" fn(&mut Raw, u64),
    text: unsafe extern "C" fn(&Raw, *mut u8) -> c_uint,
    pack: unsafe extern "C" fn(&Raw, *mut u8) -> c_uint,
    unpack: unsafe extern "C" fn(&mut Raw, *const u8, usize) -> bool,
}

static API: Api = Api { binary, unary, scaled, compare, parse, from_i64, from_u64, text, pack, unpack };

/// Pushes `{ api = <address of the table of functions> }`.
///
/// # Safety
/// `l` is a live state with free stack slots.
pub unsafe fn native(l: *mut lua_State) {
    // SAFETY: the caller's contract. Addresses are below 2^53, so a Lua number holds them.
    unsafe {
        lua_createtable(l, 0, 1);
        lua_pushnumber(l, (&raw const API).addr() as f64);
        lua_setfield(l, -2, c"api".as_ptr());
    }
}

/// Runs `body`; a panic counts as failure.
fn guard<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// Tarantool's context: `digits` of precision, halves away from zero, adjusted exponents from `emin` to `emax`.
fn context(digits: usize, emin: isize, emax: isize, rounding: Rounding) -> Option<Arithmetic> {
    let mut context = Arithmetic::default();
    context.set_precision(digits).ok()?;
    context.set_min_exponent(emin).ok()?;
    context.set_max_exponent(emax).ok()?;
    context.set_rounding(rounding);
    context.set_clamp(false);
    Some(context)
}

/// The context of everything but rounding.
fn usual() -> Option<Arithmetic> {
    context(DIGITS, -1, DIGITS as isize - 1, Rounding::HalfUp)
}

/// Whether a result with this status counts. Rounding, and losing digits below the smallest exponent, are no errors.
fn fine(status: Status, number: &Number) -> bool {
    let failed = status.conversion_syntax()
        || status.division_by_zero()
        || status.division_impossible()
        || status.division_undefined()
        || status.insufficient_storage()
        || status.invalid_context()
        || status.invalid_operation()
        || status.overflow();
    !failed && number.is_finite()
}

/// Runs one operation in `context` and stores what came out if it counts.
fn finish(result: &mut Raw, context: Option<Arithmetic>, operation: impl FnOnce(&mut Arithmetic) -> Number) -> bool {
    guard(false, || {
        let Some(mut context) = context else { return false };
        let number = operation(&mut context);
        let ok = fine(context.status(), &number);
        if ok {
            result.store(&number);
        }
        ok
    })
}

extern "C" fn binary(result: &mut Raw, operation: c_int, a: &Raw, b: &Raw) -> bool {
    let (Some(mut a), Some(b)) = (a.load(), b.load()) else { return false };
    finish(result, usual(), |context| {
        match operation as u8 {
            b'+' => context.add(&mut a, &b),
            b'-' => context.sub(&mut a, &b),
            b'*' => context.mul(&mut a, &b),
            b'/' => context.div(&mut a, &b),
            b'%' => context.rem(&mut a, &b),
            _ => context.pow(&mut a, &b),
        }
        a
    })
}

extern "C" fn unary(result: &mut Raw, operation: c_int, a: &Raw) -> bool {
    let Some(mut a) = a.load() else { return false };
    if operation == b'l' as c_int {
        return ln(result, a);
    }
    finish(result, usual(), |context| {
        match operation as u8 {
            b'-' => context.minus(&mut a),
            b'a' => context.abs(&mut a),
            b's' => context.sqrt(&mut a),
            b'e' => context.exp(&mut a),
            b't' => a.trim(),
            _ => context.log10(&mut a),
        }
        a
    })
}

/// The logarithm does not end when its result is below the smallest exponent, so that one is widened here; the result
/// is rounded back.
fn ln(result: &mut Raw, mut a: Number) -> bool {
    let wide = context(DIGITS, -(DIGITS as isize), DIGITS as isize - 1, Rounding::HalfUp);
    let done = finish(result, wide, |context| {
        context.ln(&mut a);
        a
    });
    if done {
        let exact = *result;
        round(result, &exact, DIGITS as c_int - 1);
    }
    done
}

/// Digits after the point.
fn scale(number: &Number) -> i32 {
    (-number.exponent()).max(0)
}

/// Digits of the number written out, without a leading zero.
fn precision(number: &Number) -> i32 {
    let digits = number.digits() as i32;
    if number.exponent() <= 0 { digits.max(-number.exponent()) } else { digits + number.exponent() }
}

/// Rounding (`r`) to, or setting (`s`) the number of digits after the point. Copies `a` where that cannot be done.
extern "C" fn scaled(result: &mut Raw, operation: c_int, a: &Raw, places: c_int) -> bool {
    *result = *a;
    guard(false, || if operation == b's' as c_int { rescale(result, a, places) } else { round(result, a, places) })
}

fn round(result: &mut Raw, a: &Raw, places: c_int) -> bool {
    let Some(mut number) = a.load() else { return false };
    if places < 0 || places > DIGITS as c_int || places >= scale(&number) {
        return false;
    }
    let digits = (precision(&number) - scale(&number) + places).max(1);
    let emin = if places == 0 { 0 } else { -1 };
    finish(result, context(digits as usize, emin, digits as isize, Rounding::HalfUp), |context| {
        context.plus(&mut number);
        number
    })
}

fn rescale(result: &mut Raw, a: &Raw, places: c_int) -> bool {
    let Some(mut number) = a.load() else { return false };
    if places < 0 {
        return false;
    }
    if places <= scale(&number) {
        return round(result, a, places);
    }
    let added = places.saturating_add(number.exponent());
    if places > DIGITS as c_int || (number.digits() as c_int).saturating_add(added) > DIGITS as c_int {
        return false;
    }
    finish(result, usual(), |context| {
        context.rescale(&mut number, &Number::from(-places));
        number
    })
}

/// -1, 0 or 1; 2 when one of them is no number.
extern "C" fn compare(a: &Raw, b: &Raw) -> c_int {
    let (Some(a), Some(b)) = (a.load(), b.load()) else { return 2 };
    guard(2, || match Arithmetic::default().partial_cmp(&a, &b) {
        Some(Ordering::Less) => -1,
        Some(Ordering::Equal) => 0,
        Some(Ordering::Greater) => 1,
        None => 2,
    })
}

/// # Safety
/// `text` has `len` readable bytes.
unsafe extern "C" fn parse(result: &mut Raw, text: *const u8, len: usize) -> bool {
    // SAFETY: the caller's contract.
    let text = unsafe { std::slice::from_raw_parts(text, len) };
    let mut parsed = true;
    let stored = finish(result, usual(), |context| {
        context.parse(text).unwrap_or_else(|_| {
            parsed = false;
            Number::zero()
        })
    });
    stored && parsed
}

extern "C" fn from_i64(result: &mut Raw, value: i64) {
    finish(result, usual(), |context| context.from_i64(value));
}

extern "C" fn from_u64(result: &mut Raw, value: u64) {
    finish(result, usual(), |context| context.from_u64(value));
}

/// Writes the text and returns its length.
///
/// # Safety
/// `buffer` has [`TEXT_LEN`] writable bytes.
unsafe extern "C" fn text(a: &Raw, buffer: *mut u8) -> c_uint {
    let Some(number) = a.load() else { return 0 };
    let text = guard(String::new(), || {
        let plain = number.exponent().unsigned_abs() <= PLAIN_EXPONENT as u32;
        if plain { number.to_standard_notation_string() } else { number.to_string() }
    });
    // SAFETY: the caller's contract.
    unsafe { copy_out(text.as_bytes(), buffer, TEXT_LEN) }
}

/// Writes the payload of the MessagePack extension (scale, then packed digits with the sign) and returns its length.
///
/// # Safety
/// `buffer` has [`TEXT_LEN`] writable bytes.
unsafe extern "C" fn pack(a: &Raw, buffer: *mut u8) -> c_uint {
    let Some(mut number) = a.load() else { return 0 };
    let payload = guard(Vec::new(), || {
        let mut out = Vec::new();
        match (rmp::encode::write_sint(&mut out, -i64::from(number.exponent())), number.to_packed_bcd()) {
            (Ok(_), Some((digits, _))) => out.extend_from_slice(&digits),
            _ => out.clear(),
        }
        out
    });
    // SAFETY: the caller's contract.
    unsafe { copy_out(&payload, buffer, TEXT_LEN) }
}

/// Reads the payload of the MessagePack extension.
///
/// # Safety
/// `payload` has `len` readable bytes.
unsafe extern "C" fn unpack(result: &mut Raw, payload: *const u8, len: usize) -> bool {
    // SAFETY: the caller's contract.
    let payload = unsafe { std::slice::from_raw_parts(payload, len) };
    match guard(None, || unpack_number(payload)) {
        Some(number) => {
            result.store(&number);
            true
        }
        None => false,
    }
}

fn unpack_number(mut payload: &[u8]) -> Option<Number> {
    let scale: i32 = rmp::decode::read_int(&mut payload).ok()?;
    // libdecnumber trusts the length: two digits a byte but for the last, which has one and the sign.
    if payload.is_empty() || payload.len() > UNITS * 3 / 2 {
        return None;
    }
    let number = Number::from_packed_bcd(payload, scale).ok()?;
    let adjusted = number.exponent().checked_add(number.digits() as i32 - 1)?;
    (number.is_finite() && number.digits() <= DIGITS_STORED && adjusted.unsigned_abs() <= 999_999).then_some(number)
}

/// Copies `bytes` and returns their number; 0 when there is no room.
///
/// # Safety
/// `buffer` has `room` writable bytes.
unsafe fn copy_out(bytes: &[u8], buffer: *mut u8, room: usize) -> c_uint {
    if bytes.len() > room {
        return 0;
    }
    // SAFETY: checked above and promised by the caller; a fresh String or Vec never overlaps the buffer.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
    bytes.len() as c_uint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Raw {
        let mut raw = Raw { digits: 1, exponent: 0, bits: 0, lsu: [0; UNITS] };
        // SAFETY: pointer and length of a live str.
        assert!(unsafe { parse(&mut raw, text.as_ptr(), text.len()) }, "{text}");
        raw
    }

    fn write(raw: &Raw) -> String {
        let mut buffer = [0; TEXT_LEN];
        // SAFETY: the buffer is as large as asked for.
        let len = unsafe { text(raw, buffer.as_mut_ptr()) };
        String::from_utf8_lossy(&buffer[..len as usize]).into_owned()
    }

    #[test]
    fn any_payload_is_a_number_or_refused() {
        let mut raw = number("0");
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for len in 0..64 {
            for _ in 0..200 {
                let mut payload = vec![0; len];
                for byte in &mut payload {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    *byte = (seed >> 56) as u8;
                }
                // SAFETY: pointer and length of a live Vec.
                if unsafe { unpack(&mut raw, payload.as_ptr(), len) } {
                    assert!(!write(&raw).is_empty());
                }
            }
        }
    }

    #[test]
    fn payloads_round_trip() {
        for text in ["0", "-0", "1", "-12.34", "99999999999999999999999999999999999999", "0.00001", "1E+3", "-7E-30"] {
            let (from, mut to) = (number(text), number("5"));
            let mut buffer = [0; TEXT_LEN];
            // SAFETY: the buffer is as large as asked for; `len` bytes of it were written.
            let ok = unsafe {
                let len = pack(&from, buffer.as_mut_ptr());
                unpack(&mut to, buffer.as_ptr(), len as usize)
            };
            assert!(ok && write(&from) == write(&to), "{text}");
        }
    }

    #[test]
    fn meaningless_fields_are_refused() {
        let mut raw = number("1");
        raw.digits = 4000;
        let mut result = number("0");
        assert!(!binary(&mut result, b'+'.into(), &raw, &raw));
        assert_eq!(compare(&raw, &raw), 2);
        assert_eq!(write(&raw), "");
    }
}
