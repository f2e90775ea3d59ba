//! Numbers of all kinds in one order, and decimal arithmetic for UPDATE.
//!
//! Source: `src/box/tuple_compare.cc` (mixed comparison), `src/lib/core/decimal.c`, Tarantool 3.9-dev. One deviation: there a
//! double is compared with a decimal through its first 15 digits, so equality is not transitive; here each decimal equals
//! at most one double, the nearest.

use super::mp;
use crate::iproto::mp as put;
use std::cmp::Ordering;

/// Most digits of a decimal.
pub(crate) const MAX_DIGITS: usize = 76;
/// Bound of a decimal's adjusted exponent.
const MAX_EXPONENT: i32 = 999_999;

/// `(-1)^neg * digits * 10^exponent`; `digits` are 0..=9, the highest first, without leading zeros (none at all: zero).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decimal {
    neg: bool,
    digits: Vec<u8>,
    exponent: i32,
}

impl Decimal {
    pub(crate) fn from_u64(n: u64, neg: bool) -> Self {
        let mut digits: Vec<u8> = n.to_string().bytes().map(|b| b - b'0').collect();
        if n == 0 {
            digits.clear();
        }
        Decimal { neg: neg && n != 0, digits, exponent: 0 }
    }

    /// The decimal `printf("%.15g")` shows; nothing for NaN and infinities.
    pub(crate) fn from_f64(d: f64) -> Option<Self> {
        if !d.is_finite() {
            return None;
        }
        let text = format!("{:.14e}", d.abs());
        let (mantissa, exponent) = text.split_once('e')?;
        let mut digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).map(|b| b - b'0').collect();
        while digits.last() == Some(&0) {
            digits.pop();
        }
        if digits.is_empty() {
            return Some(Decimal { neg: false, digits, exponent: 0 });
        }
        let leading: i32 = exponent.parse().ok()?;
        let mut exponent = leading - digits.len() as i32 + 1;
        if exponent > 0 && leading < 15 {
            digits.resize(digits.len() + exponent as usize, 0);
            exponent = 0;
        }
        Some(Decimal { neg: d < 0.0, digits, exponent })
    }

    /// Reads the payload of the decimal extension: scale, packed digits, sign.
    pub(crate) fn unpack(payload: &[u8]) -> Option<Self> {
        let mut bcd = payload;
        let scale = match mp::next(&mut bcd)? {
            mp::Value::Uint(n) => i32::try_from(n).ok()?,
            mp::Value::Int(n) => i32::try_from(n).ok()?,
            _ => return None,
        };
        if bcd.is_empty() || bcd.len() > MAX_DIGITS / 2 + 1 {
            return None;
        }
        let mut nibbles = bcd.iter().flat_map(|b| [b >> 4, b & 0x0f]).collect::<Vec<u8>>();
        let neg = match nibbles.pop()? {
            0x0a | 0x0c | 0x0e | 0x0f => false,
            0x0b | 0x0d => true,
            _ => return None,
        };
        if nibbles.iter().any(|n| *n > 9) {
            return None;
        }
        let leading = nibbles.iter().take_while(|n| **n == 0).count();
        nibbles.drain(..leading);
        let exponent = scale.checked_neg()?;
        let adjusted = exponent.checked_add(nibbles.len() as i32)?;
        if nibbles.len() > MAX_DIGITS || !(-MAX_EXPONENT..=MAX_EXPONENT).contains(&adjusted) {
            return None;
        }
        Some(Decimal { neg: neg && !nibbles.is_empty(), digits: nibbles, exponent })
    }

    /// Appends the decimal as a MessagePack extension.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(16);
        put::put_int(&mut body, -i64::from(self.exponent));
        let mut nibbles = Vec::with_capacity(self.digits.len() + 2);
        if self.digits.len().is_multiple_of(2) {
            nibbles.push(0);
        }
        nibbles.extend_from_slice(&self.digits);
        nibbles.push(if self.neg { 0x0d } else { 0x0c });
        body.extend(nibbles.chunks_exact(2).map(|pair| (pair.first().unwrap_or(&0) << 4) | pair.last().unwrap_or(&0)));
        put::put_ext_len(out, mp::EXT_DECIMAL, body.len() as u32);
        out.extend_from_slice(&body);
    }

    /// The sum, rounded half up to [`MAX_DIGITS`]; nothing when it is out of range.
    pub(crate) fn add(&self, other: &Decimal) -> Option<Decimal> {
        let (big, small) = if self.adjusted() >= other.adjusted() { (self, other) } else { (other, self) };
        if small.digits.is_empty() && big.exponent <= small.exponent {
            return Some(big.clone());
        }
        // Too small to change a digit that is kept; also bounds the work a hostile exponent can cause.
        if !big.digits.is_empty() && i64::from(big.adjusted()) - i64::from(small.adjusted()) > 2 * MAX_DIGITS as i64 + 2
        {
            return Some(big.clone());
        }
        let exponent = self.exponent.min(other.exponent);
        if (self.exponent.max(other.exponent) - exponent) as usize > 4 * MAX_DIGITS {
            return Some(if big.digits.is_empty() { small.clone() } else { big.clone() });
        }
        let (a, b) = (self.shifted(exponent), other.shifted(exponent));
        let (neg, digits) = if self.neg == other.neg {
            (self.neg, add_digits(&a, &b))
        } else {
            match compare_digits(&a, &b) {
                Ordering::Less => (other.neg, subtract_digits(&b, &a)),
                Ordering::Equal => (false, Vec::new()),
                Ordering::Greater => (self.neg, subtract_digits(&a, &b)),
            }
        };
        Decimal { neg, digits, exponent }.rounded()
    }

    pub(crate) fn negated(mut self) -> Self {
        self.neg = !self.neg && !self.digits.is_empty();
        self
    }

    /// Exponent just above the first digit; a zero is below everything.
    fn adjusted(&self) -> i32 {
        if self.digits.is_empty() { i32::MIN / 2 } else { self.exponent.saturating_add(self.digits.len() as i32) }
    }

    fn shifted(&self, exponent: i32) -> Vec<u8> {
        let mut digits = self.digits.clone();
        if !digits.is_empty() {
            digits.resize(digits.len() + (self.exponent - exponent) as usize, 0);
        }
        digits
    }

    fn rounded(mut self) -> Option<Self> {
        let extra = self.digits.len().saturating_sub(MAX_DIGITS);
        if extra > 0 {
            let up = self.digits.get(MAX_DIGITS).is_some_and(|d| *d >= 5);
            self.digits.truncate(MAX_DIGITS);
            self.exponent += extra as i32;
            if up {
                self.digits = add_digits(&self.digits, &[1]);
                if self.digits.len() > MAX_DIGITS {
                    self.digits.pop();
                    self.exponent += 1;
                }
            }
        }
        (self.digits.is_empty() || self.adjusted() <= MAX_EXPONENT).then_some(self)
    }

    /// The nearest double (infinite when too large).
    fn nearest(&self) -> f64 {
        let digits: String = self.digits.iter().map(|d| char::from(b'0' + d)).collect();
        let magnitude = format!("{digits}e{}", self.exponent).parse().unwrap_or(0.0);
        if self.neg { -magnitude } else { magnitude }
    }

    fn without_trailing_zeros(&self) -> &[u8] {
        let zeros = self.digits.iter().rev().take_while(|d| **d == 0).count();
        self.digits.get(..self.digits.len() - zeros).unwrap_or_default()
    }

    fn compare(&self, other: &Decimal) -> Ordering {
        let sign = |d: &Decimal| if d.digits.is_empty() { 0 } else { 1 - 2 * i32::from(d.neg) };
        let by_sign = sign(self).cmp(&sign(other));
        if by_sign != Ordering::Equal || self.digits.is_empty() {
            return by_sign;
        }
        let magnitude =
            (self.adjusted(), self.without_trailing_zeros()).cmp(&(other.adjusted(), other.without_trailing_zeros()));
        if self.neg { magnitude.reverse() } else { magnitude }
    }
}

fn add_digits(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(a.len().max(b.len()) + 1);
    let (mut a, mut b, mut carry) = (a.iter().rev(), b.iter().rev(), 0);
    loop {
        let (x, y) = (a.next(), b.next());
        if x.is_none() && y.is_none() && carry == 0 {
            break;
        }
        let sum = x.unwrap_or(&0) + y.unwrap_or(&0) + carry;
        out.push(sum % 10);
        carry = sum / 10;
    }
    out.reverse();
    out
}

/// `a - b` where `a > b`.
fn subtract_digits(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(a.len());
    let (mut b, mut borrow) = (b.iter().rev(), 0);
    for x in a.iter().rev() {
        let y = b.next().unwrap_or(&0) + borrow;
        borrow = u8::from(*x < y);
        out.push(x + 10 * borrow - y);
    }
    while out.last() == Some(&0) {
        out.pop();
    }
    out.reverse();
    out
}

fn compare_digits(a: &[u8], b: &[u8]) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// A double as an integer that sorts as the double does; zeros are one, NaNs lie below all numbers.
fn ordered(d: f64) -> u64 {
    if d.is_nan() {
        // A signaling NaN sorts before a quiet one.
        return u64::from(d.to_bits() & 0x0008_0000_0000_0000 != 0);
    }
    let bits = (d + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

fn push_exact(out: &mut impl Extend<u8>, d: f64) {
    out.extend(ordered(d).to_be_bytes());
    out.extend([0]);
}

/// A value that is not a double: it follows the double below it, in the order of its own digits.
fn push_after(out: &mut impl Extend<u8>, below: u64, value: &Decimal) {
    out.extend(below.to_be_bytes());
    out.extend([1]);
    let flip = if value.neg { 0xff } else { 0 };
    let adjusted = (i64::from(value.adjusted()) + (1 << 31)) as u32;
    out.extend(adjusted.to_be_bytes().map(|b| b ^ flip));
    out.extend(value.without_trailing_zeros().iter().map(|d| (d + 1) ^ flip));
    out.extend([flip]);
}

/// Appends the sort key of a double.
pub(crate) fn push_f64(out: &mut impl Extend<u8>, d: f64) {
    push_exact(out, d);
}

/// Appends the sort key of an integer (`n` is the value as the wire had it: unsigned, or negative).
pub(crate) fn push_int(out: &mut impl Extend<u8>, n: i128) {
    let d = n as f64;
    if d as i128 == n {
        return push_exact(out, d);
    }
    let below = ordered(d) - u64::from(d as i128 > n);
    push_after(out, below, &Decimal::from_u64(n.unsigned_abs() as u64, n < 0));
}

/// Appends the sort key of a decimal.
pub(crate) fn push_decimal(out: &mut impl Extend<u8>, value: &Decimal) {
    let d = value.nearest();
    let order = if d.is_infinite() {
        if d > 0.0 { Ordering::Less } else { Ordering::Greater }
    } else {
        let image = if d.fract() == 0.0 { integral(d) } else { Decimal::from_f64(d) };
        image.map_or(Ordering::Equal, |image| value.compare(&image))
    };
    match order {
        Ordering::Equal => push_exact(out, d),
        Ordering::Less => push_after(out, ordered(d) - 1, value),
        Ordering::Greater => push_after(out, ordered(d), value),
    }
}

/// An integral double, exactly.
fn integral(d: f64) -> Option<Decimal> {
    let text = format!("{:.0}", d.abs());
    let digits: Vec<u8> = text.bytes().skip_while(|b| *b == b'0').map(|b| b - b'0').collect();
    Some(Decimal { neg: d < 0.0, digits, exponent: 0 })
}

impl std::fmt::Display for Decimal {
    /// Plain notation while it is short, else scientific, as decNumber writes it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut digits: String = self.digits.iter().map(|d| char::from(b'0' + d)).collect();
        if digits.is_empty() {
            digits.push('0');
        }
        if self.neg {
            f.write_str("-")?;
        }
        let leading = self.exponent + digits.len() as i32 - 1;
        if self.exponent > 0 || leading < -6 {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            return write!(f, "{first}{point}{rest}E{leading:+}");
        }
        let fraction = -self.exponent as usize;
        if fraction == 0 {
            f.write_str(&digits)
        } else if digits.len() > fraction {
            let (whole, part) = digits.split_at(digits.len() - fraction);
            write!(f, "{whole}.{part}")
        } else {
            write!(f, "0.{digits:0>fraction$}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        let (neg, text) = text.strip_prefix('-').map_or((false, text), |t| (true, t));
        let (text, exp) = text.split_once('e').map_or((text, 0), |(t, e)| (t, e.parse().unwrap()));
        let scale = text.split_once('.').map_or(0, |(_, f)| f.len()) as i32;
        let digits = text.bytes().filter(u8::is_ascii_digit).map(|b| b - b'0').skip_while(|d| *d == 0).collect();
        Decimal { neg, digits, exponent: exp - scale }
    }

    fn key_of_decimal(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push_decimal(&mut out, &decimal(text));
        out
    }

    fn key_of_f64(d: f64) -> Vec<u8> {
        let mut out = Vec::new();
        push_f64(&mut out, d);
        out
    }

    fn key_of_int(n: i128) -> Vec<u8> {
        let mut out = Vec::new();
        push_int(&mut out, n);
        out
    }

    #[test]
    fn mixed_numbers_sort_by_value() {
        let sorted = [
            key_of_f64(f64::NAN),
            key_of_f64(f64::NEG_INFINITY),
            key_of_decimal("-1e400"),
            key_of_f64(f64::MIN),
            key_of_decimal("-9223372036854775809"),
            key_of_int(i64::MIN.into()),
            key_of_int(i128::from(i64::MIN) + 1),
            key_of_decimal("-9007199254740993.5"),
            key_of_int(-9_007_199_254_740_993),
            key_of_int(-9_007_199_254_740_992),
            key_of_decimal("-1.0000000000000000000001"),
            key_of_int(-1),
            key_of_decimal("-0.99999999999999999999999"),
            key_of_f64(-0.5),
            key_of_decimal("-1e-400"),
            key_of_int(0),
            key_of_decimal("1e-400"),
            key_of_f64(5e-324),
            key_of_decimal("0.09999999999999999999999999"),
            key_of_f64(0.1),
            key_of_decimal("0.10000000000000000000000001"),
            key_of_f64(1.5),
            key_of_int(2),
            key_of_int(9_007_199_254_740_992),
            key_of_int(9_007_199_254_740_993),
            key_of_decimal("9007199254740993.5"),
            key_of_f64(9_007_199_254_740_994.0),
            key_of_int(u64::MAX.into()),
            key_of_f64(18_446_744_073_709_551_616.0),
            key_of_decimal("1e38"),
            key_of_f64(f64::MAX),
            key_of_decimal("1e400"),
            key_of_f64(f64::INFINITY),
        ];
        for pair in sorted.windows(2) {
            assert!(pair[0] < pair[1], "{pair:x?}");
        }
    }

    #[test]
    fn equal_numbers_have_one_key() {
        assert_eq!(key_of_int(5), key_of_f64(5.0));
        assert_eq!(key_of_int(5), key_of_decimal("5.00"));
        assert_eq!(key_of_int(0), key_of_f64(-0.0));
        assert_eq!(key_of_int(0), key_of_decimal("0"));
        assert_eq!(key_of_f64(0.1), key_of_decimal("0.1"));
        assert_eq!(key_of_f64(23.42), key_of_decimal("23.42"));
        assert_eq!(key_of_int(u64::MAX.into()), key_of_decimal("18446744073709551615"));
        assert_eq!(key_of_int(1 << 60), key_of_decimal("1152921504606846976"));
        assert_eq!(key_of_int(9_007_199_254_740_991), key_of_decimal("9007199254740991"));
        assert_eq!(key_of_f64(1e22), key_of_decimal("1e22"));
    }

    #[test]
    fn sums() {
        let sum = |a: &str, b: &str| decimal(a).add(&decimal(b)).unwrap().to_string();
        assert_eq!(sum("1.5", "2.25"), "3.75");
        assert_eq!(sum("999", "1"), "1000");
        assert_eq!(sum("-1", "1"), "0");
        assert_eq!(sum("0.1", "-0.3"), "-0.2");
        assert_eq!(sum("100", "-0.01"), "99.99");
        assert_eq!(sum("1e100", "1e-100"), "1E+100");
        assert_eq!(sum("0", "1e-7"), "1E-7");
        let nines = "9".repeat(76);
        assert_eq!(sum(&nines, "1"), format!("1.{}E+76", "0".repeat(75)));
        assert!(decimal("9e999998").add(&decimal("9e999998")).is_none());
    }

    #[test]
    fn packs_as_tarantool_does() {
        // tarantool> msgpack.encode(decimal.new('-12.3')) and friends
        let pack = |text: &str| {
            let mut out = Vec::new();
            decimal(text).pack(&mut out);
            out
        };
        assert_eq!(pack("-12.3"), [0xc7, 3, 1, 1, 0x12, 0x3d]);
        assert_eq!(pack("5"), [0xd5, 1, 0, 0x5c]);
        assert_eq!(pack("0"), [0xd5, 1, 0, 0x0c]);
        assert_eq!(pack("1e20"), [0xd5, 1, 0xec, 0x1c]);
        for text in ["-12.3", "5", "0", "1e20", "0.0001", "123456789012345678901234567890"] {
            let packed = pack(text);
            let (value, len) = mp::read(&packed).unwrap();
            assert_eq!(len, packed.len());
            let mp::Value::Ext(1, body) = value else { panic!("{value:?}") };
            assert_eq!(Decimal::unpack(body).unwrap(), decimal(text));
        }
    }

    #[test]
    fn refuses_broken_decimals() {
        for body in [&[][..], &[0], &[0, 0x15], &[0, 0xac], &[0xa1, 0x1c], &[0xce, 0xff, 0xff, 0xff, 0xff, 0x1c]] {
            assert_eq!(Decimal::unpack(body), None, "{body:x?}");
        }
        assert_eq!(Decimal::unpack(&[&[0][..], &[0x11; 60], &[0x1c]].concat()), None);
    }

    #[test]
    fn doubles_become_fifteen_digits() {
        let text = |d: f64| Decimal::from_f64(d).unwrap().to_string();
        assert_eq!(text(23.42), "23.42");
        assert_eq!(text(100.0), "100");
        assert_eq!(text(1e20), "1E+20");
        assert_eq!(text(0.1 + 0.2), "0.3");
        assert_eq!(text(-0.001), "-0.001");
    }
}
